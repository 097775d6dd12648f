"""The panels that Figures 3 and 10 share: correlation and gradients by depth for one placement."""

import itertools

import pandas as pd
from matplotlib.figure import Figure

from sigprop.analysis import cells, data
from sigprop.artifacts.errors import UserError
from sigprop.figures import style
from sigprop.models.schemes import SCHEMES


def correlation_and_gradients(
    curves: pd.DataFrame, gradients: pd.DataFrame, sweeps: pd.DataFrame, scheme: str
) -> Figure:
    """Six panels for one placement of LN, `scheme`, at up to two rules for its strengths.

    a, b: mean cosine by layer, one rule each. c, d: loss gradients of queries and values.
    e: Jacobian of one layer against Lemma 3.1 at the tokens it reads. f: one layer on Gaussian
    tokens against their correlation, with (17) and (18).

    Raises UserError when the tables hold another placement, or more rules.
    """
    wanted = SCHEMES[scheme].placement
    curves, gradients = data.labelled(curves), data.labelled(gradients)
    here = gradients["label"].str.startswith(f"{wanted}, ")
    rules = list(dict.fromkeys(curves["label"]))
    if len(rules) > 2 or not all(rule.startswith(f"{wanted}, ") for rule in rules):
        raise UserError(f"this figure shows {wanted} with one or two strengths, not {rules}")
    if not here.any():
        raise UserError(f"scheme: this figure needs gradients of {wanted}, which were not run")
    gradients = gradients[here]
    figure, axes = style.panels(2, 3)
    shades = style.shades([*curves["depth"], *gradients["depth"]])
    for (name, depth), rows in data.groups(curves, "label", "depth"):
        ax = axes[0][rules.index(name)]
        style.draw_curve(ax, data.curve(rows, "cos_mean"), shades[depth])
    names = dict.fromkeys(gradients["label"])
    markers = dict(zip(names, itertools.cycle("os^Dvp*"), strict=False))
    for (name, depth), rows in data.groups(gradients, "label", "depth"):
        for ax, curve in (
            (axes[0][2], data.geometric_curve(rows, "grad_q")),
            (axes[1][0], data.geometric_curve(rows, "grad_v")),
            (axes[1][1], data.geometric_curve(rows, "jacobian_q", "jacobian_q_given_x")),
        ):
            x, look = curve.layer + 1, {"marker": markers[name], "markersize": 3}
            style.draw_curve(ax, curve, shades[depth], x=x, theory_x=curve.theory_layer + 1, **look)
    for quantity, label, colour in (("jacobian_q", "queries", 0), ("jacobian_v", "values", 3)):
        points = cells.means(data.choose(sweeps, grid="rho", sigma_x=0.5), quantity)
        half = 1.96 * points["error"]
        look = {"color": style.PALETTE[colour]}
        axes[1][2].errorbar(points["rho"], points["mean"], half, label=label, **look)
        axes[1][2].plot(points["rho"], points["theory"], linestyle=style.DASHED, **look)
    axes[1][2].legend()

    loss = r"$\|\partial\mathcal{L}/\partial W^%s\|_F^2$"
    one = r"$\|\partial S/\partial W^Q\|_F^2$"
    for ax, name in itertools.zip_longest(axes[0][:2], rules):
        ax.set(title=_short(name, wanted), ylabel="mean cosine", ylim=(0, 1.02))
    axes[0][2].set(title="Loss gradient, queries", ylabel=loss % "Q")
    axes[1][0].set(title="Loss gradient, values", ylabel=loss % "V")
    axes[1][1].set(title="One layer, Lemma 3.1 given $X^l$", ylabel=one)
    axes[1][2].set(title="One layer, Gaussian tokens", xlabel=r"token correlation $\rho$")
    axes[1][2].set(ylabel=r"E $\|\partial S/\partial W\|_F^2$")
    for ax in axes.flat[:5]:
        ax.set(xlabel="layer")
    for ax in axes.flat[2:]:
        ax.set(yscale="log")
    style.letter(axes.flat)
    colours = {f"$L={depth}$": colour for depth, colour in shades.items()}
    shapes = {f"{_short(name, wanted)} (c to e)": marker for name, marker in markers.items()}
    style.legend(figure, colours, markers=shapes, loc="outside right center")
    return figure


def _short(label: str | None, placement: str) -> str:
    """A label without the placement that the whole figure has; empty for an empty panel."""
    return (label or "").removeprefix(f"{placement}, ")

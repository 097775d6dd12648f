"""The panels of the figures on token geometry."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sigprop.analysis import data, geometry, phases
from sigprop.analysis.geometry_tables import Measure
from sigprop.figures import phase_panels, style

ORDERED, CHAOTIC = style.PALETTE[0], style.PALETTE[3]
_MARKERS = {"renorm": "s", "relu": "^"}
_LIMIT = 1.0  # of the colours of exponents per block
_LEVELS = [0.03, 0.1, 0.3, 1.0]  # of lambda_g
# Settings of `geometry` that collapse from the simplex at a rate.
_FROM_SIMPLEX = ("ordered", "ordered_strong", "attention_only")


# Both exponents over strength and weight scale


def angle_exponents(
    plane: pd.DataFrame, grid: pd.DataFrame, wide: pd.DataFrame, paths: pd.DataFrame
) -> Figure:
    """lambda_a. a: theory, simulation on top. b: simulation. c: one by one. d: deviation by size.

    Args:
        plane: closed form, the `phases` table.
        grid: simulated over strength and weight scale, conv, networks of one width.
        wide: wide networks one by one, nearly collapsed tokens.
        paths: moments by layer from the simplex.
    """
    figure, axes = style.panels(2, 2, height=2.9)
    image = _maps(axes[0], plane, grid, geometry.angle_exponent, "lambda_a", r"\lambda_a")
    figure.colorbar(image, ax=axes[0], label="per block", extend="both", shrink=0.9)

    ax = axes[1, 0]
    _one_by_one(ax, wide, geometry.angle_exponent)
    for _, rows in data.groups(data.choose(wide, grid="attention_only"), "alpha_attn"):
        _draw_against(ax, rows, geometry.angle_exponent(rows), "D")
    for name in _FROM_SIMPLEX:
        rows = data.choose(paths, grid=name)
        found = geometry.late_angle_exponent(rows)
        _draw_against(ax, rows, found, "o", markerfacecolor="white")
    _identity(ax, "Theory against simulation")
    shapes = {"conv, tanh": "o", "renorm, tanh": "s", "conv, ReLU": "^", "attention only": "D"}
    lines = {"equal": style.DASHED}
    style.legend(ax, {}, theory=False, markers=shapes, linestyles=lines, loc="lower right")
    ax.text(0.03, 0.97, "open: from the simplex", transform=ax.transAxes, va="top", size=7)

    _draw_sizes(axes[1, 1], wide)
    style.letter(axes.flat)
    return figure


def gradient_exponents(
    plane: pd.DataFrame, grid: pd.DataFrame, wide: pd.DataFrame, backward: pd.DataFrame
) -> Figure:
    """a: lambda_g by theory, simulation on top. b: simulation. c: one by one. d: lambda_g_traj.

    Args:
        plane, grid, wide: as for `angle_exponents`.
        backward: gradients by layer under independent readouts; those of as many blocks as the
            plane's are drawn on top of d.
    """
    figure, axes = style.panels(2, 2, height=2.9)
    image = _maps(axes[0], plane, grid, geometry.gradient_exponent, "lambda_g", r"\lambda_g")
    _one_by_one(axes[1, 0], wide, geometry.gradient_exponent)
    _identity(axes[1, 0], "Theory against simulation")
    shapes = {"conv, tanh": "o", "renorm, tanh": "s", "conv, ReLU": "^"}
    lines = {"equal": style.DASHED}
    style.legend(axes[1, 0], {}, theory=False, markers=shapes, linestyles=lines, loc="lower right")

    ax = axes[1, 1]
    x, y, z = phases.plane(plane, "diagonal", "lambda_g_traj", mode="conv")
    phase_panels.draw_map(ax, x, y, z, _LIMIT)
    phase_panels.draw_levels(ax, x, y, z, [-0.02, 0.1, 0.3])
    blocks = int(data.choose(plane, grid="diagonal", quantity="lambda_g_traj")["depth"].iloc[0])
    on_the_plane = backward[
        (backward["mode"] == "conv")
        & (backward["activation"] == "tanh")
        & (backward["sigma_a"] == 1.0)
        & (backward["depth"] == blocks)
        & (backward["grid"] != "width")  # the same setting again, in networks of other widths
        & (backward["alpha_attn"] == backward["alpha_ff"])
    ]
    for _, rows in data.groups(on_the_plane, "grid", "d_model"):
        value = geometry.gradient_exponent(rows, "lambda_g_traj").value
        _draw_points(ax, rows["sigma_w1"].iloc[:1], rows["alpha_attn"].iloc[:1], [value], 34)
    ax.set(title=rf"$\lambda_g$ over {blocks} blocks from $\rho=0$")
    ax.set(xlabel=r"$\sigma_w$", ylabel=r"$\alpha_A=\alpha_M$")
    for row in axes:
        figure.colorbar(image, ax=row, label="per block", extend="both", shrink=0.9)
    style.letter(axes.flat)
    return figure


def _maps(
    axes: Any, plane: pd.DataFrame, grid: pd.DataFrame, measure: Measure, name: str, symbol: str
) -> Any:
    """Theory with simulated points on top, and simulation under the lines of theory; the image."""
    x, y, theory = phases.plane(plane, "diagonal", name, mode="conv")
    found = [
        (sigma, alpha, measure(rows).value)
        for (alpha, sigma), rows in data.groups(grid, "alpha_attn", "sigma_w1")
    ]
    points = pd.DataFrame(found, columns=["sigma", "alpha", "value"])
    wide = points.pivot(index="alpha", columns="sigma", values="value")
    sigmas, alphas = wide.columns.to_numpy(np.float64), wide.index.to_numpy(np.float64)
    image = phase_panels.draw_map(axes[0], x, y, theory, _LIMIT)
    simulated = phase_panels.draw_map(axes[1], sigmas, alphas, wide.to_numpy(), _LIMIT, zero=False)
    simulated.set_rasterized(True)
    for ax in axes:
        if name == "lambda_g":
            phase_panels.draw_levels(ax, x, y, theory, _LEVELS)
        elif ax is axes[1]:
            phase_panels.draw_edge(ax, x, y, theory)
        if name == "lambda_a" and not np.nanmin(theory) < 0 < np.nanmax(theory):
            ax.text(
                0.5, 0.97, "no critical line here", transform=ax.transAxes, ha="center", va="top"
            )
        ax.set(xlabel=r"$\sigma_w$", ylabel=r"$\alpha_A=\alpha_M$", ylim=(0, 1))
    axes[0].set(xlim=(x[0], x[-1]))
    half = 0.5 * (sigmas[1] - sigmas[0])
    axes[1].set(xlim=(sigmas[0] - half, sigmas[-1] + half))
    few = points[points["sigma"].isin(sigmas[1::3]) & points["alpha"].isin(alphas[1::3])]
    few = few[few["sigma"].between(x[0], x[-1], inclusive="neither")]
    _draw_points(axes[0], few["sigma"], few["alpha"], few["value"], 20)
    axes[0].set(title=f"${symbol}$, theory; points simulated")
    axes[1].set(title=f"${symbol}$, simulation; line of theory")
    if name == "lambda_g":
        axes[1].set(title=f"${symbol}$, simulation; levels of theory")
    return image


def _draw_points(ax: Axes, x: Any, y: Any, values: Any, size: float) -> None:
    """Simulated exponents in the colours of the map below them."""
    ax.scatter(
        x,
        y,
        c=values,
        s=size,
        cmap=phase_panels.MAP_COLOURS,
        vmin=-_LIMIT,
        vmax=_LIMIT,
        edgecolors="0.25",
        linewidths=0.6,
        zorder=4,
    )


def _one_by_one(ax: Axes, wide: pd.DataFrame, measure: Measure) -> None:
    for name in geometry.SETTINGS:
        rows = data.choose(wide, grid=name)
        _draw_against(ax, rows, measure(rows), _MARKERS.get(name, "o"))


def _draw_against(
    ax: Axes, rows: pd.DataFrame, exponent: geometry.Exponent, marker: str, **options: Any
) -> None:
    """One setting, in the colour of its phase."""
    spread = [[exponent.value - exponent.low], [exponent.high - exponent.value]]
    look = {"ms": 3.5, "color": CHAOTIC if geometry.is_chaotic(rows) else ORDERED} | options
    ax.errorbar(exponent.theory, exponent.value, spread, fmt=marker, **look)


def _identity(ax: Axes, title: str) -> None:
    ends = np.array(ax.get_xlim())
    ax.plot(ends, ends, color="0.4", linestyle=style.DASHED, linewidth=1)
    ax.set(xlabel="theory, per block", ylabel="simulation, per block", title=title)


def _draw_sizes(ax: Axes, wide: pd.DataFrame) -> None:
    """Simulated minus theoretical lambda_a as width, tokens and logits grow, with intervals."""
    at, labels = 0, []
    for grid, column, name in (
        ("width", "d_model", "d"),
        ("tokens", "n_tokens", "n"),
        ("logit_scale", "sigma_a", r"\sigma_A"),
    ):
        for (size,), rows in data.groups(data.choose(wide, grid=grid), column):
            for _, here in data.groups(rows, "sigma_w1"):
                found = geometry.angle_exponent(here)
                chaotic = found.theory > 0
                value, low, high = (x - found.theory for x in (found.value, found.low, found.high))
                place = at + (0.12 if chaotic else -0.12)
                look = {"fmt": "o", "ms": 3.5, "color": CHAOTIC if chaotic else ORDERED}
                ax.errorbar(place, value, [[value - low], [high - value]], **look)
            labels.append(f"${name}={size:g}$")
            at += 1
        ax.axvline(at - 0.5, color="0.8", linewidth=0.6)
    ax.axhline(0, color="0.4", linestyle=style.DASHED, linewidth=1)
    ax.set_xticks(range(at), labels, rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
    ax.set(
        title="Deviation by size",
        ylabel=r"$\lambda_a$, simulation $-$ theory",
        xlim=(-0.5, at - 0.5),
    )
    ax.grid(visible=False, axis="x")
    style.legend(ax, {"ordered": ORDERED, "chaotic": CHAOTIC}, theory=False)


# Moments by layer

# Columns of the figure: what its panels are titled, and the settings in them.
_PATHS = (
    (
        "Mode conv, tanh",
        {"ordered": "ordered", "attention_only": "attention only", "chaotic": "chaotic"},
    ),
    (
        "Mode conv, tanh",
        {
            "ordered_strong": "ordered, strong",
            "chaotic_strong": "chaotic, strong MLP",
            "sharp_attention": r"chaotic, $\sigma_A=3$",
        },
    ),
    (
        "Other modes and ReLU",
        {"renorm": "renorm, chaotic", "unit": "unit, chaotic", "relu": "conv, ReLU"},
    ),
)
PATHS = tuple(name for _, cases in _PATHS for name in cases)


def paths(table: pd.DataFrame) -> Figure:
    """a to f: cosine and norm by layer in both phases. g to i: at strengths 1/sqrt(L)."""
    figure, axes = style.panels(3, 3)
    phase = (ORDERED, style.PALETTE[7], CHAOTIC)
    other = (style.PALETTE[1], style.PALETTE[2], style.PALETTE[4])
    for column, (title, cases) in enumerate(_PATHS):
        cosine, norm = axes[:2, column]
        colours = dict(zip(cases, other if column == 2 else phase, strict=True))
        for name, colour in colours.items():
            rows = data.choose(table, grid=name)
            style.draw_curve(cosine, geometry.cosine_curve(rows), colour)
            style.draw_curve(norm, geometry.norm_curve(rows), colour)
        cosine.set(title=f"{title}: cosine", xlabel="block", ylim=(-0.02, 1.03))
        cosine.set(ylabel="$c = p/q$")
        norm.set(title=f"{title}: norm", xlabel="block", ylabel=r"$q=|x|^2/d$")
        handles = {cases[name]: colour for name, colour in colours.items()}
        style.legend(cosine, handles, theory=column == 0, fontsize=6.5)
    _draw_scaled(axes[2], table)
    style.letter(axes.flat)
    return figure


def _draw_scaled(axes: Any, table: pd.DataFrame) -> None:
    """Strengths 1/sqrt(L) over l / L; in grey the same sigma_w at strengths .5."""
    scaled = data.choose(table, grid="inverse_sqrt_depth")
    colours = style.shades(scaled["depth"])
    settings: dict[str, Any] = {"mode": "conv", "activation": "tanh", "depth_power": 0.0}
    settings |= {"alpha_attn": 0.5, "alpha_ff": 0.5, "sigma_a": 1.0}
    fixed = data.choose(table, **settings)
    for ax, ((sigma_w,), rows) in zip(axes, data.groups(scaled, "sigma_w1"), strict=False):
        for (depth,), here in data.groups(rows, "depth"):
            for panel, curve in ((ax, geometry.cosine_curve), (axes[2], geometry.norm_curve)):
                found = curve(here)
                x, theory_x = found.layer / depth, found.theory_layer / depth
                style.draw_curve(panel, found, colours[depth], x=x, theory_x=theory_x)
        same = data.choose(fixed, sigma_w1=sigma_w)
        if len(same):
            found = geometry.cosine_curve(same)
            ax.plot(found.layer / found.layer[-1], found.mean, color="0.6", lw=1)
        ax.set(title=rf"$\alpha=1/\sqrt{{L}}$, $\sigma_w={sigma_w:g}$: cosine")
        ax.set(ylabel="$c = p/q$", ylim=(-0.02, 1.03))
        end = geometry.norm_curve(rows[rows["depth"] == max(colours)]).mean[-1]
        beside: dict[str, Any] = {"va": "center", "size": 7, "textcoords": "offset points"}
        axes[2].annotate(rf"$\sigma_w={sigma_w:g}$", (1, end), (5, 0), **beside)
    axes[2].set(title=r"$\alpha=1/\sqrt{L}$: norm", ylabel=r"$q=|x|^2/d$")
    for ax in axes:
        ax.set(xlabel="block / depth, $l/L$")
    names = {f"$L={depth}$": colour for depth, colour in colours.items()}
    names |= {r"$\alpha=0.5$": "0.6"}
    style.legend(axes[1], names, theory=False)


# Where tokens end up


def ends(points: pd.DataFrame, single: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """a, b: stable rho* and q* by weight scale, simulated ends on top. c: after as many blocks.

    d to f: single pairs and single tokens.

    Args:
        points: moments of long stacks, from two starts.
        single: cosines of single pairs, norms of single tokens.
        table: closed form, the `phases` table.
    """
    figure, axes = style.panels(2, 3, height=2.7)
    _draw_stable(axes[0, 0], axes[0, 1], points, table)
    transition = data.choose(points, grid="transition")
    last = int(transition["layer"].max())
    starts = dict(zip(sorted(set(transition["rho0"])), style.PALETTE[4:], strict=False))
    ax = axes[0, 2]
    for (start,), rows in data.groups(data.choose(transition, layer=last), "rho0"):
        _draw_ends(ax, rows, starts[start])
    alpha = float(transition["alpha_attn"].iloc[0])
    ax.set(title=rf"After {last} blocks, $\alpha={alpha:g}$", xlabel=r"$\sigma_w$")
    ax.set(ylabel="cosine $c = p/q$", ylim=(-0.02, 1.03))
    handles = {f"from cosine {start:g}": colour for start, colour in starts.items()}
    lines = {f"theory, {last} blocks": style.DASHED}
    style.legend(ax, handles, theory=False, linestyles=lines, loc="lower left")

    layers = sorted(set(single["layer"]))[-2:]
    looks = dict(zip(layers, (style.DOTTED, style.SOLID), strict=False))
    tones = {"ordered": ORDERED, "chaotic": CHAOTIC}
    for name, colour in tones.items():
        for layer, look in looks.items():
            rows = data.choose(single, grid=name, layer=layer)
            _draw_single(axes[1, 0], axes[1, 1], rows, colour, look, layer == layers[-1])
    axes[1, 0].set(title="Cosines of single pairs", xlabel="cosine", ylabel="density", yscale="log")
    axes[1, 1].set(title="Norms of single tokens", xlabel="$|x|^2/d$", ylabel="density")
    lines = {f"block {layer}": look for layer, look in looks.items()}
    lines |= {f"theory, block {layers[-1]}": style.DASHED}
    style.legend(axes[1, 1], tones, theory=False, linestyles=lines, fontsize=6.5)

    ax = axes[1, 2]
    for name, colour in (tones | {"unit": style.PALETTE[2]}).items():
        layer, spread, low, high = geometry.pair_spread(data.choose(single, grid=name))
        ax.plot(layer, spread, "o-", color=colour, ms=3)
        ax.fill_between(layer, low, high, color=colour, alpha=0.22, linewidth=0)
    d = int(single["d_model"].iloc[0])
    ax.axhline(d**-0.5, color="0.4", linestyle=style.DASHED, linewidth=1)
    ax.set(title="Spread over the pairs of a network", xlabel="block", xscale="log", yscale="log")
    ax.set(ylabel="standard deviation of the cosine")
    ax.set_xticks(layers_of(single), [str(layer) for layer in layers_of(single)])
    ax.set_xticks([], minor=True)
    names = tones | {"chaotic, mode unit": style.PALETTE[2]}
    lines = {r"$1/\sqrt{d}$, independent tokens": style.DASHED}
    style.legend(ax, names, theory=False, linestyles=lines, fontsize=6.5)
    style.letter(axes.flat)
    return figure


def layers_of(single: pd.DataFrame) -> list[int]:
    """Kept layers, ascending."""
    return sorted(int(layer) for layer in set(single["layer"]))


def _draw_stable(cosine: Axes, norm: Axes, points: pd.DataFrame, table: pd.DataFrame) -> None:
    """rho* and q* of theory by sigma_w, both transitions, and simulated last layers."""
    stable = data.choose(table, grid="simplex", mode="conv")
    simulated = points[points["layer"] == points["layer"].max()]
    n_tokens = float(simulated["n_tokens"].iloc[0])
    finite = [n for n in sorted(set(stable["n_tokens"])) if np.isfinite(n)]
    shown = n_tokens if n_tokens in finite else max(finite)
    looks = {np.inf: style.DASHED, shown: style.DOTTED}
    alphas = sorted(set(stable["alpha_attn"]))
    colours = dict(zip(alphas, style.PALETTE, strict=False))
    for alpha, colour in colours.items():
        rows = data.choose(stable, alpha_attn=alpha)
        for n, look in looks.items():
            for ax, quantity in ((cosine, "rho_star"), (norm, "q_star")):
                x, y = phases.line(data.choose(rows, n_tokens=n), quantity, "sigma_w1")
                ax.plot(x, y, color=colour, linestyle=look, linewidth=1.2)
        for quantity, level in (("sigma_c", 1.0), ("sigma_orthogonal", 0.0)):
            at = data.choose(rows, quantity=quantity)["value"]
            cosine.plot(at, [level] * len(at), "|", color=colour, ms=9, mew=1.6, clip_on=False)
        for (start,), here in data.groups(data.choose(simulated, alpha_attn=alpha), "rho0"):
            marker = "^" if start > 0.5 else "v"
            _draw_ends(cosine, here, colour, marker, theory=False)
            _draw_ends(norm, here, colour, marker, theory=False, quantity="q")
    cosine.set(title=r"Stable cosine $\rho^*$", xlabel=r"$\sigma_w$", ylabel=r"$\rho^*$")
    cosine.set(ylim=(-0.03, 1.03))
    norm.set(title="Stable norm $q^*$", xlabel=r"$\sigma_w$", ylabel=r"$q^*=|x|^2/d$", yscale="log")
    norm.set_yticks([1, 2, 3, 5, 8], ["1", "2", "3", "5", "8"])
    norm.set_yticks([], minor=True)
    names = {rf"$\alpha={alpha:g}$": colour for alpha, colour in colours.items()}
    lines = {r"theory, $n=\infty$": style.DASHED, f"theory, $n={shown:g}$": style.DOTTED}
    style.legend(cosine, names, theory=False, linestyles=lines, fontsize=6.5, loc="lower left")
    starts = {"simulated, from far": "v", "simulated, from near": "^", "transitions": "|"}
    style.legend(norm, {}, theory=False, markers=starts, fontsize=6.5, loc="lower right")


def _draw_ends(
    ax: Axes,
    rows: pd.DataFrame,
    colour: Any,
    marker: str = "o",
    *,
    theory: bool = True,
    quantity: str = "cosine",
) -> None:
    """One layer by sigma_w with its intervals, and theory at the same layer."""
    curve = geometry.norm_curve if quantity == "q" else geometry.cosine_curve
    found = [(s, curve(here)) for (s,), here in data.groups(rows, "sigma_w1")]
    x = [sigma for sigma, _ in found]
    mean, low, high, expected = (
        np.array([getattr(at, name)[0] for _, at in found])
        for name in ("mean", "low", "high", "theory")
    )
    ax.errorbar(x, mean, [mean - low, high - mean], fmt=marker, ms=3.5, color=colour)
    if theory:
        ax.plot(x, expected, color=colour, linestyle=style.DASHED, linewidth=1)


def _draw_single(
    pairs: Axes, norms: Axes, rows: pd.DataFrame, colour: Any, look: Any, with_theory: bool
) -> None:
    simulated = data.choose(rows, source="simulation")
    cosines = data.choose(simulated, quantity="pair_cosine")["value"].to_numpy(np.float64)
    sizes = data.choose(simulated, quantity="token_norm")["value"].to_numpy(np.float64)
    options: dict[str, Any] = {"histtype": "step", "density": True, "color": colour}
    bins = np.linspace(min(float(cosines.min()), -0.2), 1, 81)
    pairs.hist(cosines, bins.tolist(), linestyle=look, **options)
    norms.hist(sizes, 60, linestyle=look, **options)
    if with_theory:
        q, p = (
            float(data.choose(rows, quantity=name, source="theory")["value"].iloc[0])
            for name in "qp"
        )
        pairs.axvline(p / q, color=colour, linestyle=style.DASHED, linewidth=1)
        norms.axvline(q, color=colour, linestyle=style.DASHED, linewidth=1)

"""Panels of final losses: maps, the plane of the two exponents, regressions, depth."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sigprop.analysis import trainability as fit
from sigprop.analysis.stats import Array
from sigprop.analysis.trainability import Estimate
from sigprop.figures import style

COLOURS = "viridis"
EDGE = "crimson"
NORM = LogNorm(0.02, 1.6)  # test loss in nat; the same colours in every panel
CHANCE = 1.536  # guessing the class frequencies, 16 symbols out of 8
GROWTH = 7.0  # L lambda_g at which growing gradients spoil training in our pilot

_LABELS = {
    "both": r"both $\lambda_a$, $\lambda_g$",
    "angle": r"$\lambda_a$ alone",
    "gradient": r"$\lambda_g$ alone",
    "trajectory": r"$\lambda_a$, $\lambda_g^{\rm traj}$",
    "stable point": r"$\lambda_a$, $\lambda_g^{*}$",
    "raw": "raw settings",
    "strengths": r"$\alpha_A^2$, $\alpha_M^2$",
    "rms": r"rms $\alpha$, $\sigma_w$",
    "mean": r"mean $\alpha$, $\sigma_w$",
}


def draw_loss_map(ax: Axes, points: pd.DataFrame) -> Any:
    """Test loss of a grid over (sigma_w, alpha), with lambda_a = 0 and L lambda_g = `GROWTH`.

    The lines interpolate the theory linearly between configurations; mode unit has none. Returns
    the image.
    """
    wide = points.pivot(index="alpha_attn", columns="sigma_w", values="test_loss").sort_index()
    image = ax.imshow(wide.to_numpy(), origin="lower", norm=NORM, cmap=COLOURS, aspect="auto")
    for (i, j), value in np.ndenumerate(wide.to_numpy()):
        tone = "white" if value < 0.2 else "black"
        ax.text(j, i, f"{value:.2g}", ha="center", va="center", fontsize=6, color=tone)
    lines = (("l_a", 0.0, style.SOLID), ("l_g", GROWTH, style.DASHED))
    for column, level, linestyle in lines if "l_a" in points else ():
        theory = points.pivot(index="alpha_attn", columns="sigma_w", values=column).sort_index()
        z = theory.to_numpy()
        if z.min() < level < z.max():
            ax.contour(z, levels=[level], colors=[EDGE], linestyles=[linestyle])
    ax.set_xticks(range(wide.shape[1]), [f"{value:g}" for value in wide.columns])
    ax.set_yticks(range(wide.shape[0]), [f"{value:.2g}" for value in wide.index])
    ax.set(xlabel=r"$\sigma_w$", ylabel=r"$\alpha_A=\alpha_M$")
    ax.grid(visible=False)
    return image


def draw_plane(ax: Axes, designs: Mapping[str, pd.DataFrame]) -> Any:
    """Test loss in the plane (L lambda_a, L lambda_g), a marker for each design; the last image."""
    image: Any = None
    for (name, points), marker in zip(designs.items(), "os^D", strict=False):
        image = ax.scatter(
            points["l_a"],
            points["l_g"],
            c=points["test_loss"],
            norm=NORM,
            cmap=COLOURS,
            marker=marker,
            s=22,
            linewidths=0.4,
            edgecolors="0.3",
            label=name,
        )
    ax.axvline(0, ymax=0.88, color=EDGE, linewidth=0.9)  # below the legend
    ax.axhline(GROWTH, color=EDGE, linewidth=0.9, linestyle=style.DASHED)
    ax.set(xlabel=r"$L\lambda_a$", ylabel=r"$L\lambda_g$")
    ax.set_xscale("symlog", linthresh=3)
    ax.set_yscale("symlog", linthresh=3)
    ax.set_xticks([-30, -3, 0, 3, 30], ["-30", "-3", "0", "3", "30"])
    ax.set_yticks([0, 1, 3, 10, 30], ["0", "1", "3", "10", "30"])
    ax.set(xlim=(-40, 40), ylim=(-0.3, 80))
    ax.legend(loc="upper center", ncols=3, columnspacing=0.8, handletextpad=0.1)
    return image


def draw_predictions(ax: Axes, y: Array, predictions: Mapping[str, Array]) -> None:
    """Predicted against actual loss on logarithmic axes, with the diagonal."""
    for index, (name, f) in enumerate(predictions.items()):
        look = {"color": style.PALETTE[index], "alpha": 0.8, "mew": 0.4}
        ax.plot(y, f, "os^D"[index % 4], markersize=3.5, label=name, **look)
    ends = np.array([0.8 * min(y.min(), *map(np.min, predictions.values())), 2.0])
    ax.plot(ends, ends, color="0.5", linewidth=0.8, linestyle=style.DASHED)
    ax.set(xscale="log", yscale="log", xlabel="test loss / nat", ylabel="predicted loss / nat")
    ax.set(ylim=(None, 12))
    ax.legend(loc="upper left")


def draw_skill(ax: Axes, found: Mapping[str, Estimate], null: float | None = None) -> None:
    """Bars of R^2 with their intervals; the dotted line is the 95 % quantile of shuffled losses."""
    names = list(found)
    values = np.array([found[name].value for name in names])
    ends = np.array([[found[name].low, found[name].high] for name in names]).T
    error = np.abs(np.stack([values - ends[0], ends[1] - values]))
    tones = [style.PALETTE[0] if name == "both" else "0.6" for name in names]
    floor = -1.0  # a regression can be worse than the mean without limit
    ax.barh(range(len(names)), np.maximum(values, floor), color=tones, height=0.65)
    ax.errorbar(
        np.maximum(values, floor), range(len(names)), xerr=error, fmt="none", color="0.2", lw=1
    )
    if null is not None:
        ax.axvline(null, color="0.2", linestyle=style.DOTTED, linewidth=1)
    ax.set_yticks(range(len(names)), [_LABELS.get(name, name) for name in names])
    ax.invert_yaxis()
    ax.axvline(0, color="0.4", linewidth=0.8)
    ax.set(xlim=(floor, 1.0), xlabel="$R^2$")
    ax.grid(visible=False, axis="y")


def leave_one_out_skill(points: pd.DataFrame) -> tuple[dict[str, Estimate], float]:
    """R^2 of the nearest-neighbour regression by set of features, and the shuffled quantile."""
    y = fit.losses(points)
    names = ("both", "angle", "gradient", "trajectory", "stable point", "raw", "strengths")
    predictions = {name: fit.predict_neighbours(fit.features(points, name), y) for name in names}
    found = {name: fit.r_squared(y, f) for name, f in predictions.items()}
    return found, fit.permutation_null(fit.features(points, "both"), y)[1]


def transfer_skill(grid: pd.DataFrame, points: pd.DataFrame) -> dict[str, Estimate]:
    """R^2 on `points` of the kernel regression fitted on the grid, by set of features."""
    names = ("both", "angle", "gradient", "rms", "mean")
    return {
        name: fit.r_squared(fit.losses(points), _transfer(grid, points, name)) for name in names
    }


def _transfer(grid: pd.DataFrame, points: pd.DataFrame, name: str) -> Array:
    return fit.predict_transfer(
        fit.features(grid, name), fit.losses(grid), fit.features(points, name)
    )


def loss_maps(maps: Mapping[str, pd.DataFrame]) -> Figure:
    """One map for each title, in a row, with one colour bar."""
    figure, axes = style.panels(1, len(maps), height=2.9, squeeze=False)
    image: Any = None
    for ax, (title, points) in zip(axes[0], maps.items(), strict=True):
        image = draw_loss_map(ax, points)
        ax.set_title(title)
    figure.colorbar(image, ax=axes, label="test loss / nat", shrink=0.9)
    if len(maps) > 1:
        style.letter(axes[0])
    lines: dict[str, Any] = {
        r"$\lambda_a=0$": style.SOLID,
        rf"$L\lambda_g={GROWTH:g}$": style.DASHED,
    }
    handles = [
        Line2D([], [], color=EDGE, linestyle=linestyle, label=name)
        for name, linestyle in lines.items()
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=2)
    return figure


def exponents_predict(grid: pd.DataFrame, points: pd.DataFrame, edge: pd.DataFrame) -> Figure:
    """Four panels: loss in the plane of exponents; predicted against actual; two sets of bars.

    `grid`, `points` and `edge` are configurations of the diagonal grid, of the Latin hypercube and
    of the design near lambda_a = 0, of one training seed. The last are only shown in the plane.
    """
    figure, axes = style.panels(2, 2, height=2.8)
    designs = {"hypercube": points, "grid": grid, "edge": edge}
    image = draw_plane(axes[0, 0], designs)
    figure.colorbar(image, ax=axes[0, 0], label="test loss / nat")
    y = fit.losses(points)
    draw_predictions(
        axes[0, 1],
        y,
        {
            "leave one out, 3 nearest": fit.predict_neighbours(fit.features(points, "both"), y),
            "from the grid, kernel": _transfer(grid, points, "both"),
        },
    )
    draw_skill(axes[1, 0], *leave_one_out_skill(points))
    draw_skill(axes[1, 1], transfer_skill(grid, points))
    axes[0, 0].set_title("Final loss")
    axes[0, 1].set_title("Both exponents, hypercube")
    axes[1, 0].set_title("Leave one out, hypercube")
    axes[1, 1].set_title("Grid to hypercube")
    style.letter(axes.flat)
    return figure


def draw_depths(by_alpha: Axes, by_exponent: Axes, designs: list[pd.DataFrame]) -> dict[int, Any]:
    """Loss against alpha and against L lambda_a, by depth: every training, and their median.

    `designs`: configurations of one sigma_w and depth each, with alpha_attn = alpha_ff, of all
    training seeds. Returns the colour of each depth.
    """
    depths = [int(points["depth"].iloc[0]) for points in designs]
    colours = style.shades(depths)
    for depth, points in zip(depths, designs, strict=True):
        for ax, column in ((by_alpha, "alpha_attn"), (by_exponent, "l_a")):
            median = points.groupby(column)["test_loss"].median()
            ax.plot(points[column], points["test_loss"], "o", color=colours[depth], markersize=3)
            ax.plot(median.index, median, color=colours[depth])
    for ax in (by_alpha, by_exponent):
        ax.axhline(fit.FAILED, color="0.4", linestyle=style.DOTTED, linewidth=0.9)
        ax.axhline(CHANCE, color="0.6", linewidth=0.8)
        ax.set(yscale="log", ylabel="test loss / nat")
    by_alpha.set(xlabel=r"$\alpha_A=\alpha_M$")
    by_exponent.set(xlabel=r"$L\lambda_a$")
    return colours

"""Closed-form phase diagrams: from the `phases` table to arrays, and how maps and lines look."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from numpy.typing import NDArray

from sigprop.figures.data import choose
from sigprop.figures.style import DASHED, DOTTED

Array = NDArray[np.float64]

MAP_COLOURS = "vlag"  # diverging, blue to red through white; told apart by colour-blind readers
EDGE_COLOUR = "black"


def plane(
    table: pd.DataFrame, grid: str, quantity: str, **wanted: Any
) -> tuple[Array, Array, Array]:
    """(x, y, z) of one quantity over a plane, z of shape (len(y), len(x)).

    x = sigma_w1 and y = alpha_attn = alpha_mlp where both alphas are equal throughout, else
    x = alpha_attn and y = alpha_mlp. `wanted` picks one mode, variant, sigma_w1, ... of the grid.
    Missing points (lambda_a = -inf, say) are nan.

    Raises:
        ValueError: the chosen rows are none, or not one for each point.
    """
    rows = choose(table, grid=grid, quantity=quantity, **wanted)
    diagonal = bool((rows["alpha_attn"] == rows["alpha_mlp"]).all())
    x, y = ("sigma_w1", "alpha_attn") if diagonal else ("alpha_attn", "alpha_mlp")
    if rows.empty or rows.duplicated([x, y]).any():
        raise ValueError(
            f"{quantity} of grid {grid}: {len(rows)} rows are not one value per point; pick one "
            "of its modes, variants, activations or sigma_w1"
        )
    wide = rows.pivot(index=y, columns=x, values="value").sort_index().sort_index(axis=1)
    axes = wide.columns.to_numpy(np.float64), wide.index.to_numpy(np.float64)
    return *axes, wide.to_numpy(np.float64)


def line(table: pd.DataFrame, quantity: str, x: str, **wanted: Any) -> tuple[Array, Array]:
    """(x, y) of one quantity along column `x`, ascending; ValueError unless one value at each x."""
    rows = choose(table, quantity=quantity, **wanted).sort_values(x)
    if rows.empty or rows[x].duplicated().any():
        raise ValueError(f"{quantity}: {len(rows)} rows are not one value per {x}")
    return rows[x].to_numpy(np.float64), rows["value"].to_numpy(np.float64)


def draw_map(
    ax: Axes, x: Array, y: Array, z: Array, limit: float, *, zero: bool = True
) -> QuadMesh:
    """A diverging map of z in [-limit, limit], white at 0, with its zero contour in black."""
    mesh = ax.pcolormesh(
        x, y, z, cmap=MAP_COLOURS, vmin=-limit, vmax=limit, shading="nearest", rasterized=True
    )
    if zero:
        draw_edge(ax, x, y, z)
    ax.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
    ax.grid(visible=False)
    return mesh


def draw_edge(ax: Axes, x: Array, y: Array, z: Array) -> None:
    """The line z = 0 in black, where z takes both signs."""
    # both alphas 0: nothing moves, and the whole row would be on the contour
    moving = np.where((z == 0).all(1, keepdims=True), np.nan, z)
    if np.nanmin(z) < 0 < np.nanmax(z):
        ax.contour(x, y, moving, levels=[0.0], colors=EDGE_COLOUR, linewidths=1.2)


def draw_levels(ax: Axes, x: Array, y: Array, z: Array, levels: list[float]) -> None:
    """Labelled grey level sets."""
    contours = ax.contour(x, y, z, levels=levels, colors="0.3", linewidths=0.7)
    for text in ax.clabel(contours, fmt="%g", fontsize=6.5, colors="black"):
        text.set_path_effects([patheffects.withStroke(linewidth=1.5, foreground="white")])


def fixed_points(x: Array, y: Array) -> list[tuple[float, bool]]:
    """(x, stable) where the curve y(x) meets the identity, by linear interpolation.

    Stable: y - x falls through 0. Both ends count where the curve touches the identity there
    (1e-9), and then their one neighbour decides.
    """
    drift = y - x
    drift[np.abs(drift) < 1e-9] = 0.0
    found = []
    if drift[0] == 0.0:
        found.append((float(x[0]), bool(drift[1] < 0)))
    for i in range(len(x) - 1):
        if drift[i] * drift[i + 1] < 0:
            share = drift[i] / (drift[i] - drift[i + 1])
            found.append((float(x[i] + share * (x[i + 1] - x[i])), bool(drift[i] > 0)))
        elif i > 0 and drift[i] == 0.0 and drift[i - 1] * drift[i + 1] < 0:
            found.append((float(x[i]), bool(drift[i - 1] > 0)))
    if drift[-1] == 0.0:
        found.append((float(x[-1]), bool(drift[-2] > 0)))
    return found


def mark_fixed_points(ax: Axes, x: Array, y: Array, *, drift: bool = False) -> None:
    """Dots on the fixed points of y(x): filled are stable, open are not."""
    for at, stable in fixed_points(x, y.copy()):
        face = EDGE_COLOUR if stable else "white"
        ax.plot(
            at, 0.0 if drift else at, "o", ms=5, mfc=face, mec=EDGE_COLOUR, zorder=5, clip_on=False
        )


def draw_moment(
    ax: Axes,
    rows: pd.DataFrame,
    quantity: str,
    colour: Any,
    *,
    x: str = "sigma_a",
    power: int = 1,
    scale: float = 1.0,
    name_at: tuple[float, float] | None = None,
) -> None:
    """A moment of softmax rows, times `scale`, over column `x` to a power, for one n and rho.

    Dots with 95 % bars: simulation. Dashed: exact integral. Dotted: leading order, if there is one.
    `name_at`: where the moment's name goes, the dot's x and the distance from it in points.
    """
    exact = choose(rows, source="theory")
    for name, linestyle in ((quantity, DASHED), (f"{quantity}_leading", DOTTED)):
        if name == quantity or (x == "sigma_a" and name in set(exact["quantity"])):
            at, value = line(exact, name, x)
            ax.plot(at**power, scale * value, color=colour, linestyle=linestyle, lw=1.0)
    at, mean, half = means(rows, quantity)
    ax.errorbar(at**power, scale * mean, scale * half, fmt="o", ms=3.5, color=colour)
    if name_at is not None:
        nearest = int(np.abs(at - name_at[0]).argmin())
        place = (float(at[nearest] ** power), float(scale * mean[nearest]))
        ax.annotate(
            f"${quantity.upper()}$",
            place,
            (0, name_at[1]),
            textcoords="offset points",
            ha="center",
            va="center",
            color=colour,
        )


def means(table: pd.DataFrame, quantity: str, **wanted: Any) -> tuple[Array, Array, Array]:
    """sigma_a (or beta where given), mean over batches, and 1.96 standard errors.

    Raises ValueError when nothing is left of the table.
    """
    rows = choose(table, quantity=quantity, source="simulation", **wanted)
    if rows.empty:
        raise ValueError(f"{quantity}: no simulated rows with {wanted}")
    x = "sigma_a" if rows["beta"].isna().all() else "beta"
    found = rows.groupby(x)["value"].agg(["mean", "sem"])
    return (
        found.index.to_numpy(np.float64),
        found["mean"].to_numpy(np.float64),
        1.96 * found["sem"].to_numpy(np.float64),
    )

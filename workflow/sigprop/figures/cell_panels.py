"""Sweeps and maps of cells of a grid of attention layers."""

from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sigprop.analysis.data import choose
from sigprop.figures.style import DASHED, use


def draw_sweep(upper: Axes, lower: Axes, points: pd.DataFrame, x: str, colour: Any) -> None:
    """Means with 95 % bars and theory dashed on `upper`, their ratio with its band on `lower`."""
    half = 1.96 * points["error"]
    look: dict[str, Any] = {"color": colour, "markersize": 3, "linewidth": 1}
    upper.errorbar(points[x], points["mean"], half, fmt="o-", **look)
    upper.plot(points[x], points["theory"], color=colour, linestyle=DASHED, linewidth=1)
    ratio, spread = points["mean"] / points["theory"], half / points["theory"]
    lower.plot(points[x], ratio, "o-", **look)
    lower.fill_between(points[x], ratio - spread, ratio + spread, color=colour, alpha=0.22, lw=0)
    lower.axhline(1, color="0.4", linestyle=DASHED, linewidth=0.8)


@dataclass(frozen=True)
class PanelBlock:
    """One block of heat maps: `what` is `mean`, `theory` or `ratio` of the cells."""

    title: str
    cells: pd.DataFrame
    what: str

    def colour_values(self) -> pd.Series:
        """log10 of the squared norm, or of simulation over theory."""
        if self.what == "ratio":
            return pd.Series(np.log10(self.cells["mean"] / self.cells["theory"]))
        return pd.Series(np.log10(self.cells[self.what]))

    def limits(self) -> tuple[float, float]:
        """Colour limits: shared by simulation and theory, symmetric about 0 for a ratio."""
        if self.what == "ratio":
            largest = float(self.colour_values().abs().max())
            return -largest, largest
        both = np.log10(self.cells[["mean", "theory"]].to_numpy(dtype=np.float64))
        return float(both.min()), float(both.max())


def draw_maps(blocks: list[PanelBlock]) -> Figure:
    """Blocks of small maps (n across, d up) in a grid of rho (columns) and sigma_x^2 (rows)."""
    use()
    rows = (len(blocks) + 1) // 2
    figure = plt.figure(figsize=(10.2, 3.4 * rows + 0.5), layout="constrained")
    outer = figure.subfigures(rows, 2, wspace=0.03, squeeze=False)
    for part, block in zip(outer.flat, blocks, strict=False):
        _draw_block(part, block)
    return figure


def _draw_block(part: Any, block: PanelBlock) -> None:
    cells = block.cells.assign(colour=block.colour_values())
    rhos, sizes = sorted(cells["rho"].unique()), sorted(cells["sigma_x"].unique(), reverse=True)
    low, high = block.limits()
    colours = "vlag" if block.what == "ratio" else "viridis"
    axes = part.subplots(len(sizes), len(rhos), sharex=True, sharey=True, squeeze=False)
    image = None
    for row, sigma_x in zip(axes, sizes, strict=True):
        for ax, rho in zip(row, rhos, strict=True):
            here = choose(cells, rho=float(rho), sigma_x=float(sigma_x))
            wide = here.pivot(index="d_model", columns="n_tokens", values="colour").sort_index()
            image = ax.imshow(
                wide.to_numpy(), origin="lower", vmin=low, vmax=high, cmap=colours, aspect="auto"
            )
            ax.set_xticks(range(wide.shape[1]), wide.columns, fontsize=6)
            ax.set_yticks(range(wide.shape[0]), wide.index, fontsize=6)
            ax.grid(visible=False)
            if ax in axes[0]:
                ax.set_title(rf"$\rho={rho:g}$", fontsize=8)
        row[0].set_ylabel(rf"$\sigma_x^2={sigma_x**2:.3g}$" + "\n$d$", fontsize=8)
    for ax in axes[-1]:
        ax.set_xlabel("$n$", fontsize=8)
    part.suptitle(block.title, fontsize=9)
    bar = part.colorbar(image, ax=axes, shrink=0.8, pad=0.02)
    bar.set_label(r"$\log_{10}$", fontsize=8)
    bar.ax.tick_params(labelsize=7)

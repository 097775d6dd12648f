"""Translation: curves by step and layer, scores by method, and tables as pictures."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sigprop.analysis.data import Curve, groups
from sigprop.analysis.stats import student_mean
from sigprop.analysis.training import by_layer, by_step, seed_curve
from sigprop.analysis.translation import METHODS, scores
from sigprop.figures import style

COLOURS = dict(zip(METHODS, (style.PALETTE[i] for i in (3, 0, 4, 5, 7, 2)), strict=True))


def draw_by_step(ax: Axes, rows: pd.DataFrame, quantity: str, colour: Any, line: Any) -> None:
    """A quantity of whole runs by step, one setting."""
    _draw(ax, seed_curve(*by_step(rows, quantity)), colour, line)


def draw_layer_by_step(
    ax: Axes, rows: pd.DataFrame, quantity: str, layer: int, colour: Any, line: Any
) -> None:
    """A quantity of one layer by step, one setting."""
    own = rows[(rows["layer"] == layer).fillna(False)]
    _draw(ax, seed_curve(*by_step(own, quantity)), colour, line)


def draw_by_layer(
    ax: Axes, rows: pd.DataFrame, quantity: str, step: int, colour: Any, line: Any
) -> None:
    """A quantity by layer at one step, one setting."""
    _draw(ax, seed_curve(*by_layer(rows, quantity, step)), colour, line)


def _draw(ax: Axes, curve: Curve, colour: Any, line: Any) -> None:
    style.draw_curve(ax, curve, colour, linestyle=line)


def draw_scores(ax: Axes, tables: Mapping[str, pd.DataFrame], quantity: str) -> None:
    """One dot per run, and mean with 95 % interval, by depth; methods side by side."""
    depths = sorted({int(depth) for table in tables.values() for depth in table["depth"]})
    for i, (name, table) in enumerate(tables.items()):
        for (depth,), rows in groups(table, "depth"):
            values = scores(rows, quantity)
            if not len(values):  # all its runs diverged at once
                continue
            x = depths.index(int(depth)) + 0.8 * ((i + 0.5) / len(tables) - 0.5)
            mean, low, high = student_mean(values)
            ax.plot(np.full(len(values), x), values, "o", ms=2.5, color=COLOURS[name], alpha=0.6)
            spread = [[np.nan_to_num(mean - low)], [np.nan_to_num(high - mean)]]
            ax.errorbar([x + 0.03], [mean], spread, fmt="_", ms=7, lw=1, color=COLOURS[name])
    ax.set_xticks(range(len(depths)), [f"{depth}+{depth}" for depth in depths])
    ax.set(xlabel="layers", ylabel="BLEU", ylim=(0, None))


def picture(table: pd.DataFrame, *, width: float = 9.0) -> Figure:
    """The table drawn as a figure, for the gallery."""
    figure, ax = style.panels(1, 1)
    figure.set_size_inches(width, 0.165 * (len(table) + 1) + 0.75)
    ax.axis("off")
    drawn = ax.table(
        table.astype(str).values.tolist(),
        colLabels=list(table.columns),
        loc="upper center",
        cellLoc="left",
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(6.5)
    drawn.auto_set_column_width(list(range(len(table.columns))))
    for (row, _), cell in drawn.get_celld().items():
        cell.set_linewidth(0.3)
        if row == 0:
            cell.set_text_props(weight="bold")
    return figure

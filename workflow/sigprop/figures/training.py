"""Training curves, times until solved, and what they are at one step, from tidy tables."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from sigprop.figures.data import Curve, choose, one_each
from sigprop.figures.stats import Array, bootstrap_mean

_NONE = np.empty(0)


def by_step(rows: pd.DataFrame, quantity: str) -> tuple[Array, Array]:
    """Steps (T,) and values (n_seeds, T) of a quantity of whole networks, one setting.

    A network that diverged has NaN from there on. ValueError when the rows mix settings, or there
    are none.
    """
    wide = _wide(choose(rows, quantity=quantity), quantity, "step")
    return wide.columns.to_numpy(np.float64), wide.to_numpy(np.float64)


def by_layer(rows: pd.DataFrame, quantity: str, step: int) -> tuple[Array, Array]:
    """Layers (L,) and values (n_seeds, L) of one setting at one step; ValueError as above."""
    wide = _wide(choose(rows, quantity=quantity, step=step), quantity, "layer")
    return wide.columns.to_numpy(np.float64), wide.to_numpy(np.float64)


def _wide(rows: pd.DataFrame, quantity: str, column: str) -> pd.DataFrame:
    one_each(rows, quantity, column)
    return rows.pivot(index="seed", columns=column, values="value").sort_index(axis=1)


def mean_curve(x: Array, values: Array) -> Curve:
    """Mean over seeds with its 95 % bootstrap band; values (n_seeds, len(x))."""
    mean, low, high = bootstrap_mean(values)
    return Curve(x, mean, low, high, len(values), _NONE, _NONE)


def times_to_solve(rows: pd.DataFrame) -> tuple[Array, float]:
    """Steps until solved by seed (n_seeds,), NaN where it never was, and the steps of a run."""
    steps = choose(rows, quantity="steps_to_solve").sort_values("seed")
    solved = choose(rows, quantity="solved").sort_values("seed")
    one_each(steps, "steps_to_solve", "step")
    times = np.where(solved["value"].to_numpy() > 0, steps["value"].to_numpy(), np.nan)
    return times.astype(np.float64), float(steps["step"].iloc[0])


def log_ratio(rows: pd.DataFrame, top: str, bottom: str, step: int) -> Array:
    """Mean over layers of ln(top / bottom), (n_seeds,); `log_rate_*` are logarithms already."""
    values = []
    for quantity in (top, bottom):
        _, value = by_layer(rows, quantity, step)
        values.append(value if quantity.startswith("log_") else np.log(value))
    return np.asarray((values[0] - values[1]).mean(1), dtype=np.float64)


def draw_times(ax: Axes, x: float, times: Array, limit: float, colour: Any) -> None:
    """One dot per seed at the step it was solved; hollow triangles at the limit: not by then."""
    solved = np.isfinite(times)
    spread = x + 0.16 * (np.arange(len(times)) / max(1, len(times) - 1) - 0.5)
    order = np.argsort(np.where(solved, times, np.inf), kind="stable")
    at, when, done = spread, times[order], solved[order]
    ax.plot(at[done], when[done], "o", ms=3.2, color=colour, alpha=0.85, mew=0)
    ax.plot(at[~done], np.full((~done).sum(), limit), "^", ms=4, mfc="none", mec=colour, mew=0.8)
    median = np.median(np.where(solved, times, np.inf))
    if np.isfinite(median):
        ax.plot([x - 0.13, x + 0.13], [median, median], color=colour, lw=1.4)

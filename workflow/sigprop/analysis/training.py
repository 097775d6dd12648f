"""Training curves, times until solved, and what they are at one step, from tidy tables."""

import numpy as np
import pandas as pd

from sigprop.analysis.data import Curve, choose, one_each
from sigprop.analysis.stats import Array, bootstrap_mean

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


def seed_curve(x: Array, values: Array) -> Curve:
    """Mean over runs (n_seeds, len(x)), with the range from least to largest as its band.

    Runs are few, so their range says more than an interval. A run that diverged leaves the mean.
    """
    with np.errstate(all="ignore"):
        mean, low, high = (np.full(len(x), np.nan) for _ in range(3))
        there = np.isfinite(values).any(0)
        own = values[:, there]
        mean[there], low[there], high[there] = (
            np.nanmean(own, 0),
            np.nanmin(own, 0),
            np.nanmax(own, 0),
        )
    none = np.empty(0)
    return Curve(x, mean, low, high, len(values), none, none)


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


def last_step(rows: pd.DataFrame, quantity: str, up_to: float = np.inf) -> int:
    """The last step, at most `up_to`, at which a quantity was measured."""
    steps = choose(rows, quantity=quantity)["step"]
    return int(steps[steps <= up_to].max())

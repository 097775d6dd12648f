"""Closed-form phase diagrams: from the `phases` table to arrays."""

from typing import Any

import numpy as np
import pandas as pd

from sigprop.analysis.data import choose
from sigprop.analysis.stats import Array


def plane(
    table: pd.DataFrame, grid: str, quantity: str, **wanted: Any
) -> tuple[Array, Array, Array]:
    """(x, y, z) of one quantity over a plane, z of shape (len(y), len(x)).

    x = sigma_w1 and y = alpha_attn = alpha_ff where both alphas are equal throughout, else
    x = alpha_attn and y = alpha_ff. `wanted` picks one mode, variant, sigma_w1, ... of the grid.
    Missing points (lambda_a = -inf, say) are nan.

    Raises:
        ValueError: the chosen rows are none, or not one for each point.
    """
    rows = choose(table, grid=grid, quantity=quantity, **wanted)
    diagonal = bool((rows["alpha_attn"] == rows["alpha_ff"]).all())
    x, y = ("sigma_w1", "alpha_attn") if diagonal else ("alpha_attn", "alpha_ff")
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

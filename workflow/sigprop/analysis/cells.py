"""Cells of a grid of attention layers: their simulated norms and their theory."""

import numpy as np
import pandas as pd

from sigprop.analysis.data import choose
from sigprop.analysis.stats import Array

FACTORS = ["grid", "attention", "n_tokens", "d_model", "d_k", "d_v", "sigma_x", "rho", "tau"]


def cell(table: pd.DataFrame, quantity: str) -> Array:
    """Values of one quantity over the networks of one cell, (n_networks,).

    Raises ValueError when the rows hold no cell or several.
    """
    rows = choose(table, quantity=quantity, source="simulation")
    if rows.empty or rows["seed"].duplicated().any():
        raise ValueError(f"{quantity}: {len(rows)} rows are not one value per network of one cell")
    return rows.sort_values("seed")["value"].to_numpy(dtype=np.float64)


def theory_of(table: pd.DataFrame, quantity: str) -> float:
    """The theory's value of one cell; ValueError unless there is exactly one."""
    rows = choose(table, quantity=quantity, source="theory")
    if len(rows) != 1:
        raise ValueError(f"{quantity}: {len(rows)} theory rows, expected 1")
    return float(rows["value"].iloc[0])


def means(table: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """One row per cell: its factors, `mean`, `error` (standard error), `n` and `theory`."""
    rows = choose(table, quantity=quantity)
    simulated = rows[rows["source"] == "simulation"].groupby(FACTORS, observed=True)["value"]
    cells = simulated.agg(["mean", "std", "count"]).rename(columns={"count": "n"})
    cells["error"] = cells["std"] / np.sqrt(cells["n"])
    cells["theory"] = rows[rows["source"] == "theory"].set_index(FACTORS)["value"]
    return cells.drop(columns="std").reset_index()

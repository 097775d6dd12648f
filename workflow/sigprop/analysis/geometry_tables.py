"""Exponents of token geometry as tables: theory against simulation, one setting a row."""

from collections.abc import Callable

import pandas as pd

from sigprop.analysis import data
from sigprop.analysis.geometry import Exponent

Measure = Callable[[pd.DataFrame], Exponent]

# What tells two settings apart; also columns of the tables.
FACTORS = [
    "mode",
    "activation",
    "alpha_attn",
    "alpha_ff",
    "sigma_w1",
    "sigma_w2",
    "sigma_a",
    "n_tokens",
    "d_model",
    "depth",
]
_NUMBERS = ["theory", "simulation", "low", "high", "deviation", "z"]


def exponents(table: pd.DataFrame, measure: Measure, needs: str, what: str) -> pd.DataFrame:
    """One row for each setting of `table` that has theory `needs`, in the table's order.

    Columns: what, setting (the grid), the factors, networks, theory, simulation with its 95 %
    interval (low, high), deviation (simulation minus theory) and z (in standard errors).

    Args:
        what: said of every row: which exponent, and how it was measured.

    Raises:
        ValueError: no setting has it.
    """
    rows = []
    for (grid, *values), cases in data.groups(table, "grid", *FACTORS, "rho0"):
        if cases[(cases["quantity"] == needs) & (cases["source"] == "theory")].empty:
            continue
        found = measure(cases)
        rows.append(
            {"exponent": what, "setting": grid}
            | dict(zip(FACTORS, values[:-1], strict=True))
            | {"networks": found.n_networks, "theory": found.theory, "simulation": found.value}
            | {"low": found.low, "high": found.high, "deviation": found.value - found.theory}
            | {"z": found.z}
        )
    if not rows:
        raise ValueError(f"{what}: no setting has theory of {needs}")
    return pd.DataFrame(rows).round(dict.fromkeys(_NUMBERS, 4))

"""Tables of an experiment: the columns that all kinds share, and how rows are put together."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pandera.pandas as pa

from sigprop.artifacts.tables import tidy_schema
from sigprop.experiments.settings import Experiment

_VALUES = ("seed", "quantity", "value", "source")


@cache
def schema(kind: type[Experiment]) -> pa.DataFrameSchema:
    """The schema of the tables of a kind of experiment, from its `FACTORS` and `QUANTITIES`."""
    return tidy_schema(kind.FACTORS, kind.QUANTITIES, name=kind.__module__.split(".")[-2])


def tidy(
    kind: type[Experiment],
    columns: Mapping[str, Any] | pd.DataFrame,
    *,
    value: Any,
    quantity: Any = None,
    seed: Any = None,
    source: str = "theory",
) -> pd.DataFrame:
    """Rows of a table of `kind`, in the order of its columns.

    Args:
        columns: factor -> one value for all rows, or one per row.
        value: (rows,), float64.
        quantity: name, or one per row; None where `columns` has it.
        seed: (rows,) integers; None for theory and for values that belong to all seeds together.
        source: "simulation" or "theory".
    """
    value = np.asarray(value, dtype=np.float64)
    made = dict(columns) | {"value": value, "source": source}
    made["seed"] = pd.array([pd.NA] * len(value) if seed is None else seed, dtype="Int64")
    if quantity is not None:
        made["quantity"] = quantity
    # One call: adding columns one by one costs more than the simulation of a small case.
    table = pd.DataFrame({name: made[name] for name in [*kind.FACTORS, *_VALUES]})
    whole = {name: "Int64" for name, dtype in kind.FACTORS.items() if dtype == "Int64"}
    return table.astype(whole) if whole else table

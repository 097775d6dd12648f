"""Tidy tables: one value a row, parquet on disk, checked on write and on read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pandera.pandas as pa

from sigprop.artifacts.errors import UserError
from sigprop.artifacts.files import atomic_path, sha256, write_json
from sigprop.artifacts.sidecars import command_for, read_sidecar, sidecar_path

__all__ = ["read_sidecar", "read_table", "tidy_schema", "write_table"]

SOURCES = ("simulation", "theory")


def tidy_schema(
    factors: Mapping[str, str], quantities: Mapping[str, str], name: str
) -> pa.DataFrameSchema:
    """The schema of a tidy table.

    Args:
        factors: column name -> pandas dtype; "Int64" and "float64?" may be null.
        quantities: allowed values of the `quantity` column -> unit ("1" where it has none).
        name: shown in messages.

    Besides the factors a table has `seed` (index of the random network or run; null for a value
    that belongs to all of them together, and for theory), `quantity`, `value` (float64, finite)
    and `source` (`simulation` or `theory`).
    """
    columns = {
        factor: pa.Column(dtype.rstrip("?"), nullable=dtype in ("Int64", "float64?"))
        for factor, dtype in factors.items()
    }
    columns |= {
        "seed": pa.Column("Int64", nullable=True),
        "quantity": pa.Column("str", pa.Check.isin(list(quantities))),
        "value": pa.Column("float64", pa.Check(lambda s: s.abs() < float("inf"), name="finite")),
        "source": pa.Column("str", pa.Check.isin(SOURCES)),
    }
    return pa.DataFrameSchema(
        columns,
        strict=True,
        ordered=True,
        name=name,
        metadata={"units": dict(quantities)},
    )


def _check(table: pd.DataFrame, schema: pa.DataFrameSchema, where: object) -> pd.DataFrame:
    try:
        return schema.validate(table, lazy=False)
    except (pa.errors.SchemaError, pa.errors.SchemaErrors) as error:
        one = error.schema_errors[0] if isinstance(error, pa.errors.SchemaErrors) else error
        first = str(one).splitlines()[0][:200]  # pandera lists every failing value
        raise UserError(f"{where}: not a valid {schema.name} table: {first}") from error


def write_table(
    table: pd.DataFrame, path: str | Path, schema: pa.DataFrameSchema, sidecar: dict[str, Any]
) -> None:
    """Check `table` and write it to `path` (parquet, zstd) with its sidecar `path` + `.json`.

    The sidecar gains the table's sha256, number of rows and units. Both files are written
    atomically, the sidecar last, so a sidecar always describes a whole table.

    Raises:
        UserError: the table does not fit the schema, or the folder cannot be written.
    """
    path = Path(path)
    _check(table, schema, path)
    with atomic_path(path) as temporary:
        table.to_parquet(temporary, engine="pyarrow", compression="zstd", index=False)
    write_json(
        sidecar_path(path),
        sidecar
        | {"sha256": sha256(path), "rows": len(table), "units": (schema.metadata or {})["units"]},
    )


def read_table(path: str | Path, schema: pa.DataFrameSchema | None = None) -> pd.DataFrame:
    """Read a table and check it.

    Raises:
        UserError: the file is absent, truncated, not parquet, or does not fit the schema.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such table; build it with `{command_for(path)}`")
    try:
        table = pd.read_parquet(path, engine="pyarrow")
    except (OSError, ValueError) as error:
        remedy = f"rebuild it with `{command_for(path)} --force`"
        raise UserError(f"{path}: unreadable or truncated parquet; {remedy}") from error
    return table if schema is None else _check(table, schema, path)

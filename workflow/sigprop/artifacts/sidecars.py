"""Sidecars: the json record next to a table. Apart from the tables, because drawing a figure reads
them in a process that needs no pandas."""

import json
from pathlib import Path
from typing import Any

from sigprop.artifacts.errors import UserError


def sidecar_path(path: str | Path) -> Path:
    """`data/moments.parquet` -> `data/moments.json`."""
    return Path(path).with_suffix(".json")


def read_sidecar(path: str | Path) -> dict[str, Any]:
    """The sidecar of the table at `path`; UserError when absent or not JSON."""
    where = sidecar_path(path)
    try:
        record: dict[str, Any] = json.loads(where.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{where}: unreadable sidecar; rebuild it with `{command_for(path)} --force`"
        ) from error
    return record


def command_for(path: str | Path) -> str:
    """The command that makes the table, run from the checkout, with the preset it belongs to."""
    last = Path(path).parts[-4:]
    if last[:1] != ("results",):
        return f"snakemake {path} --cores all"
    return f"snakemake {Path(*last)} --cores all --config preset={last[1]}"

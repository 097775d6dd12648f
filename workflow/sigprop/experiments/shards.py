"""Tables made in parts: one job trains some runs, another puts the parts together.

A table that trains is a list of runs in a fixed order, and a run's random numbers depend on the run
alone. Part i of N makes the runs from i U // N up to (i + 1) U // N of U, so the parts in their
order are the whole table, whatever N. The number of parts is no setting: it decides how many
machines work at once, and neither results nor checkpoints know of it.
"""

import re
from typing import Any

import pandas as pd

from sigprop.artifacts.errors import UserError
from sigprop.artifacts.tables import read_sidecar, read_table

# What parts of one table have in common, as their sidecars say it.
_SHARED = ("table", "kind", "preset", "experiment", "settings", "seed")


def parse_part(text: str) -> tuple[int, int]:
    """ "2/8" -> (2, 8), the third of eight parts; UserError when it is something else."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    part = (int(found[1]), int(found[2])) if found else (0, 0)
    if not part[0] < part[1]:
        raise UserError(f"--part: {text!r} is not allowed; use I/N with I from 0 to N - 1")
    return part


def joined(paths: list[str], sidecar: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The whole table of these parts, and its sidecar with the provenance of each.

    Args:
        paths: all parts, in their order.
        sidecar: of the whole, as far as it is known.

    Raises:
        UserError: a part is absent, unreadable, out of place, or of other settings.
    """
    tables, made = [], []
    for i, path in enumerate(paths):
        tables.append(read_table(path))
        own = read_sidecar(path)
        if own.get("part") != [i, len(paths)]:
            raise UserError(
                f"{path}: is part {own.get('part')}, not [{i}, {len(paths)}]; "
                "give all parts of one table, in their order"
            )
        for key in _SHARED:
            if own.get(key) != sidecar[key]:
                raise UserError(f"{path}: has another {key} than the table; make this part again")
        made.append(own["provenance"])
    return pd.concat(tables, ignore_index=True), sidecar | {"parts": made}

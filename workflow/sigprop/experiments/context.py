"""What an experiment is told besides its settings, and tables made in parts."""

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pandas as pd

from sigprop.artifacts.errors import UserError
from sigprop.artifacts.tables import read_sidecar, read_table
from sigprop.experiments.settings import Experiment

Run = TypeVar("Run")


@dataclass(frozen=True)
class Context:
    """What surrounds one run of an experiment.

    Attributes:
        table: name of the table being made.
        seed: root seed of the config.
        device: cpu or cuda.
        simulation: path of the simulation's table, for theory that is evaluated at measured sums.
        checkpoints: folder for experiments that train; None trains without checkpoints.
        part: (i, N), of experiments that train: make part i of N only, see `joined`.
        design: what theory chose for the simulation, see `chosen`.
    """

    table: str
    seed: int
    device: str = "cpu"
    simulation: str | None = None
    checkpoints: str | None = None
    part: tuple[int, int] = (0, 1)
    design: Any = None

    def mine(self, runs: Sequence[Run]) -> list[tuple[int, Run]]:
        """The runs of this part, each with its index among all."""
        i, n = self.part
        return list(enumerate(runs))[i * len(runs) // n : (i + 1) * len(runs) // n]

    def designed(self, settings: Experiment) -> Any:
        """What theory chose for these settings; None where it chooses nothing.

        Raises ValueError when it should have been asked.
        """
        if settings.design and self.design is None:
            raise ValueError(
                f"{settings.design} chooses part of these settings: give the context "
                "design=chosen(settings)"
            )
        return self.design

    def simulated(self) -> pd.DataFrame:
        """The simulation's table; UserError when none was given or it cannot be read."""
        if self.simulation is None:
            raise UserError(f"--simulation: the theory of {self.table} needs the simulated table")
        return read_table(self.simulation)


def chosen(settings: Experiment) -> Any:
    """What theory chooses before the simulation of these settings; None where it chooses nothing.

    A simulation gets it as `Context.design` and never imports the module that computed it.
    """
    return importlib.import_module(settings.design).run(settings) if settings.design else None


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

    A table that trains is a list of runs in a fixed order, and a run's random numbers depend on the
    run alone. Part i of N makes the runs from i U // N up to (i + 1) U // N of U, so the parts in
    their order are the whole table, whatever N. The number of parts is not a setting: it decides
    how many machines work at once, and neither results nor checkpoints know of it.

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

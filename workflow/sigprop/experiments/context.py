"""What an experiment is told besides its settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import pandas as pd

from sigprop.artifacts.errors import UserError
from sigprop.artifacts.tables import read_table

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
        part: (i, N), of experiments that train: make part i of N only, see `shards`.
    """

    table: str
    seed: int
    device: str = "cpu"
    simulation: str | None = None
    checkpoints: str | None = None
    part: tuple[int, int] = (0, 1)

    def mine(self, runs: Sequence[Run]) -> list[tuple[int, Run]]:
        """The runs of this part, each with its index among all."""
        i, n = self.part
        return list(enumerate(runs))[i * len(runs) // n : (i + 1) * len(runs) // n]

    def simulated(self) -> pd.DataFrame:
        """The simulation's table; UserError when none was given or it cannot be read."""
        if self.simulation is None:
            raise UserError(f"--simulation: the theory of {self.table} needs the simulated table")
        return read_table(self.simulation)

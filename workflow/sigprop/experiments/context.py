"""What an experiment is told besides its settings."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Context:
    """table: name of the table being made. seed: the config's root seed. device: cpu or cuda."""

    table: str
    seed: int
    device: str = "cpu"

"""Trainability near the edge of chaos: `trainability` on configurations chosen by exponents."""

from sigprop.experiments.trainability import SCHEMA, run
from sigprop.experiments.trainability_edge_settings import TrainabilityEdgeSettings

Settings = TrainabilityEdgeSettings
__all__ = ["SCHEMA", "Settings", "run"]

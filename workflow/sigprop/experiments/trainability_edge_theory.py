"""Theory beside `trainability_edge`: the exponents of every configuration."""

from sigprop.experiments.trainability_edge_settings import TrainabilityEdgeSettings
from sigprop.experiments.trainability_theory import SCHEMA, run

Settings = TrainabilityEdgeSettings
__all__ = ["SCHEMA", "Settings", "run"]

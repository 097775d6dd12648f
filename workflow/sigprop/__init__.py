"""Signal propagation in transformers: theory, simulation and the artifacts of two papers."""

__version__ = "0.1.0"

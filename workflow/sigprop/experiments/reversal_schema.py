"""Columns of the digit-reversal tables."""

import pandera.pandas as pa

from sigprop.artifacts.tables import tidy_schema

# Losses and rates are of one update, so only gradients and the loss have units.
QUANTITIES = {
    "loss": "nat",
    "accuracy": "1",
    "steps_to_solve": "update",
    "solved": "1",
    "cos_mean": "1",
    "grad_q": "nat^2",
    "grad_k": "nat^2",
    "grad_v": "nat^2",
    "log_rate_q": "1",
    "log_rate_k": "1",
    "log_rate_v": "1",
}

# `step` counts updates made. `layer` is null where a value belongs to the whole network; cos_mean
# has layers 0 (the input) to L, weights of layer l read X^l and have 0 to L - 1.
FACTORS = {
    "scheme": "str",
    "alpha_rule": "str",
    "alpha_attn": "float64",
    "alpha_ff": "float64",
    "depth": "int64",
    "r": "float64",
    "step": "int64",
    "layer": pa.Column("Int64", nullable=True),
}

SCHEMA = tidy_schema(FACTORS, QUANTITIES, name="reversal")

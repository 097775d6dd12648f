"""Columns of the end-to-end gradient tables."""

from sigprop.artifacts.tables import tidy_schema
from sigprop.experiments.propagation_schema import FACTORS

# `layer` counts from 0: weights of layer l read X^l; X^0 is the input. The loss has no unit.
QUANTITIES = {
    **{f"grad_{family}": "1" for family in ("q", "k", "v", "ff1", "ff2", "o")},
    "grad_x": "coordinate^-2",
    "cos_mean": "1",
    "jacobian_q": "coordinate^6",
    "jacobian_k": "coordinate^6",
    "jacobian_v": "coordinate^2",
    "jacobian_q_given_x": "coordinate^6",
    "jacobian_v_given_x": "coordinate^2",
    "sum_sq_norm": "coordinate^2",
    "gram_sq_norm": "coordinate^4",
    "spread_sq_norm": "coordinate^2",
    "mean_sq_norm": "coordinate^2",
}

SCHEMA = tidy_schema(FACTORS, QUANTITIES, name="gradients")
__all__ = ["FACTORS", "QUANTITIES", "SCHEMA"]

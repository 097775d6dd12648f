"""Columns of the trainability tables."""

from sigprop.artifacts.tables import tidy_schema

# Losses after the last update: of the test batch and of the last training batch; a network whose
# loss is not a number has `DIVERGED_LOSS` and diverged = 1. grad0: squared norm of the gradient of
# the embedding before the first update. `lambda_*`: theory, per block, see theory.cowsik2024.
QUANTITIES = {
    "test_loss": "nat",
    "train_loss": "nat",
    "accuracy": "1",
    "diverged": "1",
    "grad0": "nat^2",
    "lambda_a": "1",
    "lambda_g": "1",
    "lambda_g_traj": "1",
    "lambda_g_star": "1",
}
DIVERGED_LOSS = 2.0

# alpha_*: strengths at this depth. config: index of the configuration in its design.
FACTORS = {
    "design": "str",
    "mode": "str",
    "optimizer": "str",
    "depth": "int64",
    "n_tokens": "int64",
    "d_model": "int64",
    "config": "int64",
    "alpha_attn": "float64",
    "alpha_mlp": "float64",
    "sigma_w": "float64",
    "sigma_v": "float64",
    "sigma_a": "float64",
}

SCHEMA = tidy_schema(FACTORS, QUANTITIES, name="trainability")

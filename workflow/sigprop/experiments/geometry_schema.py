"""Columns of the token-geometry tables."""

from sigprop.artifacts.tables import tidy_schema

# Token moments per dimension of the stream: q = mean |x_i|^2 / d, p = mean x_i.x_k / d. Gradients
# of a loss without unit: g = mean |delta_i|^2, h = mean delta_i.delta_k. `lambda_*`: theory, per
# block, see theory.cowsik2024.
QUANTITIES = {
    "q": "coordinate^2",
    "p": "coordinate^2",
    "q_minus_p": "coordinate^2",
    "token_norm": "coordinate^2",
    "pair_cosine": "1",
    "g": "coordinate^-2",
    "h": "coordinate^-2",
    "g_minus_h": "coordinate^-2",
    "lambda_a": "1",
    "lambda_g": "1",
    "lambda_g_traj": "1",
    "lambda_g_star": "1",
}

# alpha_*: strengths at this depth. q0, rho0: of the input. item: token of `token_norm` or pair of
# `pair_cosine` within its network, 0 for everything else. sampler: empty for theory.
FACTORS = {
    "grid": "str",
    "mode": "str",
    "activation": "str",
    "n_tokens": "int64",
    "d_model": "int64",
    "depth": "int64",
    "depth_power": "float64",
    "readout": "str",
    "alpha_attn": "float64",
    "alpha_mlp": "float64",
    "sigma_a": "float64",
    "sigma_v": "float64",
    "sigma_w1": "float64",
    "sigma_w2": "float64",
    "q0": "float64",
    "rho0": "float64",
    "sampler": "str",
    "layer": "int64",
    "item": "int64",
}

SCHEMA = tidy_schema(FACTORS, QUANTITIES, name="geometry")

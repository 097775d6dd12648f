"""Columns of the forward-propagation tables, for the writer and for every reader."""

from sigprop.artifacts.tables import tidy_schema

# quantity -> unit. Lengths are in units of one embedding coordinate.
QUANTITIES = {
    "cos_mean": "1",
    "rho_ratio": "1",
    "sum_sq_norm": "coordinate^2",
    "sum_inner": "coordinate^2",
    "rank_residual": "1",
    "attention_entropy": "nat",
    "cos_mean_limit": "1",
    "rho_ratio_limit": "1",
    "collapse_exponent": "1",
}

FACTORS = {
    "scheme": "str",
    "alpha_rule": "str",
    "alpha_attn": "float64",
    "alpha_ff": "float64",
    "activation": "str",
    "attention": "str",
    "tau": "float64",
    "n_tokens": "int64",
    "d_model": "int64",
    "n_heads": "int64",
    "d_ff": "int64",
    "depth": "int64",
    "sigma_x": "float64",
    "rho": "float64",
    "sampler": "str",
    "layer": "int64",
}

SCHEMA = tidy_schema(FACTORS, QUANTITIES, name="propagation")

"""Columns of the table of closed-form phase diagrams."""

import pandera.pandas as pa

from sigprop.artifacts.tables import tidy_schema

# lambda_*: per block; lambda_g: coherent mode at rho = 1, lambda_g_traj: along `depth` blocks from
# (q, rho) = (1, 0), lambda_g_star: at the stable fixed point. log_angle_factor: of (1-rho')/(1-rho)
# in the block's map at rho = 1; log_backward_radius: of its backward matrix there. power_*: mode
# unit. sigma_c, alpha_mlp_c: lambda_a = 0, exact or to leading order in alpha^2; balance:
# alpha_M^2 (G - B) / (alpha_A^2 sigma_V^2) at sigma_c, 1 to leading order. rho_stable_least: least
# rho of all stable fixed points, found by a scan; rho_star is searched for from the collapsed one.
# sigma_orthogonal: where rho* reaches 0 at n = inf. rho_attention, rho_block: after the sub-block
# and after the block, from `rho` and the norm q that the block keeps there.
QUANTITIES = {
    "lambda_a": "1",
    "lambda_g": "1",
    "lambda_g_traj": "1",
    "lambda_g_star": "1",
    "log_angle_factor": "1",
    "log_backward_radius": "1",
    "power_a": "1",
    "power_g": "1",
    "q_collapsed": "coordinate^2",
    "q_star": "coordinate^2",
    "rho_star": "1",
    "rho_stable_least": "1",
    "sigma_c": "1",
    "sigma_c_leading": "1",
    "balance": "1",
    "alpha_mlp_c": "1",
    "alpha_mlp_c_leading": "1",
    "alpha_max": "1",
    "sigma_orthogonal": "1",
    "q": "coordinate^2",
    "rho_attention": "1",
    "rho_block": "1",
}


def _maybe() -> pa.Column:
    """Null where the factor is what was solved for, or does not apply."""
    return pa.Column("float64", nullable=True)


# n_tokens: inf for infinitely many. depth: 0 where the quantity has none.
FACTORS = {
    "grid": "str",
    "variant": "str",
    "mode": "str",
    "activation": "str",
    "read_out": "str",
    "n_tokens": "float64",
    "depth": "int64",
    "alpha_attn": _maybe(),
    "alpha_mlp": _maybe(),
    "sigma_w1": _maybe(),
    "sigma_w2": _maybe(),
    "sigma_a": "float64",
    "sigma_v": "float64",
    "rho": _maybe(),
}

SCHEMA = tidy_schema(FACTORS, QUANTITIES, name="phases")

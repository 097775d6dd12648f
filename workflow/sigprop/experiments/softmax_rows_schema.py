"""Columns of the table of random softmax rows."""

import pandera.pandas as pa

from sigprop.artifacts.tables import tidy_schema

# Of rows A_i, A_k of the attention matrix: s = E sum_j A_ij^2, r = E sum_j A_ij A_kj, a3 =
# E sum_j A_ij^3, tq = E |J_i|_F^2 and tr = E tr J_i J_k with the softmax Jacobian J_i = diag A_i -
# A_i A_i^T, and the row's entropy. Theory only: `_leading` to leading order at many tokens, s_limit
# as n -> inf at fixed beta.
QUANTITIES = {
    "s": "1",
    "r": "1",
    "a3": "1",
    "tq": "1",
    "tr": "1",
    "entropy": "nat",
    "s_leading": "1",
    "r_leading": "1",
    "entropy_leading": "nat",
    "s_limit": "1",
}

# d_k: 0 for exactly Gaussian logits. beta: null where sigma_a is given. seed: the batch.
FACTORS = {
    "grid": "str",
    "n_tokens": "int64",
    "n_rows": "int64",
    "d_k": "int64",
    "sigma_a": "float64",
    "rho": "float64",
    "beta": pa.Column("float64", nullable=True),
}

SCHEMA = tidy_schema(FACTORS, QUANTITIES, name="softmax_rows")

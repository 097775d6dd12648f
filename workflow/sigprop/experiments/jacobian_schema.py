"""Columns of the attention-Jacobian tables."""

from sigprop.artifacts.tables import tidy_schema

# Squared Frobenius norms of dS/dW and dS/dX; "given_x": Lemma 3.1 at the simulated inputs;
# "independent": equation (17) without the finite-size factor that the paper's assumption drops.
QUANTITIES = {
    "jacobian_q": "coordinate^6",
    "jacobian_k": "coordinate^6",
    "jacobian_v": "coordinate^2",
    "jacobian_x": "1",
    "jacobian_q_given_x": "coordinate^6",
    "jacobian_k_given_x": "coordinate^6",
    "jacobian_v_given_x": "coordinate^2",
    "jacobian_x_given_x": "1",
    "jacobian_x_bound_given_x": "1",
    "jacobian_q_independent": "coordinate^6",
    "sum_sq_norm": "coordinate^2",
    "gram_sq_norm": "coordinate^4",
    "spread_sq_norm": "coordinate^2",
    "mean_sq_norm": "coordinate^2",
}

FACTORS = {
    "grid": "str",
    "attention": "str",
    "n_tokens": "int64",
    "d_model": "int64",
    "d_k": "int64",
    "d_v": "int64",
    "sigma_x": "float64",
    "rho": "float64",
    "tau": "float64",
}

SCHEMA = tidy_schema(FACTORS, QUANTITIES, name="jacobian")

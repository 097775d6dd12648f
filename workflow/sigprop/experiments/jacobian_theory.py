"""Theory beside the attention-Jacobian tables: equations (17) and (18), and Lemma 3.1 given X."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from sigprop.experiments.balance_theory import balance
from sigprop.experiments.context import Context
from sigprop.experiments.jacobian_schema import FACTORS, SCHEMA
from sigprop.experiments.jacobian_settings import Case, JacobianSettings
from sigprop.theory import noci2022_gradients as theory

Settings = JacobianSettings
__all__ = ["SCHEMA", "Settings", "run"]


def run(settings: JacobianSettings, context: Context) -> pd.DataFrame:
    """The theory of every cell, under uniform attention (also beside softmax simulations).

    `jacobian_q`, `_k`, `_v`, `_x`: expectations over weights and Gaussian tokens, exact at finite
    size. `*_given_x`: expectation over weights at the cell's fixed input, from the sums that the
    simulation stored. `jacobian_x_bound_given_x` is the paper's bound as we reconstruct it.
    """
    simulated = context.simulated()
    rows = []
    for case in settings.cases():
        case = replace(case, tau=balance(case))
        values = list(_gaussian(case))
        if case.fixed_input:
            values += list(_given_x(case, simulated))
        rows += [case.factors() | {"quantity": name, "value": value} for name, value in values]
    table = pd.DataFrame(rows).assign(source="theory")
    table["seed"] = pd.array([pd.NA] * len(table), dtype="Int64")
    return table[[*FACTORS, "seed", "quantity", "value", "source"]].astype({"value": np.float64})


def _gaussian(case: Case) -> Iterator[tuple[str, float]]:
    n, d, sigma, rho = case.n_tokens, case.d_model, case.sigma_x, case.rho
    var_k, var_v = 1 / case.d_k, 1 / case.d_v
    query = theory.gaussian_query_grad_sq_norm
    for family in ("q", "k"):  # equal variances: keys by symmetry
        value = query(n, d, sigma, rho, case.d_v, var_v, var_k, case.tau)
        yield f"jacobian_{family}", float(value)
    value = query(n, d, sigma, rho, case.d_v, var_v, var_k, case.tau, finite_size=False)
    yield "jacobian_q_independent", float(value)
    yield "jacobian_v", float(theory.gaussian_value_grad_sq_norm(n, d, sigma, rho, case.d_v))
    value = theory.gaussian_input_grad_sq_norm(
        n, d, sigma, rho, case.d_v, var_k, var_k, var_v, case.tau
    )
    yield "jacobian_x", float(value)


def _given_x(case: Case, simulated: pd.DataFrame) -> Iterator[tuple[str, float]]:
    mine = simulated["seed"].isna().to_numpy()
    for name, wanted in case.factors().items():
        mine &= (simulated[name] == wanted).to_numpy()
    sums = simulated[mine].set_index("quantity")["value"]
    stats = theory.TokenStatistics(
        case.n_tokens,
        sum_sq_norm=np.asarray(sums["sum_sq_norm"]),
        gram_sq_norm=np.asarray(sums["gram_sq_norm"]),
        spread_sq_norm=np.asarray(sums["spread_sq_norm"]),
        mean_sq_norm=np.asarray(sums["mean_sq_norm"]),
    )
    var_k, var_v, tau = 1 / case.d_k, 1 / case.d_v, case.tau
    yield "jacobian_v_given_x", float(theory.value_grad_sq_norm(stats, case.d_v))
    value = theory.query_grad_sq_norm(stats, case.d_v, var_v, var_k, tau)
    yield "jacobian_q_given_x", float(value)
    value = theory.key_grad_sq_norm(stats, case.d_v, var_v, var_k, tau)
    yield "jacobian_k_given_x", float(value)
    sizes = (case.d_model, case.d_v, var_k, var_k, var_v, tau)
    yield "jacobian_x_given_x", float(theory.input_grad_sq_norm(stats, *sizes))
    value = theory.input_grad_bound_reconstructed(stats, *sizes)
    yield "jacobian_x_bound_given_x", float(value)

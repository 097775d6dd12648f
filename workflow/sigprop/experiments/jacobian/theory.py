"""Theory of the attention-Jacobian tables: equations (17) and (18), and Lemma 3.1 given X."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from sigprop.experiments.context import Context
from sigprop.experiments.frames import tidy
from sigprop.experiments.jacobian import design
from sigprop.experiments.jacobian.settings import Cell, JacobianSettings
from sigprop.theory import noci2022_gradients as theory


def run(settings: JacobianSettings, context: Context) -> pd.DataFrame:
    """The theory of every cell, under uniform attention (also alongside softmax simulations).

    `jacobian_q`, `_k`, `_v`, `_x`: expectations over weights and Gaussian tokens, exact at finite
    size. `*_given_x`: expectation over weights at the cell's fixed input, from the sums that the
    simulation stored. `jacobian_x_bound_given_x` is the paper's bound as we reconstruct it.
    """
    simulated = context.simulated()
    rows = []
    for cell, tau in zip(settings.cells(), design.run(settings), strict=True):
        cell = replace(cell, tau=tau)
        values = list(_gaussian(cell))
        if cell.fixed_input:
            values += list(_given_x(cell, simulated))
        rows += [cell.factors() | {"quantity": name, "value": value} for name, value in values]
    table = pd.DataFrame(rows)
    return tidy(JacobianSettings, table, value=table["value"])


def _gaussian(cell: Cell) -> Iterator[tuple[str, float]]:
    n, d, sigma, rho = cell.n_tokens, cell.d_model, cell.sigma_x, cell.rho
    var_k, var_v = 1 / cell.d_k, 1 / cell.d_v
    query = theory.gaussian_query_grad_sq_norm
    for family in ("q", "k"):  # equal variances: keys by symmetry
        value = query(n, d, sigma, rho, cell.d_v, var_v, var_k, cell.tau)
        yield f"jacobian_{family}", float(value)
    value = query(n, d, sigma, rho, cell.d_v, var_v, var_k, cell.tau, finite_size=False)
    yield "jacobian_q_independent", float(value)
    yield "jacobian_v", float(theory.gaussian_value_grad_sq_norm(n, d, sigma, rho, cell.d_v))
    value = theory.gaussian_input_grad_sq_norm(
        n, d, sigma, rho, cell.d_v, var_k, var_k, var_v, cell.tau
    )
    yield "jacobian_x", float(value)


def _given_x(cell: Cell, simulated: pd.DataFrame) -> Iterator[tuple[str, float]]:
    mine = simulated["seed"].isna().to_numpy()
    for name, wanted in cell.factors().items():
        mine &= (simulated[name] == wanted).to_numpy()
    sums = simulated[mine].set_index("quantity")["value"]
    stats = theory.TokenStatistics(
        cell.n_tokens,
        sum_sq_norm=np.asarray(sums["sum_sq_norm"]),
        gram_sq_norm=np.asarray(sums["gram_sq_norm"]),
        spread_sq_norm=np.asarray(sums["spread_sq_norm"]),
        mean_sq_norm=np.asarray(sums["mean_sq_norm"]),
    )
    var_k, var_v, tau = 1 / cell.d_k, 1 / cell.d_v, cell.tau
    yield "jacobian_v_given_x", float(theory.value_grad_sq_norm(stats, cell.d_v))
    value = theory.query_grad_sq_norm(stats, cell.d_v, var_v, var_k, tau)
    yield "jacobian_q_given_x", float(value)
    value = theory.key_grad_sq_norm(stats, cell.d_v, var_v, var_k, tau)
    yield "jacobian_k_given_x", float(value)
    sizes = (cell.d_model, cell.d_v, var_k, var_k, var_v, tau)
    yield "jacobian_x_given_x", float(theory.input_grad_sq_norm(stats, *sizes))
    value = theory.input_grad_bound_reconstructed(stats, *sizes)
    yield "jacobian_x_bound_given_x", float(value)

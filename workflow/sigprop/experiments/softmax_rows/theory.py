"""Theory alongside the random softmax rows: exact integrals, leading orders and the limit."""

import numpy as np
import pandas as pd

from sigprop.experiments.context import Context
from sigprop.experiments.frames import tidy
from sigprop.experiments.softmax_rows.settings import Rows, SoftmaxRowsSettings
from sigprop.theory.softmax_moments import (
    many_token_moments,
    random_energy_s,
    row_entropy,
    softmax_moments,
)


def run(settings: SoftmaxRowsSettings, context: Context) -> pd.DataFrame:
    """The theory of every setting, for Gaussian logits (d_k -> infinity) whatever its d_k.

    s, r, a3, tq, tr, entropy from the exact integrals at finite n_tokens; s_leading = e^v / n,
    r_leading = e^(rho v) / n, entropy_leading = ln n - v / 2 with v = sigma_a^2 (1 - rho); and,
    with beta, the limit s_limit of the random energy model.
    """
    rows = [
        case.factors(i) | {"quantity": name, "value": value}
        for case in settings.cases()
        for i, point in enumerate(case.points)
        for name, value in _values(case, point).items()
    ]
    table = pd.DataFrame(rows)
    return tidy(SoftmaxRowsSettings, table, value=table["value"])


def _values(case: Rows, point: tuple[float, float, float]) -> dict[str, float]:
    sigma_a, rho, beta = point
    v, n = sigma_a**2 * (1.0 - rho), case.n_tokens
    exact = softmax_moments(v, rho, n)
    s_leading, r_leading = many_token_moments(v, rho, n)
    found = {"s": exact.s, "r": exact.r, "a3": exact.a3, "tq": exact.tq, "tr": exact.tr}
    found |= {"entropy": row_entropy(v, n), "s_leading": s_leading, "r_leading": r_leading}
    found["entropy_leading"] = np.asarray(np.log(n) - v / 2)
    if not np.isnan(beta):
        found["s_limit"] = random_energy_s(beta, rho)
    return {name: float(value) for name, value in found.items()}

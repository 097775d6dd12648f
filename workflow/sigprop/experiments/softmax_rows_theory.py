"""Theory beside the random softmax rows: exact integrals, leading orders and the limit."""

import numpy as np
import pandas as pd

from sigprop.experiments.context import Context
from sigprop.experiments.softmax_rows_schema import FACTORS, SCHEMA
from sigprop.experiments.softmax_rows_settings import Rows, SoftmaxRowsSettings
from sigprop.theory.softmax_moments import (
    many_token_moments,
    random_energy_s,
    row_entropy,
    softmax_moments,
)

Settings = SoftmaxRowsSettings
__all__ = ["SCHEMA", "Settings", "run"]


def run(settings: SoftmaxRowsSettings, context: Context) -> pd.DataFrame:
    """The theory of every setting, for Gaussian logits (d_k -> infinity) whatever its d_k.

    s, r, a3, tq, tr, entropy from the exact integrals at finite n_tokens; s_leading = e^v / n,
    r_leading = e^(rho v) / n, entropy_leading = ln n - v / 2 with v = sigma_a^2 (1 - rho); and,
    with beta, the limit s_limit of the random energy model.
    """
    rows = []
    for case in settings.cases():
        for point in case.points:
            factors = {"grid": case.grid, "n_tokens": case.n_tokens, "n_rows": case.n_rows}
            sigma_a, rho, beta = point
            factors |= {"d_k": case.d_k, "sigma_a": sigma_a, "rho": rho, "beta": beta}
            found = _values(case, point)
            rows += [factors | {"quantity": name, "value": v} for name, v in found.items()]
    table = pd.DataFrame(rows).assign(source="theory")
    table["seed"] = pd.array([pd.NA] * len(table), dtype="Int64")
    return table[[*FACTORS, "seed", "quantity", "value", "source"]]


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

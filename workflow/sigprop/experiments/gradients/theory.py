"""Lemma 3.1 at the tokens that each simulated layer reads."""

import numpy as np
import pandas as pd

from sigprop.experiments.context import Context
from sigprop.experiments.frames import tidy
from sigprop.experiments.gradients.settings import GradientSettings
from sigprop.theory import noci2022_gradients as theory


def run(settings: GradientSettings, context: Context) -> pd.DataFrame:
    """`jacobian_q_given_x` and `jacobian_v_given_x` of each network and layer, uniform attention.

    Equations (6) and (7) at the entry variances of the scheme, which summed over heads do not
    depend on their number, evaluated at the sums over tokens that the simulation measured.
    Gaussian-token formulas do not apply here: deep tokens are not Gaussian.
    """
    simulated = context.simulated()
    index = [*GradientSettings.FACTORS, "seed"]
    sums = simulated[simulated["quantity"].str.endswith("_sq_norm")]
    wide = sums.pivot(index=index, columns="quantity", values="value").reset_index()
    wide = wide.merge(_variances(settings), how="left")
    n, d = wide["n_tokens"].to_numpy(), wide["d_model"].to_numpy(dtype=np.float64)
    frames = []
    for n_tokens in np.unique(n):
        mine = wide[n == n_tokens]
        width = d[n == n_tokens]
        stats = theory.TokenStatistics(
            int(n_tokens),
            sum_sq_norm=mine["sum_sq_norm"].to_numpy(),
            gram_sq_norm=mine["gram_sq_norm"].to_numpy(),
            spread_sq_norm=mine["spread_sq_norm"].to_numpy(),
            mean_sq_norm=mine["mean_sq_norm"].to_numpy(),
        )
        tau = mine["tau"].to_numpy()
        values = {
            "jacobian_q_given_x": theory.query_grad_sq_norm(
                stats, width, mine["var_v"].to_numpy(), mine["var_k"].to_numpy(), tau
            ),
            "jacobian_v_given_x": theory.value_grad_sq_norm(stats, width),
        }
        frames += [
            tidy(GradientSettings, mine, seed=mine["seed"], quantity=quantity, value=value)
            for quantity, value in values.items()
        ]
    return pd.concat(frames, ignore_index=True)


def _variances(settings: GradientSettings) -> pd.DataFrame:
    """Entry variances of W^V and W^K by what a case may have of its own."""
    rows = []
    for case in settings.cases():
        rows.append({name: case.factors()[name] for name in _OWN})
        for family in ("v", "k"):
            d, depth = case.d_model, case.depth
            rows[-1][f"var_{family}"] = case.scheme.variance(family, d, d, depth=depth)
    return pd.DataFrame(rows).drop_duplicates()


_OWN = ("scheme", "alpha_rule", "tau", "d_model", "depth")

"""Claims of Noci et al. 2022 (arXiv 2206.03126) on gradients through the whole encoder."""

import numpy as np
import pandas as pd

from sigprop.analysis.data import networks, placed
from sigprop.analysis.stats import bootstrap_mean, bootstrap_ratio
from sigprop.claims.claim import Claim, Tables
from sigprop.claims.rules import Part, Verdict, above, below, within

_DEPTH = 12


def _rows(tables: Tables, where: str, alpha: str = "1") -> pd.DataFrame:
    return placed(tables["gradients"], where, alpha, depth=_DEPTH, attention="softmax")


def _slope(rows: pd.DataFrame, quantity: str, first: int) -> tuple[float, float, float, int]:
    """Slope per layer of log10 of the geometric mean over networks, from layer `first` on."""
    layers, values = networks(rows, quantity)
    used = layers >= first
    x = layers[used] - layers[used].mean()
    # Least squares is linear: the slope of the mean logarithm is the mean of the slopes.
    mean, low, high = bootstrap_mean(np.log10(values[:, used]) @ x / (x @ x))
    return float(mean), float(low), float(high), len(values)


def _n19(tables: Tables) -> list[Part]:
    value, low, high, count = _slope(_rows(tables, "POST-LN"), "grad_q", 4)
    rows = _rows(tables, "POST-LN", r"1/\sqrt{L}")
    scaled, scaled_low, scaled_high, _ = _slope(rows, "grad_q", 4)
    pre, pre_low, pre_high, _ = _slope(_rows(tables, "PRE-LN"), "grad_q", 4)
    between = pre_low > high and pre_high < scaled_low
    outside = pre_high < low or pre_low > scaled_high
    verdict: Verdict = "reproduced" if between else "not reproduced" if outside else "inconclusive"
    return [
        below("slope of log10 Q, POST-LN, alpha=1", value, low, high, -0.4, count),
        within("slope of log10 Q, POST-LN scaled", scaled, scaled_low, scaled_high, 0, 0.08, count),
        Part("slope of log10 Q, PRE-LN", pre, pre_low, pre_high, "between", verdict, count),
    ]


def _n20(tables: Tables) -> list[Part]:
    parts = []
    for name, test in (("POST-LN", above), ("PRE-LN", below)):
        value, low, high, count = _slope(_rows(tables, name), "grad_v", 0)
        parts.append(test(f"slope of log10 V, {name}, alpha=1", value, low, high, 0.0, count))
    return parts


def _n21(tables: Tables) -> list[Part]:
    rows = _rows(tables, "POST-LN")
    layers, measured = networks(rows, "jacobian_q")
    theory = rows[rows["quantity"] == "jacobian_q_given_x"]
    given = theory.pivot(index="seed", columns="layer", values="value").to_numpy(dtype=np.float64)
    ratio, low, high = bootstrap_ratio(measured, given)
    _, cosines = networks(rows, "cos_mean")
    return [
        within(
            f"mean Q norm over (7) at X^l, l={int(layer)}",
            float(ratio[i]),
            float(low[i]),
            float(high[i]),
            1.0,
            0.1,
            len(measured),
        )
        for i, layer in enumerate(layers)
        if cosines[:, i].mean() > 0.95
    ]


CLAIMS = (
    Claim(
        "N19",
        "Figures 3 and 10",
        "Query gradients of the loss vanish with depth in unscaled POST-LN, not with 1/sqrt(L).",
        "L = 12, slope per layer of log10 of the geometric-mean squared gradient norm of W^Q over "
        "layers 4 to 11: upper end below -0.4 for POST-LN, 95 % interval inside 0 ± 0.08 when "
        "scaled, PRE-LN between the two.",
        ("gradients",),
        ("fig03", "fig10"),
        "laptop",
        _n19,
    ),
    Claim(
        "N20",
        "Figures 3 and 10",
        "Value gradients of the loss rise with depth in POST-LN and fall in PRE-LN.",
        "L = 12, slope of log10 of the geometric-mean squared gradient norm of W^V over all "
        "layers: lower end above 0 for POST-LN, upper end below 0 for PRE-LN.",
        ("gradients",),
        ("fig03", "fig10"),
        "laptop",
        _n20,
    ),
    Claim(
        "N21",
        "Lemma 3.1, equation (7), at depth",
        "Under rank collapse (7), evaluated at each layer's tokens, holds for true softmax.",
        "POST-LN, alpha = 1, L = 12, at least 200 networks: 95 % interval of the ratio of means "
        "inside 1 ± 0.1 at every layer whose mean cosine exceeds 0.95.",
        ("gradients",),
        ("fig03",),
        "laptop",
        _n21,
    ),
)

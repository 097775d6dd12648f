"""Claims of Noci et al. 2022 (arXiv 2206.03126) on gradients through the whole encoder."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from sigprop.analysis.data import networks, placed
from sigprop.analysis.stats import bootstrap_ratio
from sigprop.claims.claim import Tables, claim
from sigprop.claims.rules import Part, Verdict, above, below, mean_interval, within

_DEPTH = 12


def _rows(tables: Tables, where: str, alpha: str = "1") -> pd.DataFrame:
    return placed(tables["gradients"], where, alpha, depth=_DEPTH, attention="softmax")


def _slope(rows: pd.DataFrame, quantity: str, first: int) -> tuple[tuple[float, float, float], int]:
    """Slope per layer of log10 of the geometric mean over networks, from layer `first` on.

    With its interval, and the number of networks.
    """
    layers, values = networks(rows, quantity)
    used = layers >= first
    x = layers[used] - layers[used].mean()
    # Least squares is linear: the slope of the mean logarithm is the mean of the slopes.
    return mean_interval(np.log10(values[:, used]) @ x / (x @ x)), len(values)


@claim(
    "N19",
    place="Figures 3 and 10",
    statement="""Query gradients of the loss vanish with depth in unscaled POST-LN, not with
    1/sqrt(L).""",
    rule="""L = 12, slope per layer of log10 of the geometric-mean squared gradient norm of W^Q over
    layers 4 to 11: upper end below -0.4 for POST-LN, 95 % interval inside 0 ± 0.08 when scaled,
    PRE-LN between the two.""",
    statistic="mean over networks of a slope of log10, with its 95 % bootstrap interval",
    why="""From layer 4 to 11 a slope of -0.4 loses a factor of 600, one inside ± 0.08 at most 4:
    vanishing and not vanishing are far apart. Earlier layers still feel the input.""",
    tables=("gradients",),
)
def _n19(tables: Tables) -> Iterator[Part]:
    plain, count = _slope(_rows(tables, "POST-LN"), "grad_q", 4)
    scaled, _ = _slope(_rows(tables, "POST-LN", r"1/\sqrt{L}"), "grad_q", 4)
    (pre, low, high), _ = _slope(_rows(tables, "PRE-LN"), "grad_q", 4)
    yield below("slope of log10 Q, POST-LN, alpha=1", *plain, -0.4, count)
    yield within("slope of log10 Q, POST-LN scaled", *scaled, 0, 0.08, count)
    between = low > plain[2] and high < scaled[1]
    outside = high < plain[1] or low > scaled[2]
    verdict: Verdict = "reproduced" if between else "not reproduced" if outside else "inconclusive"
    yield Part("slope of log10 Q, PRE-LN", pre, low, high, "between", verdict, count)


@claim(
    "N20",
    place="Figures 3 and 10",
    statement="Value gradients of the loss rise with depth in POST-LN and fall in PRE-LN.",
    rule="""L = 12, slope of log10 of the geometric-mean squared gradient norm of W^V over all
    layers: lower end above 0 for POST-LN, upper end below 0 for PRE-LN.""",
    statistic="mean over networks of a slope of log10, with its 95 % bootstrap interval",
    why="The claim is about the sign of a trend, so the interval must exclude zero, nothing more.",
    tables=("gradients",),
)
def _n20(tables: Tables) -> Iterator[Part]:
    for name, test in (("POST-LN", above), ("PRE-LN", below)):
        slope, count = _slope(_rows(tables, name), "grad_v", 0)
        yield test(f"slope of log10 V, {name}, alpha=1", *slope, 0.0, count)


@claim(
    "N21",
    place="Lemma 3.1, equation (7), at depth",
    statement="Under rank collapse (7), evaluated at each layer's tokens, holds for true softmax.",
    rule="""POST-LN, alpha = 1, L = 12, at least 200 networks: 95 % interval of the ratio of means
    inside 1 ± 0.1 at every layer whose mean cosine exceeds 0.95.""",
    statistic="ratio of means over networks with its 95 % bootstrap interval",
    why="""Equivalence. The lemma assumes uniform attention, which aligned tokens bring about; above
    a cosine of 0.95 the difference to softmax stays below 10 %.""",
    tables=("gradients",),
)
def _n21(tables: Tables) -> Iterator[Part]:
    rows = _rows(tables, "POST-LN")
    layers, measured = networks(rows, "jacobian_q")
    theory = rows[rows["quantity"] == "jacobian_q_given_x"]
    given = theory.pivot(index="seed", columns="layer", values="value").to_numpy(dtype=np.float64)
    ratio, low, high = bootstrap_ratio(measured, given)
    _, cosines = networks(rows, "cos_mean")
    for i, layer in enumerate(layers):
        if cosines[:, i].mean() > 0.95:
            what = f"mean Q norm over (7) at X^l, l={int(layer)}"
            yield within(what, ratio[i], low[i], high[i], 1.0, 0.1, len(measured))

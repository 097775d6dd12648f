"""Claims of Noci et al. 2022 (arXiv 2206.03126) on training, on the digit-reversal task."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from sigprop.analysis.data import placed
from sigprop.analysis.stats import DRAWS, Array
from sigprop.analysis.training import by_layer, by_step, log_ratio, times_to_solve
from sigprop.claims.claim import Tables, claim
from sigprop.claims.rules import (
    Part,
    Verdict,
    above,
    higher,
    log_rank,
    mean_interval,
    percentiles,
    sign_test,
)

_DEPTH = 5
_BUDGET = 1200
_RATE_STEP = 100
_SEEDS = 8


def _rows(tables: Tables, alpha: str, r: float) -> pd.DataFrame:
    """Networks of five POST-LN blocks with alpha "1" or "1/sqrt(L)", at least `_SEEDS` of them."""
    table, rule = {
        "1": ("reversal_unscaled", "1"),
        "1/sqrt(L)": ("reversal_scaled", r"1/\sqrt{L}"),
    }[alpha]
    rows = placed(tables[table], "POST-LN", rule, depth=_DEPTH, r=r)
    if rows["seed"].nunique() < _SEEDS:
        raise ValueError(f"{table}, r={r:g}: {rows['seed'].nunique()} seeds, at least {_SEEDS}")
    return rows


def _times(rows: pd.DataFrame) -> Array:
    """Steps until solved; beyond the budget of the rule counts as not solved."""
    times, steps = times_to_solve(rows)
    if steps < _BUDGET:
        raise ValueError(f"runs of {steps:.0f} steps, at least {_BUDGET}")
    return times


@claim(
    "N26",
    place="Figure 5",
    statement="Networks whose tokens start out nearly aligned do not learn to reverse digits.",
    rule="""Five POST-LN blocks, steps until 99 % accuracy, censored at 1200, at least 8 seeds;
    two-sided log-rank p < 0.01 for r = 0.999 slower than r = 0 at alpha = 1/sqrt(L), and for
    alpha = 1, r = 0.99 slower than alpha = 1/sqrt(L), r = 0; median loss of alpha = 1, r = 0.99
    after 1200 steps above 2.25 (chance: 2.303), with its interval. Nothing is claimed at moderate
    r.""",
    statistic="""log-rank statistic of steps until solved; median loss with its 95 % bootstrap
    interval""",
    why="""Runs that never learn have no time, so times are censored and ranked. Eight seeds can
    reach p < 0.01. 2.25 lies just below chance, ln 10 = 2.303.""",
    tables=("reversal_unscaled", "reversal_scaled"),
)
def _n26(tables: Tables) -> list[Part]:
    scaled = _times(_rows(tables, "1/sqrt(L)", 0.0))
    collapsed = _times(_rows(tables, "1/sqrt(L)", 0.999))
    near = _rows(tables, "1", 0.99)
    steps, losses = by_step(near, "loss")
    final = losses[:, np.searchsorted(steps, _BUDGET)]
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(final, (DRAWS, len(final))), axis=1)
    value, what = float(np.median(final)), "median loss at the end, alpha=1, r=.99"
    return [
        log_rank("steps to 99 %, alpha=1/sqrt(L): r=.999 against r=0", collapsed, scaled, _BUDGET),
        log_rank(
            "steps to 99 %, alpha=1, r=.99 against scaled, r=0", _times(near), scaled, _BUDGET
        ),
        above(what, value, *percentiles(medians), 2.25, len(final)),
    ]


@claim(
    "N27",
    place="what (17) and (18) say, on the task of Figure 5",
    statement="""At initialization the query gradient falls against the value gradient as tokens
    align.""",
    rule="""Five POST-LN blocks, alpha = 1, at least 8 seeds; over all pairs (seed, r): Spearman
    correlation of the mean cosine of the input tokens with the mean over layers of ln(||grad
    W^Q||^2 / ||grad W^V||^2) below -0.8, upper end of its bootstrap interval over seeds below
    -0.6.""",
    statistic="Spearman correlation with its 95 % bootstrap interval over seeds",
    why="""That it falls follows from (17) and (18), not how; ranks ask for no more. Seeds are
    resampled whole, because the pairs of one seed belong together.""",
    tables=("reversal_unscaled",),
)
def _n27(tables: Tables) -> list[Part]:
    rows = placed(tables["reversal_unscaled"], "POST-LN", "1", depth=_DEPTH)
    cosines, ratios = [], []
    for r in sorted(set(rows["r"])):
        rows = _rows(tables, "1", float(r))
        cosines.append(by_layer(rows, "cos_mean", 0)[1][:, 0])
        ratios.append(log_ratio(rows, "grad_q", "grad_v", 0))
    x, y = np.stack(cosines, 1), np.stack(ratios, 1)  # (n_seeds, n_r)
    value = float(stats.spearmanr(x.ravel(), y.ravel()).statistic)
    rng = np.random.default_rng(0)
    draws = [
        stats.spearmanr(x[pick].ravel(), y[pick].ravel()).statistic
        for pick in rng.integers(0, len(x), (DRAWS, len(x)))
    ]
    low, high = percentiles(draws)
    verdict: Verdict = "inconclusive"
    if value < -0.8 and high < -0.6:
        verdict = "reproduced"
    elif low >= -0.6:
        verdict = "not reproduced"
    what = "Spearman of token cosine and ln(grad Q / grad V) at initialization"
    asked = "< -0.8, upper end < -0.6"
    return [Part(what, value, low, high, asked, verdict, x.size)]


@claim(
    "N28",
    place="Figure 6",
    statement="Adam takes larger effective steps in queries and keys than in values.",
    rule="""Five POST-LN blocks, alpha = 1, step 100; per seed the mean over layers of the
    difference of the median log effective rates of W^Q (W^K) and W^V: positive by the exact
    two-sided sign test over at least 8 seeds, p < 0.01, at r = 0 and r = 0.5; and its mean over
    seeds at r = 0.9 exceeds that at r = 0, with disjoint intervals.""",
    statistic="share of seeds with a positive difference, exact two-sided sign test",
    why="""Only the sign is claimed, and nothing is known about the distribution over seeds. Eight
    of eight give p = 0.0078.""",
    tables=("reversal_unscaled",),
)
def _n28(tables: Tables) -> Iterator[Part]:
    for r in (0.0, 0.5):
        rows = _rows(tables, "1", r)
        for family in ("q", "k"):
            ratios = log_ratio(rows, f"log_rate_{family}", "log_rate_v", _RATE_STEP)
            yield sign_test(f"ln(rate {family.upper()} / rate V), r={r:g}", ratios)
    aligned, apart = (
        log_ratio(_rows(tables, "1", r), "log_rate_q", "log_rate_v", _RATE_STEP) for r in (0.9, 0.0)
    )
    _, bottom, top = mean_interval(apart)
    what = "mean ln(rate Q / rate V) at r=.9 against the upper end at r=0"
    yield higher(what, *mean_interval(aligned), bottom, top, len(aligned))

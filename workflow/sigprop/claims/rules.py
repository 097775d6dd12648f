"""Decision rules. Each turns numbers with their uncertainty into one of three verdicts."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from sigprop.analysis.stats import LEVEL, Array, bootstrap_mean

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "not run"]
# A number beside a claim's own, such as a control: shown, and decides nothing.
Shown = Literal["reported"]


@dataclass(frozen=True)
class Part:
    """One checked number of a claim: what, value with 95 % interval, what was asked, verdict.

    `least` and `most` are the bounds inside which the rule wants the whole interval, where it has
    bounds; a bound that is None is not asked for.
    """

    what: str
    value: float
    low: float
    high: float
    asked: str
    verdict: Verdict | Shown
    n: int
    least: float | None = None
    most: float | None = None


def together(parts: Iterable[Part]) -> Verdict:
    """All reproduced: reproduced. Any not: not reproduced. Otherwise inconclusive.

    Parts that are only reported do not count.
    """
    verdicts = {part.verdict for part in parts} - {"reported"}
    if not verdicts or "not run" in verdicts:
        return "not run"
    if "not reproduced" in verdicts:
        return "not reproduced"
    return "inconclusive" if "inconclusive" in verdicts else "reproduced"


def percentiles(samples: ArrayLike) -> tuple[float, float]:
    """The 95 % interval of bootstrap samples, (draws,)."""
    found = np.asarray(samples, dtype=np.float64)
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def mean_interval(values: Array) -> tuple[float, float, float]:
    """Mean of (n,) values with the ends of its 95 % bootstrap interval."""
    mean, low, high = bootstrap_mean(values)
    return float(mean), float(low), float(high)


def mean_error(values: ArrayLike) -> tuple[float, float]:
    """Mean of (n,) samples and its standard error."""
    sample = np.asarray(values, dtype=np.float64)
    return sample.mean(), sample.std(ddof=1) / np.sqrt(len(sample))


def z_test(
    what: str, values: ArrayLike, theory: float, *, limit: float = 3.5, precision: float = 0.01
) -> Part:
    """Monte Carlo mean against an exact expectation.

    Reproduced when |mean - theory| <= `limit` standard errors and the standard error is at most
    `precision` of theory; not reproduced beyond the limit; inconclusive when it is too noisy.
    The value is mean / theory, its interval mean +- 1.96 standard errors.
    """
    mean, error = mean_error(values)
    score = abs(mean - theory) / error
    verdict: Verdict = "inconclusive"  # also when a value is NaN
    if score > limit:
        verdict = "not reproduced"
    elif score <= limit and error <= precision * abs(theory):
        verdict = "reproduced"
    ratio, half = mean / theory, 1.96 * error / abs(theory)
    asked = f"ratio to theory 1, |z| <= {limit:g} (z = {score:.2f}), SE <= {precision:.0%}"
    return Part(what, ratio, ratio - half, ratio + half, asked, verdict, np.size(values))


def within(
    what: str, value: float, low: float, high: float, target: float, eps: float, n: int
) -> Part:
    """Equivalence: the whole interval inside target +- eps; disjoint from it: not reproduced."""
    inside = low >= target - eps and high <= target + eps
    disjoint = high < target - eps or low > target + eps
    verdict: Verdict = "reproduced" if inside else "not reproduced" if disjoint else "inconclusive"
    asked = f"in {target:.4g} ± {eps:g}"
    return Part(what, value, low, high, asked, verdict, n, target - eps, target + eps)


def above(what: str, value: float, low: float, high: float, bound: float, n: int) -> Part:
    """The whole interval above `bound`; the whole interval at or below it: not reproduced."""
    verdict: Verdict = (
        "reproduced" if low > bound else "not reproduced" if high <= bound else "inconclusive"
    )
    return Part(what, value, low, high, f"> {bound:.4g}", verdict, n, least=bound)


def below(what: str, value: float, low: float, high: float, bound: float, n: int) -> Part:
    """The whole interval below `bound`; the whole interval at or above it: not reproduced."""
    verdict: Verdict = (
        "reproduced" if high < bound else "not reproduced" if low >= bound else "inconclusive"
    )
    return Part(what, value, low, high, f"< {bound:.4g}", verdict, n, most=bound)


def at_most(what: str, values: ArrayLike, bound: float) -> Part:
    """Largest of `values` at most `bound`; for exact statements, which have no interval."""
    found = np.asarray(values, dtype=np.float64)
    worst = float(np.max(found))
    verdict: Verdict = "reproduced" if worst <= bound else "not reproduced"
    return Part(what, worst, worst, worst, f"<= {bound:g}", verdict, found.size, most=bound)


def decided(what: str, value: float, asked: str, holds: bool, n: int) -> Part:
    """A number without an interval for which `holds` decides; NaN is undecided."""
    verdict: Verdict = "reproduced" if holds else "not reproduced"
    verdict = "inconclusive" if np.isnan(value) else verdict
    return Part(what, value, value, value, asked, verdict, n)


def higher(
    what: str, value: float, low: float, high: float, bottom: float, top: float, n: int
) -> Part:
    """The whole interval above another, `bottom` to `top`; wholly below it: not reproduced."""
    verdict: Verdict = (
        "reproduced" if low > top else "not reproduced" if high < bottom else "inconclusive"
    )
    return Part(what, value, low, high, f"> {top:.4g}", verdict, n)


def sign_test(what: str, differences: ArrayLike, *, level: float = 0.01) -> Part:
    """Exact two-sided sign test that `differences` are positive.

    Reproduced when most are positive and p < `level`; not reproduced when most are negative and
    p < `level`; inconclusive otherwise. The value is the share of positive differences among
    those that are not zero, with its exact (Clopper-Pearson) 95 % interval.
    """
    found = np.asarray(differences, dtype=np.float64)
    positive, n = int((found > 0).sum()), int((found != 0).sum())
    if n == 0 or np.isnan(found).any():
        return Part(what, np.nan, np.nan, np.nan, f"sign test p < {level:g}", "inconclusive", n)
    test = stats.binomtest(positive, n)
    low, high = test.proportion_ci(0.95)
    verdict: Verdict = "inconclusive"
    if test.pvalue < level:
        verdict = "reproduced" if 2 * positive > n else "not reproduced"
    asked = f"positive, sign test p < {level:g} (p = {test.pvalue:.2g})"
    return Part(what, positive / n, low, high, asked, verdict, n)


def log_rank(
    what: str,
    slow: ArrayLike,
    fast: ArrayLike,
    censored_at: float,
    *,
    level: float = 0.01,
) -> Part:
    """Two-sided log-rank test that times of `slow` are longer than those of `fast`.

    A time of NaN, or one at or beyond `censored_at`, did not happen by then. Reproduced when
    p < `level` and `slow` is slower; not reproduced when p < `level` and it is faster;
    inconclusive otherwise. The value is the restricted mean time of `slow` minus that of `fast`
    in units of `censored_at`, with a normal 95 % interval.
    """
    samples, times = [], []
    for values in (slow, fast):
        found = np.asarray(values, dtype=np.float64)
        happened = found < censored_at  # False for NaN
        clipped = np.where(happened, found, censored_at)
        times.append(clipped / censored_at)
        samples.append(stats.CensoredData.right_censored(clipped, ~happened))
    with np.errstate(invalid="ignore"):  # 0 / 0 where nothing happened: p is NaN, undecided
        test = stats.logrank(x=samples[0], y=samples[1])
    difference = times[0].mean() - times[1].mean()
    error = np.sqrt(sum(t.var(ddof=1) / len(t) for t in times))
    verdict: Verdict = "inconclusive"
    if test.pvalue < level:
        verdict = "reproduced" if difference > 0 else "not reproduced"
    asked = f"later, log-rank p < {level:g} (p = {test.pvalue:.2g})"
    low, high = difference - 1.96 * error, difference + 1.96 * error
    return Part(what, float(difference), float(low), float(high), asked, verdict, len(times[0]))

"""Decision rules. Each turns numbers with their uncertainty into one of three verdicts."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "not run"]


@dataclass(frozen=True)
class Part:
    """One checked number of a claim: what, value with 95 % interval, what was asked, verdict."""

    what: str
    value: float
    low: float
    high: float
    asked: str
    verdict: Verdict
    n: int


def together(parts: list[Part]) -> Verdict:
    """All reproduced: reproduced. Any not: not reproduced. Otherwise inconclusive."""
    verdicts = {part.verdict for part in parts}
    if not parts or "not run" in verdicts:
        return "not run"
    if "not reproduced" in verdicts:
        return "not reproduced"
    return "inconclusive" if "inconclusive" in verdicts else "reproduced"


def z_test(
    what: str, values: ArrayLike, theory: float, *, limit: float = 3.5, precision: float = 0.01
) -> Part:
    """Monte Carlo mean against an exact expectation.

    Reproduced when |mean - theory| <= `limit` standard errors and the standard error is at most
    `precision` of theory; not reproduced beyond the limit; inconclusive when it is too noisy.
    The value is mean / theory, its interval mean +- 1.96 standard errors.
    """
    sample = np.asarray(values, dtype=np.float64)
    mean = sample.mean()
    error = sample.std(ddof=1) / np.sqrt(len(sample))
    score = abs(mean - theory) / error
    verdict: Verdict = "inconclusive"  # also when a value is NaN
    if score > limit:
        verdict = "not reproduced"
    elif score <= limit and error <= precision * abs(theory):
        verdict = "reproduced"
    ratio, half = mean / theory, 1.96 * error / abs(theory)
    asked = f"ratio to theory 1, |z| <= {limit:g} (z = {score:.2f}), SE <= {precision:.0%}"
    return Part(what, ratio, ratio - half, ratio + half, asked, verdict, len(sample))


def within(
    what: str, value: float, low: float, high: float, target: float, eps: float, n: int
) -> Part:
    """Equivalence: the whole interval inside target +- eps; disjoint from it: not reproduced."""
    inside = low >= target - eps and high <= target + eps
    disjoint = high < target - eps or low > target + eps
    verdict: Verdict = "reproduced" if inside else "not reproduced" if disjoint else "inconclusive"
    return Part(what, value, low, high, f"in {target:.4g} ± {eps:g}", verdict, n)


def above(what: str, value: float, low: float, high: float, bound: float, n: int) -> Part:
    """The whole interval above `bound`; the whole interval at or below it: not reproduced."""
    verdict: Verdict = (
        "reproduced" if low > bound else "not reproduced" if high <= bound else "inconclusive"
    )
    return Part(what, value, low, high, f"> {bound:.4g}", verdict, n)


def below(what: str, value: float, low: float, high: float, bound: float, n: int) -> Part:
    """The whole interval below `bound`; the whole interval at or above it: not reproduced."""
    verdict: Verdict = (
        "reproduced" if high < bound else "not reproduced" if low >= bound else "inconclusive"
    )
    return Part(what, value, low, high, f"< {bound:.4g}", verdict, n)

"""How often each decision rule says what, over 200 made-up samples per case, as Markdown.

    python benchmarks/decision_rules.py

`holds`: the claim is true with room to spare. `edge`: the truth lies on the bound, where a rule
should not decide. `fails`: the claim is false. The share of `reproduced` under `holds` is the
rule's power, under `edge` and `fails` its false-positive rate. docs/claims.md shows the output.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from scipy import stats

from sigprop.analysis.scaling import holm
from sigprop.analysis.trainability import median_ratio, r_squared
from sigprop.claims.noci2022.translation import interval
from sigprop.claims.rules import (
    Part,
    above,
    below,
    decided,
    higher,
    log_rank,
    mean_interval,
    sign_test,
    within,
    z_test,
)

DRAWS = 200
Rng = np.random.Generator


def _within(rng: Rng, shift: float) -> Part:
    """50 networks of spread 0.1 around 1 + shift, asked to be in 1 ± 0.1."""
    return within("x", *mean_interval(rng.normal(1 + shift, 0.1, 50)), 1.0, 0.1, 50)


def _above(rng: Rng, shift: float) -> Part:
    """50 networks of spread 0.1 around 0.7 + shift, asked to exceed 0.7."""
    return above("x", *mean_interval(rng.normal(0.7 + shift, 0.1, 50)), 0.7, 50)


def _below(rng: Rng, shift: float) -> Part:
    """50 networks, lognormal with mean 1 + shift, asked to stay below 1."""
    sample = (1 + shift) * np.exp(rng.normal(-0.125, 0.5, 50))
    return below("x", *mean_interval(sample), 1.0, 50)


def _z_test(rng: Rng, shift: float) -> Part:
    """4000 networks, lognormal with mean 1 + shift and spread 0.53, against 1."""
    return z_test("x", (1 + shift) * np.exp(rng.normal(-0.125, 0.5, 4000)), 1.0)


def _sign_test(rng: Rng, shift: float) -> Part:
    """10 seeds, differences of spread 1 around shift."""
    return sign_test("x", rng.normal(shift, 1.0, 10))


def _log_rank(rng: Rng, factor: float) -> Part:
    """8 against 8 seeds, exponential times of mean 300 * factor and 300, censored at 1200."""
    return log_rank("x", rng.exponential(300 * factor, 8), rng.exponential(300, 8), 1200)


def _runs(rng: Rng, shift: float) -> Part:
    """3 runs, differences of spread 0.1 around shift, Student-t interval asked to exceed 0."""
    return above("x", *interval(rng.normal(shift, 0.1, 3)), 0.0, 3)


def _disjoint(rng: Rng, shift: float) -> Part:
    """8 and 8 seeds of spread 0.1, the second mean larger by shift, intervals disjoint."""
    _, bottom, top = mean_interval(rng.normal(0.0, 0.1, 8))
    return higher("x", *mean_interval(rng.normal(shift, 0.1, 8)), bottom, top, 8)


def _holm(rng: Rng, shift: float) -> Part:
    """KS at 4 depths, 600 against 600 normal numbers, shift standard deviations apart."""
    pairs = [(rng.normal(shift, 1.0, 600), rng.normal(0.0, 1.0, 600)) for _ in range(4)]
    p = float(holm(np.array([stats.ks_2samp(*pair).pvalue for pair in pairs])).min())
    return decided("x", p, "Holm p > 0.01", p > 0.01, 600)


def _medians(rng: Rng, factor: float) -> Part:
    """10 over 10 lognormal losses of spread 0.5, ratio of medians factor, asked to exceed 5."""
    low, high = (m * np.exp(rng.normal(0, 0.5, 10)) for m in (1.0, factor))
    found = median_ratio(high, low)
    return above("x", found.value, found.low, found.high, 5.0, 20)


def _skill(rng: Rng, r_squared_: float) -> Part:
    """48 configurations, a prediction with the given R^2 of normal losses, asked to exceed 0.5."""
    y = rng.normal(size=48)
    found = r_squared(y, y + (1 - r_squared_) ** 0.5 * rng.normal(size=48))
    return above("x", found.value, found.low, found.high, 0.5, 48)


# rule -> what is drawn, and the parameter under which the claim holds, is on the edge, fails.
CASES: dict[str, tuple[Callable[[Rng, float], Part], tuple[float, float, float]]] = {
    "within": (_within, (0.0, 0.1, 0.2)),
    "above": (_above, (0.1, 0.0, -0.1)),
    "below": (_below, (-0.4, 0.0, 0.6)),
    "z_test": (_z_test, (0.0, 0.015, 0.1)),
    "sign_test": (_sign_test, (3.0, 0.0, -3.0)),
    "log_rank": (_log_rank, (30.0, 1.0, 1 / 30)),
    "above, Student-t": (_runs, (1.0, 0.0, -1.0)),
    "disjoint intervals": (_disjoint, (0.5, 0.0, -0.5)),
    "KS with Holm": (_holm, (0.0, 0.1, 0.4)),
    "above, ratio of medians": (_medians, (30.0, 5.0, 1.0)),
    "above, R^2": (_skill, (0.9, 0.5, -1.0)),
}
# Rules of a significance test alone have no room for `inconclusive`.
DECIDES_ALWAYS = ("z_test", "KS with Holm")
TRUTHS = ("holds", "edge", "fails")
VERDICTS = ("reproduced", "inconclusive", "not reproduced")


@cache
def rates() -> dict[tuple[str, str], dict[str, float]]:
    """(rule, truth) -> share of each verdict over `DRAWS` samples."""
    found = {}
    for index, (rule, (draw, parameters)) in enumerate(CASES.items()):
        for truth, parameter in zip(TRUTHS, parameters, strict=True):
            rng = np.random.default_rng([index, TRUTHS.index(truth)])
            verdicts = [draw(rng, parameter).verdict for _ in range(DRAWS)]
            found[rule, truth] = {name: verdicts.count(name) / DRAWS for name in VERDICTS}
    return found


def table() -> str:
    """The rates as a Markdown table."""
    head = f"| rule | sample | truth | {' | '.join(VERDICTS)} |"
    lines = [head, "|" + "---|" * (3 + len(VERDICTS))]
    for (rule, truth), shares in rates().items():
        draw, parameters = CASES[rule]
        about = (draw.__doc__ or "").rstrip(".")
        parameter = parameters[TRUTHS.index(truth)]
        cells = " | ".join(f"{shares[name]:.1%}" for name in VERDICTS)
        lines.append(f"| `{rule}` | {about} | {truth} ({parameter:.3g}) | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())

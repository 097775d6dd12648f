"""Claims of Noci et al. 2022 (arXiv 2206.03126) on the gradients of one attention layer."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pandas as pd

from sigprop.analysis.cells import Array, cell, means, theory_of
from sigprop.analysis.data import choose
from sigprop.analysis.stats import DRAWS
from sigprop.claims.claim import Tables, claim
from sigprop.claims.rules import (
    Part,
    Verdict,
    above,
    at_most,
    below,
    decided,
    mean_error,
    percentiles,
    within,
    z_test,
)

_FIXED = ("fixed_a", "fixed_b", "fixed_c", "fixed_d")
_GAUSSIAN = tuple(f"gaussian_{letter}" for letter in "abcdef")


def _resampled(values: Array, seed: int) -> Array:
    """(DRAWS,) bootstrap means; `seed` keeps cells of one claim independent of each other."""
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(len(values), np.full(len(values), 1 / len(values)), size=DRAWS)
    return np.asarray(counts @ values / len(values))


def _exact(tables: Tables, check: str, quantity: str) -> Array:
    rows = choose(tables["jacobian_exact"], check=check, quantity=quantity)
    return rows["value"].to_numpy(dtype=np.float64)


@claim(
    "N01",
    place="Lemmas A.2 and A.3; the fast form is derived here",
    statement="The instrument's Jacobian norms equal automatic differentiation.",
    rule="""Largest relative difference over at least 20 random shapes with n, d, d_k, d_v all
    different and tau 0.5, 1, 8.5 at most 1e-9, for Q, K, V and X.""",
    statistic="largest value, exact: no interval",
    why="""Both compute the same numbers in float64, so that rounding alone may separate them; 1e-9
    leaves room for sums over many entries and none for a wrong term.""",
    tables=("jacobian_exact",),
    smallest_preset="smoke",
)
def _n01(tables: Tables) -> Iterator[Part]:
    for family in ("q", "k", "v", "x"):
        found = _exact(tables, "jacrev", f"relative_difference_{family}")
        yield at_most(f"largest relative difference, {family.upper()}", found, 1e-9)


@claim(
    "N02",
    place="Theorem 3.1",
    statement="""At equal tokens the query and key gradients vanish exactly; the value gradient does
    not.""",
    rule="""True softmax, 50 draws: Q and K norms at most 1e-20 of the V norm, and the V norm equal
    to d_v n ||x||^2 within 1e-12.""",
    statistic="largest value, exact: no interval",
    why="""The theorem says exactly zero. 1e-20 of a squared norm lies above the square of rounding
    and far below any gradient that does not vanish identically.""",
    tables=("jacobian_exact",),
    smallest_preset="smoke",
)
def _n02(tables: Tables) -> Iterator[Part]:
    for family in ("q", "k"):
        ratio = _exact(tables, "equal_tokens", f"ratio_to_value_{family}")
        yield at_most(f"{family.upper()} norm over V norm at equal tokens", ratio, 1e-20)
    value = _exact(tables, "equal_tokens", "relative_difference_closed_form_v")
    yield at_most("V norm against d_v n ||x||^2", value, 1e-12)


@claim(
    "N03",
    place="Lemma 3.1, equations (6) and (7)",
    statement="Expected query and key norms, and the exact value norm, at fixed inputs.",
    rule="""Uniform attention, four shapes with d, d_k, d_v all different: means within 3.5 standard
    errors of (7) with a standard error of at most 1 %; value norm equal to (6) within 1e-12.""",
    statistic="mean over networks against an exact expectation, in standard errors (z-test)",
    why="""The expectation is exact at any size, so the only difference allowed is sampling noise.
    3.5 standard errors are exceeded by chance once in 2000 tests; a standard error of 1 % keeps a
    rule with few networks from passing. Four different sizes tell d from d_k and d_v.""",
    tables=("lemma31",),
)
def _n03(tables: Tables) -> Iterator[Part]:
    for grid in _FIXED:
        rows = choose(tables["lemma31"], grid=grid)
        for family in ("q", "k"):
            values = cell(rows, f"jacobian_{family}")
            theory = theory_of(rows, f"jacobian_{family}_given_x")
            yield z_test(f"E ||dS/dW^{family.upper()}||^2, {grid}", values, theory)
        exact = cell(rows, "jacobian_v") / theory_of(rows, "jacobian_v_given_x") - 1
        yield at_most(f"V norm against (6), {grid}", np.abs(exact), 1e-12)


@claim(
    "N04",
    place="Lemma 3.1, equation (8), in the exact form derived here",
    statement="""The input Jacobian has the exact expectation and does not vanish under rank
    collapse.""",
    rule="As N03, for dS/dX at three shapes and at equal tokens.",
    statistic="mean over networks against an exact expectation, in standard errors (z-test)",
    why="""As N03. Equal tokens are the case in which the other gradients vanish and this one does
    not.""",
    tables=("lemma31",),
)
def _n04(tables: Tables) -> Iterator[Part]:
    for grid in (*_FIXED[:3], "collapsed"):
        rows = choose(tables["lemma31"], grid=grid)
        theory = theory_of(rows, "jacobian_x_given_x")
        yield z_test(f"E ||dS/dX||^2, {grid}", cell(rows, "jacobian_x"), theory)


@claim(
    "N05",
    place="Lemma 3.1, equation (8), bound as we reconstruct it",
    statement="""Equation (8) as we reconstruct it is no upper bound of the input Jacobian: a case
    derived here exceeds it.""",
    rule="n = 8, d = 64, rho = 0.95, sigma_x = 8, one fixed input: mean - 3.5 SE above the bound.",
    statistic="mean over networks minus 3.5 standard errors, over the bound",
    why="""One counterexample refutes a bound, if it is certain: 3.5 standard errors make chance an
    unlikely explanation.""",
    tables=("lemma31",),
)
def _n05(tables: Tables) -> list[Part]:
    rows = choose(tables["lemma31"], grid="bound")
    values = cell(rows, "jacobian_x")
    bound = theory_of(rows, "jacobian_x_bound_given_x")
    mean, error = mean_error(values)
    low, high = (float((mean + k * 3.5 * error) / bound) for k in (-1, 1))
    return [
        above("E ||dS/dX||^2 over the bound, 3.5 SE", mean / bound, low, high, 1.0, len(values))
    ]


@claim(
    "N06",
    place="Equations (17) and (18); the finite-size factor is derived here",
    statement="Expected query and value norms over Gaussian tokens, exact at any size.",
    rule="""Uniform attention, six points: means within 3.5 standard errors, the standard error at
    most 1 %; without its finite-size factor (17) is rejected (|z| > 3.5) at n = 6, d = 8.""",
    statistic="mean over networks against an exact expectation, in standard errors (z-test)",
    why="""As N03. That the formula without the factor is rejected on the same data shows that the
    test can tell the two apart.""",
    tables=("lemma31",),
)
def _n06(tables: Tables) -> Iterator[Part]:
    for grid in _GAUSSIAN:
        rows = choose(tables["lemma31"], grid=grid)
        for family, equation in (("q", "(17)"), ("v", "(18)")):
            values = cell(rows, f"jacobian_{family}")
            theory = theory_of(rows, f"jacobian_{family}")
            yield z_test(f"{equation}, {grid}", values, theory)
    rows = choose(tables["lemma31"], grid="gaussian_a")
    values, theory = cell(rows, "jacobian_q"), theory_of(rows, "jacobian_q_independent")
    mean, error = mean_error(values)
    score = abs(mean - theory) / error
    what = "|z| of (17) without the finite-size factor"
    yield decided(what, score, "> 3.5", score > 3.5, len(values))


def _sweep(tables: Tables, grid: str, **wanted: float) -> pd.DataFrame:
    return choose(tables["jacobian_sweeps"], grid=grid, **wanted)


_SMALL = (0.05, 0.07, 0.1, 0.14, 0.2)


@claim(
    "N07",
    place="Section 3, Figures 12 and 13",
    statement="Query gradients are cubic, value gradients linear in sigma_x^2.",
    rule="""Slope of ln mean norm against ln sigma_x^2 over sigma_x from 0.05 to 0.2, softmax: 95 %
    interval inside 3 ± 0.06 for Q and 1 ± 0.03 for V.""",
    statistic="slope on logarithms with its 95 % bootstrap interval over networks",
    why="""Equivalence: the whole interval must lie near the power that theory gives. 0.06 and 0.03
    are a fiftieth of the distance to the next whole power, and above what softmax bends the line at
    inputs this small.""",
    tables=("jacobian_sweeps",),
)
def _n07(tables: Tables) -> Iterator[Part]:
    x = 2 * np.log(_SMALL)
    x = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    for family, power, eps in (("q", 3.0, 0.06), ("v", 1.0, 0.03)):
        values = [
            cell(_sweep(tables, "sigma_x", rho=0.2, sigma_x=s), f"jacobian_{family}")
            for s in _SMALL
        ]
        slope = float(x @ np.log([v.mean() for v in values]))
        samples = x @ np.log([_resampled(v, i) for i, v in enumerate(values)])
        what = f"slope in ln sigma_x^2, {family.upper()}"
        yield within(what, slope, *percentiles(samples), power, eps, len(values[0]))


@claim(
    "N08",
    place="Section 3, Figures 3 and 13",
    statement="With growing correlation query gradients fall and value gradients rise.",
    rule="""Softmax, sigma_x = 0.5, six values of rho: 95 % interval of every successive change
    below 0 for Q and above 0 for V.""",
    statistic="ln of the ratio of successive means with its 95 % bootstrap interval",
    why="""Monotone means that every step has the sign; a trend over the ends alone could hide a
    turn.""",
    tables=("jacobian_sweeps",),
)
def _n08(tables: Tables) -> Iterator[Part]:
    rhos = sorted(set(_sweep(tables, "rho")["rho"]))
    for family, test in (("q", below), ("v", above)):
        values = [
            cell(_sweep(tables, "rho", rho=r, sigma_x=0.5), f"jacobian_{family}") for r in rhos
        ]
        samples = [_resampled(v, i) for i, v in enumerate(values)]
        for i, (low_rho, high_rho) in enumerate(pairwise(rhos)):
            change = float(np.log(values[i + 1].mean() / values[i].mean()))
            low, high = percentiles(np.log(samples[i + 1] / samples[i]))
            what = f"ln change of {family.upper()}, rho {low_rho:g} to {high_rho:g}"
            yield test(what, change, low, high, 0.0, len(values[i]))


@claim(
    "N09",
    place="Figures 13 and 14",
    statement="At sigma_x = 1/sqrt(d), (17) and (18) hold for true softmax over the whole grid.",
    rule="""Geometric mean over cells of the ratio to theory: 95 % interval inside 1 ± 0.04; worst
    cell within 15 %; at least 400 networks a cell.""",
    statistic="geometric mean over cells of simulation / theory, and its worst cell",
    why="""The theory is exact for uniform attention and approximate for softmax. 4 % on average and
    15 % in the worst cell were set from a pilot that had 1 % and 11 %.""",
    if_not="""The averages agree; one cell decides, values at d = 8, n = 64, rho = 0. There softmax
    is least uniform: it leans towards tokens that agree with the query, which raises the norm by
    n / d^3 + 1 / d^2 of itself to leading order (derived here), 14 % in this cell, 8 % at n = 32
    and 2 % at d = 16. So near the bound of 15 % the verdict is that of the sampling error, 2 % with
    400 networks, as the rule takes the worst cell without its interval. More networks would bring
    it below, wider ones far below.""",
    tables=("jacobian_grid",),
)
def _n09(tables: Tables) -> Iterator[Part]:
    rows = choose(tables["jacobian_grid"], grid="unit_norm")
    for family, equation in (("q", "(17)"), ("v", "(18)")):
        cells = means(rows, f"jacobian_{family}")
        ratio = np.log((cells["mean"] / cells["theory"]).to_numpy(dtype=np.float64))
        error = (cells["error"] / cells["mean"]).to_numpy(dtype=np.float64)
        mean, half = ratio.mean(), 1.96 * np.sqrt((error**2).sum()) / len(ratio)
        value, low, high = (float(np.exp(v)) for v in (mean, mean - half, mean + half))
        count = int(cells["n"].min())
        what = f"geometric-mean ratio to {equation}"
        yield within(what, value, low, high, 1.0, 0.04, count)
        worst = int(np.abs(np.exp(ratio) - 1).argmax())
        value = float(np.exp(ratio[worst]) - 1)
        spread = 1.96 * error[worst] * np.exp(ratio[worst])
        verdict: Verdict = "reproduced" if abs(value) <= 0.15 else "not reproduced"
        where = cells.iloc[worst]
        what = f"worst cell for {equation}: n={where['n_tokens']}, d={where['d_model']}"
        what += f", rho={where['rho']:g}"
        asked = "within ± 0.15 (point estimate)"
        yield Part(what, value, value - spread, value + spread, asked, verdict, count)


@claim(
    "N10",
    place="Figure 12",
    statement="The smaller the input, the closer softmax attention is to the theory.",
    rule="""rho = 0, n = 32, d = 64: |ln(Q/(17))| increasing over sigma_x = 0.3, 0.7, 1, 1.5 (95 %
    intervals of the differences above 0), below 0.05 at 1/sqrt(d), above 0.5 at 1.5.""",
    statistic="difference of |ln(simulation / theory)| with its 95 % bootstrap interval",
    why="""The claim is about order, so differences are tested, not values; the two ends must also
    lie far enough apart to matter: 5 % at the small input, e^0.5 at the large one.""",
    tables=("jacobian_sweeps",),
)
def _n10(tables: Tables) -> Iterator[Part]:
    def gap(sigma_x: float, index: int) -> tuple[float, Array, int]:
        rows = _sweep(tables, "sigma_x", rho=0.0, sigma_x=sigma_x)
        values, theory = cell(rows, "jacobian_q"), theory_of(rows, "jacobian_q")
        samples = np.abs(np.log(_resampled(values, index) / theory))
        return float(abs(np.log(values.mean() / theory))), samples, len(values)

    sizes = (0.3, 0.7, 1.0, 1.5)
    gaps = [gap(size, i) for i, size in enumerate(sizes)]
    for i, (small, large) in enumerate(pairwise(sizes)):
        difference = gaps[i + 1][0] - gaps[i][0]
        low, high = percentiles(gaps[i + 1][1] - gaps[i][1])
        what = f"growth of |ln(Q/(17))|, sigma_x {small:g} to {large:g}"
        yield above(what, difference, low, high, 0.0, gaps[i][2])
    value, samples, count = gap(64**-0.5, len(sizes))
    what = "|ln(Q/(17))| at sigma_x=1/sqrt(d)"
    yield below(what, value, *percentiles(samples), 0.05, count)
    value, samples, count = gaps[-1]
    yield above("|ln(Q/(17))| at sigma_x=1.5", value, *percentiles(samples), 0.5, count)


def _ratio_part(rows: pd.DataFrame, what: str, eps: float) -> Part:
    q, v = cell(rows, "jacobian_q"), cell(rows, "jacobian_v")
    rng = np.random.default_rng(0)
    counts = rng.multinomial(len(q), np.full(len(q), 1 / len(q)), size=DRAWS)
    low, high = percentiles((counts @ q) / (counts @ v))
    return within(what, float(q.mean() / v.mean()), low, high, 1.0, eps, len(q))


@claim(
    "N24",
    place="The inverse temperature tau",
    statement="tau scales query and key gradients only; tau* balances them with the values.",
    rule="""Uniform attention, same weights: Q norm equal to tau^2 times that at 1, V norm
    unchanged, within 1e-10. Softmax at tau*, rho = 0.2, sigma_x = 0.3 and 0.5: 95 % interval of Q/V
    inside 1 ± 0.15.""",
    statistic="largest value, exact: no interval; ratio of means with its 95 % bootstrap interval",
    why="""With the same weights tau is a factor, exact up to rounding. For softmax tau* comes from
    a theory of uniform attention, so 15 % are allowed at these input sizes.""",
    tables=("jacobian_exact", "balance"),
)
def _n24(tables: Tables) -> Iterator[Part]:
    scaled, kept = (
        _exact(tables, "temperature", f"relative_difference_{what}")
        for what in ("tau_squared_q", "tau_v")
    )
    yield at_most("Q norm over tau^2, uniform", scaled, 1e-10)
    yield at_most("V norm at tau and at 1, uniform", kept, 1e-10)
    for sigma_x in (0.3, 0.5):
        rows = choose(tables["balance"], grid="softmax", rho=0.2, sigma_x=sigma_x)
        what = f"Q/V at tau*, softmax, rho=0.2, sigma_x={sigma_x:g}"
        yield _ratio_part(rows, what, 0.15)


@claim(
    "N25",
    place="The inverse temperature tau; the paper prints 8.5 but not its rho",
    statement="The balancing temperature follows from (17) and (18).",
    rule="""Uniform attention, n = 25, d = 64, sigma_x = 1, rho = 0 to 0.5: 95 % interval of Q/V at
    tau* inside 1 ± 0.05.""",
    statistic="ratio of means over networks with its 95 % bootstrap interval",
    why="""Equivalence. For uniform attention tau* is exact; 5 % is what 2000 networks resolve. The
    paper's rho is not known, so no value of tau is required.""",
    tables=("balance",),
)
def _n25(tables: Tables) -> Iterator[Part]:
    rows = choose(tables["balance"], grid="uniform")
    for rho in sorted(set(rows["rho"])):
        part = choose(rows, rho=rho)
        tau = float(part["tau"].iloc[0])
        yield _ratio_part(part, f"Q/V at tau*={tau:.2f}, rho={rho:g}, uniform", 0.05)

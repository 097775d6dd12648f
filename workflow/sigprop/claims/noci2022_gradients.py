"""Claims of Noci et al. 2022 (arXiv 2206.03126) on the gradients of one attention layer."""

from itertools import pairwise

import numpy as np
import pandas as pd

from sigprop.analysis.cells import Array, cell, means, theory_of
from sigprop.analysis.data import choose
from sigprop.analysis.stats import DRAWS, LEVEL
from sigprop.claims.claim import Claim, Tables
from sigprop.claims.rules import Part, Verdict, above, at_most, below, within, z_test

_FIXED = ("fixed_a", "fixed_b", "fixed_c", "fixed_d")
_GAUSSIAN = tuple(f"gaussian_{letter}" for letter in "abcdef")


def _interval(samples: Array) -> tuple[float, float]:
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _resampled(values: Array, seed: int) -> Array:
    """(DRAWS,) bootstrap means; `seed` keeps cells of one claim independent of each other."""
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(len(values), np.full(len(values), 1 / len(values)), size=DRAWS)
    return np.asarray(counts @ values / len(values))


def _exact(tables: Tables, check: str, quantity: str) -> Array:
    rows = choose(tables["jacobian_exact"], check=check, quantity=quantity)
    return rows["value"].to_numpy(dtype=np.float64)


def _n01(tables: Tables) -> list[Part]:
    return [
        at_most(
            f"largest relative difference, {family.upper()}",
            _exact(tables, "jacrev", f"relative_difference_{family}"),
            1e-9,
        )
        for family in ("q", "k", "v", "x")
    ]


def _n02(tables: Tables) -> list[Part]:
    parts = [
        at_most(
            f"{family.upper()} norm over V norm at equal tokens",
            _exact(tables, "equal_tokens", f"ratio_to_value_{family}"),
            1e-20,
        )
        for family in ("q", "k")
    ]
    value = _exact(tables, "equal_tokens", "relative_difference_closed_form_v")
    return [*parts, at_most("V norm against d_v n ||x||^2", value, 1e-12)]


def _n03(tables: Tables) -> list[Part]:
    parts = []
    for grid in _FIXED:
        rows = choose(tables["lemma31"], grid=grid)
        for family in ("q", "k"):
            values = cell(rows, f"jacobian_{family}")
            theory = theory_of(rows, f"jacobian_{family}_given_x")
            parts.append(z_test(f"E ||dS/dW^{family.upper()}||^2, {grid}", values, theory))
        exact = cell(rows, "jacobian_v") / theory_of(rows, "jacobian_v_given_x") - 1
        parts.append(at_most(f"V norm against (6), {grid}", np.abs(exact), 1e-12))
    return parts


def _n04(tables: Tables) -> list[Part]:
    parts = []
    for grid in (*_FIXED[:3], "collapsed"):
        rows = choose(tables["lemma31"], grid=grid)
        theory = theory_of(rows, "jacobian_x_given_x")
        parts.append(z_test(f"E ||dS/dX||^2, {grid}", cell(rows, "jacobian_x"), theory))
    return parts


def _n05(tables: Tables) -> list[Part]:
    rows = choose(tables["lemma31"], grid="bound")
    values = cell(rows, "jacobian_x")
    bound = theory_of(rows, "jacobian_x_bound_given_x")
    mean, error = values.mean(), values.std(ddof=1) / np.sqrt(len(values))
    low, high = (float((mean + k * 3.5 * error) / bound) for k in (-1, 1))
    return [
        above("E ||dS/dX||^2 over the bound, 3.5 SE", mean / bound, low, high, 1.0, len(values))
    ]


def _n06(tables: Tables) -> list[Part]:
    parts = []
    for grid in _GAUSSIAN:
        rows = choose(tables["lemma31"], grid=grid)
        for family, equation in (("q", "(17)"), ("v", "(18)")):
            values = cell(rows, f"jacobian_{family}")
            theory = theory_of(rows, f"jacobian_{family}")
            parts.append(z_test(f"{equation}, {grid}", values, theory))
    rows = choose(tables["lemma31"], grid="gaussian_a")
    values, theory = cell(rows, "jacobian_q"), theory_of(rows, "jacobian_q_independent")
    error = values.std(ddof=1) / np.sqrt(len(values))
    score = float(abs(values.mean() - theory) / error)
    verdict: Verdict = "reproduced" if score > 3.5 else "not reproduced"
    what = "|z| of (17) without the finite-size factor"
    return [*parts, Part(what, score, score, score, "> 3.5", verdict, len(values))]


def _sweep(tables: Tables, grid: str, **wanted: float) -> pd.DataFrame:
    return choose(tables["jacobian_sweeps"], grid=grid, **wanted)


_SMALL = (0.05, 0.07, 0.1, 0.14, 0.2)


def _n07(tables: Tables) -> list[Part]:
    x = 2 * np.log(_SMALL)
    x = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    parts = []
    for family, power, eps in (("q", 3.0, 0.06), ("v", 1.0, 0.03)):
        values = [
            cell(_sweep(tables, "sigma_x", rho=0.2, sigma_x=s), f"jacobian_{family}")
            for s in _SMALL
        ]
        slope = float(x @ np.log([v.mean() for v in values]))
        samples = x @ np.log([_resampled(v, i) for i, v in enumerate(values)])
        what = f"slope in ln sigma_x^2, {family.upper()}"
        parts.append(within(what, slope, *_interval(samples), power, eps, len(values[0])))
    return parts


def _n08(tables: Tables) -> list[Part]:
    parts = []
    rhos = sorted(set(_sweep(tables, "rho")["rho"]))
    for family, test in (("q", below), ("v", above)):
        values = [
            cell(_sweep(tables, "rho", rho=r, sigma_x=0.5), f"jacobian_{family}") for r in rhos
        ]
        samples = [_resampled(v, i) for i, v in enumerate(values)]
        for i, (low_rho, high_rho) in enumerate(pairwise(rhos)):
            change = float(np.log(values[i + 1].mean() / values[i].mean()))
            low, high = _interval(np.log(samples[i + 1] / samples[i]))
            what = f"ln change of {family.upper()}, rho {low_rho:g} to {high_rho:g}"
            parts.append(test(what, change, low, high, 0.0, len(values[i])))
    return parts


def _n09(tables: Tables) -> list[Part]:
    rows = choose(tables["jacobian_grid"], grid="unit_norm")
    parts = []
    for family, equation in (("q", "(17)"), ("v", "(18)")):
        cells = means(rows, f"jacobian_{family}")
        ratio = np.log((cells["mean"] / cells["theory"]).to_numpy(dtype=np.float64))
        error = (cells["error"] / cells["mean"]).to_numpy(dtype=np.float64)
        mean, half = ratio.mean(), 1.96 * np.sqrt((error**2).sum()) / len(ratio)
        value, low, high = (float(np.exp(v)) for v in (mean, mean - half, mean + half))
        count = int(cells["n"].min())
        what = f"geometric-mean ratio to {equation}"
        parts.append(within(what, value, low, high, 1.0, 0.04, count))
        worst = int(np.abs(np.exp(ratio) - 1).argmax())
        value = float(np.exp(ratio[worst]) - 1)
        spread = 1.96 * error[worst] * np.exp(ratio[worst])
        verdict: Verdict = "reproduced" if abs(value) <= 0.15 else "not reproduced"
        where = cells.iloc[worst]
        what = f"worst cell for {equation}: n={where['n_tokens']}, d={where['d_model']}"
        what += f", rho={where['rho']:g}"
        asked = "within ± 0.15 (point estimate)"
        parts.append(Part(what, value, value - spread, value + spread, asked, verdict, count))
    return parts


def _n10(tables: Tables) -> list[Part]:
    def gap(sigma_x: float, index: int) -> tuple[float, Array, int]:
        rows = _sweep(tables, "sigma_x", rho=0.0, sigma_x=sigma_x)
        values, theory = cell(rows, "jacobian_q"), theory_of(rows, "jacobian_q")
        samples = np.abs(np.log(_resampled(values, index) / theory))
        return float(abs(np.log(values.mean() / theory))), samples, len(values)

    sizes = (0.3, 0.7, 1.0, 1.5)
    gaps = [gap(size, i) for i, size in enumerate(sizes)]
    parts = []
    for i, (small, large) in enumerate(pairwise(sizes)):
        difference = gaps[i + 1][0] - gaps[i][0]
        low, high = _interval(gaps[i + 1][1] - gaps[i][1])
        what = f"growth of |ln(Q/(17))|, sigma_x {small:g} to {large:g}"
        parts.append(above(what, difference, low, high, 0.0, gaps[i][2]))
    unit = 64**-0.5
    value, samples, count = gap(unit, len(sizes))
    what = "|ln(Q/(17))| at sigma_x=1/sqrt(d)"
    parts.append(below(what, value, *_interval(samples), 0.05, count))
    value, samples, count = gaps[-1]
    return [*parts, above("|ln(Q/(17))| at sigma_x=1.5", value, *_interval(samples), 0.5, count)]


def _ratio_part(rows: pd.DataFrame, what: str, eps: float) -> Part:
    q, v = cell(rows, "jacobian_q"), cell(rows, "jacobian_v")
    rng = np.random.default_rng(0)
    counts = rng.multinomial(len(q), np.full(len(q), 1 / len(q)), size=DRAWS)
    low, high = _interval((counts @ q) / (counts @ v))
    return within(what, float(q.mean() / v.mean()), low, high, 1.0, eps, len(q))


def _n24(tables: Tables) -> list[Part]:
    same = "relative_difference_tau_squared_q"
    parts = [
        at_most("Q norm over tau^2, uniform", _exact(tables, "temperature", same), 1e-10),
        at_most(
            "V norm at tau and at 1, uniform",
            _exact(tables, "temperature", "relative_difference_tau_v"),
            1e-10,
        ),
    ]
    for sigma_x in (0.3, 0.5):
        rows = choose(tables["balance"], grid="softmax", rho=0.2, sigma_x=sigma_x)
        what = f"Q/V at tau*, softmax, rho=0.2, sigma_x={sigma_x:g}"
        parts.append(_ratio_part(rows, what, 0.15))
    return parts


def _n25(tables: Tables) -> list[Part]:
    rows = choose(tables["balance"], grid="uniform")
    parts = []
    for rho in sorted(set(rows["rho"])):
        part = choose(rows, rho=rho)
        tau = float(part["tau"].iloc[0])
        parts.append(_ratio_part(part, f"Q/V at tau*={tau:.2f}, rho={rho:g}, uniform", 0.05))
    return parts


CLAIMS = (
    Claim(
        "N01",
        "Lemmas A.2 and A.3; the fast form is derived here",
        "The instrument's Jacobian norms equal automatic differentiation.",
        "Largest relative difference over at least 20 random shapes with n, d, d_k, d_v all "
        "different and tau 0.5, 1, 8.5 at most 1e-9, for Q, K, V and X.",
        ("jacobian_exact",),
        ("fig12",),
        "smoke",
        _n01,
    ),
    Claim(
        "N02",
        "Theorem 3.1",
        "At equal tokens the query and key gradients vanish exactly; the value gradient does not.",
        "True softmax, 50 draws: Q and K norms at most 1e-20 of the V norm, and the V norm equal "
        "to d_v n ||x||^2 within 1e-12.",
        ("jacobian_exact",),
        ("fig03",),
        "smoke",
        _n02,
    ),
    Claim(
        "N03",
        "Lemma 3.1, equations (6) and (7)",
        "Expected query and key norms, and the exact value norm, at fixed inputs.",
        "Uniform attention, four shapes with d, d_k, d_v all different: means within 3.5 standard "
        "errors of (7) with a standard error of at most 1 %; value norm equal to (6) within 1e-12.",
        ("lemma31",),
        ("fig12",),
        "laptop",
        _n03,
    ),
    Claim(
        "N04",
        "Lemma 3.1, equation (8), in the exact form derived here",
        "The input Jacobian has the exact expectation and does not vanish under rank collapse.",
        "As N03, for dS/dX at three shapes and at equal tokens.",
        ("lemma31",),
        ("fig12",),
        "laptop",
        _n04,
    ),
    Claim(
        "N05",
        "Lemma 3.1, equation (8), bound as we reconstruct it",
        "The bound on the input Jacobian can be exceeded.",
        "n = 8, d = 64, rho = 0.95, sigma_x = 8, one fixed input: mean - 3.5 SE above the bound.",
        ("lemma31",),
        ("fig12",),
        "laptop",
        _n05,
    ),
    Claim(
        "N06",
        "Equations (17) and (18); the finite-size factor is derived here",
        "Expected query and value norms over Gaussian tokens, exact at any size.",
        "Uniform attention, six points: means within 3.5 standard errors, the standard error at "
        "most 1 %; without its finite-size factor (17) is rejected (|z| > 3.5) at n = 6, d = 8.",
        ("lemma31",),
        ("fig12", "fig14"),
        "laptop",
        _n06,
    ),
    Claim(
        "N07",
        "Section 3, Figures 12 and 13",
        "Query gradients are cubic, value gradients linear in sigma_x^2.",
        "Slope of ln mean norm against ln sigma_x^2 over sigma_x from 0.05 to 0.2, softmax: 95 % "
        "interval inside 3 ± 0.06 for Q and 1 ± 0.03 for V.",
        ("jacobian_sweeps",),
        ("fig12", "fig13"),
        "laptop",
        _n07,
    ),
    Claim(
        "N08",
        "Section 3, Figures 3 and 13",
        "With growing correlation query gradients fall and value gradients rise.",
        "Softmax, sigma_x = 0.5, six values of rho: 95 % interval of every successive change below "
        "0 for Q and above 0 for V.",
        ("jacobian_sweeps",),
        ("fig03", "fig13"),
        "laptop",
        _n08,
    ),
    Claim(
        "N09",
        "Figures 13 and 14",
        "At sigma_x = 1/sqrt(d), (17) and (18) hold for true softmax over the whole grid.",
        "Geometric mean over cells of the ratio to theory: 95 % interval inside 1 ± 0.04; worst "
        "cell within 15 %; at least 400 networks a cell.",
        ("jacobian_grid",),
        ("fig13", "fig14"),
        "laptop",
        _n09,
    ),
    Claim(
        "N10",
        "Figure 12",
        "The smaller the input, the closer softmax attention is to the theory.",
        "rho = 0, n = 32, d = 64: |ln(Q/(17))| increasing over sigma_x = 0.3, 0.7, 1, 1.5 (95 % "
        "intervals of the differences above 0), below 0.05 at 1/sqrt(d), above 0.5 at 1.5.",
        ("jacobian_sweeps",),
        ("fig12",),
        "laptop",
        _n10,
    ),
    Claim(
        "N24",
        "The inverse temperature tau",
        "tau scales query and key gradients only; tau* balances them with the values.",
        "Uniform attention, same weights: Q norm equal to tau^2 times that at 1, V norm unchanged, "
        "within 1e-10. Softmax at tau*, rho = 0.2, sigma_x = 0.3 and 0.5: 95 % interval of Q/V "
        "inside 1 ± 0.15.",
        ("jacobian_exact", "balance"),
        ("fig12",),
        "laptop",
        _n24,
    ),
    Claim(
        "N25",
        "The inverse temperature tau; the paper prints 8.5 but not its rho",
        "The balancing temperature follows from (17) and (18); which rho gives 8.5 is reported.",
        "Uniform attention, n = 25, d = 64, sigma_x = 1, rho = 0 to 0.5: 95 % interval of Q/V at "
        "tau* inside 1 ± 0.05.",
        ("balance",),
        ("fig12",),
        "laptop",
        _n25,
    ),
)

"""Claims of Cowsik et al. 2024 (arXiv 2403.02579) on simulated networks at initialization."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from sigprop.analysis.data import choose, groups
from sigprop.analysis.geometry import (
    TANH,
    Exponent,
    angle_exponent,
    cosine_curve,
    deviation,
    gradient_exponent,
    growth_draws,
    norm_curve,
)
from sigprop.claims.claim import Tables, claim
from sigprop.claims.rules import (
    Part,
    Shown,
    Verdict,
    above,
    at_most,
    below,
    mean_interval,
    percentiles,
    within,
)

_CONV = (
    "ordered",
    "ordered_strong",
    "attention_only",
    "chaotic",
    "chaotic_strong",
    "sharp_attention",
)
_ORDERED = ("ordered", "ordered_strong", "attention_only")


def _grid(table: pd.DataFrame, name: str) -> pd.DataFrame:
    rows = choose(table, grid=name)
    if rows.empty:
        raise ValueError(f"no grid {name!r}")
    return rows


def _interval(found: Exponent) -> tuple[float, float, float]:
    return found.value, found.low, found.high


def _agrees(what: str, found: Exponent, eps: float) -> Part:
    """Interval inside theory +- eps, and within 3.5 standard errors of it."""
    part = within(what, *_interval(found), found.theory, eps, found.n_networks)
    verdict: Verdict | Shown = "not reproduced" if found.z > 3.5 else part.verdict
    asked = f"{part.asked}, |z| <= 3.5 (z = {found.z:.2f})"
    return Part(what, part.value, part.low, part.high, asked, verdict, part.n)


@claim(
    "C01",
    place="Section 3; formulas derived here, skip sqrt(1 - alpha^2) unless said",
    statement="Theory tracks the cosine between tokens layer by layer, in both phases.",
    rule="""n = 32, 24 blocks from orthogonal tokens, tanh; six settings (ordered, chaotic,
    attention only, sigma_A = 1 and 3): at the layer where p/q deviates most from theory, the 95 %
    interval of the deviation lies inside ± 0.03.""",
    statistic="""mean over networks with its 95 % bootstrap interval, at the layer of the largest
    deviation""",
    why="""Equivalence at the worst layer implies it at all. 0.03 is above the finite-width bias at
    d = 1024 and below what the eye reads off a curve.""",
    tables=("geometry",),
)
def _c01(tables: Tables) -> Iterator[Part]:
    for name in _CONV:
        found = cosine_curve(_grid(tables["geometry"], name))
        layer, value, low, high = deviation(found)
        what = f"cosine minus theory, {name}, worst at l={layer:.0f}"
        yield within(what, value, low, high, 0.0, 0.03, found.n_networks)


@claim(
    "C02",
    place="Section 3; formulas derived here, skip sqrt(1 - alpha^2) unless said",
    statement="Theory tracks the token norm layer by layer.",
    rule="""As C01 for q relative to theory: inside ± 0.03 in chaotic settings, ± 0.12 in ordered
    ones, where all tokens share one vector and nothing averages over tokens.""",
    statistic="""mean over networks with its 95 % bootstrap interval, at the layer of the largest
    deviation""",
    why="""As C01. In ordered settings all tokens share one vector, so its norm does not average
    over tokens and varies four times as much.""",
    tables=("geometry",),
)
def _c02(tables: Tables) -> Iterator[Part]:
    for name in _CONV:
        found = norm_curve(_grid(tables["geometry"], name))
        layer, value, low, high = deviation(found, relative=True)
        what = f"q relative to theory, {name}, worst at l={layer:.0f}"
        eps = 0.12 if name in _ORDERED else 0.03
        yield within(what, value, low, high, 0.0, eps, found.n_networks)


@claim(
    "C03",
    place="Abstract; the rate is derived here",
    statement="Attention without an MLP collapses the tokens to a line.",
    rule="""Nearly collapsed start, alpha = .3, .5, .7: 95 % interval of the simulated lambda_a
    inside log(1 - alpha^2) ± 0.015, and below 0.""",
    statistic="growth rate over blocks with its 95 % bootstrap interval over networks",
    why="Equivalence to the rate of theory, and a sign of its own, which is the claim.",
    tables=("geometry_exponents",),
)
def _c03(tables: Tables) -> Iterator[Part]:
    rows = _grid(tables["geometry_exponents"], "attention_only")
    for (alpha,), here in groups(rows, "alpha_attn"):
        found = angle_exponent(here)
        target = float(np.log(1 - alpha**2))
        what = f"lambda_a, attention only, alpha={alpha:g}"
        yield within(what, *_interval(found), target, 0.015, found.n_networks)
        what = f"lambda_a below zero, alpha={alpha:g}"
        yield below(what, *_interval(found), 0.0, found.n_networks)


@claim(
    "C04",
    place="Section 3.3; formula derived here",
    statement="The angle exponent of theory is that of simulated networks in both phases.",
    rule="""Eight settings with tanh: 95 % interval inside theory ± 0.03 and at most 3.5 standard
    errors from it.""",
    statistic="growth rate over blocks with its 95 % bootstrap interval over networks",
    why="""Two ways to be wrong: by an amount that matters, 0.03, or by a small one that is certain,
    3.5 standard errors.""",
    tables=("geometry_exponents",),
)
def _c04(tables: Tables) -> list[Part]:
    table = tables["geometry_exponents"]
    return [_agrees(f"lambda_a, {name}", angle_exponent(_grid(table, name)), 0.03) for name in TANH]


@claim(
    "C10",
    place="Abstract; definition ours",
    statement="The gradient exponent of theory is that of simulated networks.",
    rule="""Readout that all tokens share, nearly collapsed tokens, eight settings with tanh: 95 %
    interval inside theory ± 0.035 and at most 3.5 standard errors from it.""",
    statistic="growth rate over blocks with its 95 % bootstrap interval over networks",
    why="As C04; gradients vary a little more than angles at the same number of networks.",
    tables=("geometry_exponents",),
)
def _c10(tables: Tables) -> list[Part]:
    table = tables["geometry_exponents"]
    return [
        _agrees(f"lambda_g, {name}", gradient_exponent(_grid(table, name)), 0.035) for name in TANH
    ]


@claim(
    "C05",
    place="Abstract",
    statement="The sign of the angle exponent decides the phase.",
    rule="""Over all settings of the phase diagram with |lambda_a| >= 0.03: the share whose
    simulated 1 - cosine grows where lambda_a > 0 and shrinks where it is < 0 is at least 95 %, also
    at the lower end of its interval over networks.""",
    statistic="share of settings with the right sign, 95 % bootstrap interval over networks",
    why="""A phase is a sign. Settings within 0.03 of the transition are left out, where networks of
    this width cannot tell; 95 % leaves room for one in twenty.""",
    tables=("geometry_phases",),
)
def _c05(tables: Tables) -> list[Part]:
    agree = []
    for _, rows in groups(_grid(tables["geometry_phases"], "conv"), "alpha_attn", "sigma_w1"):
        theory = float(choose(rows, quantity="lambda_a", source="theory")["value"].iloc[0])
        if abs(theory) >= 0.03:
            agree.append(np.sign(growth_draws(rows, "q_minus_p", "q")) == np.sign(theory))
    share = np.mean(agree, axis=0)  # (1 + draws,): the networks are the same at every setting
    low, high = percentiles(share[1:])
    what = f"share of {len(agree)} settings whose simulated sign is that of lambda_a"
    verdict: Verdict = "inconclusive"
    if share[0] >= 0.95 and low >= 0.95:
        verdict = "reproduced"
    elif high < 0.95:
        verdict = "not reproduced"
    return [Part(what, float(share[0]), low, high, ">= 0.95", verdict, len(agree))]


@claim(
    "C06",
    place="derived here",
    statement="The angle exponent depends on neither the logit scale nor the number of tokens.",
    rule="""Spread (largest minus smallest) of the simulated lambda_a over sigma_A = .5, 1, 4 and
    over n = 8, 16, 32: upper end below 0.03; spread of theory exactly 0.""",
    statistic="largest minus smallest rate, 95 % bootstrap interval over networks",
    why="""No dependence means: no more spread than C04 allows. A range of noisy rates is biased
    upwards, so the rule is cautious.""",
    tables=("geometry_exponents",),
)
def _c06(tables: Tables) -> Iterator[Part]:
    for name, column in (("logit_scale", "sigma_a"), ("tokens", "n_tokens")):
        rows = _grid(tables["geometry_exponents"], name)
        cases = [here for _, here in groups(rows, column)]
        # The logit scales share their networks, the numbers of tokens do not.
        draws = np.stack(
            [
                growth_draws(here, "q_minus_p", "q", seed=0 if name == "logit_scale" else i)
                for i, here in enumerate(cases)
            ]
        )
        spread = draws.max(0) - draws.min(0)
        low, high = percentiles(spread[1:])
        n = int(cases[0]["seed"].nunique())
        what = f"spread of simulated lambda_a over {column}"
        yield below(what, float(spread[0]), low, high, 0.03, n)
        theory = choose(rows, quantity="lambda_a", source="theory")["value"].to_numpy(np.float64)
        yield at_most(f"spread of theory over {column}", [np.ptp(theory)], 0.0)


def _ends(tables: Tables) -> Iterator[tuple[str, pd.DataFrame]]:
    for (grid, sigma, rho), rows in groups(
        tables["geometry_fixed_points"], "grid", "sigma_w1", "rho0"
    ):
        last = choose(rows, layer=int(rows["layer"].max()))
        yield f"{grid}, sigma_w={sigma:g}, from cosine {rho:g}", last


@claim(
    "C07",
    place="Abstract",
    statement="Ordered networks send the tokens to a line, chaotic ones to a regular simplex.",
    rule="""60 blocks from cosines .05 and .95: cosine above 0.95 where lambda_a < -0.1; where
    lambda_a > 0 its deviation from theory inside ± 0.06 from both starts; and the standard
    deviation of the cosine over the pairs of a chaotic network below 2/sqrt(d) + 0.02.""",
    statistic="mean over networks with its 95 % bootstrap interval",
    why="""A line has cosine 1 and a simplex equal cosines: both are asked for, from two starts,
    where 60 blocks are enough. A cosine in d dimensions varies by 1/sqrt(d) by itself.""",
    tables=("geometry_fixed_points", "geometry_distributions"),
)
def _c07(tables: Tables) -> Iterator[Part]:
    for name, rows in _ends(tables):
        exponent = choose(rows, quantity="lambda_a", source="theory")["value"]
        found = cosine_curve(rows)
        mean, low, high = (float(v[0]) for v in (found.mean, found.low, found.high))
        if float(exponent.iloc[0]) < -0.1:  # closer to the edge 60 blocks are too few to collapse
            yield above(f"cosine, {name}", mean, low, high, 0.95, found.n_networks)
        elif float(exponent.iloc[0]) > 0:
            _, value, low, high = deviation(found)
            what = f"cosine minus theory, {name}"
            yield within(what, value, low, high, 0.0, 0.06, found.n_networks)
    pairs = choose(
        _grid(tables["geometry_distributions"], "chaotic"),
        quantity="pair_cosine",
        source="simulation",
    )
    pairs = choose(pairs, layer=int(pairs["layer"].max()))
    spread = np.asarray(pairs.groupby("seed")["value"].std(), dtype=np.float64)
    bound = 2 / float(np.sqrt(pairs["d_model"].iloc[0])) + 0.02
    what = "standard deviation of the cosine over pairs, chaotic"
    yield below(what, *mean_interval(spread), bound, len(spread))


@claim(
    "C09",
    place="Section on gradients; recursion derived here",
    statement="""The backward recursion predicts how gradients grow, paths through the logits
    included.""",
    rule="""Independent readouts, 24 blocks: 95 % interval of the simulated (1/L) log(g_0 / g_L)
    inside theory ± 0.02 in chaotic settings and with unit skips, ± 0.03 in ordered ones.""",
    statistic="growth rate over all blocks with its 95 % bootstrap interval over networks",
    why="Equivalence. The looser bound of ordered settings has the reason of C02.",
    tables=("geometry_gradients",),
)
def _c09(tables: Tables) -> Iterator[Part]:
    for name in (*_CONV, "unit"):
        eps = 0.03 if name in _ORDERED else 0.02
        found = gradient_exponent(_grid(tables["geometry_gradients"], name), "lambda_g_traj")
        what = f"lambda_g along the trajectory, {name}"
        yield within(what, *_interval(found), found.theory, eps, found.n_networks)

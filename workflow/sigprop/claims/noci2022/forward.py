"""Claims of Noci et al. 2022 (arXiv 2206.03126) on forward propagation at initialization."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from sigprop.analysis.data import Curve, curve, networks, placed, theory_at
from sigprop.analysis.scaling import holm
from sigprop.analysis.stats import DRAWS
from sigprop.claims.claim import Tables, claim
from sigprop.claims.rules import (
    Part,
    above,
    below,
    decided,
    mean_interval,
    percentiles,
    within,
    z_test,
)

_SCALED = r"1/\sqrt{L}"
_EXACT = (("1", 6), (_SCALED, 12), (_SCALED, 48))
# How the rows of each rule are called in the ledger.
_NAMES = {
    ("no LN", "1"): "no_ln",
    ("no LN", _SCALED): "no_ln_scaled",
    ("POST-LN", "1"): "post_ln",
    ("PRE-LN", "1"): "pre_ln",
}


def _at(curve: Curve, layer: float) -> tuple[float, float, float]:
    """Mean and ends of its interval at a layer."""
    i = list(curve.layer).index(layer)
    return curve.mean[i], curve.low[i], curve.high[i]


def _exact(tables: Tables, alpha: str, depth: int) -> pd.DataFrame:
    """Rows where the lemmas are exact: no LN, linear feed-forward, uniform attention."""
    where = {"activation": "linear", "attention": "uniform", "depth": depth}
    return placed(tables["moments"], "no LN", alpha, **where)


@claim(
    "N11",
    place="Lemmas 3.2 and 3.3",
    statement="The expected sums C and T grow with depth as the lemmas say.",
    rule="""At l = L/2 and L, for alpha = 1 (L = 6) and 1/sqrt(L) (L = 12, 48), uniform attention,
    linear feed-forward: the mean over networks within 3.5 standard errors of theory, the standard
    error at most 1 % of it.""",
    statistic="mean over networks against an exact expectation, in standard errors (z-test)",
    why="""The lemmas are exact at any width for linear networks with uniform attention: only
    sampling noise is allowed, as in N03.""",
    tables=("moments",),
)
def _n11(tables: Tables) -> Iterator[Part]:
    for alpha, depth in _EXACT:
        rows = _exact(tables, alpha, depth)
        scheme = _NAMES["no LN", alpha]
        for quantity, symbol in (("sum_inner", "C"), ("sum_sq_norm", "T")):
            layers, values = networks(rows, quantity)
            for layer in (depth // 2, depth):
                column = values[:, list(layers).index(layer)]
                theory = theory_at(rows, quantity, layer)
                yield z_test(f"E {symbol}, {scheme}, l={layer} of {depth}", column, theory)


@claim(
    "N12",
    place="Theorem 3.2",
    statement="The correlation, as a ratio of expectations, follows the closed form at any width.",
    rule="The 95 % interval of rho_ratio at l = L inside theory ± 0.01, in the settings of N11.",
    statistic="ratio of two means over networks with its 95 % bootstrap interval",
    why="""Equivalence: a ratio of expectations has no simple standard error, and 0.01 is small
    against what separates the settings.""",
    tables=("moments",),
)
def _n12(tables: Tables) -> Iterator[Part]:
    for alpha, depth in _EXACT:
        rows = _exact(tables, alpha, depth)
        scheme = _NAMES["no LN", alpha]
        c = curve(rows, "rho_ratio")
        theory = theory_at(rows, "rho_ratio", depth)
        what = f"rho_ratio, {scheme}, l=L={depth}"
        yield within(what, *_at(c, depth), theory, 0.01, c.n_networks)


@claim(
    "N13",
    place="Theorem 3.2, depth limit",
    statement="With alpha^2 = 1/L the correlation tends to a limit below 1, from below.",
    rule="""At L = 200, uniform attention, linear: the 95 % interval of rho_ratio inside limit
    ± 0.02, and rho_ratio at most the limit plus half its interval.""",
    statistic="ratio of two means over networks with its 95 % bootstrap interval",
    why="""At L = 200 the remaining terms are of order 1/L, well inside 0.02; the one-sided part
    asks for the side from which the limit is approached.""",
    tables=("depth_limit",),
)
def _n13(tables: Tables) -> list[Part]:
    where = {"activation": "linear", "attention": "uniform", "depth": 200}
    rows = placed(tables["depth_limit"], "no LN", _SCALED, **where)
    c = curve(rows, "rho_ratio")
    limit = theory_at(rows, "rho_ratio_limit", 200)
    value, low, high = _at(c, 200)
    half = (high - low) / 2
    return [
        within("rho_ratio at L=200", value, low, high, limit, 0.02, c.n_networks),
        below("rho_ratio, one-sided", value, value, value, limit + half, c.n_networks),
    ]


@claim(
    "N14",
    place="Section 3, Figure 3",
    statement="""POST-LN with unscaled residuals aligns its tokens within a few layers, and has
    collapsed at layer 12.""",
    rule="""Softmax, ReLU, n = 16, rho = 0.1: lower end of cos_mean above 0.7 at l = 4 and above
    0.98 at l = 12.""",
    statistic="mean over networks with its 95 % bootstrap interval",
    why="""The paper says that the angle changes quickly with just a few layers. Layers 4 and 12,
    0.7 and 0.98 are ours and make it a number, and the lower end makes it certain. The start is
    0.1.""",
    tables=("post_ln_depth",),
    settings={"n_tokens": 16, "rho": 0.1},
)
def _n14(tables: Tables) -> list[Part]:
    where = {"activation": "relu", "attention": "softmax", "depth": 12}
    rows = placed(tables["post_ln_depth"], "POST-LN", "1", **where)
    c = curve(rows, "cos_mean")
    return [
        above(f"cos_mean at l={layer}", *_at(c, layer), bound, c.n_networks)
        for layer, bound in ((4, 0.7), (12, 0.98))
    ]


@claim(
    "N15",
    place="Theorem 3.2, Figures 4 and 9",
    statement="Residual scaling by 1/sqrt(L) avoids collapse at every depth, linear and ReLU.",
    rule="""No LN, softmax, sigma_x = 1, L in 12, 50, 100: upper end of the last layer's cos_mean
    below the infinite-width depth limit + 0.08; range of the means over L below 0.08.""",
    statistic="""mean over networks with its 95 % bootstrap interval; range over depths,
    bootstrapped by depth""",
    why="""Bounded means: near the limit of infinite depth at every depth, and no trend. 0.08 is
    above the finite-width bias of the limit and far below the way to collapse. A range of noisy
    means is biased upwards, so the rule is cautious.""",
    tables=("deep",),
    settings={"n_tokens": 16, "rho": 0.1},
)
def _n15(tables: Tables) -> Iterator[Part]:
    for activation in ("relu", "linear"):
        ends = {}
        for depth in (12, 50, 100):
            where = {"activation": activation, "attention": "softmax", "depth": depth}
            rows = placed(tables["deep"], "no LN", _SCALED, **where)
            c = curve(rows, "cos_mean")
            limit = theory_at(rows, "cos_mean_limit", depth)
            what = f"cos_mean, {activation}, L={depth}"
            yield below(what, *_at(c, depth), limit + 0.08, c.n_networks)
            ends[depth] = networks(rows, "cos_mean")[1][:, -1]
        # Independent networks at each depth: bootstrap each mean, then take the range.
        rng = np.random.default_rng(0)
        means = np.stack(
            [v[rng.integers(len(v), size=(DRAWS, len(v)))].mean(1) for v in ends.values()]
        )  # (depths, draws)
        spread = np.ptp([v.mean() for v in ends.values()])
        interval = percentiles(np.ptp(means, axis=0))
        count = min(map(len, ends.values()))
        yield below(f"range over L, {activation}", spread, *interval, 0.08, count)


@claim(
    "N16",
    place="Figure 4; the ReLU map is derived here",
    statement="The infinite-width correlation map describes finite networks.",
    rule="""cos_mean minus the map at l = 1, 4, 12, 24, for no LN 1/sqrt(L), POST-LN and PRE-LN:
    95 % interval inside 0 ± 0.03 with uniform, 0 ± 0.06 with softmax attention.""",
    statistic="mean over networks with its 95 % bootstrap interval",
    why="""Equivalence. The map is exact at infinite width; at finite width the bias is of order 1/d
    for uniform attention and larger where softmax departs from it, hence two bounds.""",
    tables=("correlation",),
)
def _n16(tables: Tables) -> Iterator[Part]:
    for attention, eps in (("uniform", 0.03), ("softmax", 0.06)):
        for run in (("no LN", _SCALED), ("POST-LN", "1"), ("PRE-LN", "1")):
            rows = placed(tables["correlation"], *run, attention=attention)
            c = curve(rows, "cos_mean")
            for layer in (1, 4, 12, 24):
                theory = theory_at(rows, "cos_mean", layer)
                what = f"cos_mean - map, {_NAMES[run]}, {attention}, l={layer}"
                value, low, high = (end - theory for end in _at(c, layer))
                yield within(what, value, low, high, 0.0, eps, c.n_networks)


@claim(
    "N17",
    place="Figure 4; the factor is derived here",
    statement="POST-LN without scaling halves 1 - cos at each layer.",
    rule="""Slope of log2 of the geometric mean over networks of 1 - cos, layers 5 to 12, softmax:
    95 % interval inside -1 ± 0.12.""",
    statistic="mean over networks of a slope, with its 95 % bootstrap interval",
    why="""Equivalence: halving is a slope of -1 on log2. 0.12 tells a factor 1/2 from 0.46 or 0.54,
    and layers 5 to 12 lie between the start and the precision of float32.""",
    tables=("correlation",),
)
def _n17(tables: Tables) -> Iterator[Part]:
    rows = placed(tables["correlation"], "POST-LN", "1", attention="softmax")
    layers, values = networks(rows, "cos_mean")
    chosen = (layers >= 5) & (layers <= 12)
    x = layers[chosen] - layers[chosen].mean()
    # Least squares is linear, so the slope of the mean log is the mean of each network's slope.
    slopes = np.log2(1 - values[:, chosen]) @ x / (x @ x)
    what = "slope of log2(1 - cos), layers 5-12"
    yield within(what, *mean_interval(slopes), -1.0, 0.12, len(slopes))


@claim(
    "N18",
    place="Figures 4 and 10; the exponent is derived here",
    statement="PRE-LN collapses only polynomially, as l^(-1/2).",
    rule="""Exponent of the map between l = 2000 and 20000 inside -0.50 ± 0.03, and the simulated
    1 - cos at l = 48 within 25 % of the map (95 % interval).""",
    statistic="slope of the map, no interval; ratio to the map, 95 % bootstrap interval",
    why="""The exponent belongs to the map, which can be followed to great depth; simulations only
    reach layer 48, so they are asked to follow the map, not to show the exponent.""",
    tables=("correlation",),
)
def _n18(tables: Tables) -> Iterator[Part]:
    rows = placed(tables["correlation"], "PRE-LN", "1", attention="softmax")
    exponent = theory_at(rows, "collapse_exponent", 20000)
    yield within(
        "exponent of the map, l=2000 to 20000", exponent, exponent, exponent, -0.5, 0.03, 1
    )
    for attention in ("softmax", "uniform"):
        rows = placed(tables["correlation"], "PRE-LN", "1", attention=attention)
        c = curve(rows, "cos_mean")
        theory = 1 - theory_at(rows, "cos_mean", 48)
        value, high, low = ((1 - end) / theory for end in _at(c, 48))
        what = f"(1 - cos) / map at l=48, {attention}"
        yield within(what, value, low, high, 1.0, 0.25, c.n_networks)


_KS_NETWORKS = 600


def _log_norms(
    tables: Tables, alpha: str, attention: str, sigma_x: float, depth: int
) -> np.ndarray:
    where = {"attention": attention, "sigma_x": sigma_x, "depth": depth}
    rows = placed(tables["norm_density"], "no LN", alpha, **where)
    return np.log(networks(rows, "sum_sq_norm")[1][:, -1]) / 2


@claim(
    "N22",
    place="Figure 11",
    statement="Uniform attention is a good assumption for inputs of size 1/sqrt(d) and fails at 1.",
    rule="""Two-sample KS on ln||X_L||, softmax against uniform, alpha = 1/sqrt(L), the first 600
    networks of each: at sigma_x = 1/sqrt(d) Holm-adjusted p above 0.01 and upper end of the
    distance below 0.12 at every depth; at sigma_x = 1 adjusted p below 1e-6.""",
    statistic="two-sample Kolmogorov-Smirnov distance, p-values adjusted by Holm over depths",
    why="""No difference cannot be shown by a large p alone, so the distance is bounded too. 600
    networks resolve a distance of 0.1; at the larger input the difference must be beyond any
    doubt.""",
    tables=("norm_density",),
)
def _n22(tables: Tables) -> Iterator[Part]:
    small = min(tables["norm_density"]["sigma_x"])
    depths = sorted({int(d) for d in tables["norm_density"]["depth"]})
    for sigma_x in (small, 1.0):
        tests = {}
        for depth in depths:
            soft, flat = (
                _log_norms(tables, _SCALED, attention, sigma_x, depth)[:_KS_NETWORKS]
                for attention in ("softmax", "uniform")
            )
            tests[depth] = (stats.ks_2samp(soft, flat), *_ks_interval(soft, flat), len(soft))
        adjusted = holm(np.array([test.pvalue for test, *_ in tests.values()]))
        for (depth, (test, low, high, count)), p in zip(tests.items(), adjusted, strict=True):
            if sigma_x == small:
                what, passed, asked = "sigma_x=1/sqrt(d)", p > 0.01, "Holm p > 0.01"
                distance = float(test.statistic)
                yield below(f"KS distance, {what}, L={depth}", distance, low, high, 0.12, count)
            else:
                what, passed, asked = "sigma_x=1", p < 1e-6, "Holm p < 1e-6"
            yield decided(f"KS p-value, {what}, L={depth}", float(p), asked, passed, count)


def _ks_interval(a: np.ndarray, b: np.ndarray, draws: int = 500) -> tuple[float, float]:
    """95 % bootstrap interval of the two-sample KS distance; it is biased up, hence cautious."""
    rng = np.random.default_rng(0)
    both = np.sort(np.concatenate([a, b]))
    distances = []
    for _ in range(draws):
        x, y = np.sort(rng.choice(a, len(a))), np.sort(rng.choice(b, len(b)))
        shares = [np.searchsorted(each, both, "right") / len(each) for each in (x, y)]
        distances.append(np.abs(shares[0] - shares[1]).max())
    return percentiles(distances)


@claim(
    "N23",
    place="Figure 11",
    statement="The tails of the norm get heavier with depth.",
    rule="""Variance of ln||X_L||^2, alpha = 1, uniform attention, sigma_x = 1, increasing over the
    depths with 95 % intervals that do not overlap.""",
    statistic="variance over networks with its 95 % bootstrap interval",
    why="""Disjoint intervals are stricter than a test of each difference, and they make the growth
    visible in the figure.""",
    tables=("norm_density",),
)
def _n23(tables: Tables) -> Iterator[Part]:
    depths = sorted({int(d) for d in tables["norm_density"]["depth"]})
    rng = np.random.default_rng(0)
    previous: float | None = None
    for depth in depths:
        values = 2 * _log_norms(tables, "1", "uniform", 1.0, depth)
        resampled = values[rng.integers(len(values), size=(DRAWS, len(values)))].var(1, ddof=1)
        low, high = percentiles(resampled)
        if previous is not None:
            what = f"var ln||X||^2 at L={depth}, above the upper end of the depth before"
            value = float(values.var(ddof=1))
            yield above(what, value, low, high, previous, len(values))
        previous = high

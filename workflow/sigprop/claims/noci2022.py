"""Claims of Noci et al. 2022 (arXiv 2206.03126) on forward propagation at initialization."""

import numpy as np
import pandas as pd
from scipy import stats

from sigprop.analysis.data import curve, networks, placed, theory_at
from sigprop.analysis.scaling import holm
from sigprop.analysis.stats import DRAWS, LEVEL, bootstrap_mean
from sigprop.claims.claim import Claim, Tables
from sigprop.claims.rules import Part, Verdict, above, below, within, z_test

_SCALED = r"1/\sqrt{L}"
_EXACT = (("1", 6), (_SCALED, 12), (_SCALED, 48))
# How the rows of each rule are called in the ledger.
_NAMES = {
    ("no LN", "1"): "no_ln",
    ("no LN", _SCALED): "no_ln_scaled",
    ("POST-LN", "1"): "post_ln",
    ("PRE-LN", "1"): "pre_ln",
}


def _exact(tables: Tables, alpha: str, depth: int) -> pd.DataFrame:
    """Rows where the lemmas are exact: no LN, linear feed-forward, uniform attention."""
    where = {"activation": "linear", "attention": "uniform", "depth": depth}
    return placed(tables["moments"], "no LN", alpha, **where)


def _n11(tables: Tables) -> list[Part]:
    parts = []
    for alpha, depth in _EXACT:
        rows = _exact(tables, alpha, depth)
        scheme = _NAMES["no LN", alpha]
        for quantity, symbol in (("sum_inner", "C"), ("sum_sq_norm", "T")):
            layers, values = networks(rows, quantity)
            for layer in (depth // 2, depth):
                column = values[:, list(layers).index(layer)]
                theory = theory_at(rows, quantity, layer)
                parts.append(z_test(f"E {symbol}, {scheme}, l={layer} of {depth}", column, theory))
    return parts


def _n12(tables: Tables) -> list[Part]:
    parts = []
    for alpha, depth in _EXACT:
        rows = _exact(tables, alpha, depth)
        scheme = _NAMES["no LN", alpha]
        c = curve(rows, "rho_ratio")
        theory = theory_at(rows, "rho_ratio", depth)
        what = f"rho_ratio, {scheme}, l=L={depth}"
        parts.append(within(what, c.mean[-1], c.low[-1], c.high[-1], theory, 0.01, c.n_networks))
    return parts


def _scaled(tables: Tables, activation: str, attention: str, depth: int) -> pd.DataFrame:
    where = {"activation": activation, "attention": attention, "depth": depth}
    return placed(tables["deep"], "no LN", _SCALED, **where)


def _n13(tables: Tables) -> list[Part]:
    where = {"activation": "linear", "attention": "uniform", "depth": 200}
    rows = placed(tables["depth_limit"], "no LN", _SCALED, **where)
    c = curve(rows, "rho_ratio")
    limit = theory_at(rows, "rho_ratio_limit", 200)
    value, low, high = c.mean[-1], c.low[-1], c.high[-1]
    half = (high - low) / 2
    return [
        within("rho_ratio at L=200", value, low, high, limit, 0.02, c.n_networks),
        below("rho_ratio, one-sided", value, value, value, limit + half, c.n_networks),
    ]


def _n14(tables: Tables) -> list[Part]:
    where = {"activation": "relu", "attention": "softmax", "depth": 12}
    rows = placed(tables["post_ln_depth"], "POST-LN", "1", **where)
    c = curve(rows, "cos_mean")
    return [
        above(f"cos_mean at l={layer}", c.mean[i], c.low[i], c.high[i], bound, c.n_networks)
        for layer, bound in ((4, 0.7), (12, 0.98))
        for i in [list(c.layer).index(layer)]
    ]


def _n15(tables: Tables) -> list[Part]:
    parts = []
    for activation in ("relu", "linear"):
        ends = {}
        for depth in (12, 50, 100):
            rows = _scaled(tables, activation, "softmax", depth)
            c = curve(rows, "cos_mean")
            limit = theory_at(rows, "cos_mean_limit", depth)
            value, low, high = c.mean[-1], c.low[-1], c.high[-1]
            what = f"cos_mean, {activation}, L={depth}"
            parts.append(below(what, value, low, high, limit + 0.08, c.n_networks))
            ends[depth] = networks(rows, "cos_mean")[1][:, -1]
        # Independent networks at each depth: bootstrap each mean, then take the range.
        rng = np.random.default_rng(0)
        means = np.stack(
            [v[rng.integers(len(v), size=(DRAWS, len(v)))].mean(1) for v in ends.values()]
        )  # (depths, draws)
        spread = np.ptp([v.mean() for v in ends.values()])
        low, high = np.quantile(np.ptp(means, axis=0), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        count = min(map(len, ends.values()))
        parts.append(below(f"range over L, {activation}", spread, low, high, 0.08, count))
    return parts


def _n16(tables: Tables) -> list[Part]:
    parts = []
    for attention, eps in (("uniform", 0.03), ("softmax", 0.06)):
        for run in (("no LN", _SCALED), ("POST-LN", "1"), ("PRE-LN", "1")):
            rows = placed(tables["correlation"], *run, attention=attention)
            scheme = _NAMES[run]
            c = curve(rows, "cos_mean")
            for layer in (1, 4, 12, 24):
                i = list(c.layer).index(layer)
                theory = theory_at(rows, "cos_mean", layer)
                what = f"cos_mean - map, {scheme}, {attention}, l={layer}"
                value, low, high = (end[i] - theory for end in (c.mean, c.low, c.high))
                parts.append(within(what, value, low, high, 0.0, eps, c.n_networks))
    return parts


def _n17(tables: Tables) -> list[Part]:
    rows = placed(tables["correlation"], "POST-LN", "1", attention="softmax")
    layers, values = networks(rows, "cos_mean")
    chosen = (layers >= 5) & (layers <= 12)
    x = layers[chosen] - layers[chosen].mean()
    # Least squares is linear, so the slope of the mean log is the mean of each network's slope.
    slopes = np.log2(1 - values[:, chosen]) @ x / (x @ x)
    mean, low, high = map(float, bootstrap_mean(slopes))
    what = "slope of log2(1 - cos), layers 5-12"
    return [within(what, mean, low, high, -1.0, 0.12, len(slopes))]


def _n18(tables: Tables) -> list[Part]:
    rows = placed(tables["correlation"], "PRE-LN", "1", attention="softmax")
    exponent = theory_at(rows, "collapse_exponent", 20000)
    parts = [
        within("exponent of the map, l=2000 to 20000", exponent, exponent, exponent, -0.5, 0.03, 1)
    ]
    for attention in ("softmax", "uniform"):
        rows = placed(tables["correlation"], "PRE-LN", "1", attention=attention)
        c = curve(rows, "cos_mean")
        theory = 1 - theory_at(rows, "cos_mean", 48)
        value, low, high = ((1 - end[-1]) / theory for end in (c.mean, c.high, c.low))
        what = f"(1 - cos) / map at l=48, {attention}"
        parts.append(within(what, value, low, high, 1.0, 0.25, c.n_networks))
    return parts


_KS_NETWORKS = 600


def _log_norms(
    tables: Tables, alpha: str, attention: str, sigma_x: float, depth: int
) -> np.ndarray:
    where = {"attention": attention, "sigma_x": sigma_x, "depth": depth}
    rows = placed(tables["norm_density"], "no LN", alpha, **where)
    return np.log(networks(rows, "sum_sq_norm")[1][:, -1]) / 2


def _n22(tables: Tables) -> list[Part]:
    small = min(tables["norm_density"]["sigma_x"])
    parts = []
    depths = sorted({int(d) for d in tables["norm_density"]["depth"]})
    for sigma_x in (small, 1.0):
        tests = {}
        for depth in depths:
            soft, flat = (
                _log_norms(tables, _SCALED, attention, sigma_x, depth)[:_KS_NETWORKS]
                for attention in ("softmax", "uniform")
            )
            tests[depth] = (stats.ks_2samp(soft, flat), *_ks_interval(soft, flat), len(soft))
        adjusted = holm(np.array([t[0].pvalue for t in tests.values()]))
        for (depth, (_, low, high, count)), p in zip(
            tests.items(), map(float, adjusted), strict=True
        ):
            distance = float(tests[depth][0].statistic)
            if sigma_x == small:
                passed = p > 0.01
                asked = "Holm p > 0.01"
                parts.append(
                    below(
                        f"KS distance, sigma_x=1/sqrt(d), L={depth}",
                        distance,
                        low,
                        high,
                        0.12,
                        count,
                    )
                )
            else:
                passed = p < 1e-6
                asked = "Holm p < 1e-6"
            verdict: Verdict = "reproduced" if passed else "not reproduced"
            where = "1/sqrt(d)" if sigma_x == small else "1"
            parts.append(
                Part(f"KS p-value, sigma_x={where}, L={depth}", p, p, p, asked, verdict, count)
            )
    return parts


def _ks_interval(a: np.ndarray, b: np.ndarray, draws: int = 500) -> tuple[float, float]:
    """95 % bootstrap interval of the two-sample KS distance; it is biased up, hence cautious."""
    rng = np.random.default_rng(0)
    both = np.sort(np.concatenate([a, b]))
    distances = []
    for _ in range(draws):
        x, y = np.sort(rng.choice(a, len(a))), np.sort(rng.choice(b, len(b)))
        gap = np.searchsorted(x, both, "right") / len(x) - np.searchsorted(y, both, "right") / len(
            y
        )
        distances.append(np.abs(gap).max())
    low, high = np.quantile(distances, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _n23(tables: Tables) -> list[Part]:
    depths = sorted({int(d) for d in tables["norm_density"]["depth"]})
    rng = np.random.default_rng(0)
    parts: list[Part] = []
    previous: float | None = None
    for depth in depths:
        values = 2 * _log_norms(tables, "1", "uniform", 1.0, depth)
        resampled = values[rng.integers(len(values), size=(DRAWS, len(values)))].var(1, ddof=1)
        low, high = map(float, np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
        if previous is not None:
            what = f"var ln||X||^2 at L={depth}, above the upper end of the depth before"
            value = float(values.var(ddof=1))
            parts.append(above(what, value, low, high, previous, len(values)))
        previous = high
    return parts


CLAIMS = (
    Claim(
        "N11",
        "Lemmas 3.2 and 3.3",
        "The expected sums C and T grow with depth as the lemmas say.",
        "At l = L/2 and L, for alpha = 1 (L = 6) and 1/sqrt(L) (L = 12, 48), uniform attention, "
        "linear feed-forward: the mean over networks within 3.5 standard errors of theory, the "
        "standard error at most 1 % of it.",
        ("moments",),
        ("fig08",),
        "laptop",
        _n11,
    ),
    Claim(
        "N12",
        "Theorem 3.2",
        "The correlation, as a ratio of expectations, follows the closed form at any width.",
        "The 95 % interval of rho_ratio at l = L inside theory ± 0.01, in the settings of N11.",
        ("moments",),
        ("fig04", "fig08"),
        "laptop",
        _n12,
    ),
    Claim(
        "N13",
        "Theorem 3.2, depth limit",
        "With alpha^2 = 1/L the correlation tends to a limit below 1, from below.",
        "At L = 200, uniform attention, linear: the 95 % interval of rho_ratio inside "
        "limit ± 0.02, and rho_ratio at most the limit plus half its interval.",
        ("depth_limit",),
        ("fig09",),
        "laptop",
        _n13,
    ),
    Claim(
        "N14",
        "Section 3, Figure 3",
        "POST-LN with unscaled residuals collapses within a dozen layers.",
        "Softmax, ReLU, n = 16, rho = 0.1: lower end of cos_mean above 0.7 at l = 4 and above 0.98 "
        "at l = 12.",
        ("post_ln_depth",),
        ("fig03",),
        "laptop",
        _n14,
        {"n_tokens": 16, "rho": 0.1},
    ),
    Claim(
        "N15",
        "Theorem 3.2, Figures 4 and 9",
        "Residual scaling by 1/sqrt(L) avoids collapse at every depth, linear and ReLU.",
        "No LN, softmax, sigma_x = 1, L in 12, 50, 100: upper end of the last layer's cos_mean "
        "below the infinite-width depth limit + 0.08; range of the means over L below 0.08.",
        ("deep",),
        ("fig04", "fig09"),
        "laptop",
        _n15,
        {"n_tokens": 16, "rho": 0.1},
    ),
    Claim(
        "N16",
        "Figure 4; the ReLU map is derived here",
        "The infinite-width correlation map describes finite networks.",
        "cos_mean minus the map at l = 1, 4, 12, 24, for no LN 1/sqrt(L), POST-LN and PRE-LN: 95 % "
        "interval inside 0 ± 0.03 with uniform, 0 ± 0.06 with softmax attention.",
        ("correlation",),
        ("fig04", "fig10"),
        "laptop",
        _n16,
    ),
    Claim(
        "N17",
        "Figure 4; the factor is derived here",
        "POST-LN without scaling halves 1 - cos at each layer.",
        "Slope of log2 of the geometric mean over networks of 1 - cos, layers 5 to 12, softmax: "
        "95 % interval inside -1 ± 0.12.",
        ("correlation",),
        ("fig04",),
        "laptop",
        _n17,
    ),
    Claim(
        "N18",
        "Figures 4 and 10; the exponent is derived here",
        "PRE-LN collapses only polynomially, as l^(-1/2).",
        "Exponent of the map between l = 2000 and 20000 inside -0.50 ± 0.03, and the simulated "
        "1 - cos at l = 48 within 25 % of the map (95 % interval).",
        ("correlation",),
        ("fig04", "fig10"),
        "laptop",
        _n18,
    ),
    Claim(
        "N22",
        "Figure 11",
        "Uniform attention is a good assumption for inputs of size 1/sqrt(d) and fails at 1.",
        "Two-sample KS on ln||X_L||, softmax against uniform, alpha = 1/sqrt(L), the first 600 "
        "networks of each: at sigma_x = 1/sqrt(d) Holm-adjusted p above 0.01 and upper end of the "
        "distance below 0.12 at every depth; at sigma_x = 1 adjusted p below 1e-6.",
        ("norm_density",),
        ("fig11",),
        "laptop",
        _n22,
    ),
    Claim(
        "N23",
        "Figure 11",
        "The tails of the norm get heavier with depth.",
        "Variance of ln||X_L||^2, alpha = 1, uniform attention, sigma_x = 1, increasing over the "
        "depths with 95 % intervals that do not overlap.",
        ("norm_density",),
        ("fig11",),
        "laptop",
        _n23,
    ),
)

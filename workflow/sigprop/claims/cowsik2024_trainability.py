"""Claims of Cowsik et al. 2024 (arXiv 2403.02579) on trainability.

That two exponents at initialization predict the final loss, and that it is least where both vanish,
is the paper's; the task, the designs, the regressors and the thresholds are ours and were set after
a pilot, so the tables come from another design and other training seeds. Controls stand beside
every claim: they are reported, not required.
"""

import numpy as np
import pandas as pd

from sigprop.analysis import trainability as fit
from sigprop.analysis.data import choose
from sigprop.analysis.stats import Array
from sigprop.analysis.trainability import Crossing, Estimate
from sigprop.claims.claim import Claim, Tables
from sigprop.claims.rules import Part, Verdict, above, below

_DEPTH = 16
_POINTS = 40  # configurations of the hypercube, at least
_GROUP = 3  # configurations of each group that is compared, at least
_SIGMA_W = 1.2
_DEPTHS = (8, 16, 32)


def _reported(what: str, found: Estimate) -> Part:
    asked = "reported, not required"
    return Part(what, found.value, found.low, found.high, asked, "reported", found.n)


def _number(what: str, value: float, n: int) -> Part:
    return _reported(what, Estimate(value, value, value, n))


def _limit(what: str, value: float, asked: str, holds: bool, n: int) -> Part:
    """A number without an interval; NaN is undecided."""
    verdict: Verdict = "reproduced" if holds else "not reproduced"
    verdict = "inconclusive" if np.isnan(value) else verdict
    return Part(what, value, value, value, asked, verdict, n)


def _above(what: str, found: Estimate, bound: float) -> Part:
    return above(what, found.value, found.low, found.high, bound, found.n)


def _compared(name: str, y: Array, ours: Array, control: Array) -> list[Part]:
    """R^2 of a control and in words how the exponents do against it."""
    gain = fit.r_squared(y, ours, control)
    words = "the two exponents predict better than it"
    if gain.high < 0:
        words = "it predicts better than the two exponents"
    elif gain.low <= 0:
        words = "it does as well as the two exponents, within the interval"
    return [
        _reported(f"control, {name}: R^2", fit.r_squared(y, control)),
        _reported(f"both minus {name}: {words}", gain),
    ]


def _seeds(table: pd.DataFrame) -> list[int]:
    return sorted(int(seed) for seed in table["seed"].dropna().unique())


def _hypercube(tables: Tables, seed: int) -> pd.DataFrame:
    points = fit.configurations(tables["train_lhs"], mode="conv", depth=_DEPTH, seed=seed)
    if len(points) < _POINTS:
        raise ValueError(f"train_lhs: {len(points)} configurations, at least {_POINTS}")
    return points


def _c16(tables: Tables) -> list[Part]:
    parts: list[Part] = []
    for seed in _seeds(tables["train_lhs"]):
        points = _hypercube(tables, seed)
        y = fit.losses(points)
        z = fit.features(points, "both")
        f = {
            name: fit.predict_neighbours(fit.features(points, name), y)
            for name in ("both", "angle", "gradient", "trajectory", "stable point")
        }
        single = max(("angle", "gradient"), key=lambda name: fit.r_squared(y, f[name]).value)
        p, null = fit.permutation_null(z, y)
        at = f", seed {seed}"
        parts += [
            _above(f"leave-one-out R^2 of both exponents{at}", fit.r_squared(y, f["both"]), 0.5),
            _limit(f"permutation p{at}", p, "< 0.01", p < 0.01, fit.PERMUTATIONS),
            _above(
                f"minus R^2 of the best single exponent ({single}){at}",
                fit.r_squared(y, f["both"], f[single]),
                0.2,
            ),
            _number("95 % quantile of R^2 with shuffled losses", null, fit.PERMUTATIONS),
            _reported("R^2 of lambda_a alone", fit.r_squared(y, f["angle"])),
            _reported("R^2 of lambda_g alone", fit.r_squared(y, f["gradient"])),
        ]
        for name, features in (
            ("raw hyperparameters", "raw"),
            ("the strengths alpha_A^2, alpha_M^2", "strengths"),
        ):
            control = fit.predict_neighbours(fit.features(points, features), y)
            parts += _compared(name, y, f["both"], control)
        parts += [
            _reported("R^2 with lambda_g_traj for lambda_g", fit.r_squared(y, f["trajectory"])),
            _reported("R^2 with lambda_g_star for lambda_g", fit.r_squared(y, f["stable point"])),
            _reported(
                "R^2, linear in max(l_a, 0), max(-l_a, 0), |l_g|",
                fit.r_squared(y, fit.predict_linear(fit.hinge(z), y)),
            ),
            _reported(
                "R^2, quadratic in both", fit.r_squared(y, fit.predict_linear(fit.quadratic(z), y))
            ),
        ]
        scores = {
            "L |lambda_a|": points["l_a"].abs(),
            "L |lambda_g|": points["l_g"].abs(),
            "their maximum": points["largest"],
            "alpha_A^2 + alpha_M^2": points["attn_squared"] + points["mlp_squared"],
        }
        for name, score in scores.items():
            found = fit.rank_correlation(points, score.to_numpy(np.float64))
            parts.append(_reported(f"Spearman of loss and {name}", found))
        for name in ("their maximum", "alpha_A^2 + alpha_M^2"):
            auc = fit.failure_auc(points, scores[name].to_numpy(np.float64))
            parts.append(_reported(f"AUC for failure of {name}", auc))
    return parts


def _c17(tables: Tables) -> list[Part]:
    parts: list[Part] = []
    for seed in _seeds(tables["train_lhs"]):
        grid = fit.configurations(tables["train_grid"], mode="conv", depth=_DEPTH, seed=seed)
        points = _hypercube(tables, seed)
        y, at = fit.losses(points), f", seed {seed}"
        f = {
            name: fit.predict_transfer(
                fit.features(grid, name), fit.losses(grid), fit.features(points, name)
            )
            for name in ("both", "angle", "gradient", "rms", "mean")
        }
        parts += [
            _above(f"R^2, fitted on the grid{at}", fit.r_squared(y, f["both"]), 0.6),
            _above(
                f"minus R^2 of (rms alpha, sigma_w){at}", fit.r_squared(y, f["both"], f["rms"]), 0.1
            ),
        ]
        for name, key in (("(rms alpha, sigma_w)", "rms"), ("(mean alpha, sigma_w)", "mean")):
            parts += _compared(name, y, f["both"], f[key])
        for name, key in (("lambda_a alone", "angle"), ("lambda_g alone", "gradient")):
            parts.append(_reported(f"R^2 of {name}", fit.r_squared(y, f[key])))
    return parts


def _c18(tables: Tables) -> list[Part]:
    parts: list[Part] = []
    for seed in _seeds(tables["train_lhs"]):
        points = _hypercube(tables, seed)
        y, largest = fit.losses(points), points["largest"].to_numpy(np.float64)
        near, far = y[largest <= 3], y[largest >= 8]
        _enough({"max <= 3": near, "max >= 8": far})
        ratio, best = fit.median_ratio(near, far), float(largest[y.argmin()])
        what = "median loss at max(L|lambda_a|, L|lambda_g|) <= 3 over that at >= 8"
        strength = (points["attn_squared"] + points["mlp_squared"]).to_numpy(np.float64)
        weak = strength <= np.quantile(strength, len(near) / len(y))
        strong = strength >= np.quantile(strength, 1 - len(far) / len(y))
        control = fit.median_ratio(y[weak], y[strong])
        words = "meets the bound as well" if control.high < 0.2 else "does not meet the bound"
        parts += [
            below(f"{what}, seed {seed}", ratio.value, ratio.low, ratio.high, 0.2, ratio.n),
            _limit(f"max at the best point, seed {seed}", best, "<= 4", best <= 4, len(y)),
            _reported(
                f"control, as many weakest over strongest by alpha_A^2 + alpha_M^2: {words}",
                control,
            ),
            _number("rank of the best point by max, from 1", 1 + (largest < best).sum(), len(y)),
        ]
        grid = fit.configurations(tables["train_grid"], mode="conv", depth=_DEPTH, seed=seed)
        at_best = float(grid["largest"][fit.losses(grid).argmin()])
        parts.append(_number("max at the best point of the grid", at_best, len(grid)))
        weakest = y[strength <= np.quantile(strength, 0.1)]
        parts.append(
            _reported(
                "median loss of the weakest tenth over the median at max <= 3",
                fit.median_ratio(weakest, near),
            )
        )
    for seed in _seeds(tables["train_unit"]):
        unit = fit.configurations(tables["train_unit"], mode="unit", depth=_DEPTH, seed=seed)
        failed = float((fit.losses(unit) > fit.FAILED).mean())
        parts.append(_number("share of failures in mode unit, plain PRE-LN", failed, len(unit)))
    return parts


def _enough(groups: dict[str, Array]) -> None:
    for name, group in groups.items():
        if len(group) < _GROUP:
            raise ValueError(f"{name}: {len(group)} configurations, at least {_GROUP}")


def _c19(tables: Tables) -> list[Part]:
    parts: list[Part] = []
    table = tables["train_edge"]
    for seed in _seeds(table):
        points = fit.configurations(table, mode="conv", depth=_DEPTH, seed=seed)
        y, edge = fit.losses(points), points["l_a"].abs() < 3
        top, bottom = (
            y[(edge & side).to_numpy()] for side in (points["l_g"] >= 7, points["l_g"] < 7)
        )
        _enough({"L |lambda_a| < 3, L lambda_g >= 7": top, "and < 7": bottom})
        what = "median loss at L lambda_g >= 7 over that below, both at L |lambda_a| < 3"
        parts.append(_above(f"{what}, seed {seed}", fit.median_ratio(top, bottom), 5))
        strength = points["attn_squared"] + points["mlp_squared"]
        least = float(strength[edge & (points["l_g"] >= 7)].min())
        rest = y[(edge & (points["l_g"] < 7) & (strength >= least)).to_numpy()]
        parts.append(_number("of those below, as strong by alpha_A^2 + alpha_M^2", len(rest), 1))
    return parts


def _c20(tables: Tables) -> list[Part]:
    table = tables["train_depth"]
    parts: list[Part] = []
    for seed in _seeds(table):
        found: list[Crossing] = []
        for depth in _DEPTHS:
            points = fit.configurations(table, mode="conv", depth=depth, seed=seed)
            found.append(fit.crossing(choose(points, sigma_w=_SIGMA_W)))
        alphas = np.array([each.alpha for each in found])
        l_a = np.array([each.l_a for each in found])
        strengths = np.array([2 * each.depth * each.alpha**2 for each in found])
        ratio, apart, control = (
            float(np.abs(x).max() / np.abs(x).min()) for x in (l_a, alphas, strengths)
        )
        at, n = f", seed {seed}", len(found)
        parts += [
            _limit(f"L lambda_a at failure, max/min{at}", ratio, "<= 1.6", ratio <= 1.6, n),
            _limit(f"alpha at failure, max/min{at}", apart, ">= 1.5", apart >= 1.5, n),
        ]
        words = "varies no more" if control <= ratio else "varies more"
        words = "is undecided" if np.isnan(control) else words
        parts.append(
            _number(f"control, L (alpha_A^2 + alpha_M^2) at failure {words}: max/min", control, n)
        )
        for each in found:
            parts.append(_number(f"L lambda_a at failure, L={each.depth}", each.l_a, 1))
            parts.append(_number(f"alpha at failure, L={each.depth}", each.alpha, 1))
    return parts


_CONTROLS = " Controls are reported beside it, not required."

CLAIMS = (
    Claim(
        "C16",
        "abstract; regression and thresholds ours",
        "Two exponents at initialization predict the final loss over three hyperparameters.",
        "Latin hypercube in (alpha_A, alpha_M, sigma_w), at least 40 configurations, L = 16, for "
        "each training seed: leave-one-out R^2 of the mean of the 3 nearest neighbours in "
        "(L lambda_a, L lambda_g) above 0.5, permutation p < 0.01, and above R^2 of the best "
        "single exponent by more than 0.2. Intervals, which must clear the bounds, are bootstraps "
        "over configurations with predictions held." + _CONTROLS,
        ("train_lhs",),
        ("geo09",),
        "laptop",
        _c16,
    ),
    Claim(
        "C17",
        "abstract; design and thresholds ours",
        "The loss as a function of the two exponents carries over to other hyperparameters.",
        "Gaussian-kernel regression (bandwidth 0.15 in standardized exponents) fitted on the grid "
        "alpha_A = alpha_M predicts the Latin hypercube, L = 16, for each training seed: R^2 above "
        "0.6, and above that of the same regression on (rms alpha, sigma_w) by more than 0.1. "
        "Intervals, which must clear the bounds, are bootstraps over configurations of the "
        "hypercube." + _CONTROLS,
        ("train_grid", "train_lhs"),
        ("geo09",),
        "laptop",
        _c17,
    ),
    Claim(
        "C18",
        "abstract; thresholds ours",
        "The final loss is least where both exponents are small.",
        "Latin hypercube, L = 16, for each training seed: median loss of configurations with "
        "max(L|lambda_a|, L|lambda_g|) <= 3 over that of those with >= 8, upper end of its "
        "bootstrap interval below 0.2, at least 3 of each; the configuration of least loss has "
        "max <= 4." + _CONTROLS,
        ("train_lhs", "train_grid", "train_unit"),
        ("geo08", "geo09"),
        "laptop",
        _c18,
    ),
    Claim(
        "C19",
        "derived here",
        "The edge of chaos alone is not enough: growing gradients spoil training there.",
        "Configurations with L|lambda_a| < 3, L = 16, for each training seed: median loss at L "
        "lambda_g >= 7 over that at < 7, lower end of its bootstrap interval above 5; not run with "
        "fewer than 3 of either. They are the first of a Sobol sequence over the ranges of the "
        "Latin hypercube on either side, equally many, chosen by the exponents alone before any "
        "training: the hypercube has too few at the edge." + _CONTROLS,
        ("train_edge",),
        ("geo09",),
        "laptop",
        _c19,
    ),
    Claim(
        "C20",
        "derived here",
        "Failure by collapse is set by L lambda_a, not by the residual strength.",
        "sigma_w = 1.2, alpha_A = alpha_M = alpha, L = 8, 16, 32, for each training seed: L "
        "lambda_a where the loss first crosses 0.75 as alpha grows, interpolated linearly, differs "
        "by at most 1.6 (max/min), while alpha differs by at least 1.5. One training per alpha, so "
        "no interval." + _CONTROLS,
        ("train_depth",),
        ("geo10",),
        "laptop",
        _c20,
    ),
)

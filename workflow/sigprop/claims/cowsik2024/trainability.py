"""Claims of Cowsik et al. 2024 (arXiv 2403.02579) on trainability.

That two exponents at initialization predict the final loss, and that it is least where both vanish,
is the paper's; the task, the designs, the regressors and the thresholds are ours and were set after
a pilot, so the tables come from another design and other training seeds. Controls stand beside
every claim: they are reported, not required.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from sigprop.analysis import trainability as fit
from sigprop.analysis.data import choose
from sigprop.analysis.stats import Array
from sigprop.analysis.trainability import Crossing, Estimate
from sigprop.claims.claim import Tables, claim
from sigprop.claims.rules import Part, above, below, decided

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


@claim(
    "C16",
    place="abstract; regression and thresholds ours",
    statement="Two exponents at initialization predict the final loss over three hyperparameters.",
    rule="""Latin hypercube in (alpha_A, alpha_M, sigma_w), at least 40 configurations, L = 16, for
    each training seed: leave-one-out R^2 of the mean of the 3 nearest neighbours in (L lambda_a, L
    lambda_g) above 0.5, permutation p < 0.01, and above R^2 of the best single exponent by more
    than 0.2. Intervals, which must clear the bounds, are bootstraps over configurations with
    predictions held. Controls are reported beside it, not required.""",
    statistic="""leave-one-out R^2 with its 95 % bootstrap interval over configurations; permutation
    test""",
    why="""Predicting what was not fitted is what the paper claims. Half of the variance, and 0.2
    above either exponent alone, so that both are needed; neighbours assume no form.""",
    if_not="""48 configurations leave R^2 an interval of about ± 0.3, wider than its distance to
    either bound; hundreds would decide. Losses are not random in the exponents (the permutation
    test rejects that), but the plain strengths predict them as well (controls), so what the
    exponents add is open. Training amplifies rounding besides, and no interval counts that.""",
    tables=("train_lhs",),
)
def _c16(tables: Tables) -> Iterator[Part]:
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
        yield _above(f"leave-one-out R^2 of both exponents{at}", fit.r_squared(y, f["both"]), 0.5)
        yield decided(f"permutation p{at}", p, "< 0.01", p < 0.01, fit.PERMUTATIONS)
        yield _above(
            f"minus R^2 of the best single exponent ({single}){at}",
            fit.r_squared(y, f["both"], f[single]),
            0.2,
        )
        yield _number("95 % quantile of R^2 with shuffled losses", null, fit.PERMUTATIONS)
        yield _reported("R^2 of lambda_a alone", fit.r_squared(y, f["angle"]))
        yield _reported("R^2 of lambda_g alone", fit.r_squared(y, f["gradient"]))
        for name, features in (
            ("raw hyperparameters", "raw"),
            ("the strengths alpha_A^2, alpha_M^2", "strengths"),
        ):
            control = fit.predict_neighbours(fit.features(points, features), y)
            yield from _compared(name, y, f["both"], control)
        yield _reported("R^2 with lambda_g_traj for lambda_g", fit.r_squared(y, f["trajectory"]))
        yield _reported("R^2 with lambda_g_star for lambda_g", fit.r_squared(y, f["stable point"]))
        yield _reported(
            "R^2, linear in max(l_a, 0), max(-l_a, 0), |l_g|",
            fit.r_squared(y, fit.predict_linear(fit.hinge(z), y)),
        )
        yield _reported(
            "R^2, quadratic in both", fit.r_squared(y, fit.predict_linear(fit.quadratic(z), y))
        )
        scores = {
            "L |lambda_a|": points["l_a"].abs(),
            "L |lambda_g|": points["l_g"].abs(),
            "their maximum": points["largest"],
            "alpha_A^2 + alpha_M^2": points["attn_squared"] + points["mlp_squared"],
        }
        for name, score in scores.items():
            found = fit.rank_correlation(points, score.to_numpy(np.float64))
            yield _reported(f"Spearman of loss and {name}", found)
        for name in ("their maximum", "alpha_A^2 + alpha_M^2"):
            auc = fit.failure_auc(points, scores[name].to_numpy(np.float64))
            yield _reported(f"AUC for failure of {name}", auc)


@claim(
    "C17",
    place="abstract; design and thresholds ours",
    statement="The loss as a function of the two exponents carries over to other hyperparameters.",
    rule="""Gaussian-kernel regression (bandwidth 0.15 in standardized exponents) fitted on the grid
    alpha_A = alpha_M predicts the Latin hypercube, L = 16, for each training seed: R^2 above 0.6,
    and above that of the same regression on (rms alpha, sigma_w) by more than 0.1. Intervals, which
    must clear the bounds, are bootstraps over configurations of the hypercube. Controls are
    reported beside it, not required.""",
    statistic="R^2 on another design with its 95 % bootstrap interval over configurations",
    why="""If the exponents are what matters, the fit carries over to strengths that differ by
    branch; the same regression on the settings themselves is the rival to beat.""",
    if_not="As C16: the intervals of 48 configurations reach below the bounds.",
    tables=("train_grid", "train_lhs"),
)
def _c17(tables: Tables) -> Iterator[Part]:
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
        yield _above(f"R^2, fitted on the grid{at}", fit.r_squared(y, f["both"]), 0.6)
        yield _above(
            f"minus R^2 of (rms alpha, sigma_w){at}", fit.r_squared(y, f["both"], f["rms"]), 0.1
        )
        for name, key in (("(rms alpha, sigma_w)", "rms"), ("(mean alpha, sigma_w)", "mean")):
            yield from _compared(name, y, f["both"], f[key])
        for name, key in (("lambda_a alone", "angle"), ("lambda_g alone", "gradient")):
            yield _reported(f"R^2 of {name}", fit.r_squared(y, f[key]))


@claim(
    "C18",
    place="abstract; thresholds ours",
    statement="The final loss is least where both exponents are small.",
    rule="""Latin hypercube, L = 16, for each training seed: median loss of configurations with
    max(L|lambda_a|, L|lambda_g|) <= 3 over that of those with >= 8, upper end of its bootstrap
    interval below 0.2, at least 3 of each; the configuration of least loss has max <= 4. Controls
    are reported beside it, not required.""",
    statistic="ratio of two medians with its 95 % bootstrap interval over configurations",
    why="""Small and large exponents must differ by a factor of five, and the best point must not
    lie outside the region; medians, as losses have two groups.""",
    if_not="""Loss is small wherever both branches are weak, also where an exponent is not small, so
    one best point or a few good ones outside the region are enough to fail, and which of the small
    losses is smallest depends on rounding. The same comparison by strength alone stands beside
    it.""",
    tables=("train_lhs", "train_grid", "train_unit"),
)
def _c18(tables: Tables) -> Iterator[Part]:
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
        yield below(f"{what}, seed {seed}", ratio.value, ratio.low, ratio.high, 0.2, ratio.n)
        yield decided(f"max at the best point, seed {seed}", best, "<= 4", best <= 4, len(y))
        yield _reported(
            f"control, as many weakest over strongest by alpha_A^2 + alpha_M^2: {words}",
            control,
        )
        yield _number("rank of the best point by max, from 1", 1 + (largest < best).sum(), len(y))
        grid = fit.configurations(tables["train_grid"], mode="conv", depth=_DEPTH, seed=seed)
        at_best = float(grid["largest"][fit.losses(grid).argmin()])
        yield _number("max at the best point of the grid", at_best, len(grid))
        weakest = y[strength <= np.quantile(strength, 0.1)]
        yield _reported(
            "median loss of the weakest tenth over the median at max <= 3",
            fit.median_ratio(weakest, near),
        )
    for seed in _seeds(tables["train_unit"]):
        unit = fit.configurations(tables["train_unit"], mode="unit", depth=_DEPTH, seed=seed)
        failed = float((fit.losses(unit) > fit.FAILED).mean())
        yield _number("share of failures in mode unit, plain PRE-LN", failed, len(unit))


def _enough(groups: dict[str, Array]) -> None:
    for name, group in groups.items():
        if len(group) < _GROUP:
            raise ValueError(f"{name}: {len(group)} configurations, at least {_GROUP}")


@claim(
    "C19",
    place="derived here",
    statement="The edge of chaos alone is not enough: growing gradients spoil training there.",
    rule="""Configurations with L|lambda_a| < 3, L = 16, for each training seed: median loss at L
    lambda_g >= 7 over that at < 7, lower end of its bootstrap interval above 5; not run with fewer
    than 3 of either. They are the first of a Sobol sequence over the ranges of the Latin hypercube
    on either side, equally many, chosen by the exponents alone before any training: the hypercube
    has too few at the edge. Controls are reported beside it, not required.""",
    statistic="ratio of two medians with its 95 % bootstrap interval over configurations",
    why="""One exponent is held near zero, so that a difference belongs to the other. Fewer than
    three configurations in a group say nothing.""",
    if_not="""Losses have two groups, learnt and not, so one configuration that fails with both
    exponents small moves the bootstrap of a median of eight below the bound.""",
    tables=("train_edge",),
)
def _c19(tables: Tables) -> Iterator[Part]:
    table = tables["train_edge"]
    for seed in _seeds(table):
        points = fit.configurations(table, mode="conv", depth=_DEPTH, seed=seed)
        y, edge = fit.losses(points), points["l_a"].abs() < 3
        top, bottom = (
            y[(edge & side).to_numpy()] for side in (points["l_g"] >= 7, points["l_g"] < 7)
        )
        _enough({"L |lambda_a| < 3, L lambda_g >= 7": top, "and < 7": bottom})
        what = "median loss at L lambda_g >= 7 over that below, both at L |lambda_a| < 3"
        yield _above(f"{what}, seed {seed}", fit.median_ratio(top, bottom), 5)
        strength = points["attn_squared"] + points["mlp_squared"]
        least = float(strength[edge & (points["l_g"] >= 7)].min())
        rest = y[(edge & (points["l_g"] < 7) & (strength >= least)).to_numpy()]
        yield _number("of those below, as strong by alpha_A^2 + alpha_M^2", len(rest), 1)


@claim(
    "C20",
    place="derived here",
    statement="Failure by collapse is set by L lambda_a, not by the residual strength.",
    rule="""sigma_w = 1.2, alpha_A = alpha_M = alpha, L = 8, 16, 32, for each training seed: L
    lambda_a where the loss first crosses 0.75 as alpha grows, interpolated linearly, differs by at
    most 1.6 (max/min), while alpha differs by at least 1.5. One training per alpha, so no interval.
    Controls are reported beside it, not required.""",
    statistic="largest over smallest of three crossings; no interval, one training each",
    why="""If L lambda_a decides, its value at failure is the same at every depth while alpha is
    not. A factor of 1.6 is about one step of the grid of alpha, as lambda_a goes with its
    square.""",
    if_not="""The crossing at L = 32 is the one that strays. All depths train for the same 300
    updates, so slower learning at depth is not separated from collapse, and near failure a training
    turns on its seed and on rounding.""",
    tables=("train_depth",),
)
def _c20(tables: Tables) -> Iterator[Part]:
    table = tables["train_depth"]
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
        yield decided(f"L lambda_a at failure, max/min{at}", ratio, "<= 1.6", ratio <= 1.6, n)
        yield decided(f"alpha at failure, max/min{at}", apart, ">= 1.5", apart >= 1.5, n)
        words = "varies no more" if control <= ratio else "varies more"
        words = "is undecided" if np.isnan(control) else words
        yield _number(f"control, L (alpha_A^2 + alpha_M^2) at failure {words}: max/min", control, n)
        for each in found:
            yield _number(f"L lambda_a at failure, L={each.depth}", each.l_a, 1)
            yield _number(f"alpha at failure, L={each.depth}", each.alpha, 1)

"""Final loss against the exponents at initialization: regressions, controls, intervals, nulls.

Regressors and constants were fixed before any result of the pipeline was looked at. They follow a
pilot of our own, so a table must come from a fresh design and fresh training seeds. With L the
depth, the features of a configuration are

    Z = ( clip(L lambda_a, -30, 30) , L lambda_g ) ,

standardized with mean and standard deviation of the configurations that are fitted.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from sigprop.analysis.data import choose
from sigprop.analysis.stats import DRAWS, LEVEL, Array

LIMIT = 30.0  # on |L lambda_a|
FAILED = 0.75  # a test loss above it; guessing the class frequencies costs 1.54 nat
NEIGHBOURS = 3
BANDWIDTH = 0.15
PERMUTATIONS = 2000

# Sets of features by name; "both" is the claim, the others are its parts and its controls.
FEATURES: dict[str, tuple[str, ...]] = {
    "both": ("l_a", "l_g"),
    "angle": ("l_a",),
    "gradient": ("l_g",),
    "trajectory": ("l_a", "l_traj"),
    "stable point": ("l_a", "l_star"),
    "raw": ("alpha_attn", "alpha_ff", "sigma_w", "sigma_v", "sigma_a"),
    "strengths": ("attn_squared", "mlp_squared"),
    "rms": ("rms_alpha", "sigma_w"),
    "mean": ("mean_alpha", "sigma_w"),
}
_EXPONENTS = {
    "lambda_a": "l_a",
    "lambda_g": "l_g",
    "lambda_g_traj": "l_traj",
    "lambda_g_star": "l_star",
}
_KEYS = ["mode", "depth", "config", "alpha_attn", "alpha_ff", "sigma_w", "sigma_v", "sigma_a"]


def configurations(table: pd.DataFrame, *, mode: str, depth: int, seed: int = 0) -> pd.DataFrame:
    """One row per configuration of one mode, depth and training seed, in the design's order.

    Columns: the factors; `test_loss`, `train_loss`, `accuracy`, `diverged`, `grad0`; depth times
    exponent as `l_a` (clipped), `l_g`, `l_traj`, `l_star`; `largest` = max(|l_a|, |l_g|);
    `attn_squared`, `mlp_squared`, `rms_alpha`, `mean_alpha`. Exponents that do not exist (mode
    unit) have no column.

    Raises ValueError when there are no rows.
    """
    rows = choose(table, mode=mode, depth=depth)
    trained = choose(rows[rows["source"] == "simulation"], seed=seed)
    if trained.empty:
        raise ValueError(f"mode {mode}, depth {depth}, seed {seed}: no configurations")
    wide = trained.pivot(index=_KEYS, columns="quantity", values="value").reset_index()
    theory = rows[rows["source"] == "theory"].pivot(
        index="config", columns="quantity", values="value"
    )
    for name, short in _EXPONENTS.items():
        if name in theory:
            wide[short] = depth * wide["config"].map(theory[name])
    if "l_a" in wide:
        # lambda_a = -inf, at strength 1, has no row
        wide["l_a"] = wide["l_a"].fillna(-LIMIT).clip(-LIMIT, LIMIT)
        wide["largest"] = wide[["l_a", "l_g"]].abs().max(axis=1)
    attn, mlp = wide["alpha_attn"], wide["alpha_ff"]
    return wide.assign(
        attn_squared=attn**2,
        mlp_squared=mlp**2,
        rms_alpha=np.sqrt((attn**2 + mlp**2) / 2),
        mean_alpha=(attn + mlp) / 2,
    ).sort_values("config", ignore_index=True)


def trainings(table: pd.DataFrame, *, mode: str, depth: int) -> pd.DataFrame:
    """`configurations` of every training seed, with a column `seed`."""
    seeds = sorted({*choose(table, mode=mode, depth=depth)["seed"].dropna()})
    each = (configurations(table, mode=mode, depth=depth, seed=s).assign(seed=s) for s in seeds)
    return pd.concat(each, ignore_index=True)


def features(points: pd.DataFrame, name: str) -> Array:
    """Features (N, k) of the set called `name`, without those that are equal everywhere."""
    columns = [column for column in FEATURES[name] if points[column].nunique() > 1]
    return points[columns].to_numpy(np.float64)


def losses(points: pd.DataFrame) -> Array:
    """Final test losses (N,)."""
    return points["test_loss"].to_numpy(np.float64)


# Regressors


def neighbours(z: Array, k: int = NEIGHBOURS) -> NDArray[np.intp]:
    """The k nearest other configurations of each, (N, k) int64.

    Features are standardized by the others' spread, fold by fold. Ties go to the lower index.
    """
    if len(z) <= k + 1:
        raise ValueError(f"{len(z)} configurations, at least {k + 2} for {k} neighbours")
    spread = np.stack([np.delete(z, i, 0).std(0) for i in range(len(z))])  # (N, features)
    squares = (((z[None] - z[:, None]) / spread[:, None]) ** 2).sum(-1)  # (N, N)
    np.fill_diagonal(squares, np.inf)
    return np.argsort(squares, axis=1, kind="stable")[:, :k]


def predict_neighbours(z: Array, y: Array, k: int = NEIGHBOURS) -> Array:
    """Leave-one-out prediction by the mean loss of the k nearest others, (N,)."""
    return np.asarray(y[neighbours(z, k)].mean(1), dtype=np.float64)


def predict_transfer(z: Array, y: Array, new: Array, bandwidth: float = BANDWIDTH) -> Array:
    """Gaussian-kernel mean of the losses y of z (N, k), at `new` (M, k) -> (M,).

    weight_ij ~ exp( -|new_i - z_j|^2 / (2 bandwidth^2) ), standardized by z. Far from all of z the
    nearest decides.
    """
    centre, spread = z.mean(0), z.std(0)
    a, b = (new - centre) / spread, (z - centre) / spread
    exponent = -((a[:, None] - b[None]) ** 2).sum(-1) / (2 * bandwidth**2)  # (M, N)
    weights = np.exp(exponent - exponent.max(1, keepdims=True))
    return np.asarray(weights @ y / weights.sum(1), dtype=np.float64)


def predict_linear(x: Array, y: Array) -> Array:
    """Leave-one-out least squares with an intercept, (N,): y_i - e_i / (1 - h_ii)."""
    design = np.column_stack([np.ones(len(x)), x])
    q, r = np.linalg.qr(design)
    if len(x) <= design.shape[1] or np.linalg.matrix_rank(r) < design.shape[1]:
        raise ValueError(f"{len(x)} configurations do not determine {design.shape[1]} coefficients")
    left = (y - q @ (q.T @ y)) / (1 - (q**2).sum(1))
    return np.asarray(y - left, dtype=np.float64)


def hinge(z: Array) -> Array:
    """(max(l_a, 0), max(-l_a, 0), |l_g|), for a linear fit with a corner at the edge of chaos."""
    return np.column_stack([np.maximum(z[:, 0], 0), np.maximum(-z[:, 0], 0), np.abs(z[:, 1])])


def quadratic(z: Array) -> Array:
    """(z1, z2, z1^2, z1 z2, z2^2) of standardized features."""
    a, b = ((z - z.mean(0)) / z.std(0)).T
    return np.column_stack([a, b, a * a, a * b, b * b])


# What a prediction is worth


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval over configurations."""

    value: float
    low: float
    high: float
    n: int


def r_squared(y: Array, *predictions: Array) -> Estimate:
    """1 - sum (y - f)^2 / sum (y - mean y)^2, or of the first prediction minus the second's.

    The interval is a percentile bootstrap over configurations, pairs of a loss and its predictions;
    predictions are not fitted again, because a configuration drawn twice would be its own
    neighbour.
    """
    if len(predictions) not in (1, 2):
        raise ValueError(f"predictions: {len(predictions)}, give one or two")
    rng = np.random.default_rng(0)
    picks = np.vstack([np.arange(len(y)), rng.integers(0, len(y), (DRAWS, len(y)))])
    drawn = y[picks]  # (1 + DRAWS, N), the sample itself first
    total = ((drawn - drawn.mean(1, keepdims=True)) ** 2).sum(1)
    found = [1 - ((drawn - f[picks]) ** 2).sum(1) / total for f in predictions]
    return _bootstrapped(found[0] if len(found) == 1 else found[0] - found[1], len(y))


def permutation_null(z: Array, y: Array, k: int = NEIGHBOURS) -> tuple[float, float]:
    """p of the leave-one-out R^2 against shuffled losses, and the null's 95 % quantile."""
    near, rng = neighbours(z, k), np.random.default_rng(0)
    shuffled = rng.permuted(np.tile(y, (PERMUTATIONS, 1)), axis=1)
    all_y = np.vstack([y, shuffled])  # (1 + PERMUTATIONS, N)
    error = ((all_y - all_y[:, near].mean(2)) ** 2).sum(1)
    skill = 1 - error / ((y - y.mean()) ** 2).sum()
    p = (skill >= skill[0]).mean()  # the sample itself counts
    return float(p), float(np.quantile(skill[1:], 0.95))


def median_ratio(top: Array, bottom: Array) -> Estimate:
    """median(top) / median(bottom), with a percentile bootstrap within each group."""
    rng = np.random.default_rng(0)
    drawn = [np.median(rng.choice(x, (DRAWS, len(x))), axis=1) for x in (top, bottom)]
    low, high = np.quantile(drawn[0] / drawn[1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    value = float(np.median(top) / np.median(bottom))
    return Estimate(value, float(low), float(high), len(top) + len(bottom))


def failure_auc(points: pd.DataFrame, score: Array) -> Estimate:
    """Chance that a failure (loss > `FAILED`) scores above a success; bootstrap interval.

    ValueError when nothing, or everything, failed.
    """
    failed = losses(points) > FAILED
    if failed.all() or not failed.any():
        raise ValueError(f"{failed.sum()} of {len(failed)} configurations failed, AUC undefined")

    yes, no, rng = score[failed], score[~failed], np.random.default_rng(0)
    both = np.vstack([np.concatenate([yes, no])] * (1 + DRAWS))  # the sample itself first
    both[1:, : len(yes)] = rng.choice(yes, (DRAWS, len(yes)))
    both[1:, len(yes) :] = rng.choice(no, (DRAWS, len(no)))
    ranks = stats.rankdata(both, axis=1)[:, : len(yes)].sum(1)  # Mann and Whitney's U
    found = (ranks - len(yes) * (len(yes) + 1) / 2) / (len(yes) * len(no))
    return _bootstrapped(found, len(score))


def rank_correlation(points: pd.DataFrame, score: Array) -> Estimate:
    """Spearman correlation of the loss with a score; bootstrap interval over configurations."""
    y, rng = losses(points), np.random.default_rng(0)
    picks = np.vstack([np.arange(len(y)), rng.integers(0, len(y), (DRAWS, len(y)))])
    a, b = (stats.rankdata(x[picks], axis=1) for x in (y, score))
    a, b = (x - x.mean(1, keepdims=True) for x in (a, b))
    return _bootstrapped((a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1)), len(y))


def _bootstrapped(values: Array, n: int) -> Estimate:
    """The sample's own value, values[0], with the interval of the draws values[1:]."""
    low, high = np.nanquantile(values[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(values[0]), float(low), float(high), n)


@dataclass(frozen=True)
class Crossing:
    """Where the loss first rises above `FAILED` as alpha grows; NaN where it does not."""

    depth: int
    alpha: float
    l_a: float


def crossing(points: pd.DataFrame) -> Crossing:
    """Linear interpolation between the last configuration that learns and the first that fails.

    `points`: configurations of one depth and sigma_w, with alpha_attn = alpha_ff.
    """
    rows = points.sort_values("alpha_attn")
    loss, depth = losses(rows), int(rows["depth"].iloc[0])
    above = np.flatnonzero((loss[1:] > FAILED) & (loss[:-1] <= FAILED))
    if len(above) == 0:
        return Crossing(depth, np.nan, np.nan)
    i = int(above[0])
    share = (FAILED - loss[i]) / (loss[i + 1] - loss[i])
    alpha, l_a = (
        float(x[i] + share * (x[i + 1] - x[i]))
        for x in (rows["alpha_attn"].to_numpy(), rows["l_a"].to_numpy())
    )
    return Crossing(depth, alpha, l_a)

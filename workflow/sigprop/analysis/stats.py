"""Intervals over random networks: the percentile bootstrap of means and of ratios of means."""

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

DRAWS = 2000
LEVEL = 0.95


def _weights(n_networks: int, draws: int, seed: int) -> Array:
    """(draws, n_networks) resampling weights: rows are multinomial counts / n_networks."""
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(n_networks, np.full(n_networks, 1 / n_networks), size=draws)
    return counts / n_networks


def _interval(samples: Array, level: float) -> tuple[Array, Array]:
    tail = (1 - level) / 2
    low, high = np.quantile(samples, [tail, 1 - tail], axis=0)
    return low, high


def bootstrap_mean(
    values: Array, *, draws: int = DRAWS, level: float = LEVEL, seed: int = 0
) -> tuple[Array, Array, Array]:
    """Mean over networks with its percentile-bootstrap interval.

    Args:
        values: (n_networks, ...). Whole networks are resampled, so intervals of different layers
            or settings measured on the same networks belong together.

    Returns:
        mean, low, high, each of shape values.shape[1:].

    Raises:
        ValueError: fewer than two networks.
    """
    values = np.asarray(values, dtype=np.float64)
    if len(values) < 2:
        raise ValueError(f"values: {len(values)} network(s); an interval needs at least 2")
    flat = values.reshape(len(values), -1)
    samples = _weights(len(values), draws, seed) @ flat
    low, high = _interval(samples, level)
    shape = values.shape[1:]
    return flat.mean(0).reshape(shape), low.reshape(shape), high.reshape(shape)


def bootstrap_ratio(
    numerator: Array,
    denominator: Array,
    *,
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> tuple[Array, Array, Array]:
    """sum(numerator) / sum(denominator) over networks, with its percentile-bootstrap interval.

    Both are (n_networks, ...) and are resampled together. Returns ratio, low, high.
    """
    top, bottom = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    if top.shape != bottom.shape or len(top) < 2:
        raise ValueError(f"numerator {top.shape} and denominator {bottom.shape} must agree")
    shape = top.shape[1:]
    top, bottom = top.reshape(len(top), -1), bottom.reshape(len(bottom), -1)
    weights = _weights(len(top), draws, seed)
    low, high = _interval((weights @ top) / (weights @ bottom), level)
    ratio = top.sum(0) / bottom.sum(0)
    return ratio.reshape(shape), low.reshape(shape), high.reshape(shape)


def student_mean(values: Array) -> tuple[float, float, float]:
    """Mean of few runs with its 95 % Student-t interval; NaN ends for a single run."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, np.nan, np.nan
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * stats.sem(values))
    return mean, mean - half, mean + half

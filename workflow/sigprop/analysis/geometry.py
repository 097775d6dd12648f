"""Token geometry from tidy tables: norm and cosine by layer, exponents with their intervals."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from sigprop.analysis.data import Curve, choose, curve, networks
from sigprop.analysis.stats import DRAWS, LEVEL, Array, bootstrap_mean, bootstrap_ratio

# Settings of `geometry_exponents` that are compared one by one with theory: both phases, tanh ...
TANH = (
    "ordered_weak",
    "ordered",
    "ordered_strong",
    "chaotic_weak",
    "chaotic",
    "chaotic_strong",
    "unit_readout",
    "renorm",
)
# ... and without.
SETTINGS = (*TANH, "relu")


def norm_curve(rows: pd.DataFrame) -> Curve:
    """q = mean |x_i|^2 / d by layer, mean over networks with its band, and theory."""
    return curve(rows, "q")


def cosine_curve(rows: pd.DataFrame) -> Curve:
    """c = p / q by layer: ratio of means over networks with its band, and theory."""
    layer, p = networks(rows, "p")
    _, q = networks(rows, "q")
    mean, low, high = bootstrap_ratio(p, q)
    at, expected = _theory(rows, "p")
    return Curve(layer, mean, low, high, len(p), at, expected / _theory(rows, "q")[1])


def gradient_curve(rows: pd.DataFrame) -> Curve:
    """g = mean |delta_i|^2 by layer, mean over networks, over its value at the last; and theory."""
    found = curve(rows, "g")
    logs = replace(found, theory=found.theory / found.theory[-1])
    last = found.mean[-1]
    return replace(logs, mean=found.mean / last, low=found.low / last, high=found.high / last)


def _theory(rows: pd.DataFrame, quantity: str) -> tuple[Array, Array]:
    found = choose(rows, quantity=quantity, source="theory").sort_values("layer")
    return found["layer"].to_numpy(np.float64), found["value"].to_numpy(np.float64)


def deviation(found: Curve, *, relative: bool = False) -> tuple[float, float, float, float]:
    """Layer, value, low and high of simulation minus theory where it is largest.

    relative: divided by theory. The interval is that of the band at this layer.
    """
    scale = found.theory if relative else np.ones_like(found.theory)
    parts = [(values - found.theory) / scale for values in (found.mean, found.low, found.high)]
    worst = int(np.abs(parts[0]).argmax())
    value, low, high = (float(part[worst]) for part in parts)
    return float(found.layer[worst]), value, low, high


@dataclass(frozen=True)
class Exponent:
    """A rate per block: estimate with its 95 % interval and standard error, and theory."""

    value: float
    low: float
    high: float
    error: float
    theory: float
    n_networks: int

    @property
    def z(self) -> float:
        """Deviation from theory in standard errors; infinite where the error is zero."""
        gap = abs(self.value - self.theory)
        return gap / self.error if self.error > 0 else np.inf if gap else 0.0


def angle_exponent(rows: pd.DataFrame, *, seed: int = 0) -> Exponent:
    """lambda_a of one setting: growth of mean (q - p) / mean q from the first to the last layer."""
    return _exponent(rows, "q_minus_p", "q", _only(rows, "lambda_a"), 1.0, seed)


def late_angle_exponent(rows: pd.DataFrame, *, blocks: int = 8, seed: int = 0) -> Exponent:
    """Growth of mean (q - p) / mean q over the last `blocks` blocks, theory's over the same.

    For tokens that start far apart, as a simplex. In the ordered phase both tend to lambda_a with
    depth; in the chaotic phase tokens stay apart, and both tend to 0.

    Raises:
        ValueError: the first of these layers was not kept.
    """
    last = int(rows["layer"].max())
    rows = rows[rows["layer"].isin([last - blocks, last])]
    layers, difference = _theory(rows, "q_minus_p")
    if list(layers) != [last - blocks, last]:
        raise ValueError(f"layers {last - blocks} and {last} of theory: {list(layers)} are there")
    logs = np.log(difference / _theory(rows, "q")[1])
    return _exponent(rows, "q_minus_p", "q", float(logs[1] - logs[0]) / blocks, 1.0, seed)


def gradient_exponent(rows: pd.DataFrame, theory: str = "lambda_g", *, seed: int = 0) -> Exponent:
    """Growth of mean g from the last to the first layer: positive where gradients explode.

    theory: `lambda_g` for a readout that all tokens share, near collapse; `lambda_g_traj` for
    independent readouts over the whole depth.
    """
    return _exponent(rows, "g", None, _only(rows, theory), -1.0, seed)


def is_chaotic(rows: pd.DataFrame) -> bool:
    """Whether theory's lambda_a of one setting is positive."""
    return _only(rows, "lambda_a") > 0


def _only(rows: pd.DataFrame, quantity: str) -> float:
    expected = choose(rows, quantity=quantity, source="theory")["value"]
    if len(expected) != 1:
        raise ValueError(f"{quantity}: {len(expected)} theory rows, expected 1")
    return float(expected.iloc[0])


def _exponent(
    rows: pd.DataFrame, top: str, bottom: str | None, theory: float, sign: float, seed: int
) -> Exponent:
    draws = growth_draws(rows, top, bottom, seed=seed)
    low, high = np.quantile(sign * draws[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    count = int(rows["seed"].nunique())
    value, error = sign * draws[0], draws[1:].std(ddof=1)
    return Exponent(float(value), float(low), float(high), float(error), theory, count)


def pair_spread(rows: pd.DataFrame) -> tuple[Array, Array, Array, Array]:
    """Layers, and the standard deviation of the cosine over the pairs of a network at each.

    Mean over networks with its band (low, high).
    """
    found = choose(rows, quantity="pair_cosine", source="simulation")
    spread = found.groupby(["layer", "seed"])["value"].std().unstack("layer")
    mean, low, high = bootstrap_mean(spread.to_numpy(np.float64))
    return spread.columns.to_numpy(np.float64), mean, low, high


def growth_draws(
    rows: pd.DataFrame, top: str, bottom: str | None = None, *, seed: int = 0
) -> Array:
    """(1 + DRAWS,) rates per block of log( mean top / mean bottom ): estimate, then resampled.

    From the first to the last kept layer. Settings resampled with the same `seed` resample the
    same networks, as they should where networks share their weights.
    """
    layers, values = networks(rows, top)
    count = len(values)
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(count, np.full(count, 1 / count), size=DRAWS) / count
    weights = np.concatenate([np.full((1, count), 1 / count), weights])
    logs = np.log(weights @ values[:, [0, -1]])
    if bottom is not None:
        logs -= np.log(weights @ networks(rows, bottom)[1][:, [0, -1]])
    return np.asarray((logs[:, 1] - logs[:, 0]) / (layers[-1] - layers[0]))

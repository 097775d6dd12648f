"""Deviations from theory against width, and two samplers against each other."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from sigprop.analysis.data import choose, groups, networks, theory_at
from sigprop.analysis.stats import Array, bootstrap_mean


def deviation_by_width(table: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """One row per width: rms over networks and |mean| of (quantity - theory) at the last layer.

    Columns `width`, `rms`, `rms_low`, `rms_high`, `bias`, `bias_low`, `bias_high`, `n_networks`;
    the ends are of 95 % bootstrap intervals. `bias_low` is 0 where the mean's interval holds 0.
    """
    rows = []
    for (width, depth), part in groups(table, "d_model", "depth"):
        _, values = networks(part, quantity)
        deviation = values[:, -1] - theory_at(part, quantity, int(depth))
        square = [float(np.sqrt(v)) for v in bootstrap_mean(deviation**2)]
        mean, low, high = (float(v) for v in bootstrap_mean(deviation))
        ends = sorted((abs(low), abs(high)))
        rows.append(
            {
                "width": int(width),
                "rms": square[0],
                "rms_low": square[1],
                "rms_high": square[2],
                "bias": abs(mean),
                "bias_low": 0.0 if low <= 0 <= high else ends[0],
                "bias_high": ends[1],
                "n_networks": len(values),
            }
        )
    return pd.DataFrame(rows).sort_values("width", ignore_index=True)


@dataclass(frozen=True)
class PowerLaw:
    """y = c x^exponent fitted on logarithms, with the 95 % interval of the exponent."""

    exponent: float
    low: float
    high: float
    n_points: int
    x: Array
    y: Array


def power_law(points: pd.DataFrame, name: str, *, from_width: int = 100) -> PowerLaw:
    """Weighted least squares of ln `name` on ln width.

    Used are widths of at least `from_width`, well above the number of tokens, where the interval
    of `name` excludes 0.

    Weights come from the bootstrap intervals. The interval of the exponent is Student's, scaled
    by the residuals; NaN with fewer than three usable widths.
    """
    used = points[(points[f"{name}_low"] > 0) & (points["width"] >= from_width)]
    if len(used) < 3:
        empty = np.empty(0)
        return PowerLaw(np.nan, np.nan, np.nan, len(used), empty, empty)
    x = np.log(used["width"].to_numpy(dtype=np.float64))
    y = np.log(used[name].to_numpy(dtype=np.float64))
    spread = np.log((used[f"{name}_high"] / used[f"{name}_low"]).to_numpy(dtype=np.float64))
    weight = 1 / spread**2
    centre = (weight @ x) / weight.sum()
    moment = weight @ (x - centre) ** 2
    slope = (weight @ ((x - centre) * y)) / moment
    level = (weight @ y) / weight.sum()
    residual = y - level - slope * (x - centre)
    freedom = len(used) - 2
    half = stats.t.ppf(0.975, freedom) * np.sqrt((weight @ residual**2) / freedom / moment)
    ends = np.array([x.min(), x.max()])
    fitted = np.exp(level + slope * (ends - centre))
    return PowerLaw(
        float(slope), float(slope - half), float(slope + half), len(used), np.exp(ends), fitted
    )


def compare_samplers(table: pd.DataFrame) -> pd.DataFrame:
    """Two-sample KS tests, explicit against law, for each quantity and depth; Holm-adjusted.

    Columns `quantity`, `depth`, `KS distance`, `p`, `Holm p`, `networks`.
    """
    simulated = table[(table["source"] == "simulation") & table["seed"].notna()]
    rows = []
    for (quantity, depth), part in groups(simulated, "quantity", "depth"):
        explicit, law = (
            networks(choose(part, sampler=sampler), quantity)[1][:, -1]
            for sampler in ("explicit", "law")
        )
        test = stats.ks_2samp(explicit, law)
        rows.append((quantity, depth, test.statistic, test.pvalue, len(law)))
    frame = pd.DataFrame(rows, columns=["quantity", "depth", "KS distance", "p", "networks"])
    frame.insert(4, "Holm p", holm(frame["p"].to_numpy(dtype=np.float64)))
    return frame


def holm(p_values: Array) -> Array:
    """Holm's step-down adjusted p-values, in the given order."""
    order = np.argsort(p_values)
    factors = len(p_values) - np.arange(len(p_values))
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(factors * p_values[order]))
    return adjusted

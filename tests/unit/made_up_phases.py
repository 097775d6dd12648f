"""Made-up tables for the claims on phases: where each holds, and where it does not."""

import numpy as np
import pandas as pd

Tables = dict[str, pd.DataFrame]


def _phases(rows: dict[str, object]) -> pd.DataFrame:
    """Rows of the table `phases` with defaults for the columns that are not given."""
    defaults = {
        "variant": "softmax",
        "mode": "conv",
        "activation": "tanh",
        "read_out": "tied",
        "n_tokens": np.inf,
        "depth": 0,
        "alpha_attn": 0.5,
        "alpha_ff": 0.5,
        "sigma_w1": 2.0,
        "source": "theory",
    }
    return pd.DataFrame(defaults | rows)


def edge(chaotic: float = 0.92, ordered: float = 1.0, other: float | None = None) -> Tables:
    """rho* on both sides of the transition; `other`: another stable point on the ordered side."""
    frames = []
    for alpha in (0.3, 0.5, 0.7):
        for sigma_w, exponent, rho in ((1.8, -0.01, ordered), (2.0, 0.01, chaotic)):
            least = rho if other is None or exponent > 0 else other
            for quantity, value in (
                ("lambda_a", exponent),
                ("rho_star", rho),
                ("rho_stable_least", least),
            ):
                at = {"grid": "edge", "alpha_attn": alpha, "sigma_w1": sigma_w}
                frames.append(_phases(at | {"quantity": quantity, "value": [value]}))
    return {"phases": pd.concat(frames, ignore_index=True)}


def planes(
    *,
    gradient: float = 0.2,
    relu_gradient: float = 0.0,
    gap_factor: float = 1.0,
    map_error: float = 0.0,
    count: int = 61,
) -> Tables:
    """Exponents on planes of tanh and relu with q* = 1, where lambda_g = `gradient` * sigma_w."""
    alpha, sigma = np.meshgrid(np.linspace(0, 0.98, count), np.linspace(1, 4, count))
    alpha, sigma = alpha.ravel(), sigma.ravel()
    frames = []
    for grid, level in (("diagonal", gradient), ("diagonal_relu", relu_gradient)):
        for mode in ("conv", "renorm"):
            kept = 1 - alpha**2 if mode == "conv" else 1.0
            g = level * sigma * alpha**2
            a = g - gap_factor * np.log1p(alpha**2 / kept)
            found = {
                "lambda_a": a,
                "lambda_g": g,
                "log_angle_factor": a,
                "log_backward_radius": g + map_error,
                "q_collapsed": np.ones_like(g),
            }
            for quantity, value in found.items():
                at = {"grid": grid, "mode": mode, "alpha_attn": alpha, "alpha_ff": alpha}
                at |= {"sigma_w1": sigma, "quantity": quantity, "value": value}
                frames.append(_phases(at))
    return {"phases": pd.concat(frames, ignore_index=True)}


def balance(conv: float = 1.0, renorm: float = 3.0) -> Tables:
    """alpha_M^2 (G - B) / (alpha_A^2 sigma_V^2) = 1 + coefficient * alpha^2 at the edge."""
    alpha = np.array([0.01, 0.05, 0.1, 0.5])
    frames = [
        _phases(
            {"grid": "sigma_c", "mode": mode, "quantity": "balance"}
            | {"alpha_attn": alpha, "value": 1 + coefficient * alpha**2}
        )
        for mode, coefficient in (("conv", conv), ("renorm", renorm))
    ]
    return {"phases": pd.concat(frames, ignore_index=True)}


def largest_alpha(power: float = -0.5) -> Tables:
    """Largest alpha that falls as depth^power."""
    depth = np.array([8, 16, 32, 64, 128, 256, 512])
    frames = [
        _phases(
            {"grid": "alpha_max", "quantity": "alpha_max", "sigma_w1": sigma_w, "depth": depth}
            | {"alpha_attn": np.nan, "value": 0.9 * (depth / 8.0) ** power}
        )
        for sigma_w in (1.2, 3.0)
    ]
    return {"phases": pd.concat(frames, ignore_index=True)}


def rows(off: float = 0.0, leading: float = 1.17, batches: int = 50) -> Tables:
    """Moments of rows whose Monte Carlo is `off` standard errors away from theory."""
    rng = np.random.default_rng(3)
    noise = rng.standard_normal(batches)
    noise = (noise - noise.mean()) / noise.std(ddof=1) * 0.02
    frames = []
    for sigma_a in (1.0, 2.0):
        at = {"grid": "gaussian", "d_k": 0, "n_tokens": 32, "sigma_a": sigma_a, "rho": 0.0}
        for quantity in ("s", "r", "a3"):
            drawn = 0.1 * (1 + noise + off * 0.02 / batches**0.5)
            simulated = {"source": "simulation", "seed": np.arange(batches)}
            for part in (
                {"value": drawn} | simulated,
                {"value": [0.1], "source": "theory", "seed": pd.NA},
            ):
                frames.append(pd.DataFrame(at | {"quantity": quantity} | part))
        part = {"value": [0.1 * leading], "source": "theory", "seed": pd.NA}
        frames.append(pd.DataFrame(at | {"quantity": "s_leading"} | part))
    return {"softmax_rows": pd.concat([f.astype({"seed": "Int64"}) for f in frames])}


HOLDS = {
    "C08": lambda _: edge(),
    "C11": lambda _: planes(),
    "C12": lambda _: planes(),
    "C13": lambda _: balance(),
    "C14": lambda _: largest_alpha(),
    "C15": lambda _: rows(),
}
FAILS = {
    "C08 jumps": lambda _: edge(chaotic=0.7),
    "C08 simplex before the edge": lambda _: edge(ordered=0.99),
    "C08 bistable": lambda _: edge(other=0.4),
    "C11 decays": lambda _: planes(gradient=-0.2),
    "C11 relu grows": lambda _: planes(relu_gradient=0.01),
    "C11 other gap": lambda _: planes(gap_factor=1.01),
    "C11 map": lambda _: planes(map_error=1e-6),
    "C12 chaotic": lambda _: planes(relu_gradient=2.0),
    "C13 far off": lambda _: balance(conv=3.0),
    "C14 faster": lambda _: largest_alpha(-0.6),
    "C15 biased": lambda _: rows(off=5.0),
    "C15 leading is enough": lambda _: rows(leading=1.02),
}

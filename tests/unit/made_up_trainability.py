"""Made-up tables for the claims on trainability: where each holds, and where it does not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

Tables = dict[str, pd.DataFrame]
DEPTH = 16
Loss = Callable[[pd.DataFrame], Any]
CHANCE, BEST = 1.5, 0.05


def exponents(attn: Any, mlp: Any, sigma_w: Any) -> tuple[Any, Any]:
    """Something that behaves as (lambda_a, lambda_g) do, in closed form; not the theory."""
    gain = mlp**2 * np.maximum(sigma_w - 0.8, 0.0) ** 2 / 2
    return gain - attn**2 - 0.1 * mlp**2, gain + 0.01 * mlp**2


def by_exponents(points: pd.DataFrame) -> Any:
    """A loss set by both exponents: collapse and growing gradients both spoil it."""
    bad = (points["l_a"] < -5) | (points["l_g"] > 7)
    return np.where(bad, CHANCE, BEST) + 0.002 * points[["l_a", "l_g"]].abs().max(axis=1)


def by_either(points: pd.DataFrame) -> Any:
    """Needs both exponents: one alone says little."""
    return np.where((points["l_a"] < -2) != (points["l_g"] > 3), CHANCE, BEST)


def by_angle(points: pd.DataFrame) -> Any:
    """Set by lambda_a alone."""
    return np.where(points["l_a"] < -1, CHANCE, BEST) + 0.002 * points["l_a"].abs()


def by_nothing(points: pd.DataFrame) -> Any:
    """Unrelated to the configuration."""
    return np.random.default_rng(1).permutation(np.linspace(BEST, CHANCE, len(points)))


def upside_down(points: pd.DataFrame) -> Any:
    """Small exponents are the worst."""
    return CHANCE - by_exponents(points) + 0.2


def by_strength(points: pd.DataFrame) -> Any:
    """Set by rms alpha and sigma_w, in a way that the exponents do not see."""
    rms = np.sqrt((points["alpha_attn"] ** 2 + points["alpha_ff"] ** 2) / 2)
    return np.where((5 * rms).astype(int) % 2 == 0, CHANCE, BEST)


def by_alpha(points: pd.DataFrame) -> Any:
    """Set by alpha, whatever the depth."""
    return np.where(points["alpha_attn"] > 0.3, CHANCE, BEST)


def _table(points: pd.DataFrame, loss: Loss, *, mode: str = "conv") -> pd.DataFrame:
    """Rows of one training seed and of theory; `points` has depth, alphas and sigma_w."""
    lambda_a, lambda_g = exponents(points["alpha_attn"], points["alpha_ff"], points["sigma_w"])
    exposed = points.assign(l_a=points["depth"] * lambda_a, l_g=points["depth"] * lambda_g)
    trained = {
        "test_loss": loss(exposed),
        "train_loss": loss(exposed),
        "diverged": 0.0,
        "accuracy": 0.5,
        "grad0": np.exp(exposed["l_g"]),
    }
    known = {
        "lambda_a": lambda_a,
        "lambda_g": lambda_g,
        "lambda_g_traj": lambda_g,
        "lambda_g_star": 0.9 * lambda_g,
    }
    shared = {"mode": mode, "sigma_v": 1.0, "sigma_a": 1.0}
    frames = []
    for source, values in (("simulation", trained), ("theory", known)):
        for quantity, value in values.items() if mode == "conv" or source == "simulation" else []:
            frame = points.assign(**shared, quantity=quantity, value=value, source=source)
            seed = [0 if source == "simulation" else pd.NA] * len(frame)
            frames.append(frame.assign(seed=pd.array(seed, dtype="Int64")))
    return pd.concat(frames, ignore_index=True)


def _hypercube(n: int) -> pd.DataFrame:
    u = np.random.default_rng(3).random((n, 3))
    low, high = np.array([0.05, 0.05, 0.6]), np.array([0.9, 0.9, 4.0])
    points = pd.DataFrame(low + u * (high - low), columns=["alpha_attn", "alpha_ff", "sigma_w"])
    return points.assign(depth=DEPTH, config=np.arange(n))


def _edge(n: int = 8) -> pd.DataFrame:
    """n configurations with L |lambda_a| < 3 on each side of L lambda_g = 7."""
    many = _hypercube(20_000)
    l_a, l_g = (
        DEPTH * each for each in exponents(many["alpha_attn"], many["alpha_ff"], many["sigma_w"])
    )
    near = np.abs(l_a) < 3
    points = pd.concat([many[near & (l_g >= 7)][:n], many[near & (l_g < 7)][:n]])
    return points.assign(config=np.arange(len(points))).reset_index(drop=True)


def _diagonal(alpha: Any, sigma_w: Any, depth: int) -> pd.DataFrame:
    a, s = (x.reshape(-1) for x in np.meshgrid(alpha, sigma_w, indexing="ij"))
    points = pd.DataFrame({"alpha_attn": a, "alpha_ff": a, "sigma_w": s})
    return points.assign(depth=depth, config=np.arange(len(a)))


def trainability(
    loss: Loss = by_exponents, *, n: int = 96, depth_loss: Loss | None = None
) -> Tables:
    """All five tables, with the final loss that `loss` gives to each configuration."""
    grid = _diagonal([0.1, 0.2, 0.35, 0.5, 0.7, 0.9], [0.6, 1, 1.5, 1.9, 2.4, 3, 4], DEPTH)
    depths = [_diagonal(np.linspace(0.1, 0.9, 17), [1.2], depth) for depth in (8, 16, 32)]
    return {
        "train_lhs": _table(_hypercube(n), loss),
        "train_grid": _table(grid, loss),
        "train_edge": _table(_edge(), loss),
        "train_depth": _table(pd.concat(depths, ignore_index=True), depth_loss or loss),
        "train_unit": _table(grid, lambda points: np.full(len(points), BEST), mode="unit"),
    }


HOLDS = {name: lambda _: trainability() for name in ("C17", "C18", "C19", "C20")}
HOLDS["C16"] = lambda _: trainability(by_either, n=300)
FAILS = {
    "C16 unrelated": lambda _: trainability(by_nothing),
    "C16 one exponent": lambda _: trainability(by_angle),
    "C17 unrelated": lambda _: trainability(by_nothing),
    "C17 strengths": lambda _: trainability(by_strength),
    "C18 upside down": lambda _: trainability(upside_down),
    "C19 angle alone": lambda _: trainability(by_angle),
    "C20 strength alone": lambda _: trainability(depth_loss=by_alpha),
}

"""Closed-form phase diagrams, critical lines and update maps of Cowsik et al. 2024, re-derived."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from sigprop.artifacts.errors import UserError
from sigprop.experiments.context import Context
from sigprop.experiments.frames import tidy
from sigprop.experiments.phases.settings import (
    CriticalLine,
    Edges,
    FixedPoints,
    PhasesSettings,
    Plane,
    Scaling,
    TrainableAlpha,
    UpdateMap,
    values,
)
from sigprop.theory import cowsik2024 as theory
from sigprop.theory import cowsik2024_phases as phases
from sigprop.theory.checks import Array
from sigprop.theory.cowsik2024 import Architecture, Block, Mode
from sigprop.theory.mlp_moments import mlp_moments

# sigma_w in which lambda_a = +-0.05 and the orthogonal simplex are sought.
_BRACKET = (0.1, 40.0)


def run(settings: PhasesSettings, context: Context) -> pd.DataFrame:
    """Every grid of the settings; rows of theory only. Nothing is random and no seed is used.

    A critical value that does not exist in the searched range has no row.

    Raises:
        UserError: a grid without a single value, such as a critical line that its settings do not
            straddle, or one that the quadratures do not reach.
    """
    makers: dict[str, Callable[[Any], Iterator[pd.DataFrame]]] = {
        "planes": _plane,
        "lines": _line,
        "trainable": _trainable,
        "fixed_points": _fixed_points,
        "edges": _edges,
        "maps": _map,
        "scaling": _scaling,
    }
    frames = [
        _grid(make, grid, f"experiments.{context.table}.{group}.{name}").assign(grid=name)
        for group, make in makers.items()
        for name, grid in getattr(settings, group).items()
    ]
    table = pd.concat(frames, ignore_index=True)
    return tidy(PhasesSettings, table, value=table["value"])


def _grid(make: Callable[[Any], Iterator[pd.DataFrame]], grid: Any, where: str) -> pd.DataFrame:
    """What one grid gives, finite values only."""
    try:
        frames = list(make(grid))
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error
    found = [frame[np.isfinite(frame["value"])] for frame in frames]
    # the leading order may have a root where the exact condition has none
    if not any((~frame["quantity"].str.endswith("_leading")).any() for frame in found):
        raise UserError(
            f"{where}: its settings straddle no critical line, all lie in one phase; use other "
            "strengths or sigma_w"
        )
    return pd.concat(found, ignore_index=True)


def _rows(
    architecture: Architecture, found: dict[str, Array], **other: Any
) -> Iterator[pd.DataFrame]:
    """Rows of each quantity; `other` replaces or adds factors, scalar or of the settings' shape."""
    a, shape = architecture, architecture.shape
    factors: dict[str, Any] = {
        "variant": a.attention,
        "mode": a.mode,
        "activation": a.activation,
        "read_out": "tied",
        "depth": 0,
        "rho": np.nan,
    }
    for name in ("n_tokens", "alpha_attn", "alpha_ff"):
        factors[name] = np.asarray(getattr(a, name), dtype=np.float64)
    for name in ("sigma_w1", "sigma_w2", "sigma_a", "sigma_v"):
        factors[name] = np.asarray(getattr(a, name), dtype=np.float64)
    columns = {k: np.broadcast_to(v, shape).ravel() for k, v in (factors | other).items()}
    for quantity, value in found.items():
        flat = np.broadcast_to(value, shape).ravel()
        yield pd.DataFrame(columns | {"quantity": quantity, "value": flat})


def _number(n_tokens: int | str) -> float:
    return float(n_tokens)


# Planes


def _plane(grid: Plane) -> Iterator[pd.DataFrame]:
    attn, sigma = values(grid.alpha_attn), values(grid.sigma_w)
    if grid.alpha_ff is None:
        x, w = np.meshgrid(attn, sigma, indexing="ij")
        y = x
    else:
        x, y, w = np.meshgrid(attn, values(grid.alpha_ff), sigma, indexing="ij")
    for variant, mode, activation, read_out in itertools.product(
        grid.variant, grid.mode, grid.activation, grid.read_out
    ):
        architecture = _variant(variant, x, y, w, grid.n_tokens, activation, mode, read_out)
        for quantity in grid.quantities:
            depth = grid.depth if quantity == "lambda_g_traj" else 0
            found = {str(quantity): _exponent(architecture, quantity, depth)}
            yield from _rows(architecture, found, variant=variant, read_out=read_out, depth=depth)


def _variant(
    variant: str, x: Array, y: Array, w: Array, n: int, activation: Any, mode: Any, read_out: str
) -> Architecture:
    """sigma_w is that of the first MLP matrix; for sigma_reparam gamma_w = 2 sigma_w, others 1."""
    if variant == "deepscale":
        made = theory.deepscale(1.0, k=x**2, sigma_w1=w, n_tokens=n, activation=activation)
        same = {"alpha_attn": x, "alpha_ff": y}  # k / depth = x^2 up to rounding
        return Architecture(**(_fields(made) | same))
    if variant == "sigma_reparam":
        return theory.sigma_reparam(x, y, gamma_w=2 * w, n_tokens=n, activation=activation)
    return Architecture(
        x,
        y,
        w,
        w if read_out == "tied" else 1.0,
        n_tokens=n,
        activation=activation,
        mode=mode,
        attention=variant,  # type: ignore[arg-type]  # the variants left are kinds of attention
    )


def _fields(architecture: Architecture) -> dict[str, Any]:
    return {name: getattr(architecture, name) for name in architecture.__dataclass_fields__}


def _exponent(architecture: Architecture, quantity: str, depth: int) -> Array:
    if quantity == "lambda_g_traj":
        return phases.lambda_g_traj(architecture, depth)
    if quantity == "log_angle_factor":
        q = phases.collapsed_norm(architecture)
        return np.log(phases.angle_factor(architecture, q))
    if quantity == "log_backward_radius":
        q = phases.collapsed_norm(architecture)
        matrix = Block(architecture).backward(q, np.zeros(architecture.shape))
        return np.log(theory.spectral_radius(matrix))
    if quantity in ("power_a", "power_g"):
        return _powers(architecture)[("power_a", "power_g").index(quantity)]
    direct: dict[str, Callable[[Architecture], Array]] = {
        "lambda_a": phases.lambda_a,
        "lambda_g": phases.lambda_g,
        "lambda_g_star": phases.lambda_g_star,
        "q_collapsed": phases.collapsed_norm,
    }
    return direct[quantity](architecture)


def _powers(architecture: Architecture) -> tuple[Array, Array]:
    """As `power_exponents`, nan where both strengths are 0 and nothing moves."""
    attn, mlp = np.asarray(architecture.alpha_attn), np.asarray(architecture.alpha_ff)
    still = (attn == 0.0) & (mlp == 0.0)
    moving = _fields(architecture) | {"alpha_attn": np.where(still, 1.0, attn)}
    power_a, power_g = phases.power_exponents(Architecture(**moving))
    return np.where(still, np.nan, power_a), np.where(still, np.nan, power_g)


# Lines


def _line(grid: CriticalLine) -> Iterator[pd.DataFrame]:
    alpha = values(grid.alpha)
    alpha = alpha[alpha > 0.0]
    sought: list[float | None] = [None] if grid.sigma_w is None else [*grid.sigma_w]
    for mode, read_out in itertools.product(grid.mode, grid.read_out):
        for sigma_w in sought:
            sigma = 1.0 if sigma_w is None else sigma_w
            second = sigma if read_out == "tied" else 1.0
            architecture = Architecture(alpha, alpha, sigma, second, mode=mode)
            if sigma_w is None:
                found = _critical_sigma(architecture, read_out == "tied")
                other: dict[str, Any] = {"sigma_w1": np.nan, "sigma_w2": np.nan}
            else:
                found = {
                    "alpha_ff_c": phases.critical_alpha_ff(architecture),
                    "alpha_ff_c_leading": phases.critical_alpha_ff(architecture, order="leading"),
                }
                other = {"alpha_ff": np.nan}
            yield from _rows(architecture, found, read_out=read_out, **other)


def _critical_sigma(architecture: Architecture, tied: bool) -> dict[str, Array]:
    """Exact sigma_c, that of leading order (exact in mode unit), and the balance at the exact."""
    sigma_c = phases.critical_sigma_w(architecture, tied=tied, missing="nan")
    leading = Architecture(**(_fields(architecture) | {"mode": "unit"}))
    exists = np.isfinite(sigma_c)
    at = np.where(exists, sigma_c, 1.0)
    second = {"sigma_w2": at} if tied else {}
    t = theory.terms(Architecture(**(_fields(architecture) | {"sigma_w1": at} | second)))
    return {
        "sigma_c": sigma_c,
        "sigma_c_leading": phases.critical_sigma_w(leading, tied=tied, missing="nan"),
        "balance": np.where(exists, t.m * (t.g - t.b) / t.s, np.nan),
    }


def _trainable(grid: TrainableAlpha) -> Iterator[pd.DataFrame]:
    sigma = np.array(grid.sigma_w, dtype=np.float64)
    for mode, depth in itertools.product(grid.mode, grid.depth):
        architecture = theory.tied(0.5, 0.5, sigma, mode=mode)
        largest, _ = phases.trainable_alpha(architecture, depth, budget=grid.budget)
        yield from _rows(
            architecture, {"alpha_max": largest}, depth=depth, alpha_attn=np.nan, alpha_ff=np.nan
        )


def _scaling(grid: Scaling) -> Iterator[pd.DataFrame]:
    sigma = np.array(grid.sigma_w, dtype=np.float64)
    for k, depth in itertools.product(grid.k, grid.depth):
        architecture = theory.deepscale(depth, k=k, sigma_w1=sigma)
        found = {"lambda_a": phases.lambda_a(architecture)}
        found["lambda_g"] = phases.lambda_g(architecture)
        yield from _rows(architecture, found, depth=depth, variant="deepscale")


# Fixed points and maps


def _fixed_points(grid: FixedPoints) -> Iterator[pd.DataFrame]:
    sigma = values(grid.sigma_w)
    for mode, alpha in itertools.product(grid.mode, grid.alpha):
        for n in grid.n_tokens:
            architecture = theory.tied(alpha, alpha, sigma, n_tokens=_number(n), mode=mode)
            q, rho = phases.stable_rho(architecture)
            found = {"q_star": q, "rho_star": rho, "lambda_a": phases.lambda_a(architecture)}
            yield from _rows(architecture, found)
        one = theory.tied(alpha, alpha, 1.0, n_tokens=np.inf, mode=mode)

        def excess(sigma: float, alpha: float = alpha, mode: Mode = mode) -> Array:
            at = theory.tied(alpha, alpha, sigma, n_tokens=np.inf, mode=mode)
            return orthogonal_multiplier(at) - 1.0

        transitions = {
            "sigma_c": phases.critical_sigma_w(one, missing="nan"),
            "sigma_orthogonal": _solve(excess),
        }
        yield from _rows(one, transitions, sigma_w1=np.nan, sigma_w2=np.nan)


def orthogonal_multiplier(architecture: Architecture) -> Array:
    """rho' / rho of the block at rho = 0 for n = inf, softmax attention, odd phi; derived here.

    m_0 = (c_A + s / q0) (c_M + m sigma_1^2 sigma_2^2 D2(0) / q1) q0 / q', with q1 = c_A q0,
    q' = c_M q1 + m B and q0 = m B / (1 - c_A c_M) in conv, 1 in renorm. The simplex of orthogonal
    tokens is stable for m_0 < 1.
    """
    t = theory.terms(architecture)
    sigma_1 = np.asarray(architecture.sigma_w1, dtype=np.float64)
    sigma_2 = np.asarray(architecture.sigma_w2, dtype=np.float64)
    _, d2 = mlp_moments(sigma_1, 0.0, architecture.activation)
    q0 = np.ones(architecture.shape)
    if architecture.mode == "conv":
        q0 = t.m * t.b / (1.0 - t.c_attn * t.c_mlp)
    q1 = t.c_attn * q0
    mlp = t.c_mlp + t.m * sigma_1**2 * sigma_2**2 * d2 / q1
    return (t.c_attn + t.s / q0) * mlp * q0 / (t.c_mlp * q1 + t.m * t.b)


def _solve(function: Callable[[float], Array]) -> Array:
    """Root in `_BRACKET`; nan when the ends do not differ in sign."""
    low, high = (float(function(x)) for x in _BRACKET)
    if not low * high < 0.0:
        return np.asarray(np.nan)
    return np.asarray(brentq(lambda x: float(function(x)), *_BRACKET, xtol=1e-12))


def _edges(grid: Edges) -> Iterator[pd.DataFrame]:
    for mode, alpha, target in itertools.product(grid.mode, grid.alpha, grid.lambda_a):

        def excess(
            sigma: float, alpha: float = alpha, mode: Mode = mode, target: float = target
        ) -> Array:
            return phases.lambda_a(theory.tied(alpha, alpha, sigma, mode=mode)) - target

        sigma = _solve(excess)
        if np.isnan(sigma):
            continue
        architecture = theory.tied(alpha, alpha, sigma, n_tokens=np.inf, mode=mode)
        stable = [point.rho for point in phases.fixed_points(architecture) if point.stable]
        found = {
            "lambda_a": phases.lambda_a(architecture),
            "rho_star": phases.stable_rho(architecture)[1],
            "rho_stable_least": np.asarray(min(stable, default=np.nan)),
        }
        yield from _rows(architecture, found)


def _map(grid: UpdateMap) -> Iterator[pd.DataFrame]:
    rho = np.linspace(0.0, 1.0, grid.n_points)
    for mode, alpha, sigma, n in itertools.product(
        grid.mode, grid.alpha, grid.sigma_w, grid.n_tokens
    ):
        architecture = theory.tied(
            np.full(len(rho), alpha), alpha, sigma, n_tokens=_number(n), mode=mode
        )
        block, delta = Block(architecture), 1.0 - rho
        q = np.ones_like(rho)
        if mode == "conv":  # the norm that the block keeps at this rho
            t = block.terms
            bracket = rho + delta * block.weights(delta).s
            q = (t.c_mlp * t.s * bracket + t.m * t.b) / (1.0 - t.c_attn * t.c_mlp)
        found = {
            "q": q,
            "rho_attention": 1.0 - block.attention(q, delta)[1],
            "rho_block": 1.0 - block.step(q, delta)[1],
        }
        yield from _rows(architecture, found, rho=rho)

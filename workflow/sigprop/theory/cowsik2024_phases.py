"""Exponents, critical lines and fixed points of Cowsik et al. 2024 (arXiv 2403.02579), re-derived.

With the symbols of `cowsik2024`, at the collapsed fixed point (rho = 1, norm q*, q1 = c_A q* + s):

    conv     q* = (c_M s + m B) / (1 - c_A c_M)              renorm   q* = 1
    lambda_g = log [(c_M q1 + m G) / (c_M q1 + m B)]         gradient exponent, coherent mode
    lambda_a = lambda_g - log [1 + s / (c_A q*)]             angle exponent, 1-rho ~ e^(lambda_a l)

lambda_a < 0 is the ordered phase, lambda_a > 0 the chaotic one. The difference mode of the gradient
(tokens with opposite gradients) also grows as e^(lambda_a l). For odd phi the Gaussian Poincare
inequality gives G >= B, so lambda_g >= 0; for relu and linear G = B, so lambda_g = 0 and
lambda_a <= 0. lambda_a = 0 is exactly (derived here)

    conv     c_A m (G - B) = s                renorm   m (G - (1 + s) B) = s (1 + s)

and m (G - B) = s to leading order in small alpha^2 (exactly, in mode unit).

Three readings of "gradient exponent" are kept apart: lambda_g (above), lambda_g_star (spectral
radius of the backward matrix at the stable fixed point) and lambda_g_traj (along a trajectory).
The definition in the paper may be another.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.optimize import brentq

from sigprop.theory.checks import Array, check_at_least, check_choice
from sigprop.theory.cowsik2024 import (
    Architecture,
    Block,
    Terms,
    lambda_g_traj,
    spectral_radius,
    terms,
)
from sigprop.theory.mlp_moments import moments_at_one

Phase = Literal["ordered", "edge", "chaotic"]
Missing = Literal["raise", "nan"]

# |lambda_a| up to this counts as the edge of chaos.
EDGE = 1e-9
# Largest 1 - rho at which a trajectory counts as collapsed, and the scan of fixed points starts.
_COLLAPSED = 1e-10


# The collapsed fixed point


def collapsed_norm(architecture: Architecture) -> Array:
    """q* at rho = 1; inf in mode unit; 1 where both alphas are 0 and every norm is fixed."""
    return _norm_at(architecture, terms(architecture), 1.0)


def lambda_a(architecture: Architecture) -> Array:
    """Angle exponent per block, of the settings' shape; ValueError in mode unit.

    Does not depend on sigma_a or n_tokens. -inf where c_A = 0.
    """
    return _exponents(architecture)[0]


def lambda_g(architecture: Architecture) -> Array:
    """Gradient exponent per block, coherent mode at the collapsed fixed point; as lambda_a."""
    return _exponents(architecture)[1]


def angle_factor(architecture: Architecture, q: Array | float) -> Array:
    """(1 - rho') / (1 - rho) at rho = 1 from any norm q > 0, in any mode.

    kappa_a = (c_M + m G / q1) (c_A q + s u) / q', q1 = c_A q + s r, q' = c_M q1 + m B; r is the row
    sum of A, u = 1 for shaped attention and 0 for the others.
    """
    q = check_at_least("q", q, 0.0, strict=True)
    t = terms(architecture)
    q1 = t.c_attn * q + t.s * t.row_sum
    kept = t.c_attn * q + (t.s if architecture.attention == "shaped" else 0.0)
    return (t.c_mlp + t.m * t.g / q1) * kept / (t.c_mlp * q1 + t.m * t.b)


def small_alpha_exponents(architecture: Architecture) -> tuple[Array, Array]:
    """(lambda_a, lambda_g) to leading order in alpha^2, softmax attention.

    ([m (G - B) - s] / q*, m (G - B) / q*), q* = (s + m B) / (alpha_A^2 + m) in conv, 1 in renorm.
    """
    _need_exponents(architecture)
    t = terms(architecture)
    q = np.ones(architecture.shape)
    if architecture.mode == "conv":
        total = np.asarray(architecture.alpha_attn, dtype=np.float64) ** 2 + t.m
        q = np.where(total > 0.0, (t.s + t.m * t.b) / np.where(total > 0.0, total, 1.0), 1.0)
    gain = t.m * (t.g - t.b)
    return (gain - t.s) / q, gain / q


def power_exponents(architecture: Architecture) -> tuple[Array, Array]:
    """(kappa_a, kappa_g) of mode unit at block t: 1 - rho ~ t^kappa_a and g_0 / g_t ~ t^kappa_g.

    Softmax attention: kappa_a = [m (G - B) - s] / (s + m B), kappa_g = (s + m G) / (s + m B), the
    coherent mode. Else, with r and u as in `angle_factor`: s -> s r in the denominators and in
    kappa_g, and -s -> s (u - r) in kappa_a.
    """
    if architecture.mode != "unit":
        raise ValueError(
            f"mode = {architecture.mode!r} has exponents per block, not powers: pass mode 'unit'"
        )
    t = terms(architecture)
    speed = t.s * t.row_sum + t.m * t.b  # q_t ~ speed * t
    if (speed == 0.0).any():
        raise ValueError("alpha_attn = alpha_ff = 0 has no powers: pass an alpha > 0")
    kept = t.s if architecture.attention == "shaped" else np.zeros_like(t.s)
    coherent = (t.s * t.row_sum + t.m * t.g) / speed
    return (kept - t.s * t.row_sum + t.m * (t.g - t.b)) / speed, coherent


def _exponents(architecture: Architecture) -> tuple[Array, Array]:
    """(lambda_a, lambda_g)."""
    _need_exponents(architecture)
    t = terms(architecture)
    q = _norm_at(architecture, t, 1.0)
    q1 = t.c_attn * q + t.s * t.row_sum
    coherent = np.log1p(t.m * (t.g - t.b) / (t.c_mlp * q1 + t.m * t.b))
    if architecture.attention != "softmax":  # c_A q + s u = c_A q + s r = q1
        return coherent, coherent
    with np.errstate(divide="ignore"):
        return coherent - np.log1p(t.s / (t.c_attn * q)), coherent


def _need_exponents(architecture: Architecture) -> None:
    if architecture.mode == "unit":
        raise ValueError(
            "mode = 'unit' has power laws, not exponents per block: use power_exponents, or pass "
            "mode 'conv' or 'renorm'"
        )


def _norm_at(architecture: Architecture, t: Terms, bracket: Array | float) -> Array:
    """The norm q that a block keeps when attention adds s * bracket to it."""
    if architecture.mode != "conv":
        return np.full(architecture.shape, 1.0 if architecture.mode == "renorm" else np.inf)
    if architecture.attention == "centered" and np.isscalar(bracket):
        bracket = 0.0
    lost = 1.0 - t.c_attn * t.c_mlp
    gained = t.c_mlp * t.s * bracket + t.m * t.b
    return np.where(lost > 0.0, gained / np.where(lost > 0.0, lost, 1.0), 1.0)


# Critical lines and depth


def critical_sigma_w(
    architecture: Architecture,
    *,
    tied: bool = True,
    bracket: tuple[float, float] = (0.05, 50.0),
    missing: Missing = "raise",
) -> Array:
    """sigma_w in `bracket` at which lambda_a = 0 (the power kappa_a in mode unit).

    Varies sigma_w1 = sigma_w2 = sigma_w if `tied`, else sigma_w1 alone; the settings' own value is
    ignored. Where the bracket holds no root (alpha_attn = 0, alpha_ff = 0, alpha_attn = 1 in conv,
    relu, linear, shaped and centered attention) the result is nan if `missing` is "nan".
    """
    check_choice("missing", missing, ("raise", "nan"))
    low, high = (float(check_at_least("bracket", x, 0.0, strict=True)) for x in bracket)
    t = terms(architecture)
    sigma_2 = np.broadcast_to(np.asarray(architecture.sigma_w2, np.float64), architecture.shape)
    settings = np.stack([x.ravel() for x in (t.c_attn, t.s, t.m, sigma_2)])
    unique, index = np.unique(settings, axis=1, return_inverse=True)
    roots = []
    for c_attn, s, m, fixed in unique.T.tolist():

        def balance(
            log_sigma: float, c: float = c_attn, s: float = s, m: float = m, fixed: float = fixed
        ) -> float:
            sigma = float(np.exp(log_sigma))
            v2, d2 = (float(x) for x in moments_at_one(sigma, architecture.activation))
            sigma_2 = sigma if tied else fixed
            b, g = sigma_2**2 * v2, sigma_2**2 * sigma**2 * d2
            return _balance(architecture, c, s, m, b, g)

        root = _root(balance, float(np.log(low)), float(np.log(high)))
        if root is None and missing == "raise":
            raise ValueError(
                f"bracket = ({low:g}, {high:g}) holds no critical sigma_w at alpha_attn^2 sigma_v^2"
                f" = {s:g}, alpha_ff = {np.sqrt(m):g}, {architecture.activation}: pass a bracket "
                "with a sign change of lambda_a, or missing='nan'"
            )
        roots.append(np.nan if root is None else np.exp(root))
    return np.array(roots)[index.ravel()].reshape(architecture.shape)


def critical_alpha(architecture: Architecture) -> tuple[Array, Array]:
    """(alpha_attn, alpha_ff) at lambda_a = 0 when both are scaled together; nan where none is.

    With x^2 the scale, s and m those of the given alphas, from the conditions above:
    conv: x^2 alpha_A^2 = 1 - s / [m (G - B)];  renorm: x^2 = [m (G - B) - s] / [s (s + m B)].
    None for other attention, in mode unit (there the scale does not matter), and for an alpha > 1.
    """
    t = terms(architecture)
    attn, mlp = _alphas(architecture)
    gain = t.m * (t.g - t.b)
    with np.errstate(divide="ignore", invalid="ignore"):
        if architecture.attention != "softmax" or architecture.mode == "unit":
            square = np.full(architecture.shape, np.nan)
        elif architecture.mode == "conv":
            square = (1.0 - t.s / gain) / attn**2
        else:
            square = (gain - t.s) / (t.s * (t.s + t.m * t.b))
        square = np.where(np.isfinite(square) & (square > 0.0), square, np.nan)
        scale = np.sqrt(square)
        scale = np.where(scale * np.maximum(attn, mlp) <= 1.0, scale, np.nan)
    return scale * attn, scale * mlp


def critical_alpha_ff(
    architecture: Architecture, *, order: Literal["exact", "leading"] = "exact"
) -> Array:
    """alpha_ff at lambda_a = 0 for the other settings as given; nan where none is in [0, 1].

    conv: m = s / [c_A (G - B)]; renorm: m = s (1 + s) / [G - (1 + s) B]; unit, and leading order in
    small alpha^2 in every mode: m = s / (G - B). Softmax attention.
    """
    check_choice("order", order, ("exact", "leading"))
    t = terms(architecture)
    with np.errstate(divide="ignore", invalid="ignore"):
        if order == "leading" or architecture.mode == "unit":
            m = t.s / (t.g - t.b)
        elif architecture.mode == "conv":
            m = t.s / (t.c_attn * (t.g - t.b))
        else:
            m = t.s * (1.0 + t.s) / (t.g - (1.0 + t.s) * t.b)
        if architecture.attention != "softmax":
            m = np.full(architecture.shape, np.nan)
        return np.sqrt(np.where((m >= 0.0) & (m <= 1.0), m, np.nan))


def trainable_depth(architecture: Architecture, *, budget: float = 1.0) -> Array:
    """Depth at which depth * max(|lambda_a|, |lambda_g|) = `budget` > 0; inf where both are 0."""
    budget = float(check_at_least("budget", budget, 0.0, strict=True))
    angle, gradient = _exponents(architecture)
    with np.errstate(divide="ignore"):
        return budget / np.maximum(np.abs(angle), np.abs(gradient))


def trainable_alpha(
    architecture: Architecture, depth: float, *, budget: float = 1.0
) -> tuple[Array, Array]:
    """(alpha_attn, alpha_ff), scaled together, up to which depth * max |lambda| <= `budget`.

    The smallest scale at which the bound is reached, so everything below it is trainable; the
    largest scale with both alphas <= 1 if the bound never is. It falls as depth^(-1/2).
    """
    depth = float(check_at_least("depth", depth, 1.0))
    budget = float(check_at_least("budget", budget, 0.0, strict=True))
    attn, mlp = _alphas(architecture)
    largest = np.maximum(attn, mlp)
    if (largest == 0.0).any():
        raise ValueError("alpha_attn = alpha_ff = 0 has no direction to scale: pass an alpha > 0")

    def too_deep(scale: Array) -> Array:
        x, y = np.minimum(scale * attn, 1.0), np.minimum(scale * mlp, 1.0)  # 1 up to rounding
        scaled = replace(architecture, alpha_attn=x, alpha_ff=y)
        return np.asarray(trainable_depth(scaled, budget=budget) < depth)

    # the first of 400 scales that is too large, then bisection below it; every exponent is
    # continuous in the scale
    scales = np.geomspace(1e-6, 1.0, 400).reshape(-1, *(1,) * largest.ndim) / largest
    too_large = too_deep(scales)
    first = np.where(too_large.any(axis=0), too_large.argmax(axis=0), len(scales) - 1)
    high = np.take_along_axis(scales, first[None], axis=0)[0]
    low = np.take_along_axis(scales, np.maximum(first - 1, 0)[None], axis=0)[0]
    low = np.where(too_large.any(axis=0), low, high)
    for _ in range(60):
        middle = 0.5 * (low + high)
        over = too_deep(middle)
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    return low * attn, low * mlp


def _alphas(architecture: Architecture) -> tuple[Array, Array]:
    shape = architecture.shape
    attn = np.broadcast_to(np.asarray(architecture.alpha_attn, dtype=np.float64), shape)
    return attn, np.broadcast_to(np.asarray(architecture.alpha_ff, dtype=np.float64), shape)


def _balance(
    architecture: Architecture, c_attn: float, s: float, m: float, b: float, g: float
) -> float:
    """A number with the sign of lambda_a, from the exact conditions in the module docstring."""
    if architecture.attention != "softmax":
        return m * (g - b)
    if architecture.mode == "conv":
        return c_attn * m * (g - b) - s
    if architecture.mode == "renorm":
        return m * (g - (1.0 + s) * b) - s * (1.0 + s)
    return m * (g - b) - s


def _root(function: Callable[[float], float], low: float, high: float) -> float | None:
    """Root in [low, high], None when the ends do not differ in sign (both signs strictly)."""
    if not function(low) * function(high) < 0.0:
        return None
    return float(brentq(function, low, high, xtol=1e-13, rtol=1e-14))


# Fixed points at any rho


@dataclass(frozen=True)
class FixedPoint:
    """One fixed point: norm (inf in mode unit), geometry, |multipliers| of the map, stability."""

    q: float
    rho: float
    multipliers: tuple[float, ...]
    stable: bool


def stable_rho(architecture: Architecture) -> tuple[Array, Array]:
    """(q*, rho*) that tokens reach from almost any start, each of the settings' shape.

    rho* = 1 for lambda_a <= 0 (also where both alphas are 0 and nothing moves). Otherwise the
    simplex where (1 - rho') / (1 - rho) at the matching norm crosses 1, by bisection in
    log(1 - rho). In mode unit q* = inf and rho* is the limit, approached as a power of depth.
    """
    block = Block(architecture)
    chaotic = _log_growth(block, np.full(architecture.shape, _COLLAPSED))[0] > 0.0
    low = np.full(architecture.shape, np.log(_COLLAPSED))
    high = np.zeros(architecture.shape) - np.log1p(-1.0 / block.n)  # 1 - rho = n / (n - 1)
    for _ in range(60):
        middle = 0.5 * (low + high)
        growing = _log_growth(block, np.exp(middle))[0] > 0.0
        low, high = np.where(growing, middle, low), np.where(growing, high, middle)
    delta = np.where(chaotic, np.exp(high), 0.0)
    return _log_growth(block, delta)[1], 1.0 - delta


def lambda_g_star(architecture: Architecture) -> Array:
    """log spectral radius of the backward matrix at the stable fixed point; not in mode unit."""
    _need_exponents(architecture)
    q, rho = stable_rho(architecture)
    return np.log(spectral_radius(Block(architecture).backward(q, 1.0 - rho)))


def fixed_points(architecture: Architecture, *, n_scan: int = 400) -> list[FixedPoint]:
    """All fixed points of one setting (scalars), by decreasing rho, found on `n_scan` values.

    Stability: every |multiplier| of the update of (q, 1 - rho) below 1. In mode unit, those of rho
    as q -> inf; the multiplier of a point is then exp of its growth rate in log t.
    """
    if architecture.shape != ():
        raise ValueError(f"architecture has shape {architecture.shape}: pass one setting")
    grid = replace(
        architecture, alpha_attn=np.full(n_scan, float(np.asarray(architecture.alpha_attn)))
    )
    one, many = Block(architecture), Block(grid)
    top = -np.log1p(-1.0 / float(one.n))
    logs = np.linspace(np.log(_COLLAPSED), top, n_scan)
    growth = _log_growth(many, np.exp(logs))[0]

    def at(log_delta: float) -> float:
        return float(_log_growth(one, np.exp(np.asarray(log_delta)))[0])

    deltas = [0.0]
    for left, right in zip(range(n_scan - 1), range(1, n_scan), strict=True):
        if growth[left] * growth[right] < 0.0 and abs(growth[right]) > 1e-13:
            root = brentq(at, logs[left], logs[right], xtol=1e-13, rtol=1e-14)
            deltas.append(float(np.exp(root)))
    if abs(growth[-1]) <= 1e-13:  # rho = 0 at n = inf
        deltas.append(float(np.exp(top)))
    return [_describe(one, delta) for delta in deltas]


def _log_growth(block: Block, delta: Array) -> tuple[Array, Array]:
    """log (1 - rho') / (1 - rho) at the norm that 1 - rho = delta keeps fixed, and that norm.

    In mode unit, as q -> inf: log of [s (1-rho)(S-R) + m sigma_2^2 (V2(1) - V2(rho))] /
    [(1-rho) (s bracket + m B)], which has the sign of d(1 - rho)/dt.
    """
    t, architecture = block.terms, block.architecture
    w = block.weights(delta)
    bracket = t.row_sum * (1.0 - delta) + delta * w.s
    if architecture.mode != "unit":
        q = _norm_at(architecture, t, bracket)
        # delta = 0 has no growth to speak of; 1 keeps log finite
        safe = np.where(delta > 0.0, delta, 1.0)
        with np.errstate(divide="ignore"):  # -inf: alpha_attn = 1 in conv leaves no difference
            return np.log(block.step(q, safe)[1] / safe), q
    gain = t.s * w.difference + t.m * block.mlp_gap(delta)
    return np.log(gain / (t.s * bracket + t.m * t.b)), np.full(architecture.shape, np.inf)


def _describe(block: Block, delta: float) -> FixedPoint:
    """Multipliers by central differences of the map of (log q, log(1 - rho)); exact at rho = 1."""
    architecture, h = block.architecture, 1e-5
    q = _log_growth(block, np.asarray(delta))[1]
    rho = 1.0 - delta
    if architecture.mode == "unit":
        collapsed = delta == 0.0
        rate = float(power_exponents(architecture)[0]) if collapsed else _unit_slope(block, delta)
        multipliers = (float(np.exp(rate)),)
        return FixedPoint(np.inf, rho, multipliers, multipliers[0] < 1.0)
    t = block.terms
    if delta == 0.0:
        angle = float(angle_factor(architecture, q))
        norm = float(t.c_attn * t.c_mlp) if architecture.mode == "conv" else 0.0
        found = np.array([norm, angle])
    else:

        def step(log_q: float, log_delta: float) -> Array:
            return np.log(np.stack(block.step(np.exp(log_q), np.exp(np.asarray(log_delta)))))

        x, y = float(np.log(q)), float(np.log(delta))
        by_q = (step(x + h, y) - step(x - h, y)) / (2.0 * h)
        by_delta = (step(x, y + h) - step(x, y - h)) / (2.0 * h)
        found = np.abs(np.linalg.eigvals(np.stack([by_q, by_delta], axis=1)))
    ordered: tuple[float, ...] = tuple(sorted((float(x) for x in found), reverse=True))
    return FixedPoint(float(q), rho, ordered, ordered[0] < 1.0)


def _unit_slope(block: Block, delta: float, h: float = 1e-5) -> float:
    """d log-growth / d log(1 - rho): the rate in log t at which a deviation grows."""
    up, down = (_log_growth(block, np.asarray(delta * np.exp(x)))[0] for x in (h, -h))
    return float((up - down) / (2.0 * h))


# Reports of one setting


@dataclass(frozen=True)
class ExponentReport:
    """What theory says about one setting; None where it does not apply.

    depth_scale_a, depth_scale_g: 1/|lambda| in blocks (inf at 0). q_star, rho_star: the stable
    fixed point; q_collapsed: the norm at rho = 1, where lambda_a and lambda_g are defined.
    critical_sigma_w: at these alphas; critical_alpha: (alpha_attn, alpha_ff) scaled together, at
    this sigma_w. nearest_critical: which of the two is the smaller change on a logarithmic scale,
    and nearest_factor the factor on the given sigma_w or alphas. Mode unit: lambda_a = lambda_g =
    0, its powers in power_a and power_g.
    """

    phase: Phase
    lambda_a: float
    lambda_g: float
    lambda_g_star: float | None
    lambda_g_traj: float | None
    depth_scale_a: float
    depth_scale_g: float
    q_star: float
    rho_star: float
    q_collapsed: float
    critical_sigma_w: float | None
    critical_alpha: tuple[float, float] | None
    nearest_critical: Literal["sigma_w", "alpha"] | None
    nearest_factor: float | None
    power_a: float | None
    power_g: float | None


def exponents(
    architecture: Architecture,
    depth: int | None = None,
    *,
    q: float = 1.0,
    rho: float = 0.0,
    tied: bool | None = None,
) -> ExponentReport:
    """Phase, exponents, fixed point and nearest critical settings of one setting (scalars).

    `depth` adds lambda_g_traj from (`q`, `rho`) with independent readouts. The critical sigma_w
    moves sigma_w1 and sigma_w2 together if `tied` (default: if they are equal), else sigma_w1.
    """
    if architecture.shape != ():
        raise ValueError(f"architecture has shape {architecture.shape}: pass one setting")
    if tied is None:
        tied = bool(np.asarray(architecture.sigma_w1) == np.asarray(architecture.sigma_w2))
    unit = architecture.mode == "unit"
    power_a, power_g = power_exponents(architecture) if unit else (None, None)
    angle, gradient = (0.0, 0.0) if unit else (float(x) for x in _exponents(architecture))
    sign = float(power_a) if power_a is not None else angle
    q_star, rho_star = stable_rho(architecture)
    sigma_w = critical_sigma_w(architecture, tied=tied, missing="nan")
    alphas = critical_alpha(architecture)
    # the scale of both alphas; both are positive where a critical one exists
    factors = {
        "sigma_w": float(sigma_w / np.asarray(architecture.sigma_w1)),
        "alpha": float(alphas[0] / _alphas(architecture)[0]) if np.isfinite(alphas[0]) else np.nan,
    }
    nearest, factor = _nearest(factors)
    return ExponentReport(
        phase="edge" if abs(sign) <= EDGE else "chaotic" if sign > 0.0 else "ordered",
        lambda_a=angle,
        lambda_g=gradient,
        lambda_g_star=None if unit else float(lambda_g_star(architecture)),
        lambda_g_traj=(
            None if depth is None else float(lambda_g_traj(architecture, depth, q=q, rho=rho))
        ),
        depth_scale_a=_inverse(angle),
        depth_scale_g=_inverse(gradient),
        q_star=float(q_star),
        rho_star=float(rho_star),
        q_collapsed=float(collapsed_norm(architecture)),
        critical_sigma_w=_optional(sigma_w),
        critical_alpha=None if np.isnan(alphas[0]) else (float(alphas[0]), float(alphas[1])),
        nearest_critical=nearest,
        nearest_factor=factor,
        power_a=_optional(power_a),
        power_g=_optional(power_g),
    )


def _nearest(factors: dict[str, float]) -> tuple[Any, float | None]:
    """The name of the factor nearest to 1, and it; those that are nan do not exist."""
    found = {name: factor for name, factor in factors.items() if not np.isnan(factor)}
    if not found:
        return None, None
    name = min(found, key=lambda name: abs(float(np.log(found[name]))))
    return name, found[name]


def _inverse(rate: float) -> float:
    return 1.0 / abs(rate) if rate != 0.0 else np.inf


def _optional(value: Any) -> float | None:
    return None if value is None or np.isnan(value) else float(value)

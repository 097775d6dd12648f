"""Forward propagation with layer norm and ReLU: infinite-width maps of (q, rho), derived here.

Noci et al. 2022 (arXiv 2206.03126) is linear and has no layer norm in its formulas; these maps
extend its setting, uniform attention, to what its networks are. q = ||X_k||^2 / d, p = X_k.X_k'/d,
rho = p / q. The symbols, the branch power gains and what arguments may be are those of `noci2022`.

What they say of softmax attention rests on E[A] = 1 1^T / n at initialization (Assumption 3.1).
Given the keys, the queries of a Gaussian W^Q point in directions that are uniform in head space.
With dot products, and with queries and keys of unit length (QK-norm), logits of a row then have one
law that does not change when exchangeable tokens are permuted, so all keys have the same mean
weight; and equal keys have exactly equal weights. Both are covered. Rotary positions turn keys by
their places: keys that are equal get unequal logits, and the correlation of two logits depends on
their distance, so that middle and end have different mean weights. Rotary attention is not covered.
"""

import reprlib
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from scipy.integrate import solve_ivp

from sigprop.theory.checks import (
    ZERO,
    Array,
    ArrayLike,
    check_at_least,
    check_choice,
    check_correlation,
    check_depth,
    check_finite,
)
from sigprop.theory.noci2022 import Activation, branch_power, per_layer_power, scaled_power

Norm = Literal["none", "post", "pre"]
COVERS = ("dot_product", "qk_norm")  # variants of softmax attention, see the head of this module

# The arc-cosine kernel


def kappa(u: ArrayLike) -> Array:
    """Arc-cosine kernel, (sqrt(1-u^2) + u (pi - arccos u)) / pi for u in [-1, 1].

    2 E[relu(g) relu(g')] = kappa(u) for standard Gaussians of correlation u (Cho & Saul 2009).
    """
    u = check_finite("u", u)
    if (np.abs(u) > 1.0).any():
        raise ValueError(f"u = {u[np.abs(u) > 1.0].flat[0]:g} is out of range: pass -1 <= u <= 1")
    # with u = cos(theta), sin(theta) + (pi - theta) cos(theta) is f(pi - theta)
    return _sin_minus_cos(_angle(1.0 + u)) / np.pi


def one_minus_kappa(one_minus_u: ArrayLike) -> Array:
    """1 - kappa(u) as a function of 1 - u in [0, 2], to full relative precision near u = 1."""
    delta = check_at_least("one_minus_u", one_minus_u, 0.0)
    if (delta > 2.0).any():
        raise ValueError(f"one_minus_u = {delta.max():g} is out of range: pass 0 <= 1 - u <= 2")
    return delta - _kappa_minus_u(delta)


def _kappa_minus_u(delta: Array) -> Array:
    """kappa(u) - u = (sin theta - theta cos theta) / pi >= 0, delta = 1 - u = 1 - cos theta."""
    return _sin_minus_cos(_angle(delta)) / np.pi


def _angle(one_minus_cos: Array) -> Array:
    return 2.0 * np.arcsin(np.sqrt(0.5 * one_minus_cos))


def _sin_minus_cos(theta: Array) -> Array:
    """f(theta) = sin(theta) - theta cos(theta), by its Taylor series where that cancels."""
    x = theta * theta
    series = np.ones_like(x)
    for k in (6, 5, 4, 3, 2, 1):  # ratio of successive terms: -x / (2k (2k + 3))
        series = 1.0 - x / (2 * k * (2 * k + 3)) * series
    exact = np.sin(theta) - theta * np.cos(theta)
    return np.where(theta < 0.5, theta * x / 3.0 * series, exact)


# The maps and their depth limit


@dataclass(frozen=True)
class Trajectory:
    """State of the residual stream along depth; the last axis of every array is depth.

    log_q: natural log of the mean squared coordinate q = ||X_k||^2 / d (log: q may overflow).
    one_minus_rho: 1 - rho, precise near rank collapse (rho = 1).
    """

    log_q: Array
    one_minus_rho: Array

    @property
    def q(self) -> Array:
        """Mean squared coordinate ||X_k||^2 / d; inf where float64 overflows."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_q)

    @property
    def rho(self) -> Array:
        """Correlation between tokens, p / q."""
        return 1.0 - self.one_minus_rho


def mean_field_trajectory(
    depth: int,
    n_tokens: ArrayLike,
    rho_0: ArrayLike,
    *,
    norm: Norm,
    activation: Activation,
    alpha_attn: ArrayLike = 1.0,
    alpha_ff: ArrayLike = 1.0,
    gain_attn: ArrayLike = 1.0,
    gain_ff: ArrayLike = 1.0,
    q_0: ArrayLike = 1.0,
    per_layer: bool = False,
    half_layers: bool = False,
) -> Trajectory:
    """(q_l, rho_l) for l = 0..depth, uniform attention, infinite width (derived here).

    Per coordinate, with s = q (no-LN, POST-LN) or s = 1 (PRE-LN: the branches see LN(X)):

        attention  q += alpha_attn^2 g_A s u,  p += alpha_attn^2 g_A s u,  u = (1 + (n-1) p/q) / n
        linear     q += alpha_ff^2 g_F s,      p += alpha_ff^2 g_F s p/q
        ReLU       q += alpha_ff^2 g_F s,      p += alpha_ff^2 g_F s kappa(p/q)
        POST-LN    then q, p -> 1, p/q after each of the two

    q is ||X_k||^2 / d, so layer norm sets it to 1; `q_0` > 0 is its input value (sigma_x^2 for
    Gaussian tokens). `gain_ff` is g_F as returned by `feedforward_gain` (1 for He with ReLU).
    Settings broadcast to a shape (...); results have shape (..., depth + 1), or
    (..., 2 depth + 1) if `half_layers` asks for the state after each attention sub-layer too. If
    `per_layer`, the last axis of `alpha_attn` and `alpha_ff` is the layer, of length depth.
    """
    depth = check_depth(depth)
    n, rho, q = _initial_state(norm, activation, n_tokens, rho_0, q_0)
    if per_layer:
        attn = per_layer_power("attn", alpha_attn, gain_attn)
        ff = per_layer_power("ff", alpha_ff, gain_ff)
        for name, length in (("alpha_attn", attn.shape[-1]), ("alpha_ff", ff.shape[-1])):
            if length != depth:
                raise ValueError(f"{name} has {length} layers: pass a last axis of {depth} (depth)")
    else:
        attn = np.repeat(branch_power("attn", alpha_attn, gain_attn)[..., None], depth, axis=-1)
        ff = np.repeat(branch_power("ff", alpha_ff, gain_ff)[..., None], depth, axis=-1)
    shape = np.broadcast_shapes(n.shape, rho.shape, q.shape, attn.shape[:-1], ff.shape[:-1])
    log_q, delta = np.broadcast_to(np.log(q), shape), np.broadcast_to(1.0 - rho, shape)
    states = [(log_q, delta)]
    for l in range(depth):
        # p += x, q += x leaves q - p unchanged, so delta = (q - p) / q only divides by the growth
        growth = attn[..., l] * _share(n, delta) * _branch_scale(norm, log_q)
        delta = delta / (1.0 + growth)
        log_q = np.zeros(shape) if norm == "post" else log_q + np.log1p(growth)
        states.append((log_q, delta))
        growth = ff[..., l] * _branch_scale(norm, log_q)
        if activation == "relu":
            delta = delta - growth / (1.0 + growth) * _kappa_minus_u(delta)
        log_q = np.zeros(shape) if norm == "post" else log_q + np.log1p(growth)
        states.append((log_q, delta))
    kept = states if half_layers else states[::2]
    log_qs, deltas = (np.stack(column, axis=-1) for column in zip(*kept, strict=True))
    return Trajectory(log_qs, deltas)


def mean_field_limit(
    n_tokens: ArrayLike,
    rho_0: ArrayLike,
    *,
    norm: Norm,
    activation: Activation,
    alpha_attn_sq_L: ArrayLike = 1.0,
    alpha_ff_sq_L: ArrayLike = 1.0,
    gain_attn: ArrayLike = 1.0,
    gain_ff: ArrayLike = 1.0,
    q_0: ArrayLike = 1.0,
    t: ArrayLike = 1.0,
) -> Trajectory:
    """Limit L -> inf of `mean_field_trajectory` at alpha^2 = at/L, at depth fraction t = l/L.

    d log(1-rho)/dt = -r at1 u - r at2 (kappa(rho) - rho) / (1-rho)     (linear: no at2 term)
    d log q/dt      =  r at1 u + r at2                                  (POST-LN: q = 1)

    r = 1 (no-LN, POST-LN) or 1/q (PRE-LN); derived here. `t` is a number or a non-decreasing vector
    in [0, 1]; results have shape (..., len(t)), relative error of 1 - rho about 1e-10.
    """
    n, rho, q = _initial_state(norm, activation, n_tokens, rho_0, q_0)
    at1 = scaled_power("attn", alpha_attn_sq_L, gain_attn)
    at2 = scaled_power("ff", alpha_ff_sq_L, gain_ff)
    times = np.atleast_1d(check_at_least("t", t, 0.0))
    if times.ndim != 1 or times[-1] > 1.0 or (np.diff(times) < 0.0).any():
        raise ValueError(f"t = {reprlib.repr(t)} is out of order: pass a sorted vector in [0, 1]")
    shape = np.broadcast_shapes(n.shape, rho.shape, q.shape, at1.shape, at2.shape)
    n, at1, at2, delta_0 = (np.broadcast_to(v, shape).ravel() for v in (n, at1, at2, 1.0 - rho))
    log_q_0 = np.zeros(shape) if norm == "post" else np.broadcast_to(np.log(q), shape)
    collapsed = delta_0 == 0.0  # log(1 - rho) = -inf: integrate a stand-in, then put 0 back

    def rhs(_: float, state: Array) -> Array:
        log_q, log_delta = np.split(state, 2)
        delta = np.minimum(np.exp(log_delta), 2.0)
        attn = at1 * _share(n, delta) * _branch_scale(norm, log_q)
        ff = at2 * _branch_scale(norm, log_q)
        spread = ff * _kappa_minus_u(delta) / delta if activation == "relu" else 0.0 * ff
        drift_q = np.zeros_like(ff) if norm == "post" else attn + ff
        return np.concatenate([drift_q, -attn - spread])

    log_delta_0 = np.log(np.where(collapsed, 1e-300, delta_0))
    state_0 = np.concatenate([log_q_0.ravel(), log_delta_0])
    steps = np.unique(np.concatenate([[0.0], times]))
    if steps.size == 1:
        states = state_0[:, None]
    else:
        solution = solve_ivp(
            rhs, (0.0, steps[-1]), state_0, "DOP853", t_eval=steps, rtol=1e-12, atol=1e-13
        )
        if not solution.success:
            raise RuntimeError(f"depth integration failed: {solution.message}")
        states = solution.y
    # (2 N, steps) -> (N, len(t)) each
    log_qs, log_deltas = np.split(states[:, np.searchsorted(steps, times)], 2)
    deltas = np.where(collapsed[:, None], 0.0, np.exp(log_deltas))
    full = (*shape, times.size)
    return Trajectory(log_qs.reshape(full), deltas.reshape(full))


def _initial_state(
    norm: str, activation: str, n_tokens: Any, rho_0: Any, q_0: Any
) -> tuple[Array, Array, Array]:
    check_choice("norm", norm, get_args(Norm))
    check_choice("activation", activation, get_args(Activation))
    n = check_at_least("n_tokens", n_tokens, 2.0)
    rho = check_correlation("rho_0", rho_0, n)
    return n, rho, check_at_least("q_0", q_0, 0.0, strict=True)


def _share(n: Array, delta: Array) -> Array:
    """u = ||xbar||^2 / ||x||^2 = (1 + (n-1) rho) / n, with residue of an exact 0 removed."""
    u = 1.0 - (n - 1.0) / n * delta
    return np.where(u < ZERO, 0.0, u)


def _branch_scale(norm: str, log_q: Array) -> Array | float:
    """s / q: power of the branch input relative to the stream."""
    return np.exp(-log_q) if norm == "pre" else 1.0

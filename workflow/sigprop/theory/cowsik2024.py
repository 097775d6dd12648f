"""Token geometry and gradients of Cowsik et al. 2024 (arXiv 2403.02579), re-derived here.

Tokens x_1..x_n stay exchangeable: q = E|x_i|^2 / d, p = E x_i.x_k / d, rho = p / q. One block is

    Y  = s_A X + alpha_A Attn(LN(X))        Attn(X)_i = sum_j A_ij V x_j,  A = softmax(x^T Q^T K x)
    X' = s_M Y + alpha_M MLP(LN(Y))         MLP(x) = W2 phi(W1 x)

with one head, Var(logit) = sigma_A^2, entries of V, W1, W2 of variance sigma_V^2/d, sigma_1^2/d,
sigma_2^2/d, hidden width d, d -> infinity at fixed n (then n -> infinity if n_tokens = inf). Below
s = alpha_A^2 sigma_V^2, m = alpha_M^2, c_A = s_A^2, c_M = s_M^2, B = sigma_2^2 V2(1),
G(rho) = sigma_1^2 sigma_2^2 D2(rho), G = G(1); see `mlp_moments` and `softmax_moments`.

    mode    skips                     stream
    conv    s = sqrt(1 - alpha^2)     its norm relaxes to a fixed q*
    renorm  s = 1                     LN at the end of every block: q = 1 on entry
    unit    s = 1                     q grows linearly: power laws instead of exponents

The state is kept as (q, 1 - rho), which does not lose digits when the tokens collapse. Settings may
be arrays that broadcast; results are float64 of their shape. Invalid ones raise ValueError.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np

from sigprop.theory.checks import (
    Array,
    ArrayLike,
    check_at_least,
    check_choice,
    check_correlation,
    check_depth,
    check_finite,
    check_n_tokens,
    check_unit_interval,
)
from sigprop.theory.mlp_moments import Activation, MlpCurves, mlp_curves, moments_at_one
from sigprop.theory.softmax_moments import SoftmaxCurves, softmax_curves, softmax_moments

Mode = Literal["conv", "renorm", "unit"]
Attention = Literal["softmax", "shaped", "centered"]


@dataclass(frozen=True, eq=False)
class Architecture:
    """Settings of one block. Every number may be an array; they broadcast to `shape`.

    alpha_attn, alpha_ff in [0, 1]; sigma_w1, sigma_w2, sigma_a, sigma_v > 0; n_tokens >= 2 or inf.
    attention: softmax A; shaped A = I + softmax - 11^T/n (arXiv 2306.17759); centered
    A = softmax - 11^T/n (arXiv 2410.07799).
    """

    alpha_attn: ArrayLike
    alpha_ff: ArrayLike
    sigma_w1: ArrayLike
    sigma_w2: ArrayLike
    sigma_a: ArrayLike = 1.0
    sigma_v: ArrayLike = 1.0
    n_tokens: ArrayLike = 32
    activation: Activation = "tanh"
    mode: Mode = "conv"
    attention: Attention = "softmax"

    def __post_init__(self) -> None:
        for name in ("alpha_attn", "alpha_ff"):
            check_unit_interval(name, getattr(self, name))
        for name in ("sigma_w1", "sigma_w2", "sigma_a", "sigma_v"):
            check_at_least(name, getattr(self, name), 0.0, strict=True)
        check_n_tokens(self.n_tokens)
        check_choice("activation", self.activation, get_args(Activation))
        check_choice("mode", self.mode, get_args(Mode))
        check_choice("attention", self.attention, get_args(Attention))
        try:
            _ = self.shape
        except ValueError:
            shapes = {f.name: np.shape(getattr(self, f.name)) for f in fields(self)[:7]}
            raise ValueError(f"shapes {shapes} do not broadcast: pass matching arrays") from None

    @property
    def shape(self) -> tuple[int, ...]:
        """Broadcast shape of all settings."""
        return np.broadcast_shapes(*(np.shape(getattr(self, f.name)) for f in fields(self)[:7]))


def tied(
    alpha_attn: ArrayLike,
    alpha_ff: ArrayLike,
    sigma_w: ArrayLike,
    *,
    sigma_a: ArrayLike = 1.0,
    sigma_v: ArrayLike = 1.0,
    n_tokens: ArrayLike = 32,
    activation: Activation = "tanh",
    mode: Mode = "conv",
    attention: Attention = "softmax",
) -> Architecture:
    """`Architecture` with sigma_w1 = sigma_w2 = sigma_w, the axis of the phase diagrams."""
    return Architecture(
        alpha_attn,
        alpha_ff,
        sigma_w,
        sigma_w,
        sigma_a,
        sigma_v,
        n_tokens,
        activation,
        mode,
        attention,
    )


def deepscale(
    depth: ArrayLike,
    *,
    k: ArrayLike = 1.0,
    sigma_w1: ArrayLike = 1.0,
    rho: ArrayLike = 1.0,
    sigma_a: ArrayLike = 1.0,
    n_tokens: ArrayLike = 32,
    activation: Activation = "tanh",
) -> Architecture:
    """Block with alpha^2 = k / depth and branches of unit output variance at correlation `rho`.

    sigma_V^2 = 1 / [rho + (1-rho) S], sigma_2^2 = 1 / V2(1), after DeepScaleLM (arXiv 2403.09635).
    """
    alpha = np.sqrt(check_at_least("k", k, 0.0) / check_at_least("depth", depth, 1.0))
    rho = check_correlation("rho", rho, check_n_tokens(n_tokens))
    sigma_a = check_at_least("sigma_a", sigma_a, 0.0, strict=True)
    s = softmax_moments(sigma_a**2 * (1.0 - rho), rho, n_tokens).s
    v2, _ = moments_at_one(sigma_w1, activation)
    sigma_v = 1.0 / np.sqrt(rho + (1.0 - rho) * s)
    return Architecture(
        alpha, alpha, sigma_w1, 1.0 / np.sqrt(v2), sigma_a, sigma_v, n_tokens, activation
    )


def sigma_reparam(
    alpha_attn: ArrayLike,
    alpha_ff: ArrayLike,
    *,
    gamma_qk: ArrayLike = 1.0,
    gamma_v: ArrayLike = 1.0,
    gamma_w: ArrayLike = 1.0,
    n_tokens: ArrayLike = 32,
    activation: Activation = "tanh",
    mode: Mode = "conv",
) -> Architecture:
    """Block whose matrices have spectral norms gamma: W -> gamma W / |W|_2 (arXiv 2303.06296).

    A square Gaussian matrix has |W|_2 = 2 sigma, so sigma = gamma / 2; gamma_qk is the product of
    the norms of Q and K, so sigma_A = gamma_qk / 4.
    """
    half = [
        0.5 * check_at_least(name, value, 0.0, strict=True)
        for name, value in (("gamma_qk", gamma_qk), ("gamma_v", gamma_v), ("gamma_w", gamma_w))
    ]
    return tied(
        alpha_attn,
        alpha_ff,
        half[2],
        sigma_a=0.5 * half[0],
        sigma_v=half[1],
        n_tokens=n_tokens,
        activation=activation,
        mode=mode,
    )


# The block


class Terms(NamedTuple):
    """The combinations that enter the formulas, each of the settings' shape (module docstring).

    row_sum is sum_j A_ij: 1, or 0 for centered attention.
    """

    c_attn: Array
    c_mlp: Array
    s: Array
    m: Array
    b: Array
    g: Array
    row_sum: float


def terms(architecture: Architecture) -> Terms:
    """c_A, c_M, s = alpha_A^2 sigma_V^2, m = alpha_M^2, B, G and the row sum of A."""
    a = architecture
    alpha_attn, alpha_ff, sigma_1, sigma_2, sigma_v = (
        np.asarray(x, dtype=np.float64)
        for x in (a.alpha_attn, a.alpha_ff, a.sigma_w1, a.sigma_w2, a.sigma_v)
    )
    v2, d2 = moments_at_one(sigma_1, a.activation)
    one = np.ones(a.shape)
    if a.mode == "conv":
        c_attn, c_mlp = 1.0 - alpha_attn**2, 1.0 - alpha_ff**2
    else:
        c_attn = c_mlp = one
    return Terms(
        c_attn * one,
        c_mlp * one,
        alpha_attn**2 * sigma_v**2 * one,
        alpha_ff**2 * one,
        sigma_2**2 * v2 * one,
        sigma_1**2 * sigma_2**2 * d2 * one,
        0.0 if a.attention == "centered" else 1.0,
    )


class Weights(NamedTuple):
    """Second moments of the attention matrix at one correlation.

    s = S and n_r = n R of the matrix the tokens pass through, difference = S - R >= 0; tq and
    n_tr = n TR of the softmax.
    """

    s: Array
    n_r: Array
    difference: Array
    tq: Array
    n_tr: Array


@dataclass(frozen=True, eq=False)
class Block:
    """An architecture with its moments ready: the update of (q, 1 - rho) and the way back."""

    architecture: Architecture

    @cached_property
    def terms(self) -> Terms:
        return terms(self.architecture)

    @cached_property
    def n(self) -> Array:
        shape = self.architecture.shape
        return np.broadcast_to(np.asarray(self.architecture.n_tokens, dtype=np.float64), shape)

    @cached_property
    def _softmax(self) -> SoftmaxCurves:
        sigma_a = np.broadcast_to(
            np.asarray(self.architecture.sigma_a, dtype=np.float64), self.architecture.shape
        )
        return softmax_curves(sigma_a, self.n)

    @cached_property
    def _mlp(self) -> MlpCurves:
        sigma = np.asarray(self.architecture.sigma_w1, dtype=np.float64)
        sigma = np.broadcast_to(sigma, self.architecture.shape)
        return mlp_curves(sigma, self.architecture.activation, name="sigma_w1")

    def weights(self, delta: Array) -> Weights:
        """Moments of the attention matrix at 1 - rho = `delta`.

        shaped: S -> 1 + S - 1/n, R -> R - 1/n (E A_ii = 1/n: the diagonal logit is like the rest);
        centered: S -> S - 1/n, R -> R - 1/n.
        """
        n_s, n_r, n_tq, n_tr = self._softmax(1.0 - delta)
        kind = self.architecture.attention
        if kind != "softmax":
            n_s, n_r = n_s - 1.0, n_r - 1.0
        s = n_s / self.n + (1.0 if kind == "shaped" else 0.0)
        # S >= R; clipped because rounding would leave noise of either sign near rho = 1
        return Weights(s, n_r, np.maximum(s - n_r / self.n, 0.0), n_tq / self.n, n_tr)

    def attention(self, q: Array, delta: Array) -> tuple[Array, Array]:
        """(q1, 1 - rho1) after the attention sub-block.

        q1 = c_A q + s [rho + (1-rho) S]        q1 - p1 = (1-rho) [c_A q + s (S - R)]
        (rho without its bracket's first term when the rows of A sum to 0)
        """
        return self._attend(q, delta, self.weights(delta))

    def _attend(self, q: Array, delta: Array, a: Weights) -> tuple[Array, Array]:
        t = self.terms
        q1 = t.c_attn * q + t.s * (t.row_sum * (1.0 - delta) + delta * a.s)
        if not (q1 > 0.0).all():
            raise ValueError(
                "alpha_attn = 1 leaves a stream of norm 0 here (no skip, and the average over "
                "tokens vanishes): pass alpha_attn < 1, rho > 0 or finite n_tokens"
            )
        return q1, delta * (t.c_attn * q + t.s * a.difference) / q1

    def mlp(self, q1: Array, delta1: Array) -> tuple[Array, Array]:
        """(q', 1 - rho') after the MLP sub-block, before LN in mode renorm.

        q' = c_M q1 + m B        q' - p' = c_M (q1 - p1) + m sigma_2^2 [V2(1) - V2(rho1)]
        """
        t = self.terms
        q2 = t.c_mlp * q1 + t.m * t.b
        return q2, delta1 * (t.c_mlp * q1 + t.m * self.mlp_gap(delta1)) / q2

    def mlp_gap(self, delta: Array) -> Array:
        """sigma_2^2 [V2(1) - V2(rho)] / (1 - rho); G at rho = 1."""
        sigma_2 = np.asarray(self.architecture.sigma_w2, dtype=np.float64)
        return np.asarray(sigma_2**2 * self._mlp(delta)[0])

    def step(self, q: Array, delta: Array) -> tuple[Array, Array]:
        """(q, 1 - rho) at the next block."""
        q2, delta2 = self.mlp(*self.attention(q, delta))
        return (np.ones_like(q2) if self.architecture.mode == "renorm" else q2), delta2

    def backward(self, q: Array, delta: Array) -> Array:
        """B = B_A B_M of (g, h)_in = B (g, h)_out, (2, 2, ...), at the block's entry state.

        g = mean |dLoss/dx_i|^2 and h = mean_{i != k} (dLoss/dx_i).(dLoss/dx_k), N = n - 1,
        a = s / q, r = sum_j A_ij. Weights independent of the gradient; d -> infinity.
        B_M = diag(c_M + m G(1)/q1, c_M + m G(rho1)/q1)
        B_A = c_A I + a [[S, N R], [(r - S)/N, r - R]]                           through values
              + a sigma_A^2 (1-rho)^2 diag(TQ, TR)                               through queries
              + a sigma_A^2 (1-rho) [[TQ, rho N TR], [-TQ/N, -rho TR]]           through keys
        divided by q' before LN in mode renorm.
        """
        t, w, rho = self.terms, self.weights(delta), 1.0 - delta
        q1, delta1 = self._attend(q, delta, w)
        sigma_1, sigma_2, sigma_a = (
            np.asarray(x, dtype=np.float64)
            for x in (
                self.architecture.sigma_w1,
                self.architecture.sigma_w2,
                self.architecture.sigma_a,
            )
        )
        _, d2 = self._mlp(delta1)
        m_g = t.c_mlp + t.m * t.g / q1
        m_h = t.c_mlp + t.m * sigma_1**2 * sigma_2**2 * d2 / q1
        # n - 1 = N; N R = (n R)(N / n) and 1/N stay finite at n = inf
        share, per_other = 1.0 - 1.0 / self.n, 1.0 / (self.n - 1.0)
        r, n_r, tr, n_tr = w.n_r / self.n, w.n_r * share, w.n_tr / self.n, w.n_tr * share
        query, key = sigma_a**2 * delta**2, sigma_a**2 * delta
        a = t.s / q
        g_g = t.c_attn + a * (w.s + (query + key) * w.tq)
        g_h = a * (n_r + key * rho * n_tr)
        h_g = a * per_other * (t.row_sum - w.s - key * w.tq)
        h_h = t.c_attn + a * (t.row_sum - r + query * tr - key * rho * tr)
        b = np.stack([np.stack([g_g * m_g, g_h * m_h]), np.stack([h_g * m_g, h_h * m_h])])
        if self.architecture.mode == "renorm":
            b = b / (t.c_mlp * q1 + t.m * t.b)
        return b


def attention_map(architecture: Architecture, q: ArrayLike, p: ArrayLike) -> tuple[Array, Array]:
    """(q1, p1) = (c_A q + s [rho + (1-rho) S], c_A p + s [rho + (1-rho) R])."""
    return _with_p(*Block(architecture).attention(*_state(architecture, q, p)))


def mlp_map(architecture: Architecture, q1: ArrayLike, p1: ArrayLike) -> tuple[Array, Array]:
    """(q', p') = (c_M q1 + m B, c_M p1 + m sigma_2^2 V2(rho1)), before LN in mode renorm."""
    return _with_p(*Block(architecture).mlp(*_state(architecture, q1, p1)))


def block_map(architecture: Architecture, q: ArrayLike, p: ArrayLike) -> tuple[Array, Array]:
    """(q, p) at the next block; (1, p'/q') in mode renorm."""
    return _with_p(*Block(architecture).step(*_state(architecture, q, p)))


def backward_matrix(architecture: Architecture, q: ArrayLike, p: ArrayLike) -> Array:
    """(2, 2, ...): (g, h) at the entry of a block from (g, h) at its exit; `Block.backward`."""
    return Block(architecture).backward(*_state(architecture, q, p))


def spectral_radius(matrix: Array) -> Array:
    """Largest |eigenvalue| of real 2 x 2 matrices (2, 2, ...)."""
    half_trace = 0.5 * (matrix[0, 0] + matrix[1, 1])
    # discriminant as ((a - d)/2)^2 + bc, which does not cancel
    root = (0.5 * (matrix[0, 0] - matrix[1, 1])) ** 2 + matrix[0, 1] * matrix[1, 0]
    real = np.abs(half_trace) + np.sqrt(np.maximum(root, 0.0))
    return np.where(root < 0.0, np.sqrt(half_trace**2 + np.abs(root)), real)


# Trajectories


@dataclass(frozen=True, eq=False)
class Trajectory:
    """States at layers 0..depth, each array (depth + 1, ...)."""

    q: Array
    one_minus_rho: Array

    @property
    def rho(self) -> Array:
        return 1.0 - self.one_minus_rho

    @property
    def p(self) -> Array:
        return self.q * self.rho


def trajectory(
    architecture: Architecture, depth: int, *, q: ArrayLike = 1.0, rho: ArrayLike = 0.0
) -> Trajectory:
    """q and 1 - rho by layer, from (`q`, `rho`) at layer 0 (q = 1 after the first LN in renorm)."""
    block, depth = Block(architecture), check_depth(depth)
    q, delta = _initial(architecture, q, rho)
    states = [(q, delta)]
    for _ in range(depth):
        states.append(block.step(*states[-1]))
    return Trajectory(np.stack([x for x, _ in states]), np.stack([x for _, x in states]))


@dataclass(frozen=True, eq=False)
class GradientTrajectory:
    """log g (log_g[-1] = 0) and h / g at layers 0..depth, each (depth + 1, ...)."""

    log_g: Array
    coherence: Array


def gradient_trajectory(
    architecture: Architecture, states: Trajectory, *, coherence: ArrayLike = 0.0
) -> GradientTrajectory:
    """Back-propagated gradients along `states`, from h / g = `coherence` at the last layer.

    0 is an independent random readout for each token, 1 the same readout for all.
    """
    block = Block(architecture)
    c = check_correlation("coherence", coherence, block.n) * np.ones(architecture.shape)
    log_g = [np.zeros(architecture.shape)]
    ratios = [c]
    for q, delta in zip(states.q[-2::-1], states.one_minus_rho[-2::-1], strict=True):
        b = block.backward(q, delta)
        growth = b[0, 0] + b[0, 1] * ratios[-1]
        log_g.append(log_g[-1] + np.log(growth))
        ratios.append((b[1, 0] + b[1, 1] * ratios[-1]) / growth)
    return GradientTrajectory(np.stack(log_g[::-1]), np.stack(ratios[::-1]))


def lambda_g_traj(
    architecture: Architecture,
    depth: int,
    *,
    q: ArrayLike = 1.0,
    rho: ArrayLike = 0.0,
    coherence: ArrayLike = 0.0,
) -> Array:
    """(1/depth) log(g_0 / g_depth) along the trajectory from (`q`, `rho`), of settings' shape."""
    states = trajectory(architecture, depth, q=q, rho=rho)
    gradients = gradient_trajectory(architecture, states, coherence=coherence)
    return np.asarray(gradients.log_g[0] / (len(states.q) - 1))


# Checks


def _state(architecture: Architecture, q: ArrayLike, p: ArrayLike) -> tuple[Array, Array]:
    """(q, 1 - rho) of the settings' shape from (q, p)."""
    q = check_at_least("q", q, 0.0, strict=True)
    return _initial(architecture, q, check_finite("p", p) / q)


def _initial(architecture: Architecture, q: ArrayLike, rho: ArrayLike) -> tuple[Array, Array]:
    q = check_at_least("q", q, 0.0, strict=True)
    rho = check_correlation("rho", rho, check_n_tokens(architecture.n_tokens))
    shape = architecture.shape
    try:
        return np.broadcast_to(q, shape).copy(), np.broadcast_to(1.0 - rho, shape).copy()
    except ValueError:
        raise ValueError(
            f"q and rho of shapes {q.shape} and {rho.shape} do not fit settings of shape {shape}: "
            "pass scalars, or add axes to the settings"
        ) from None


def _with_p(q: Array, delta: Array) -> tuple[Array, Array]:
    return q, q * (1.0 - delta)

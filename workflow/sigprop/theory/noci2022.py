"""Forward signal propagation of Noci et al. 2022 (arXiv 2206.03126) in closed form.

One block, A = (1/n) 11^T (uniform attention), X of shape (n, d):

    Z  = X + alpha_attn * A X W^V                  X' = Z + alpha_ff * act(Z W^F1) W^F2

T = sum_k ||X_k||^2 and C = sum_{k,k'} <X_k, X_k'>; rho = E[C - T] / ((n-1) E[T]) is a ratio of
expectations over networks. Inits enter through two branch power gains g_A, g_F: alpha_attn^2 g_A
and alpha_ff^2 g_F are the only combinations in any formula. Below a = 1 + alpha_attn^2 g_A,
b = 1 + alpha_ff^2 g_F, c = 1 + (n-1) rho_0.

Every argument that is a number may be an array; arguments broadcast against each other and results
are float64 of the broadcast shape. Invalid arguments raise ValueError.
"""

from typing import Any, Literal, get_args

import numpy as np

from sigprop.theory.checks import (
    ZERO,
    Array,
    ArrayLike,
    check_at_least,
    check_choice,
    check_correlation,
    check_finite,
)

InitRule = Literal["fan_in", "xavier"]
Activation = Literal["linear", "relu"]


def branch_power(which: str, alpha: Any, gain: Any) -> Array:
    """alpha^2 * gain."""
    return check_finite(f"alpha_{which}", alpha) ** 2 * check_at_least(f"gain_{which}", gain, 0.0)


# Branch power gains at initialization


def init_variance(
    rule: InitRule, d_in: ArrayLike, d_out: ArrayLike, gain: ArrayLike = 1.0
) -> Array:
    """Entry variance of a (d_in, d_out) weight.

    fan_in: gain^2 / d_in.  xavier: gain^2 * 2 / (d_in + d_out).  `gain` multiplies the weights.
    """
    check_choice("rule", rule, get_args(InitRule))
    d_in = check_at_least("d_in", d_in, 0.0, strict=True)
    d_out = check_at_least("d_out", d_out, 0.0, strict=True)
    fan = d_in + 0.0 * d_out if rule == "fan_in" else (d_in + d_out) / 2.0
    return check_finite("gain", gain) ** 2 / fan


def attention_gain(
    d_model: ArrayLike, d_v: ArrayLike, var_v: ArrayLike, var_o: ArrayLike | None = None
) -> Array:
    """Power gain g_A of the attention branch: E||A X W||^2 = g_A ||A X||^2 at any width.

    Without output projection: g_A = var_v d_v, and d_v must equal d_model. With W^O (d_v, d_model)
    of entry variance `var_o`: g_A = var_v d_v var_o d_model, where d_v is the total value width
    over heads (the number of heads does not enter under uniform attention).
    """
    d_model = check_at_least("d_model", d_model, 0.0, strict=True)
    d_v = check_at_least("d_v", d_v, 0.0, strict=True)
    value_gain = check_at_least("var_v", var_v, 0.0) * d_v
    if var_o is not None:
        return value_gain * check_at_least("var_o", var_o, 0.0) * d_model
    fails = np.asarray(d_v != d_model)
    if fails.any():
        bad = np.broadcast_to(d_v, fails.shape)[fails].flat[0]
        raise ValueError(f"d_v = {bad:g} differs from d_model: pass d_v = d_model, or var_o")
    return value_gain + 0.0 * d_model


def feedforward_gain(
    d_model: ArrayLike,
    d_ff: ArrayLike,
    var_f1: ArrayLike,
    var_f2: ArrayLike,
    activation: Activation = "relu",
) -> Array:
    """Power gain g_F of the feed-forward branch: E||act(Z W^F1) W^F2||^2 = g_F ||Z||^2.

    g_F = var_f1 d_ff var_f2 d_model for the linear branch, half of it for ReLU (any width).
    """
    check_choice("activation", activation, get_args(Activation))
    d_model = check_at_least("d_model", d_model, 0.0, strict=True)
    d_ff = check_at_least("d_ff", d_ff, 0.0, strict=True)
    linear = check_at_least("var_f1", var_f1, 0.0) * d_ff * d_model
    linear = linear * check_at_least("var_f2", var_f2, 0.0)
    return linear / 2.0 if activation == "relu" else linear


def branch_gains(
    rule: InitRule,
    d_model: ArrayLike,
    d_ff: ArrayLike,
    *,
    activation: Activation = "relu",
    he: bool = True,
    output_projection: bool = False,
) -> tuple[Array, Array]:
    """(g_A, g_F) of a block with fused (d_model, d_model) value and output projections.

    `he` doubles the variance of W^F2 when the activation is ReLU; it does nothing for linear.
    """
    check_choice("activation", activation, get_args(Activation))
    var_square = init_variance(rule, d_model, d_model)
    g_a = attention_gain(d_model, d_model, var_square, var_square if output_projection else None)
    var_f1 = init_variance(rule, d_model, d_ff)
    var_f2 = init_variance(rule, d_ff, d_model) * (2.0 if he and activation == "relu" else 1.0)
    return g_a, feedforward_gain(d_model, d_ff, var_f1, var_f2, activation)


# Lemmas 3.2 and 3.3: expected sums of inner products and of squared norms (linear feed-forward)


def gaussian_token_sums(
    n_tokens: ArrayLike, d_model: ArrayLike, sigma_x: ArrayLike, rho: ArrayLike
) -> tuple[Array, Array]:
    """(E[T_0], E[C_0]) for Gaussian tokens of coordinate variance sigma_x^2, correlation rho.

    E[T_0] = n d sigma_x^2,   E[C_0] = n d sigma_x^2 (1 + (n-1) rho).
    """
    n = check_at_least("n_tokens", n_tokens, 2.0)
    d = check_at_least("d_model", d_model, 0.0, strict=True)
    c = _mean_strength(n, check_correlation("rho", rho, n))
    t_0 = n * d * check_at_least("sigma_x", sigma_x, 0.0) ** 2
    return t_0 + 0.0 * c, t_0 * c


def correlation_ratio(sum_sq_norm: ArrayLike, sum_inner: ArrayLike, n_tokens: ArrayLike) -> Array:
    """rho = (C - T) / ((n-1) T) from T = `sum_sq_norm` > 0 and C = `sum_inner`."""
    n = check_at_least("n_tokens", n_tokens, 2.0)
    t = check_at_least("sum_sq_norm", sum_sq_norm, 0.0, strict=True)
    return (check_at_least("sum_inner", sum_inner, 0.0) - t) / ((n - 1.0) * t)


def expected_sums(
    layer: ArrayLike,
    t_0: ArrayLike,
    c_0: ArrayLike,
    n_tokens: ArrayLike,
    alpha_attn: ArrayLike = 1.0,
    alpha_ff: ArrayLike = 1.0,
    gain_attn: ArrayLike = 1.0,
    gain_ff: ArrayLike = 1.0,
) -> tuple[Array, Array]:
    """(E[T_l], E[C_l]) after `layer` >= 0 blocks with the same alphas (Lemmas 3.3 and 3.2).

    E[C_l] = (a b)^l C_0,   E[T_l] = b^l [ T_0 + (C_0/n)(a^l - 1) ].   inf where float64 overflows.
    """
    l = check_at_least("layer", layer, 0.0)
    log_a = l * np.log1p(branch_power("attn", alpha_attn, gain_attn))
    log_b = l * np.log1p(branch_power("ff", alpha_ff, gain_ff))
    return _sums(t_0, c_0, n_tokens, log_a, log_b)


def expected_sums_per_layer(
    t_0: ArrayLike,
    c_0: ArrayLike,
    n_tokens: ArrayLike,
    alpha_attn: ArrayLike,
    alpha_ff: ArrayLike,
    gain_attn: ArrayLike = 1.0,
    gain_ff: ArrayLike = 1.0,
) -> tuple[Array, Array]:
    """(E[T_l], E[C_l]) for l = 0..L when block l has its own alphas; both of shape (..., L+1).

    The last axis of `alpha_attn` and `alpha_ff` is the layer (length L). a^l and b^l become
    products over layers; the attention sum telescopes, so the form of `expected_sums` stays.
    """
    log_a = _cumulative_log(per_layer_power("attn", alpha_attn, gain_attn))
    log_b = _cumulative_log(per_layer_power("ff", alpha_ff, gain_ff))
    t, c, n = (np.asarray(v)[..., None] for v in (t_0, c_0, n_tokens))
    return _sums(t, c, n, log_a, log_b)


def expected_sums_limit(
    t_0: ArrayLike,
    c_0: ArrayLike,
    n_tokens: ArrayLike,
    alpha_attn_sq_L: ArrayLike = 1.0,
    alpha_ff_sq_L: ArrayLike = 1.0,
    gain_attn: ArrayLike = 1.0,
    gain_ff: ArrayLike = 1.0,
) -> tuple[Array, Array]:
    """Limit of (E[T_L], E[C_L]) for L -> inf with alpha_attn^2 = at1/L, alpha_ff^2 = at2/L.

    E[C] = e^{at1+at2} C_0,   E[T] = e^{at2} [ T_0 + (e^{at1} - 1) C_0/n ]   (gains multiply at).
    """
    at1 = scaled_power("attn", alpha_attn_sq_L, gain_attn)
    at2 = scaled_power("ff", alpha_ff_sq_L, gain_ff)
    return _sums(t_0, c_0, n_tokens, at1, at2)


def _sums(t_0: Any, c_0: Any, n_tokens: Any, log_a: Array, log_b: Array) -> tuple[Array, Array]:
    """E[T], E[C] from the log of the attention growth a^l and of the feed-forward growth b^l."""
    n = check_at_least("n_tokens", n_tokens, 2.0)
    t = check_at_least("t_0", t_0, 0.0, strict=True)
    c = check_at_least("c_0", c_0, 0.0)
    fails = c > n * t * (1.0 + 1e-9)
    if fails.any():
        bad = np.broadcast_to(c, fails.shape)[fails].flat[0]
        raise ValueError(f"c_0 = {bad:g} is out of range: pass c_0 <= n_tokens * t_0")
    with np.errstate(over="ignore", invalid="ignore"):
        sum_inner = np.where(c > 0.0, np.exp(log_a + log_b) * c, 0.0)
        mean_growth = np.where(c > 0.0, np.expm1(log_a) * c / n, 0.0)
        return np.exp(log_b) * (t + mean_growth), sum_inner


def scaled_power(which: str, alpha_sq_L: Any, gain: Any) -> Array:
    power = check_at_least(f"alpha_{which}_sq_L", alpha_sq_L, 0.0)
    return power * check_at_least(f"gain_{which}", gain, 0.0)


def per_layer_power(which: str, alpha: Any, gain: Any) -> Array:
    """alpha^2 * gain for alphas whose last axis is the layer; a gain has no layer axis."""
    if np.ndim(alpha) == 0:
        raise ValueError(f"alpha_{which} = {alpha!r} has no layer axis: pass an array (..., depth)")
    return branch_power(which, alpha, np.asarray(gain)[..., None])


def _cumulative_log(power: Array) -> Array:
    """log prod_{m <= l} (1 + power_m) for l = 0..L: (..., L) -> (..., L+1)."""
    start = np.zeros((*power.shape[:-1], 1))
    return np.concatenate([start, np.cumsum(np.log1p(power), axis=-1)], axis=-1)


# Theorem 3.2: correlation at depth (linear feed-forward; no-LN, and POST-LN in the width limit)


def one_minus_rho_at_layer(
    layer: ArrayLike,
    n_tokens: ArrayLike,
    rho_0: ArrayLike,
    alpha_attn: ArrayLike = 1.0,
    gain_attn: ArrayLike = 1.0,
) -> Array:
    """1 - rho_l = (1 - rho_0) n / (n + c (a^l - 1)), `layer` = l >= 0 (Theorem 3.2, exact).

    The feed-forward growth b cancels. Relative precision is kept down to underflow.
    """
    log_a = np.log1p(branch_power("attn", alpha_attn, gain_attn))
    return _one_minus_rho(n_tokens, rho_0, check_at_least("layer", layer, 0.0) * log_a)


def one_minus_rho_per_layer(
    n_tokens: ArrayLike, rho_0: ArrayLike, alpha_attn: ArrayLike, gain_attn: ArrayLike = 1.0
) -> Array:
    """1 - rho_l for l = 0..L, shape (..., L+1); the last axis of `alpha_attn` is the layer."""
    log_a = _cumulative_log(per_layer_power("attn", alpha_attn, gain_attn))
    return _one_minus_rho(np.asarray(n_tokens)[..., None], np.asarray(rho_0)[..., None], log_a)


def rho_at_layer(
    layer: ArrayLike,
    n_tokens: ArrayLike,
    rho_0: ArrayLike,
    alpha_attn: ArrayLike = 1.0,
    gain_attn: ArrayLike = 1.0,
) -> Array:
    """rho_l of Theorem 3.2; see `one_minus_rho_at_layer`."""
    return 1.0 - one_minus_rho_at_layer(layer, n_tokens, rho_0, alpha_attn, gain_attn)


def one_minus_rho_limit(
    n_tokens: ArrayLike,
    rho_0: ArrayLike,
    alpha_attn_sq_L: ArrayLike = 1.0,
    gain_attn: ArrayLike = 1.0,
) -> Array:
    """1 - rho_inf = (1 - rho_0) n / (n + c (e^{at1} - 1)): L -> inf at alpha_attn^2 = at1 / L."""
    return _one_minus_rho(n_tokens, rho_0, scaled_power("attn", alpha_attn_sq_L, gain_attn))


def rho_limit_paper_form(
    n_tokens: ArrayLike,
    rho_0: ArrayLike,
    alpha_attn_sq_L: ArrayLike = 1.0,
    gain_attn: ArrayLike = 1.0,
) -> Array:
    """The same limit as Theorem 3.2 writes it.

    rho_inf = n e^{at1} c / ((n-1) [(e^{at1} - 1) c + n]) - 1/(n-1).
    """
    n = check_at_least("n_tokens", n_tokens, 2.0)
    c = _mean_strength(n, check_correlation("rho_0", rho_0, n))
    at1 = scaled_power("attn", alpha_attn_sq_L, gain_attn)
    ratio = n * np.exp(at1) * c / ((n - 1.0) * (np.expm1(at1) * c + n))
    return ratio - 1.0 / (n - 1.0)


def one_minus_rho_asymptotic(
    layer: ArrayLike,
    n_tokens: ArrayLike,
    rho_0: ArrayLike,
    alpha_attn: ArrayLike = 1.0,
    gain_attn: ArrayLike = 1.0,
) -> Array:
    """1 - rho_l ~ (1 - rho_0) (n/c) a^{-l} for l -> inf at fixed alpha_attn; inf where c = 0."""
    n = check_at_least("n_tokens", n_tokens, 2.0)
    rho = check_correlation("rho_0", rho_0, n)
    log_a = np.log1p(branch_power("attn", alpha_attn, gain_attn))
    with np.errstate(divide="ignore"):
        factor = n / _mean_strength(n, rho)
    return (1.0 - rho) * factor * np.exp(-check_at_least("layer", layer, 0.0) * log_a)


def depth_to_reach(
    rho_target: ArrayLike,
    n_tokens: ArrayLike,
    rho_0: ArrayLike,
    alpha_attn: ArrayLike = 1.0,
    gain_attn: ArrayLike = 1.0,
) -> Array:
    """Real-valued depth at which Theorem 3.2 reaches `rho_target` (derived here).

    l* = ln(1 + n (rho* - rho_0) / ((1 - rho*) c)) / ln a; 0 if rho* <= rho_0, inf if never.
    """
    n = check_at_least("n_tokens", n_tokens, 2.0)
    target = check_correlation("rho_target", rho_target, n)
    rho = check_correlation("rho_0", rho_0, n)
    log_a = np.log1p(branch_power("attn", alpha_attn, gain_attn))
    gap = np.maximum(target - rho, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        l_star = np.log1p(n * gap / ((1.0 - target) * _mean_strength(n, rho))) / log_a
    return np.where(gap > 0.0, l_star, 0.0)


def _mean_strength(n: Array, rho: Array) -> Array:
    """c = 1 + (n-1) rho = n ||xbar||^2 / ||x||^2, with rounding residue of an exact 0 removed."""
    c = 1.0 + (n - 1.0) * rho
    return np.where(c < ZERO, 0.0, c)


def _one_minus_rho(n_tokens: Any, rho_0: Any, log_growth: Array) -> Array:
    n = check_at_least("n_tokens", n_tokens, 2.0)
    rho = check_correlation("rho_0", rho_0, n)
    c = _mean_strength(n, rho)
    with np.errstate(over="ignore", invalid="ignore"):
        # c = 0 with an overflowing growth is 0 * inf: exactly centred tokens never collapse
        mean_growth = np.where(c > 0.0, c * np.expm1(log_growth), 0.0)
    return (1.0 - rho) * n / (n + mean_growth)


# Size of the attention logits: uniform attention is a good assumption when they are small


def logit_second_moment(
    sq_norm_i: ArrayLike,
    sq_norm_j: ArrayLike,
    var_q: ArrayLike,
    var_k: ArrayLike,
    tau: ArrayLike = 1.0,
) -> Array:
    """E[M_ij^2] = tau^2 var_q var_k ||X_i||^2 ||X_j||^2 for M = (tau/sqrt(d_k)) X W^Q (X W^K)^T.

    Over the weights at fixed X, for any d_k and also for i = j (derived here).
    """
    variance = check_at_least("var_q", var_q, 0.0) * check_at_least("var_k", var_k, 0.0)
    norms = check_at_least("sq_norm_i", sq_norm_i, 0.0) * check_at_least(
        "sq_norm_j", sq_norm_j, 0.0
    )
    return check_finite("tau", tau) ** 2 * variance * norms

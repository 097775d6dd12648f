"""Expected gradient norms of one attention layer, Noci et al. 2022 (arXiv 2206.03126).

S = A X W^V with A = softmax(M), M = (tau/sqrt(d_k)) X W^Q (X W^K)^T, under uniform attention:
A = (1/n) 11^T and softmax Jacobian (1/n) I (x) P, with P = I_n - (1/n) 11^T. X is (n, d),
W^Q and W^K are (d, d_k), W^V is (d, d_v), independent, zero mean, entry variances var_q, var_k,
var_v. All results are expected squared Frobenius norms of Jacobians. d_k cancels against the
1/sqrt(d_k) of the logits: it enters only through var_q and var_k (1/d_k in the paper).

Arguments may be arrays that broadcast; results are float64. Invalid ones raise ValueError.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

from sigprop.theory.checks import (
    Array,
    ArrayLike,
    check_at_least,
    check_correlation,
    check_finite,
)

# Lemma 3.1: at fixed X


@dataclass(frozen=True)
class TokenStatistics:
    """What Lemma 3.1 needs of X; arrays of one shape (...). G = X^T P X, xbar = mean token.

    sum_sq_norm = ||X||^2 = spread_sq_norm + mean_sq_norm; gram_sq_norm = ||G||_F^2;
    spread_sq_norm = ||P X||^2; mean_sq_norm = n ||xbar||^2.
    """

    n_tokens: int
    sum_sq_norm: Array
    gram_sq_norm: Array
    spread_sq_norm: Array
    mean_sq_norm: Array


def token_statistics(x: ArrayLike) -> TokenStatistics:
    """Statistics of X of shape (..., n, d), n >= 2; each result has shape (...).

    Tokens are taken relative to the first before centring, so ||P X|| and ||G|| keep their relative
    precision for the given X near rank collapse, and are exactly 0 for equal tokens.
    """
    x = check_finite("x", x)
    if x.ndim < 2 or x.shape[-2] < 2 or x.shape[-1] < 1:
        raise ValueError(f"x has shape {x.shape}: pass (..., n_tokens >= 2, d_model >= 1)")
    n = x.shape[-2]
    difference = x - x[..., :1, :]
    mean_difference = difference.mean(-2, keepdims=True)
    centred = difference - mean_difference  # P X, (..., n, d)
    mean = (x[..., :1, :] + mean_difference)[..., 0, :]  # (..., d)
    # ||X^T P X||_F = ||P X X^T P||_F, so use the smaller of the two Gram matrices
    flipped = np.swapaxes(centred, -1, -2)
    gram = centred @ flipped if n <= x.shape[-1] else flipped @ centred
    spread = (centred**2).sum((-2, -1))
    mean_sq = n * (mean**2).sum(-1)
    return TokenStatistics(n, spread + mean_sq, (gram**2).sum((-2, -1)), spread, mean_sq)


def value_grad_sq_norm(stats: TokenStatistics, d_v: ArrayLike) -> Array:
    """||dS/dW^V||^2 = d_v n ||xbar||^2, without randomness (Lemma 3.1, equation 6)."""
    return _width("d_v", d_v) * stats.mean_sq_norm


def query_grad_sq_norm(
    stats: TokenStatistics,
    d_v: ArrayLike,
    var_v: ArrayLike,
    var_k: ArrayLike,
    tau: ArrayLike = 1.0,
) -> Array:
    """E||dS/dW^Q||^2 = tau^2 var_v var_k (d_v/n^2) ||X||^2 ||G||_F^2 (Lemma 3.1, equation 7)."""
    scale = _scale(d_v, tau, var_v=var_v, var_k=var_k)
    return scale / stats.n_tokens**2 * stats.sum_sq_norm * stats.gram_sq_norm


def key_grad_sq_norm(
    stats: TokenStatistics,
    d_v: ArrayLike,
    var_v: ArrayLike,
    var_q: ArrayLike,
    tau: ArrayLike = 1.0,
) -> Array:
    """E||dS/dW^K||^2: equation 7 with var_q in the place of var_k."""
    scale = _scale(d_v, tau, var_v=var_v, var_q=var_q)
    return scale / stats.n_tokens**2 * stats.sum_sq_norm * stats.gram_sq_norm


def input_grad_sq_norm(
    stats: TokenStatistics,
    d_model: ArrayLike,
    d_v: ArrayLike,
    var_q: ArrayLike,
    var_k: ArrayLike,
    var_v: ArrayLike,
    tau: ArrayLike = 1.0,
) -> Array:
    """E||dS/dX||^2, exact (derived here; equation 8 of the paper is an upper bound).

    tau^2 var_q var_k var_v d_v [ (d/n + 2/n^2) ||G||_F^2 + (d/n^2) ||X||^2 ||P X||^2 ]
      + var_v d d_v
    """
    d, n = _width("d_model", d_model), stats.n_tokens
    spread = d / n**2 * stats.sum_sq_norm * stats.spread_sq_norm
    softmax_part = (d / n + 2.0 / n**2) * stats.gram_sq_norm + spread
    scale = _scale(d_v, tau, var_q=var_q, var_k=var_k, var_v=var_v)
    return scale * softmax_part + _scale(d_v, 1.0, var_v=var_v) * d


def input_grad_bound_reconstructed(
    stats: TokenStatistics,
    d_model: ArrayLike,
    d_v: ArrayLike,
    var_q: ArrayLike,
    var_k: ArrayLike,
    var_v: ArrayLike,
    tau: ArrayLike = 1.0,
) -> Array:
    """Equation 8 as reconstructed from the paper's argument; NOT a bound, see below.

    8 tau^2 var_q var_k var_v (d d_v/n) ||G||_F^2 + 2 var_v d d_v

    It takes the two softmax terms of dS/dX to have equal norms, which fails for correlated tokens:
    the exact `input_grad_sq_norm` exceeds it when rho and the token norm are large.
    """
    d = _width("d_model", d_model)
    scale = _scale(d_v, tau, var_q=var_q, var_k=var_k, var_v=var_v)
    linear_part = 2.0 * _scale(d_v, 1.0, var_v=var_v) * d
    return 8.0 * scale * d / stats.n_tokens * stats.gram_sq_norm + linear_part


# Several heads: O = sum_i S_i W^O_i with W^O_i (d_head, d_model) of entry variance var_o


def multi_head_value_grad_sq_norm(
    stats: TokenStatistics,
    d_model: ArrayLike,
    d_head: ArrayLike,
    var_o: ArrayLike,
    n_heads: ArrayLike = 1,
) -> Array:
    """sum_i E||dO/dW^V_i||^2 = n_heads var_o d d_head n ||xbar||^2; n_heads = 1 is one head."""
    return _heads(d_model, var_o, n_heads) * value_grad_sq_norm(stats, _width("d_head", d_head))


def multi_head_query_grad_sq_norm(
    stats: TokenStatistics,
    d_model: ArrayLike,
    d_head: ArrayLike,
    var_v: ArrayLike,
    var_k: ArrayLike,
    var_o: ArrayLike,
    n_heads: ArrayLike = 1,
    tau: ArrayLike = 1.0,
) -> Array:
    """sum_i E||dO/dW^Q_i||^2 = n_heads tau^2 var_o d var_v var_k (d_head/n^2) ||X||^2 ||G||_F^2.

    Logits scaled by tau/sqrt(d_head). n_heads = 1 is one head; keys: pass var_q as `var_k`.
    """
    single = query_grad_sq_norm(stats, _width("d_head", d_head), var_v, var_k, tau)
    return _heads(d_model, var_o, n_heads) * single


# Gaussian tokens: mean 0, coordinate variance sigma_x^2, correlation rho, coordinates independent


def gaussian_value_grad_sq_norm(
    n_tokens: ArrayLike, d_model: ArrayLike, sigma_x: ArrayLike, rho: ArrayLike, d_v: ArrayLike
) -> Array:
    """E||dS/dW^V||^2 = d_v d sigma_x^2 (1 + (n-1) rho)   (equation 18)."""
    n, d, sigma_sq, rho = _gaussian(n_tokens, d_model, sigma_x, rho)
    return _width("d_v", d_v) * _mean_sq_norm(n, d, sigma_sq, rho)


def gaussian_query_grad_sq_norm(
    n_tokens: ArrayLike,
    d_model: ArrayLike,
    sigma_x: ArrayLike,
    rho: ArrayLike,
    d_v: ArrayLike,
    var_v: ArrayLike,
    var_k: ArrayLike,
    tau: ArrayLike = 1.0,
    *,
    finite_size: bool = True,
) -> Array:
    """E||dS/dW^Q||^2 for Gaussian tokens (equation 17).

    tau^2 var_v var_k d_v sigma_x^6 ((n-1)/n) (1-rho)^2 d^2 (n+d) [ 1 + 4 (1-rho) / (n d) ]

    Exact with the bracket (derived here). `finite_size=False` drops it: the paper's form, which
    takes the norm and the spread of X as independent. Keys: pass var_q as `var_k`.
    """
    n, d, sigma_sq, rho = _gaussian(n_tokens, d_model, sigma_x, rho)
    bracket = _bracket(n, d, rho) if finite_size else 1.0
    tokens = (n - 1.0) / n * (1.0 - rho) ** 2 * d**2 * (n + d) * bracket
    return _scale(d_v, tau, var_v=var_v, var_k=var_k) * sigma_sq**3 * tokens


def gaussian_input_grad_sq_norm(
    n_tokens: ArrayLike,
    d_model: ArrayLike,
    sigma_x: ArrayLike,
    rho: ArrayLike,
    d_v: ArrayLike,
    var_q: ArrayLike,
    var_k: ArrayLike,
    var_v: ArrayLike,
    tau: ArrayLike = 1.0,
) -> Array:
    """E||dS/dX||^2 for Gaussian tokens, exact (derived here).

    `input_grad_sq_norm` with, for s = sigma_x^2 (1-rho) and m = (n-1) d,

        E||G||_F^2 = s^2 m (n+d),   E[||X||^2 ||P X||^2] = s m [ s (m+2) + E[n ||xbar||^2] ],
        E[n ||xbar||^2] = d sigma_x^2 (1 + (n-1) rho)
    """
    n, d, sigma_sq, rho = _gaussian(n_tokens, d_model, sigma_x, rho)
    s, m = sigma_sq * (1.0 - rho), (n - 1.0) * d
    gram = s**2 * m * (n + d)
    norm_spread = s * m * (s * (m + 2.0) + _mean_sq_norm(n, d, sigma_sq, rho))
    softmax_part = (d / n + 2.0 / n**2) * gram + d / n**2 * norm_spread
    scale = _scale(d_v, tau, var_q=var_q, var_k=var_k, var_v=var_v)
    return scale * softmax_part + _scale(d_v, 1.0, var_v=var_v) * d


# Inverse temperature


def tau_star(
    n_tokens: ArrayLike,
    d_model: ArrayLike,
    sigma_x: ArrayLike,
    rho: ArrayLike,
    var_v: ArrayLike,
    var_k: ArrayLike,
) -> Array:
    """tau* at which E||dS/dW^Q||^2 = E||dS/dW^V||^2 for Gaussian tokens (derived here).

    tau*^2 = n (1 + (n-1) rho)
             / ( var_v var_k sigma_x^4 (n-1) (1-rho)^2 d (n+d) [ 1 + 4 (1-rho) / (n d) ] )

    inf at rho = 1, where the query gradient is 0; sigma_x and the variances must be > 0.
    `n_tokens` may be an average length.
    """
    for name, value in (("sigma_x", sigma_x), ("var_v", var_v), ("var_k", var_k)):
        check_at_least(name, value, 0.0, strict=True)
    n, d, sigma_sq, rho = _gaussian(n_tokens, d_model, sigma_x, rho)
    variances = _scale(1.0, 1.0, var_v=var_v, var_k=var_k)
    strength = np.maximum(1.0 + (n - 1.0) * rho, 0.0)
    query = variances * sigma_sq**2 * (n - 1.0) * (1.0 - rho) ** 2 * d * (n + d)
    with np.errstate(divide="ignore"):
        return np.sqrt(n * strength / (query * _bracket(n, d, rho)))


def rho_for_tau(
    tau: float, n_tokens: float, d_model: float, sigma_x: float, var_v: float, var_k: float
) -> float:
    """The token correlation at which `tau_star` equals `tau` > 0 (scalars; unique root)."""
    target = float(np.log(check_at_least("tau", tau, 0.0, strict=True)))
    n = float(check_at_least("n_tokens", n_tokens, 2.0))

    def gap(rho: float) -> float:
        # log tau* rises from -inf at rho = -1/(n-1) to inf at rho = 1
        star = tau_star(n, d_model, sigma_x, rho, var_v, var_k)
        return float(np.log(np.clip(star, 1e-200, 1e200))) - target

    return float(brentq(gap, -1.0 / (n - 1.0), 1.0, xtol=1e-13))


@dataclass(frozen=True)
class TauStarRecord:
    """One convention of `tau_star_table`; `rho` and `tau_star` have the same length.

    variance_factor: entry variance of W^Q, W^K and W^V times d_model. squared_norms: whether the
    temperature is set to the ratio of squared norms, tau*^2, instead of tau*. rho_for_target: the
    correlation that gives the target temperature.
    """

    convention: str
    sigma_x_sq: float
    variance_factor: float
    squared_norms: bool
    rho: tuple[float, ...]
    tau_star: tuple[float, ...]
    rho_for_target: float


def tau_star_table(
    tau_target: float = 8.5,
    n_tokens: float = 25.2,
    d_model: int = 512,
    rho: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.5),
) -> list[TauStarRecord]:
    """tau* under five readings of the matching rule, and the rho each needs for `tau_target`.

    The paper uses 8.5 and does not print its rho. Defaults: 25.2 sub-words per sentence is the
    German side of IWSLT14 (160 239 pairs); sigma_x^2 = 1.5 is a unit-variance embedding plus
    sinusoidal positions; variance 1/(2d) is Xavier with gain 1/sqrt(2) (fairseq).
    """
    conventions = (
        ("sigma_x=1, variance 1/d", 1.0, 1.0, False),
        ("sigma_x=1, variance 1/(2d)", 1.0, 0.5, False),
        ("sigma_x^2=1.5, variance 1/d", 1.5, 1.0, False),
        ("sigma_x^2=1.5, variance 1/(2d)", 1.5, 0.5, False),
        ("sigma_x=1, variance 1/d, ratio of squared norms", 1.0, 1.0, True),
    )
    records = []
    for name, sigma_x_sq, factor, squared in conventions:
        sigma_x, variance = float(np.sqrt(sigma_x_sq)), factor / d_model
        power = 2 if squared else 1
        stars = tau_star(n_tokens, d_model, sigma_x, rho, variance, variance) ** power
        root = rho_for_tau(
            tau_target ** (1.0 / power), n_tokens, d_model, sigma_x, variance, variance
        )
        values = tuple(float(star) for star in stars)
        records.append(TauStarRecord(name, sigma_x_sq, factor, squared, tuple(rho), values, root))
    return records


# Shared factors


def _width(name: str, value: Any) -> Array:
    return check_at_least(name, value, 0.0, strict=True)


def _scale(d_v: Any, tau: Any, **variances: Any) -> Array:
    """tau^2 d_v times the product of the named variances."""
    scale = check_finite("tau", tau) ** 2 * _width("d_v", d_v)
    for name, value in variances.items():
        scale = scale * check_at_least(name, value, 0.0)
    return scale


def _heads(d_model: Any, var_o: Any, n_heads: Any) -> Array:
    """n_heads E||W^O_i||^2 / d_head = n_heads var_o d_model."""
    heads = check_at_least("n_heads", n_heads, 1.0)
    return heads * check_at_least("var_o", var_o, 0.0) * _width("d_model", d_model)


def _gaussian(n_tokens: Any, d_model: Any, sigma_x: Any, rho: Any) -> tuple[Array, ...]:
    """Checked n, d, sigma_x^2, rho."""
    n = check_at_least("n_tokens", n_tokens, 2.0)
    sigma_sq = check_at_least("sigma_x", sigma_x, 0.0) ** 2
    return n, _width("d_model", d_model), sigma_sq, check_correlation("rho", rho, n)


def _mean_sq_norm(n: Array, d: Array, sigma_sq: Array, rho: Array) -> Array:
    """E[n ||xbar||^2] = d sigma_x^2 (1 + (n-1) rho)."""
    return d * sigma_sq * np.maximum(1.0 + (n - 1.0) * rho, 0.0)


def _bracket(n: Array, d: Array, rho: Array) -> Array:
    """1 + 4 (1-rho) / (n d): ||X||^2 and ||P X||^2 are dependent through ||P X||^2."""
    return 1.0 + 4.0 * (1.0 - rho) / (n * d)

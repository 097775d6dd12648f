"""Moments of random softmax attention, for Cowsik et al. 2024 (arXiv 2403.02579). Derived here.

Tokens of unit norm and pairwise correlation rho, logits a_ij = x_i^T M x_j / sqrt(d) with Gaussian
M: Cov(a_ij, a_kl) = sigma_A^2 C_ik C_jl. The part common to a row cancels in the softmax, so a row
A_i is the softmax of n iid N(0, v), v = sigma_A^2 (1 - rho), and two rows i != k are built from
logits of correlation rho in each column. Needed are

    S  = E sum_j A_ij^2                R  = E sum_j A_ij A_kj
    TQ = E sum_j A_ij^2 (1 - 2 A_ij + sum_l A_il^2)
    TR = E sum_j A_ij A_kj (1 - A_ij - A_kj + sum_l A_il A_kl)

(TQ = E |J_i|_F^2 and TR = E tr J_i J_k for the softmax Jacobians J, so both are positive.) With
1/Z^k = int t^(k-1) e^(-tZ) dt / (k-1)!, g, h ~ N(0, v) of correlation rho, and

    D_k(t) = E e^(kg) e^(-t e^g)       K_ab(t, s) = E e^(ag + bh) e^(-t e^g - s e^h)

    E sum A^k   = n int t^(k-1)/(k-1)! D_k D_0^(n-1) dt
    E A_1^2 A_2^2 = int t^3/6 D_2^2 D_0^(n-2) dt
    TQ = S - 2 E sum A^3 + E sum A^4 + n (n-1) E A_1^2 A_2^2
    R  = n II K_11 K_00^(n-1)                                              II = int int dt ds
    TR = R - 2 n II t K_21 K_00^(n-1) + n II ts K_22 K_00^(n-1) + n (n-1) II ts K_11^2 K_00^(n-2)

All integrals use the trapezoid rule, in log t and in the standardized logits: it converges
geometrically here. g and h are split as sqrt(v|rho|) c + sqrt(v(1-|rho|)) z with a shared c, so
that K_ab(t, s) = E_c L_a(t, c) L_b(s, +-c).

Arguments may be arrays that broadcast; results are float64. Invalid ones raise ValueError.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import ndtri

from sigprop.theory import chebyshev
from sigprop.theory.checks import (
    Array,
    ArrayLike,
    check_at_least,
    check_correlation,
    check_n_tokens,
)

# Trapezoid step in log t, and in logits; the error is of order exp(-pi^2 / SPACING).
SPACING = 0.33
# Half width of the Gaussian grids: the tail beyond it has mass 1e-15.
Z_MAX = 8.0
# Largest logit variance for which the exponentials stay in float64.
V_MAX = 150.0
# Allowed relative difference between steps of 1.5 and 1 times SPACING; the error of the finer one
# is about its power 1.5.
_CONVERGED = 1e-4
# Elements of the largest temporary array.
_CHUNK = 2**21


class SoftmaxMoments(NamedTuple):
    """S, R, TQ, TR of the module docstring, and A3 = E sum_j A_ij^3; arrays of one shape."""

    s: Array
    r: Array
    tq: Array
    tr: Array
    a3: Array


def softmax_moments(
    v: ArrayLike, rho: ArrayLike, n_tokens: ArrayLike, *, spacing: float = SPACING
) -> SoftmaxMoments:
    """Exact moments at logit variance 0 <= `v` <= 150, correlation `rho`, finite `n_tokens` >= 2.

    Relative accuracy about 1e-9; 2 to 20 ms for each distinct (v, rho, n), memoized. ValueError
    for values out of range and when the quadrature at `spacing` has not converged.
    """
    v = check_at_least("v", v, 0.0)
    if v.size and v.max() > V_MAX:
        raise ValueError(f"v = {v.max():g} is too large for the quadrature: pass v <= {V_MAX:g}")
    n = check_n_tokens(n_tokens)
    if np.isinf(n).any():
        raise ValueError("n_tokens = inf has all moments 0: pass finite n_tokens")
    rho = check_correlation("rho", rho, n)
    v, rho, n = np.broadcast_arrays(v, rho, n)
    triples, index = np.unique(
        np.stack([v.ravel(), rho.ravel(), n.ravel()]), axis=1, return_inverse=True
    )
    found = np.array([_moments(*triple, spacing) for triple in triples.T.tolist()])
    return SoftmaxMoments(*found[index.ravel()].T.reshape(5, *v.shape))


@dataclass(frozen=True, eq=False)
class SoftmaxCurves:
    """n (S, R, TQ, TR) as functions of rho at v = sigma_a^2 (1 - rho), for arrays of settings.

    The logarithms are interpolated once per distinct (sigma_a, n); relative error below 1e-8. The
    limits of n -> inf are (e^v, e^(rho v), e^v, e^(rho v)). Build with `softmax_curves`.
    """

    sigma_a: Array
    n_tokens: Array
    curves: chebyshev.Curves | None

    def __call__(self, rho: Array) -> Array:
        """(4, ...): n S, n R, n TQ, n TR at `rho`, whose shape (...) is that of the settings."""
        v = self.sigma_a**2 * (1.0 - rho)
        limit = np.exp(np.stack([v, rho * v, v, rho * v]))
        if self.curves is None:
            return limit
        return np.where(np.isinf(self.n_tokens), limit, np.exp(self.curves(rho)))


def softmax_curves(sigma_a: ArrayLike, n_tokens: ArrayLike) -> SoftmaxCurves:
    """`SoftmaxCurves` for settings of any shape; `n_tokens` may be inf."""
    sigma_a = check_at_least("sigma_a", sigma_a, 0.0, strict=True)
    n = check_n_tokens(n_tokens)
    sigma_a, n = np.broadcast_arrays(sigma_a, n)
    finite = np.isfinite(n)
    if not finite.any():
        return SoftmaxCurves(sigma_a, n, None)
    largest = np.sqrt(V_MAX * (1.0 - 1.0 / n[finite]))
    if (sigma_a[finite] > largest).any():
        raise ValueError(
            f"sigma_a = {sigma_a[finite].max():g} is too large for the quadrature: "
            f"pass sigma_a <= {largest.min():.3g}"
        )
    pairs, index = np.unique(
        np.stack([sigma_a.ravel(), np.where(finite, n, 2.0).ravel()]), axis=1, return_inverse=True
    )
    # Settings with n = inf take the limit; their entry here is only a placeholder.
    used = np.unique(index.ravel()[finite.ravel()])
    parts = [
        _curve(*pair) if i in used else np.zeros((1, 4)) for i, pair in enumerate(pairs.T.tolist())
    ]
    low = -1.0 / (np.where(finite, n, 2.0) - 1.0)
    return SoftmaxCurves(
        sigma_a, n, chebyshev.Curves.stack(parts, index.reshape(n.shape), low, 1.0)
    )


@lru_cache(maxsize=1024)
def _curve(sigma_a: float, n: float) -> Array:
    """Chebyshev coefficients in rho of log n (S, R, TQ, TR), shape (degree + 1, 4)."""

    def sample(rho: Array) -> Array:
        rows = [_moments(sigma_a**2 * (1.0 - r), r, n, SPACING)[:4] for r in rho.tolist()]
        return np.log(n * np.array(rows))

    return chebyshev.fit(sample, -1.0 / (n - 1.0), 1.0, tolerance=1e-9, floor=1.0, first_degree=8)


@lru_cache(maxsize=65536)
def _moments(v: float, rho: float, n: float, spacing: float) -> tuple[float, ...]:
    """(S, R, TQ, TR, A3) by quadrature at two resolutions, which must agree."""
    if v < 1e-9:  # uniform attention: the corrections are of relative order v
        return (1.0 / n, 1.0 / n, (1.0 - 1.0 / n) / n, (1.0 - 1.0 / n) / n, 1.0 / n**2)
    # One row is cheap, and TQ loses digits to cancellation: a finer step.
    fine = _one_row(v, n, 0.7 * spacing) | _two_rows(v, rho, n, spacing)
    coarse = _one_row(v, n, 1.05 * spacing) | _two_rows(v, rho, n, 1.5 * spacing)
    error = max(abs(fine[key] - coarse[key]) / abs(fine[key]) for key in fine)
    if not error <= _CONVERGED:
        raise ValueError(
            f"spacing = {spacing:g} leaves a relative quadrature error of {error:.1e} at v = {v:g},"
            f" rho = {rho:g}, n_tokens = {n:g}: pass spacing <= {SPACING:g}"
        )
    return tuple(fine[key] for key in ("s", "r", "tq", "tr", "a3"))


def _log_t(v: float, n: float, spacing: float) -> Array:
    """Nodes of log t that hold all but about 1e-13 of the integrals.

    Below the first, t Z < 1e-13 in the mean. Above the last, t Z > 35 but with probability 1e-15.
    """
    sd = np.sqrt(v)
    low = -30.0 - np.log(n) - min(0.5 * v, Z_MAX * sd)
    high = np.log(35.0) - sd * ndtri(1e-15 ** (1.0 / n))
    return low + spacing * np.arange(np.ceil((high - low) / spacing) + 1)


def _gaussian(sd: float, spacing: float) -> tuple[Array, Array]:
    """Nodes sd * z and weights of N(0, sd^2); z is spaced to resolve exp(-t e^(sd z))."""
    half = int(np.ceil(Z_MAX / min(1.2 * spacing, spacing / sd if sd > 0.0 else np.inf)))
    z = Z_MAX * np.arange(-half, half + 1) / half
    weights = np.exp(-0.5 * z**2)
    return sd * z, weights / weights.sum()


def _laplace(x: Array, g: Array, weights: Array) -> Array:
    """E e^(kg) e^(-e^(x + g)) for k = 0, 1, 2: (3, x), from nodes g (z,) and weights (z,)."""
    tilts = weights * np.exp(np.arange(3)[:, None] * g)  # (k, z)
    rows = max(1, _CHUNK // g.size)
    parts = [
        np.exp(-np.exp(x[start : start + rows, None] + g)) @ tilts.T  # (x, z), (z, k) -> (x, k)
        for start in range(0, len(x), rows)
    ]
    return np.concatenate(parts).T


def _given_shared(v: float, rho: float, log_t: Array, spacing: float) -> tuple[Array, Array]:
    """L_k(t, c) = E_z e^(kg) e^(-t e^g), g = c + sqrt(v(1-|rho|)) z: (3, t, c), and weights (c,).

    L_k(t, c) = e^(kc) F_k(log t + c): with nodes c on the grid of log t, F_k is needed once for
    every sum of nodes, not for every pair.
    """
    sd = np.sqrt(v * abs(rho))
    own, weights_own = _gaussian(np.sqrt(v * (1.0 - abs(rho))), spacing)
    if sd < 0.3:  # smooth in c on the scale of sd: Gauss-Hermite
        z, weights = np.polynomial.hermite_e.hermegauss(16)
        c, weights = sd * z, weights / weights.sum()
        f = _laplace((log_t[:, None] + c).ravel(), own, weights_own).reshape(3, len(log_t), len(c))
    else:
        refine = int(np.ceil(1.0 / (1.2 * sd)))
        step = spacing / refine
        half = int(np.ceil(Z_MAX * sd / step))
        c = step * np.arange(-half, half + 1)
        weights = np.exp(-0.5 * (c / sd) ** 2)
        weights /= weights.sum()
        x = log_t[0] + step * np.arange(-half, refine * (len(log_t) - 1) + half + 1)
        sums = sliding_window_view(_laplace(x, own, weights_own), len(c), axis=1)
        f = sums[:, ::refine]  # (3, t, c)
    return f * np.exp(np.arange(3)[:, None, None] * c), weights


def _one_row(v: float, n: float, spacing: float) -> dict[str, float]:
    """S, A3 = E sum A^3, and TQ."""
    log_t = _log_t(v, n, spacing)
    t = np.exp(log_t)
    g, weights = _gaussian(np.sqrt(v), spacing)
    decay = np.exp(-np.exp(log_t[:, None] + g))  # (t, z)
    d = decay @ (weights * np.exp(np.arange(5)[:, None] * g)).T  # (t, k): D_k
    rest = d[:, 0] ** (n - 1.0)
    # dt = t dlog t
    power = {
        k: n * spacing * float(np.sum(t**k / factorial * d[:, k] * rest))
        for k, factorial in ((2, 1.0), (3, 2.0), (4, 6.0))
    }
    pair = spacing * float(np.sum(t**4 / 6.0 * d[:, 2] ** 2 * d[:, 0] ** (n - 2.0)))
    tq = power[2] - 2.0 * power[3] + power[4] + n * (n - 1.0) * pair
    return {"s": power[2], "a3": power[3], "tq": tq}


def _two_rows(v: float, rho: float, n: float, spacing: float) -> dict[str, float]:
    """R and TR."""
    log_t = _log_t(v, n, spacing)
    t = np.exp(log_t)
    left, weights = _given_shared(v, rho, log_t, spacing)  # (k, t, c): L_k
    right = (
        left if rho >= 0.0 else left[:, :, ::-1]
    )  # the shared part enters h with the sign of rho

    def k(a: int, b: int) -> Array:
        """K_ab, (t, s)."""
        return np.asarray((left[a] * weights) @ right[b].T)

    # dt ds = t s dlog t dlog s
    ts = np.outer(t, t)
    k00, k11 = k(0, 0), k(1, 1)
    rest = k00 ** (n - 1.0) * ts
    pairs = ts * k11**2 * k00 ** (n - 2.0) * ts
    square = spacing**2
    r = n * square * float(np.sum(k11 * rest))
    mixed = n * square * float(np.sum(t[:, None] * k(2, 1) * rest))
    same = n * square * float(np.sum(ts * k(2, 2) * rest))
    tr = r - 2.0 * mixed + same + n * (n - 1.0) * square * float(np.sum(pairs))
    return {"r": r, "tr": tr}


# Entropy, and the leading forms at many tokens


def row_entropy(v: ArrayLike, n_tokens: ArrayLike, *, spacing: float = SPACING) -> Array:
    """E H(A_i) = E log Z - v (1 - S), in nats, E log Z = int (e^(-t) - D_0(t)^n) / t dt.

    Exact at finite n; ln n - v/2 for many tokens and v < 2 ln n.
    """
    s = softmax_moments(v, 0.0, n_tokens, spacing=spacing).s
    v, n = np.broadcast_arrays(check_at_least("v", v, 0.0), check_n_tokens(n_tokens))
    values = [_mean_log_z(*pair, spacing) for pair in zip(v.flat, n.flat, strict=True)]
    return np.reshape(values, v.shape) - v * (1.0 - s)


def _mean_log_z(v: float, n: float, spacing: float) -> float:
    low, high = _log_t(v, n, spacing)[[0, -1]]
    log_t = np.arange(low, max(high, np.log(40.0)) + spacing, spacing)
    g, weights = _gaussian(np.sqrt(v), spacing)
    d0 = np.exp(-np.exp(log_t[:, None] + g)) @ weights
    return float(spacing * np.sum(np.exp(-np.exp(log_t)) - d0**n))


def many_token_moments(v: ArrayLike, rho: ArrayLike, n_tokens: ArrayLike) -> tuple[Array, Array]:
    """(S, R) = (e^v / n, e^(rho v) / n) to leading order in 1/n; 17 % low at n = 32, v = 1."""
    v, n = check_at_least("v", v, 0.0), check_n_tokens(n_tokens)
    rho = check_correlation("rho", rho, n)
    return np.exp(v) / n, np.exp(rho * v) / n


def random_energy_s(beta: ArrayLike, rho: ArrayLike = 0.0) -> Array:
    """lim S at sigma_A^2 = beta^2 ln n, n -> inf: max(0, 1 - beta_c/beta), beta_c^2 = 2 / (1-rho).

    R tends to 0. The random energy model; convergence is only as 1 / ln n.
    """
    beta = check_at_least("beta", beta, 0.0, strict=True)
    rho = check_correlation("rho", rho, np.asarray(np.inf))
    with np.errstate(divide="ignore"):
        beta_c = np.sqrt(2.0 / (1.0 - rho))
    return np.maximum(0.0, 1.0 - beta_c / beta)

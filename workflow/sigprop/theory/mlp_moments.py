"""Gaussian moments of one MLP layer, for Cowsik et al. 2024 (arXiv 2403.02579).

With (u, w) standard Gaussians of correlation rho and activation phi:

    V2(rho) = E phi(sigma u) phi(sigma w)        D2(rho) = E phi'(sigma u) phi'(sigma w)

    V2(1) - V2(rho) = 1/2 E [phi(sigma u) - phi(sigma w)]^2             (the gap)
    d V2 / d rho    = sigma^2 D2(rho)                                   (Price's theorem)

linear, relu and erf have closed forms. tanh and gelu use the trapezoid rule on u = a x + b y,
w = a x - b y, a^2 = (1 + rho)/2, b^2 = (1 - rho)/2. It converges geometrically for analytic phi;
Gauss-Hermite does not resolve tanh(sigma u) at sigma of 2 and more.

Arguments may be arrays that broadcast; results are float64. Invalid ones raise ValueError.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from scipy.special import erf, ndtr

from sigprop.theory import chebyshev
from sigprop.theory.checks import Array, ArrayLike, check_at_least, check_choice, check_finite

Activation = Literal["tanh", "relu", "linear", "erf", "gelu"]

# Trapezoid step in units of 1/max(sigma, 1): the error is about 1e5 exp(-pi^2 / SPACING) = 7e-13
SPACING = 0.25
# Half width of the Gaussian grid: the tail beyond it has mass 2e-17.
Z_MAX = 8.5
# Two-dimensional grids above this are slow and never needed (critical sigma_w is of order 2).
SIGMA_MAX = 50.0
SIGMA_MAX_AT_ONE = 1e4
# Below this sigma^4, which enters the exponents, is not a normal number of float64.
SIGMA_MIN = 1e-70
# Allowed difference between steps of 1.5 and 1 times SPACING, relative to the larger of V2, D2.
_CONVERGED = 1e-6


def _tanh(u: Array) -> tuple[Array, Array]:
    phi = np.tanh(u)
    return phi, 1.0 - phi**2


def _gelu(u: Array) -> tuple[Array, Array]:
    cdf = ndtr(u)
    return u * cdf, cdf + u * np.exp(-0.5 * u**2) / np.sqrt(2.0 * np.pi)


def _erf(u: Array) -> tuple[Array, Array]:
    return erf(u), 2.0 / np.sqrt(np.pi) * np.exp(-(u**2))


# u -> (phi(u), phi'(u)) of the activations that quadrature serves; erf is here to test it.
_QUADRATURE: dict[str, Callable[[Array], tuple[Array, Array]]] = {
    "tanh": _tanh,
    "gelu": _gelu,
    "erf": _erf,
}
_ODD = ("tanh", "erf")


def mlp_moments(
    sigma: ArrayLike,
    rho: ArrayLike = 1.0,
    activation: Activation = "tanh",
    *,
    spacing: float = SPACING,
) -> tuple[Array, Array]:
    """(V2(rho), D2(rho)), each of the broadcast shape of `sigma` > 0 and -1 <= `rho` <= 1.

    ValueError for values out of range and when the quadrature at `spacing` has not converged.
    """
    sigma, rho = _check(sigma, rho, activation)
    sigma, rho = np.broadcast_arrays(sigma, rho)
    if activation in ("linear", "relu", "erf"):
        v2_one, d2_one = _closed_form_at_one(sigma, activation)
        slope, d2 = _closed_form(sigma, 1.0 - rho, activation)
        return v2_one - (1.0 - rho) * slope, np.where(rho == 1.0, d2_one, d2)
    _check_size(sigma, SIGMA_MAX_AT_ONE, activation)
    _check_size(sigma[rho != 1.0], SIGMA_MAX, activation)
    pairs, index = np.unique(np.stack([sigma.ravel(), rho.ravel()]), axis=1, return_inverse=True)
    found = np.array([_v2_d2(s, r, activation, spacing) for s, r in pairs.T.tolist()])
    v2, d2 = found[index.ravel()].T.reshape(2, *sigma.shape)
    return v2, d2


def moments_at_one(
    sigma: ArrayLike, activation: Activation = "tanh", *, spacing: float = SPACING
) -> tuple[Array, Array]:
    """(V2(1), D2(1)) = (E phi(sigma u)^2, E phi'(sigma u)^2), of the shape of `sigma`."""
    return mlp_moments(sigma, 1.0, activation, spacing=spacing)


@dataclass(frozen=True, eq=False)
class MlpCurves:
    """V2 and D2 as functions of 1 - rho, for an array `sigma` of settings, fast to evaluate.

    tanh and gelu are interpolated in arccos rho once per distinct sigma; the interpolation error of
    both results is below 1e-9 relative to their largest value. Build with `mlp_curves`.
    """

    sigma: Array
    activation: Activation
    curves: chebyshev.Curves | None

    def __call__(self, one_minus_rho: Array) -> tuple[Array, Array]:
        """((V2(1) - V2(rho)) / (1 - rho), D2(rho)); the first is sigma^2 D2(1) at rho = 1.

        The quotient keeps its relative precision however small 1 - rho is.
        """
        if self.curves is None:
            return _closed_form(self.sigma, one_minus_rho, self.activation)
        slope, d2 = self.curves(_angle(one_minus_rho))
        return slope, d2


def mlp_curves(
    sigma: ArrayLike, activation: Activation = "tanh", *, name: str = "sigma"
) -> MlpCurves:
    """`MlpCurves` for settings `sigma` > 0 of any shape; `sigma` at most 50 for tanh and gelu.

    `name` is what messages call `sigma`.
    """
    sigma, _ = _check(sigma, 1.0, activation, name)
    if activation in ("linear", "relu", "erf"):
        return MlpCurves(sigma, activation, None)
    _check_size(sigma, SIGMA_MAX, activation, name)
    values, index = np.unique(sigma, return_inverse=True)
    parts = [_curve(value, activation) for value in values.tolist()]
    return MlpCurves(
        sigma, activation, chebyshev.Curves.stack(parts, index.reshape(sigma.shape), 0.0, np.pi)
    )


def _angle(one_minus_rho: Array) -> Array:
    """arccos rho, precise at rho = 1."""
    return np.asarray(2.0 * np.arcsin(np.sqrt(np.clip(0.5 * one_minus_rho, 0.0, 1.0))))


@lru_cache(maxsize=4096)
def _curve(sigma: float, activation: Activation) -> Array:
    """Chebyshev coefficients in arccos rho of [gap / (1 - rho), D2], shape (degree + 1, 2).

    The angle, because rho = 1 is a singular point of V2 that grows sharper with sigma.
    """

    def sample(angle: Array) -> Array:
        rho = np.where(angle < 1e-6, 1.0, np.cos(angle))
        return np.array([_slope_d2(sigma, r, activation) for r in rho.tolist()])

    return chebyshev.fit(sample, 0.0, np.pi)


@lru_cache(maxsize=65536)
def _slope_d2(sigma: float, rho: float, activation: Activation) -> tuple[float, float]:
    """(gap / (1 - rho), D2) at one rho."""
    if rho == 1.0:
        d2 = _quadrature_at_one(sigma, activation, SPACING)[1]
        return sigma**2 * d2, d2
    _, gap, d2 = _quadrature(sigma, rho, activation, SPACING)
    return gap / (1.0 - rho), d2


@lru_cache(maxsize=65536)
def _v2_d2(sigma: float, rho: float, activation: Activation, spacing: float) -> tuple[float, float]:
    """(V2, D2) by quadrature at two resolutions, which must agree."""

    def evaluate(step: float) -> tuple[float, float]:
        if rho == 1.0:
            return _quadrature_at_one(sigma, activation, step)
        v2, _, d2 = _quadrature(sigma, rho, activation, step)
        return v2, d2

    fine, coarse = np.array(evaluate(spacing)), np.array(evaluate(1.5 * spacing))
    difference = np.abs(fine - coarse).max() / np.abs(fine).max()
    if not difference <= _CONVERGED:
        raise ValueError(
            f"spacing = {spacing:g} leaves a relative quadrature error of {difference:.1e} "
            f"at sigma = {sigma:g}, rho = {rho:g}: pass spacing <= {SPACING:g}"
        )
    return float(fine[0]), float(fine[1])


def _axis(sigma: float, spacing: float) -> tuple[Array, Array]:
    """Trapezoid nodes and Gaussian weights on [-Z_MAX, Z_MAX]; 0 is a node."""
    half = int(np.ceil(Z_MAX * max(sigma, 1.0) / spacing))
    z = Z_MAX * np.arange(-half, half + 1) / half
    weights = np.exp(-0.5 * z**2)
    return z, weights / weights.sum()


def _quadrature_at_one(sigma: float, activation: Activation, spacing: float) -> tuple[float, float]:
    """(E phi(sigma u)^2, E phi'(sigma u)^2)."""
    z, weights = _axis(sigma, spacing)
    phi, slope = _QUADRATURE[activation](sigma * z)
    return float(weights @ phi**2), float(weights @ slope**2)


def _quadrature(
    sigma: float, rho: float, activation: Activation, spacing: float
) -> tuple[float, float, float]:
    """(V2(rho), V2(1) - V2(rho), D2(rho)).

    All three integrands are even in y, and in x for odd phi: half or a quarter of the plane is
    enough.
    """
    x, weights_x = _axis(sigma, spacing)
    y, weights_y = _half(x, weights_x)
    if activation in _ODD:
        x, weights_x = y, weights_y
    shared = sigma * np.sqrt(0.5 * (1.0 + rho)) * x[:, None]  # (x, 1)
    own = sigma * np.sqrt(0.5 * (1.0 - rho)) * y  # (y,)
    phi_u, slope_u = _QUADRATURE[activation](shared + own)  # (x, y)
    phi_w, slope_w = _QUADRATURE[activation](shared - own)
    v2 = weights_x @ (phi_u * phi_w) @ weights_y
    gap = 0.5 * weights_x @ (phi_u - phi_w) ** 2 @ weights_y
    d2 = weights_x @ (slope_u * slope_w) @ weights_y
    return float(v2), float(gap), float(d2)


def _half(z: Array, weights: Array) -> tuple[Array, Array]:
    """The part z >= 0 of a symmetric rule, for even integrands."""
    middle = len(z) // 2
    return z[middle:], np.append(weights[middle], 2.0 * weights[middle + 1 :])


def _closed_form_at_one(sigma: Array, activation: Activation) -> tuple[Array, Array]:
    """(V2(1), D2(1)) of linear, relu and erf."""
    if activation == "linear":
        return sigma**2, np.ones_like(sigma)
    if activation == "relu":
        return 0.5 * sigma**2, np.full_like(sigma, 0.5)
    c = 2.0 * sigma**2
    v2 = 2.0 / np.pi * np.arcsin(c / (1.0 + c))
    return v2, 4.0 / np.pi / np.sqrt(1.0 + 2.0 * c)


def _closed_form(sigma: Array, one_minus_rho: Array, activation: Activation) -> tuple[Array, Array]:
    """(gap / (1 - rho), D2) of linear, relu and erf, without cancellation at rho = 1.

    relu, theta = arccos rho: V2 = sigma^2 [sin theta + (pi - theta) cos theta] / (2 pi),
    D2 = (pi - theta) / (2 pi).
    erf: V2 = (2/pi) arcsin(c rho / (1 + c)), c = 2 sigma^2; D2 = (4/pi) / sqrt((1+c)^2 - c^2 rho^2)
    """
    sigma, delta = np.broadcast_arrays(sigma, np.asarray(one_minus_rho, dtype=np.float64))
    if activation == "linear":
        return sigma**2, np.ones_like(sigma)
    if activation == "relu":
        theta = _angle(delta)
        # (sin theta - theta cos theta) / (1 - cos theta); series below 0.02, error 1e-12
        small = 2.0 * theta / 3.0 * (1.0 - theta**2 / 60.0 - theta**4 / 8400.0)
        safe = np.where(theta > 0.02, theta, 1.0)
        cosine = np.cos(safe)
        large = (np.sin(safe) - safe * cosine) / (1.0 - cosine)
        kink = np.where(theta > 0.02, large, small)
        return sigma**2 * (np.pi - kink) / (2.0 * np.pi), (np.pi - theta) / (2.0 * np.pi)
    c = 2.0 * sigma**2
    # arcsin p - arcsin q = arcsin(p sqrt(1-q^2) - q sqrt(1-p^2)), p = c/(1+c), q = p rho
    p = c / (1.0 + c)
    q = p * (1.0 - delta)
    root_p, root_q = np.sqrt(1.0 + 2.0 * c) / (1.0 + c), np.sqrt(1.0 - q**2)
    # the difference of products, divided by 1 - rho: numerator p^2 (1 - rho)(1 + rho) and
    # p root_q - q root_p = (p^2 - q^2) / (p root_q + q root_p); rho < 0 has no cancellation
    positive = p**2 * (2.0 - delta) / np.where(delta < 1.0, p * root_q + q * root_p, 1.0)
    direct = (np.arcsin(p) - np.arcsin(q)) / np.where(delta > 0.5, delta, 1.0)
    angle = np.arcsin(np.clip(positive * delta, 0.0, 1.0)) / np.where(delta > 0.0, delta, 1.0)
    near = np.where(delta > 0.0, angle, positive)
    gap = 2.0 / np.pi * np.where(delta > 0.5, direct, near)
    return gap, 4.0 / np.pi / np.sqrt((1.0 + c) ** 2 - (c * (1.0 - delta)) ** 2)


def _check(sigma: Any, rho: Any, activation: str, name: str = "sigma") -> tuple[Array, Array]:
    check_choice("activation", activation, get_args(Activation))
    sigma = check_at_least(name, sigma, 0.0, strict=True)
    if sigma.size and sigma.min() < SIGMA_MIN:
        raise ValueError(
            f"{name} = {sigma.min():g} is too small for float64: pass {name} >= {SIGMA_MIN:g}"
        )
    rho = check_finite("rho", rho)
    outside = np.abs(rho) > 1.0
    if outside.any():
        raise ValueError(f"rho = {rho[outside].flat[0]:g} is out of range: pass -1 <= rho <= 1")
    return sigma, rho


def _check_size(sigma: Array, largest: float, activation: str, name: str = "sigma") -> None:
    if sigma.size and sigma.max() > largest:
        raise ValueError(
            f"{name} = {sigma.max():g} is too large for the quadrature of {activation}: "
            f"pass {name} <= {largest:g}"
        )

"""Gaussian moments of the MLP against adaptive quadrature, closed forms and Monte Carlo."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.integrate import dblquad, quad
from scipy.special import ndtr

from sigprop.theory import chebyshev
from sigprop.theory.mlp_moments import (
    _QUADRATURE,
    _quadrature,
    _quadrature_at_one,
    mlp_curves,
    mlp_moments,
    moments_at_one,
)

PHI = {
    "tanh": (np.tanh, lambda u: 1.0 / np.cosh(u) ** 2),
    "relu": (lambda u: np.maximum(u, 0.0), lambda u: (u > 0.0) * 1.0),
    "linear": (lambda u: u, np.ones_like),
    "gelu": (
        lambda u: u * ndtr(u),
        lambda u: ndtr(u) + u * np.exp(-(u**2) / 2) / np.sqrt(2 * np.pi),
    ),
}


def density(z):
    return np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)


@pytest.mark.parametrize(
    ("sigma", "v2", "d2"),
    [(1.0, 0.394294, 0.464403), (2.0, 0.635261, 0.255950), (4.0, 0.805399, 0.131664)],
)
def test_golden_values_at_one(sigma, v2, d2):
    assert_allclose(moments_at_one(sigma), (v2, d2), atol=1e-6)


def test_golden_value_between():
    assert_allclose(mlp_moments(2.0, 0.5), (0.274638, 0.146695), atol=1e-6)


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.7, 12.0])
def test_at_one_against_adaptive_quadrature(activation, sigma):
    expected = [
        2 * quad(lambda z, f=f: 0.5 * density(z) * (f(sigma * z) ** 2 + f(-sigma * z) ** 2), 0, 9,
                 epsabs=1e-13, limit=400, points=[0.1, 0.5, 1.0])[0]
        for f in PHI[activation]
    ]  # fmt: skip
    assert_allclose(moments_at_one(sigma, activation), expected, rtol=2e-10)


@pytest.mark.parametrize(("activation", "sigma", "rho"), [("tanh", 1.5, -0.4), ("gelu", 1.2, 0.7)])
def test_between_against_adaptive_quadrature(activation, sigma, rho):
    c = np.sqrt(1.0 - rho**2)
    expected = [
        dblquad(
            lambda w, u, f=f: density(u) * density(w) * f(sigma * u) * f(sigma * (rho * u + c * w)),
            -8, 8, -8, 8, epsabs=1e-9,
        )[0]
        for f in PHI[activation]
    ]  # fmt: skip
    assert_allclose(mlp_moments(sigma, rho, activation), expected, atol=1e-8)


@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu"])
def test_against_monte_carlo(activation):
    sigma, rho, n = 2.2, 0.35, 400_000
    u, e = np.random.default_rng(1).standard_normal((2, n))
    w = rho * u + np.sqrt(1.0 - rho**2) * e
    for f, value in zip(PHI[activation], mlp_moments(sigma, rho, activation), strict=True):
        samples = f(sigma * u) * f(sigma * w)
        se = samples.std() / np.sqrt(n)
        assert se <= 0.005 * max(1.0, value)
        assert abs(samples.mean() - value) <= 3.5 * se


@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("rho", [-1.0, -0.6, 0.0, 0.5, 0.999])
def test_quadrature_against_the_closed_form_of_erf(sigma, rho):
    v2, gap, d2 = _quadrature(sigma, rho, "erf", 0.25)
    expected_v2, expected_d2 = mlp_moments(sigma, rho, "erf")
    assert_allclose((v2, d2), (expected_v2, expected_d2), atol=1e-10)
    slope, _ = mlp_curves(sigma, "erf")(np.asarray(1.0 - rho))
    assert_allclose(gap, slope * (1.0 - rho), rtol=1e-9)
    assert_allclose(_quadrature_at_one(sigma, "erf", 0.25), moments_at_one(sigma, "erf"), rtol=1e-9)


@pytest.mark.parametrize("activation", sorted(_QUADRATURE))
def test_slopes_are_the_derivatives(activation):
    u, h = np.linspace(-4, 4, 33), 1e-5
    phi, slope = _QUADRATURE[activation](u)
    difference = (_QUADRATURE[activation](u + h)[0] - _QUADRATURE[activation](u - h)[0]) / (2 * h)
    assert_allclose(slope, difference, atol=1e-9)
    assert phi.shape == u.shape


@pytest.mark.parametrize("activation", ["tanh", "relu", "linear", "erf", "gelu"])
@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_price_theorem(activation, sigma):
    """dV2/drho = sigma^2 D2, by central differences of V2."""
    rho, h = np.array([-0.7, -0.2, 0.3, 0.8]), 1e-5
    up, down = (mlp_moments(sigma, rho + x, activation)[0] for x in (h, -h))
    slope = (up - down) / (2 * h)
    assert_allclose(slope, sigma**2 * mlp_moments(sigma, rho, activation)[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("activation", ["tanh", "relu", "linear", "erf", "gelu"])
def test_curves_equal_direct_quadrature(activation):
    rng = np.random.default_rng(2)
    sigma = np.array([0.3, 1.0, 2.5, 4.0, 7.0])
    curves = mlp_curves(sigma, activation)
    for _ in range(4):
        rho = rng.uniform(-1.0, 1.0, sigma.shape)
        slope, d2 = curves(1.0 - rho)
        v2, expected = mlp_moments(sigma, rho, activation)
        scale = moments_at_one(sigma, activation)[0]
        assert_allclose(slope * (1.0 - rho) / scale, (scale - v2) / scale, atol=2e-9)
        assert_allclose(d2, expected, rtol=2e-8, atol=1e-10)


@pytest.mark.parametrize("activation", ["tanh", "relu", "linear", "erf", "gelu"])
def test_curves_keep_digits_near_collapse(activation):
    """gap / (1 - rho) -> sigma^2 D2(1); relu approaches it as the angle, sqrt(2 (1 - rho))."""
    sigma = 1.7
    limit = sigma**2 * moments_at_one(sigma, activation)[1]
    delta = np.array([0.0, 1e-30, 1e-16, 1e-10])
    slope, _ = mlp_curves(np.full(4, sigma), activation)(delta)
    kink = 2 / (3 * np.pi) * np.sqrt(2 * delta) if activation == "relu" else 0.0
    assert_allclose(slope, limit * (1.0 - kink), rtol=2e-9)


def test_relu_near_collapse_is_smooth_across_the_series():
    theta = np.array([0.0199999, 0.0200001])
    slope, _ = mlp_curves(np.ones(2), "relu")(2.0 * np.sin(theta / 2.0) ** 2)
    assert abs(np.diff(slope)[0]) < 1e-7


@settings(max_examples=60)
@given(sigma=st.floats(0.05, 20.0), activation=st.sampled_from(["tanh", "erf", "linear"]))
def test_poincare_inequality_for_odd_activations(sigma, activation):
    """Var phi(sigma u) <= sigma^2 E phi'^2, and E phi = 0: G >= B."""
    v2, d2 = moments_at_one(sigma, activation)
    assert sigma**2 * d2 >= v2 * (1.0 - 1e-12)


@settings(max_examples=30)
@given(sigma=st.floats(0.1, 6.0), rho=st.floats(-1.0, 1.0))
def test_bounds_and_oddness(sigma, rho):
    """V2 is odd in rho for tanh, |V2(rho)| <= |rho| V2(1) and D2(rho) <= D2(1)."""
    v2, d2 = mlp_moments(sigma, [rho, -rho, 1.0])
    assert_allclose(v2[0], -v2[1], atol=1e-12)
    assert abs(v2[0]) <= abs(rho) * v2[2] + 1e-12
    assert d2[0] <= d2[2] + 1e-12


def test_shapes_broadcast():
    v2, d2 = mlp_moments(np.ones((3, 1)), np.zeros(4))
    assert v2.shape == d2.shape == (3, 4)
    assert_allclose(v2, 0.0, atol=1e-14)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mlp_moments(0.0), r"sigma = 0 is out of range: pass sigma > 0"),
        (lambda: mlp_moments(1.0, 1.5), r"rho = 1.5 is out of range: pass -1 <= rho <= 1"),
        (lambda: mlp_moments(1.0, 0.0, "swish"), r"activation = 'swish' is unknown: pass one of"),
        (lambda: mlp_moments(2.0, 1.0, spacing=1.5), r"spacing = 1.5 leaves .* pass spacing <="),
        (lambda: mlp_moments(80.0, 0.5), r"sigma = 80 is too large .* pass sigma <= 50"),
        (lambda: mlp_moments(1e5), r"sigma = 100000 is too large .* pass sigma <= 10000"),
        (lambda: mlp_curves(80.0), r"sigma = 80 is too large .* pass sigma <= 50"),
        (
            lambda: chebyshev.fit(lambda x: np.abs(x)[:, None], -1.0, 1.2, last_degree=64),
            r"interpolation error .* at degree 64 is above",
        ),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)

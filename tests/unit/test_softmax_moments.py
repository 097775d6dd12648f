"""Moments of random softmax attention against Monte Carlo, expansions and exact identities."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad

from sigprop.theory.softmax_moments import (
    many_token_moments,
    random_energy_s,
    row_entropy,
    softmax_curves,
    softmax_moments,
)

MAX_Z = 4.0


def softmax(a):
    e = np.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def random_rows(v, rho, n, count, seed):
    """Two softmax rows (count, n) each, logits N(0, v) of correlation rho in every column."""
    first, other = np.sqrt(v) * np.random.default_rng(seed).standard_normal((2, count, n))
    return softmax(first), softmax(rho * first + np.sqrt(1.0 - rho**2) * other)


@pytest.mark.parametrize(
    ("v", "rho", "expected", "tolerance"),
    [
        (0.5, 0.5, (0.049436, 0.039380, 0.044548, 0.036132, 0.003708), 1e-5),
        (3.2, 0.2, (0.19014, 0.04733, 0.09455, 0.02940, 0.07335), 1e-4),
    ],
)
def test_golden_values(v, rho, expected, tolerance):
    assert_allclose(softmax_moments(v, rho, 32), expected, atol=tolerance)


@pytest.mark.parametrize(
    ("v", "rho", "n"),
    [
        (0.5, 0.5, 32),
        (3.2, 0.2, 32),
        (9.0, 0.6, 8),
        (1.0, -0.8, 2),
        (2.0, -0.3, 4),
        (16.0, 0.0, 12),
    ],
)
def test_against_monte_carlo(v, rho, n):
    a, b = random_rows(v, rho, n, 100_000, seed=n)
    s, r = (a * a).sum(1), (a * b).sum(1)
    samples = {
        "s": s,
        "r": r,
        "tq": (a**2 * (1 - 2 * a)).sum(1) + s**2,
        "tr": (a * b * (1 - a - b)).sum(1) + r**2,
        "a3": (a**3).sum(1),
    }
    found = softmax_moments(v, rho, n)._asdict()
    for name, sample in samples.items():
        se = sample.std() / np.sqrt(len(sample))
        assert se <= 0.01 * sample.mean()
        assert abs(sample.mean() - found[name]) <= MAX_Z * se, name


def test_tokens_in_the_forward_direction():
    """Logits x_i^T M x_j / sqrt(d) of tokens with Gram matrix C: the reduction to iid rows."""
    n, d, rho, sigma_a, count = 6, 24, 0.4, 2.0, 40_000
    gram = rho + (1.0 - rho) * np.eye(n)
    x = np.sqrt(d) * np.linalg.cholesky(gram) @ np.eye(n, d)  # |x_i|^2 = d
    m = np.random.default_rng(3).standard_normal((count, d, d)) * sigma_a / np.sqrt(d)
    a = softmax(x @ m @ x.T / np.sqrt(d))  # (count, n, n)
    square = np.einsum("cij,ckj->cik", a, a)
    s = np.einsum("cii->c", square) / n
    r = (square.sum((1, 2)) - n * s) / (n * (n - 1))
    found = softmax_moments(sigma_a**2 * (1.0 - rho), rho, n)
    for sample, value in ((s, found.s), (r, found.r)):
        se = sample.std() / np.sqrt(count)
        assert se <= 0.005 * value
        assert abs(sample.mean() - value) <= MAX_Z * se


@pytest.mark.parametrize(("v", "n"), [(0.3, 2), (2.0, 8), (12.0, 64), (60.0, 16)])
def test_identities_between_rows(v, n):
    """rho = 0: independent rows, R = 1/n; rho = 1: the same row, R = S and TR = TQ."""
    independent, same = softmax_moments(v, 0.0, n), softmax_moments(v, 1.0, n)
    assert_allclose(independent.r, 1.0 / n, rtol=1e-9)
    assert_allclose((same.r, same.tr), (same.s, same.tq), rtol=1e-8)


def test_two_tokens_opposite_rows():
    """n = 2, rho = -1: the second row is the first one swapped, so R = 1 - S and TR = TQ."""
    found = softmax_moments(1.3, -1.0, 2)
    assert_allclose((found.r, found.tr), (1.0 - found.s, found.tq), rtol=1e-9)


def test_two_tokens_by_one_dimensional_quadrature():
    """n = 2: A_1 is the logistic function of one Gaussian of variance 2 v."""
    v = 2.5

    def mean(f):
        def integrand(z):
            a = 1.0 / (1.0 + np.exp(-np.sqrt(2 * v) * z))
            return f(a) * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)

        return quad(integrand, -10, 10, epsabs=1e-13)[0]

    found = softmax_moments(v, 0.0, 2)
    assert_allclose(found.s, mean(lambda a: a**2 + (1 - a) ** 2), rtol=1e-9)
    assert_allclose(found.a3, mean(lambda a: a**3 + (1 - a) ** 3), rtol=1e-9)
    assert_allclose(found.tq, mean(lambda a: 4 * (a * (1 - a)) ** 2), rtol=1e-9)
    assert_allclose(found.tr, 4 * mean(lambda a: a * (1 - a)) ** 2, rtol=1e-9)


def test_small_variance_expansion():
    """A_j = (1 + g_j - mean g) / n + O(v): S = (1 + v (1 - 1/n)) / n, R the same with rho v."""
    v, rho, n = 1e-4, 0.3, 10
    found = softmax_moments(v, rho, n)
    assert_allclose(found.s * n - 1.0, v * (1 - 1 / n), rtol=1e-3)
    assert_allclose(found.r * n - 1.0, rho * v * (1 - 1 / n), rtol=1e-3)
    assert_allclose(softmax_moments(1e-10, rho, n).tq, (1 - 1 / n) / n, rtol=1e-12)


@pytest.mark.parametrize(("sigma_a", "n"), [(0.5, 2), (1.0, 32), (3.0, 32), (2.0, 1024)])
def test_curves_equal_direct_quadrature(sigma_a, n):
    rho = np.random.default_rng(4).uniform(-1.0 / (n - 1), 1.0, 6)
    found = softmax_curves(np.full(6, sigma_a), n)(rho) / n
    expected = softmax_moments(sigma_a**2 * (1.0 - rho), rho, n)
    assert_allclose(found, np.array(expected[:4]), rtol=1e-8)


def test_curves_of_mixed_settings():
    sigma_a, n = np.array([[0.5], [1.5]]), np.array([4.0, 32.0, np.inf])
    rho = np.full((2, 3), 0.25)
    found = softmax_curves(sigma_a, n)(rho)
    assert found.shape == (4, 2, 3)
    for i, j in ((0, 0), (1, 0), (1, 1)):
        expected = softmax_moments(0.75 * sigma_a[i, 0] ** 2, 0.25, n[j])
        assert_allclose(found[:, i, j], n[j] * np.array(expected[:4]), rtol=1e-8)
    v = 0.75 * 1.5**2
    assert_allclose(found[:, 1, 2], np.exp([v, 0.25 * v, v, 0.25 * v]), rtol=1e-13)


def test_curves_tend_to_many_tokens():
    """n S and the others approach n = inf as 1/n."""
    n = np.array([1e3, 1e4, 1e5])
    limit = softmax_curves(0.8, np.inf)(np.asarray(0.3))
    error = softmax_curves(np.full(3, 0.8), n)(np.full(3, 0.3)) / limit[:, None] - 1.0
    assert_allclose(error[:, 1:] / error[:, :-1], 0.1, atol=0.02)
    assert np.abs(error[:, 2]).max() < 1e-4
    s, r = many_token_moments(0.8**2 * 0.7, 0.3, 1e5)
    assert_allclose((s * 1e5, r * 1e5), limit[:2], rtol=1e-12)


@pytest.mark.parametrize(
    ("n", "errors"), [(32, [0.01, 0.17, 1.11, 6.5]), (256, [0.002, 0.03, 0.29, 1.9])]
)
def test_golden_error_of_the_leading_order(n, errors):
    """e^v / n over S at rho = 0 and sigma_A = .5, 1, 1.5, 2, in digits as they are known."""
    v = np.array([0.5, 1.0, 1.5, 2.0]) ** 2
    found = many_token_moments(v, 0.0, n)[0] / softmax_moments(v, 0.0, n).s - 1.0
    assert_allclose(found, errors, rtol=0.06, atol=5e-3)


def test_leading_order_is_poor_at_32_tokens():
    exact = softmax_moments(1.0, 0.0, 32).s
    assert 0.15 < many_token_moments(1.0, 0.0, 32)[0] / exact - 1.0 < 0.19


def test_random_energy_limit():
    """Measured at beta = 2, rho = 0; the approach to 1 - 1/sqrt(2) is only logarithmic."""
    n = np.array([16.0, 256.0, 4096.0, 65536.0])
    s = softmax_moments(4.0 * np.log(n), 0.0, n).s
    assert_allclose(s, [0.5180, 0.4362, 0.4008, 0.3806], atol=2e-4)
    assert (np.diff(s) < 0.0).all()
    assert s[-1] > random_energy_s(2.0) == pytest.approx(1.0 - np.sqrt(0.5))
    assert random_energy_s(1.0) == 0.0
    s = softmax_moments(np.log(n), 0.0, n).s  # beta = 1, below the transition
    assert_allclose(s, [0.2523, 0.1186, 0.0664, 0.0402], atol=1e-4)


def test_row_entropy():
    """Against Monte Carlo, and ln n - v/2 for many tokens."""
    v, n = 1.5, 20
    a, _ = random_rows(v, 0.0, n, 100_000, seed=5)
    sample = -(a * np.log(a)).sum(1)
    se = sample.std() / np.sqrt(len(sample))
    assert se < 1e-3
    assert abs(sample.mean() - row_entropy(v, n)) <= MAX_Z * se
    assert_allclose(row_entropy([0.5, 1.0], 20_000), np.log(20_000) - [0.25, 0.5], atol=1e-3)
    assert_allclose(row_entropy(0.0, [2, 7]), np.log([2, 7]), atol=1e-10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: softmax_moments(-1.0, 0.0, 4), r"v = -1 is out of range: pass v >= 0"),
        (lambda: softmax_moments(200.0, 0.0, 4), r"v = 200 is too large .* pass v <= 150"),
        (lambda: softmax_moments(1.0, -0.5, 4), r"rho = -0.5 is out of range: pass -1/\(n_tokens"),
        (lambda: softmax_moments(1.0, 0.0, 1), r"n_tokens = 1 is out of range: pass a whole"),
        (lambda: softmax_moments(1.0, 0.0, 2.5), r"n_tokens = 2.5 is out of range"),
        (lambda: softmax_moments(1.0, 0.0, np.inf), r"n_tokens = inf .* pass finite n_tokens"),
        (lambda: softmax_moments(1.0, 0.0, "many"), r"n_tokens = 'many' is not numeric"),
        (lambda: softmax_moments(1.0, 0.5, 4, spacing=1.2), r"spacing = 1.2 leaves a relative"),
        (lambda: softmax_curves(0.0, 4), r"sigma_a = 0 is out of range: pass sigma_a > 0"),
        (lambda: softmax_curves(20.0, 4), r"sigma_a = 20 is too large .* pass sigma_a <= 10.6"),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)

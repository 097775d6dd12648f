"""Gradient theory of Noci et al. 2022 against directional derivatives and Monte Carlo."""

from dataclasses import fields
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from sigprop.theory import noci2022_gradients as theory

MAX_Z = 3.5  # |Monte Carlo - theory| in standard errors


def z_score(samples, expected):
    return (samples.mean() - expected) / (samples.std(ddof=1) / np.sqrt(samples.size))


def assert_monte_carlo(samples, expected, max_relative_se):
    """Mean of `samples` within 3.5 standard errors of `expected`, and precise enough to matter."""
    se = samples.std(ddof=1) / np.sqrt(samples.size)
    assert se / expected <= max_relative_se, f"standard error {se / expected:.3%} is too large"
    z = z_score(samples, expected)
    assert abs(z) <= MAX_Z, f"{samples.mean():.6g} against {expected:.6g}, z = {z:.2f}"


def gaussian_tokens(rng, networks, n, d, sigma_x, rho):
    shared = rng.standard_normal((networks, 1, d))
    own = rng.standard_normal((networks, n, d))
    return sigma_x * (np.sqrt(1.0 - rho) * own + np.sqrt(rho) * shared)


# ------------------------------------------------- reference: one derivative per basis direction


def softmax(m):
    e = np.exp(m - m.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def draw_weights(rng, networks, d, d_k, d_v, var_q, var_k, var_v):
    w_q = np.sqrt(var_q) * rng.standard_normal((networks, d, d_k))
    w_k = np.sqrt(var_k) * rng.standard_normal((networks, d, d_k))
    w_v = np.sqrt(var_v) * rng.standard_normal((networks, d, d_v))
    return w_q, w_k, w_v


def jacobian_sq_norms(x, w_q, w_k, w_v, tau=1.0, attention="uniform"):
    """||dS/d.||^2 per network for W^Q, W^K, W^V and X, from explicit directional derivatives.

    dS = dA X W^V + A dX W^V with dA_i = (diag(A_i) - A_i A_i^T) dM_i. x: (..., n, d) or (n, d).
    """
    networks, d, d_k = w_q.shape
    x = np.broadcast_to(x, (networks, *x.shape[-2:]))
    n, c = x.shape[1], tau / np.sqrt(d_k)
    q, k, t = x @ w_q, x @ w_k, x @ w_v
    logits = c * q @ k.swapaxes(1, 2)
    a = softmax(logits) if attention == "softmax" else np.full((networks, n, n), 1.0 / n)

    def through_softmax(dm):  # dm: (b, ..., i, j) -> dS: (b, ..., i, v)
        extra = (slice(None),) + (None,) * (dm.ndim - 3)
        a_b, t_b = a[extra], t[extra]
        da = a_b * (dm - (a_b * dm).sum(-1, keepdims=True))
        return da @ t_b

    eye_n, eye_d = np.eye(n), np.eye(d)
    dm_q = c * np.einsum("bie,bjk->bekij", x, k)
    dm_k = c * np.einsum("bje,bik->bekij", x, q)
    # direction X[p, e]: dM = c (E W^Q W^K^T X^T + X W^Q W^K^T E^T)
    left = np.einsum("ip,bef,bjf->bpeij", eye_n, w_q, k)
    right = np.einsum("jp,bef,bif->bpeij", eye_n, w_k, q)
    ds_x = through_softmax(c * (left + right)) + np.einsum("bip,bev->bpeiv", a, w_v)
    # direction W^V[e, v]: dS = A X E, the same for every column v
    ds_v = np.einsum("bij,bjf,fe->bei", a, x, eye_d)
    squares = [(ds**2).sum((1, 2, 3, 4)) for ds in (through_softmax(dm_q), through_softmax(dm_k))]
    return [*squares, w_v.shape[-1] * (ds_v**2).sum((1, 2)), (ds_x**2).sum((1, 2, 3, 4))]


def jacobians_in_chunks(rng, networks, x_of, shape, variances, tau=1.0, attention="uniform"):
    """Squared norms (4, networks) for W^Q, W^K, W^V, X; `x_of(m)` gives m inputs."""
    d, d_k, d_v = shape
    parts = []
    for _ in range(networks // 1000):
        weights = draw_weights(rng, 1000, d, d_k, d_v, *variances)
        parts.append(jacobian_sq_norms(x_of(1000), *weights, tau, attention))
    return np.concatenate(parts, axis=1)


def test_reference_jacobian_against_finite_differences():
    rng = np.random.default_rng(0)
    n, d, d_k, d_v, tau, h = 3, 4, 2, 3, 1.7, 1e-5
    point = [
        rng.standard_normal((n, d)),
        *(w[0] for w in draw_weights(rng, 1, d, d_k, d_v, 1, 1, 1)),
    ]

    def layer(x, w_q, w_k, w_v):
        return softmax(tau / np.sqrt(d_k) * (x @ w_q) @ (x @ w_k).T) @ x @ w_v

    norms = []
    for index in (1, 2, 3, 0):
        total = 0.0
        for position in np.ndindex(point[index].shape):
            moved = [[p.copy() for p in point] for _ in range(2)]
            moved[0][index][position] += h
            moved[1][index][position] -= h
            total += (((layer(*moved[0]) - layer(*moved[1])) / (2 * h)) ** 2).sum()
        norms.append(total)
    x, *weights = (p[None] for p in point)
    reference = np.ravel(jacobian_sq_norms(x, *weights, tau, "softmax"))
    assert_allclose(reference, norms, rtol=1e-8)


# ------------------------------------------------- statistics of X


def test_token_statistics_against_their_definitions():
    rng = np.random.default_rng(1)
    for n, d in ((3, 7), (7, 3)):
        x = rng.standard_normal((2, 4, n, d))
        stats = theory.token_statistics(x)
        projector = np.eye(n) - 1 / n
        for index in np.ndindex(2, 4):
            xi = x[index]
            assert_allclose(stats.sum_sq_norm[index], (xi**2).sum(), rtol=1e-13)
            assert_allclose(stats.mean_sq_norm[index], n * (xi.mean(0) ** 2).sum(), rtol=1e-12)
            assert_allclose(stats.spread_sq_norm[index], ((projector @ xi) ** 2).sum(), rtol=1e-13)
            gram = xi.T @ projector @ xi
            assert_allclose(stats.gram_sq_norm[index], (gram**2).sum(), rtol=1e-13)


@pytest.mark.parametrize("spread", [1e-3, 1e-9, 1e-14])
def test_token_statistics_near_collapse_against_exact_arithmetic(spread):
    rng = np.random.default_rng(2)
    n, d = 4, 3
    x = 1.0 + rng.standard_normal(d) + spread * rng.standard_normal((n, d))
    exact = [[Fraction(v) for v in row] for row in x.tolist()]
    mean = [sum(row[e] for row in exact) / n for e in range(d)]
    centred = [[row[e] - mean[e] for e in range(d)] for row in exact]
    gram = [sum(a * b for a, b in zip(r, s, strict=True)) for r in centred for s in centred]
    stats = theory.token_statistics(x)
    assert_allclose(stats.gram_sq_norm, float(sum(g * g for g in gram)), rtol=1e-13)
    assert_allclose(stats.spread_sq_norm, float(sum(v * v for r in centred for v in r)), rtol=1e-13)


def test_equal_tokens_kill_query_and_key_gradients_exactly():
    rng = np.random.default_rng(3)
    row = rng.standard_normal(6)
    stats = theory.token_statistics(np.tile(row, (5, 1)))
    assert stats.gram_sq_norm == stats.spread_sq_norm == 0.0
    assert theory.query_grad_sq_norm(stats, 4, 0.2, 0.3, 8.5) == 0.0
    assert theory.key_grad_sq_norm(stats, 4, 0.2, 0.3, 8.5) == 0.0
    assert_allclose(theory.value_grad_sq_norm(stats, 4), 4 * 5 * (row**2).sum(), rtol=1e-13)
    # dS/dX does not vanish: var_v d d_v stays
    assert theory.input_grad_sq_norm(stats, 6, 4, 0.3, 0.2, 0.1, 8.5) == pytest.approx(0.1 * 24)
    weights = draw_weights(rng, 50, 6, 3, 4, 0.3, 0.2, 0.1)
    query, key, value, _ = jacobian_sq_norms(np.tile(row, (5, 1)), *weights, 8.5, "softmax")
    assert (np.maximum(query, key) <= 1e-20 * value).all()
    assert_allclose(value, theory.value_grad_sq_norm(stats, 4), rtol=1e-12)
    # rank one with unequal tokens is not enough
    tokens = np.outer([1.0, 2.0, 3.0], row)
    assert theory.query_grad_sq_norm(theory.token_statistics(tokens), 4, 0.2, 0.3) > 1.0


# ------------------------------------------------- Lemma 3.1 at fixed X


LEMMA_SHAPES = [
    # n, d, d_k, d_v, tau, rho, sigma_x
    (4, 6, 3, 2, 1.7, 0.0, 1.0),
    (3, 5, 2, 4, 0.5, 0.4, 0.8),
    (5, 3, 4, 6, 1.0, 0.8, 1.5),
    (2, 4, 5, 3, 3.0, -0.5, 1.2),
]


@pytest.mark.parametrize(("n", "d", "d_k", "d_v", "tau", "rho", "sigma_x"), LEMMA_SHAPES)
def test_lemma_3_1_monte_carlo(n, d, d_k, d_v, tau, rho, sigma_x):
    rng = np.random.default_rng(4)
    x = sigma_x * rng.standard_normal((n, d)) + rho * rng.standard_normal(d)
    var_q, var_k, var_v = 1.4 / d_k, 0.7 / d_k, 1.3 / d_v
    query, key, value, x_grad = jacobians_in_chunks(
        rng, 20_000, lambda m: x, (d, d_k, d_v), (var_q, var_k, var_v), tau
    )
    stats = theory.token_statistics(x)
    assert_monte_carlo(query, theory.query_grad_sq_norm(stats, d_v, var_v, var_k, tau), 0.015)
    assert_monte_carlo(key, theory.key_grad_sq_norm(stats, d_v, var_v, var_q, tau), 0.015)
    assert_allclose(value, theory.value_grad_sq_norm(stats, d_v), rtol=1e-12)
    exact = theory.input_grad_sq_norm(stats, d, d_v, var_q, var_k, var_v, tau)
    assert_monte_carlo(x_grad, exact, 0.015)


def test_lemma_3_1_does_not_need_gaussian_weights():
    rng = np.random.default_rng(5)
    n, d, d_k, d_v = 3, 4, 2, 3
    x = rng.standard_normal((n, d))
    weights = [rng.choice([-0.6, 0.6], (20_000, d, m)) for m in (d_k, d_k, d_v)]
    query, key, _, x_grad = jacobian_sq_norms(x, *weights)
    stats = theory.token_statistics(x)
    assert_monte_carlo(query, theory.query_grad_sq_norm(stats, d_v, 0.36, 0.36), 0.01)
    assert_monte_carlo(key, theory.key_grad_sq_norm(stats, d_v, 0.36, 0.36), 0.01)
    exact = theory.input_grad_sq_norm(stats, d, d_v, 0.36, 0.36, 0.36)
    assert_monte_carlo(x_grad, exact, 0.01)


def test_true_softmax_reaches_lemma_3_1_for_small_inputs():
    rng = np.random.default_rng(6)
    n, d, d_k, d_v = 4, 5, 3, 3
    x = 0.05 * rng.standard_normal((n, d))
    query, key, value, _ = jacobians_in_chunks(
        rng, 12_000, lambda m: x, (d, d_k, d_v), (1.0, 0.5, 0.8), attention="softmax"
    )
    stats = theory.token_statistics(x)
    assert_monte_carlo(query, theory.query_grad_sq_norm(stats, d_v, 0.8, 0.5), 0.02)
    assert_monte_carlo(key, theory.key_grad_sq_norm(stats, d_v, 0.8, 1.0), 0.02)
    assert_allclose(value.mean(), theory.value_grad_sq_norm(stats, d_v), rtol=1e-3)


def test_reconstructed_bound_is_violated():
    rng = np.random.default_rng(7)
    n, d, sigma_x, rho = 3, 4, 8.0, 0.97
    x = gaussian_tokens(rng, 1, n, d, sigma_x, rho)[0]
    variances = (1 / d, 1 / d, 1 / d)
    x_grad = jacobians_in_chunks(rng, 20_000, lambda m: x, (d, d, d), variances)[3]
    stats = theory.token_statistics(x)
    bound = theory.input_grad_bound_reconstructed(stats, d, d, *variances)
    assert z_score(x_grad, bound) > MAX_Z
    assert_monte_carlo(x_grad, theory.input_grad_sq_norm(stats, d, d, *variances), 0.02)
    # and at (n 8, d 64, rho .95, sigma_x 8), variances 1/d, for every draw of X
    stats = theory.token_statistics(gaussian_tokens(rng, 200, 8, 64, 8.0, 0.95))
    variances = (1 / 64, 1 / 64, 1 / 64)
    exact = theory.input_grad_sq_norm(stats, 64, 64, *variances)
    bound = theory.input_grad_bound_reconstructed(stats, 64, 64, *variances)
    assert (exact > 1.1 * bound).all()
    assert_monte_carlo(
        exact, theory.gaussian_input_grad_sq_norm(8, 64, 8, 0.95, 64, *variances), 0.02
    )
    # 8 tau^2 var^3 (d d_v / n) E||G||^2 + 2 var d d_v
    s = 64 * 0.05
    mean_bound = 8 / 64 / 8 * s**2 * 7 * 64 * (8 + 64) + 2 * 64
    assert_monte_carlo(bound, mean_bound, 0.02)


def test_bound_holds_for_uncorrelated_small_tokens():
    rng = np.random.default_rng(8)
    stats = theory.token_statistics(gaussian_tokens(rng, 50, 8, 16, 0.3, 0.0))
    variances = (1 / 16, 1 / 16, 1 / 16)
    exact = theory.input_grad_sq_norm(stats, 16, 16, *variances)
    assert (exact < theory.input_grad_bound_reconstructed(stats, 16, 16, *variances)).all()


def test_multi_head_monte_carlo():
    rng = np.random.default_rng(9)
    networks, n, d, heads, d_head, tau = 20_000, 4, 6, 2, 3, 1.3
    x = rng.standard_normal((n, d))
    stats = theory.token_statistics(x)
    query = value = 0.0
    for _ in range(heads):
        _, w_k, w_v = draw_weights(rng, networks, d, d_head, d_head, 0.3, 0.2, 0.15)
        w_o = np.sqrt(0.4) * rng.standard_normal((networks, d_head, d))
        k, t = x @ w_k, x @ w_v @ w_o  # head output projected: S_i W^O_i = A_i X W^V_i W^O_i
        dm = tau / np.sqrt(d_head) * np.einsum("ie,bjk->bekij", x, k)
        da = (dm - dm.mean(-1, keepdims=True)) / n
        query = query + ((da @ t[:, None, None]) ** 2).sum((1, 2, 3, 4))
        # direction W^V[e, k]: every one of the n rows moves by xbar_e W^O[k]
        value = value + n * (np.einsum("e,bko->beko", x.mean(0), w_o) ** 2).sum((1, 2, 3))
    expected = theory.multi_head_query_grad_sq_norm(stats, d, d_head, 0.15, 0.2, 0.4, heads, tau)
    assert_monte_carlo(query, expected, 0.015)
    assert_monte_carlo(
        value, theory.multi_head_value_grad_sq_norm(stats, d, d_head, 0.4, heads), 0.015
    )
    one_head = theory.multi_head_query_grad_sq_norm(stats, d, d_head, 0.15, 0.2, 0.4, tau=tau)
    assert_allclose(expected / one_head, heads, rtol=1e-14)


# ------------------------------------------------- Gaussian tokens


def test_equation_17_with_its_bracket_and_without():
    rng = np.random.default_rng(10)
    n, d = 6, 8
    query, key, value, x_grad = jacobians_in_chunks(
        rng, 8_000, lambda m: gaussian_tokens(rng, m, n, d, 1.0, 0.0), (d, d, d), (1 / d,) * 3
    )
    setting = (n, d, 1.0, 0.0, d)
    exact = theory.gaussian_query_grad_sq_norm(*setting, 1 / d, 1 / d)
    assert_monte_carlo(query, exact, 0.015)
    assert_monte_carlo(key, exact, 0.015)
    assert_monte_carlo(value, theory.gaussian_value_grad_sq_norm(*setting), 0.015)
    assert_monte_carlo(x_grad, theory.gaussian_input_grad_sq_norm(*setting, *(1 / d,) * 3), 0.015)
    independent = theory.gaussian_query_grad_sq_norm(*setting, 1 / d, 1 / d, finite_size=False)
    assert z_score(query, independent) > MAX_Z


@pytest.mark.parametrize(
    ("n", "d", "d_k", "d_v", "tau", "rho", "sigma_x"),
    [
        (3, 4, 2, 5, 1.6, 0.3, 0.7),
        (5, 3, 4, 2, 0.7, 0.9, 1.2),
        (4, 2, 3, 3, 1.0, -0.2, 1.0),
        (20, 4, 6, 3, 2.0, 0.6, 0.9),
    ],
)
def test_gaussian_forms_average_lemma_3_1(n, d, d_k, d_v, tau, rho, sigma_x):
    # averages over X the fixed-X formulas, which the tests above check against explicit weights
    rng = np.random.default_rng(11)
    # any rho in [-1/(n-1), 1]: colour exchangeable tokens through the mean and the deviations
    own = rng.standard_normal((100_000, n, d))
    mean = own.mean(1, keepdims=True)
    x = sigma_x * (np.sqrt(1 - rho) * (own - mean) + np.sqrt(1 + (n - 1) * rho) * mean)
    var_q, var_k, var_v = 1.4 / d_k, 0.7 / d_k, 1.3 / d_v
    stats = theory.token_statistics(x)
    setting = (n, d, sigma_x, rho, d_v)
    query = theory.query_grad_sq_norm(stats, d_v, var_v, var_k, tau)
    expected = theory.gaussian_query_grad_sq_norm(*setting, var_v, var_k, tau)
    assert_monte_carlo(query, expected, 0.01)
    value = theory.value_grad_sq_norm(stats, d_v)
    assert_monte_carlo(value, theory.gaussian_value_grad_sq_norm(*setting), 0.01)
    x_grad = theory.input_grad_sq_norm(stats, d, d_v, var_q, var_k, var_v, tau)
    expected = theory.gaussian_input_grad_sq_norm(*setting, var_q, var_k, var_v, tau)
    assert_monte_carlo(x_grad, expected, 0.01)


@pytest.mark.parametrize(
    ("n", "d", "d_k", "d_v", "sigma_x", "rho", "tau", "exact", "independent", "value"),
    [
        (6, 8, 8, 8, 1.0, 0.0, 1.0, 101.11, 93.33, 64.0),
        (6, 8, 5, 4, 0.7, 0.3, 1.0, 9.111, 8.609, 39.2),
        (10, 16, 16, 16, 1.0, 0.6, 1.0, 60.50, 59.90, 1638.4),
        (20, 4, 4, 4, 1.2, 0.9, 1.0, 2.737, 2.723, 417.0),
        (8, 10, 10, 10, 0.9, 0.25, 1.0, 48.85, 47.08, 222.75),
        (8, 10, 10, 10, 0.9, 0.25, 3.0, 439.6, 423.7, 222.75),
    ],
)
def test_reference_rows_of_17_and_18(n, d, d_k, d_v, sigma_x, rho, tau, exact, independent, value):
    setting = (n, d, sigma_x, rho, d_v)
    variances = (1 / d_v, 1 / d_k, tau)
    both = [
        theory.gaussian_query_grad_sq_norm(*setting, *variances, finite_size=flag)
        for flag in (True, False)
    ]
    assert_allclose(both, [exact, independent], rtol=2e-4)
    assert_allclose(theory.gaussian_value_grad_sq_norm(*setting), value, rtol=1e-4)
    # the form of the paper for variances 1/d_v, 1/d_k
    paper = sigma_x**6 * (n - 1) / n * (1 - rho) ** 2 * d**2 * (n + d) / d_k * tau**2
    assert_allclose(both[1], paper, rtol=1e-13)


def test_reference_input_gradient_of_gaussian_tokens():
    value = theory.gaussian_input_grad_sq_norm(6, 7, 1.2, 0.3, 4, 1 / 5, 1 / 5, 1 / 4, 1.6)
    assert_allclose(value, 108.76, rtol=1e-4)


@given(
    n=st.integers(2, 64),
    d=st.integers(1, 64),
    sigma_x=st.floats(0.01, 10.0),
    position=st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)),
)
def test_queries_fall_and_values_rise_with_rho(n, d, sigma_x, position):
    low = -1 / (n - 1)
    rho = np.minimum(low + np.sort(position) * (1 - low), 1.0)
    query = theory.gaussian_query_grad_sq_norm(n, d, sigma_x, rho, d, 1 / d, 1 / d)
    value = theory.gaussian_value_grad_sq_norm(n, d, sigma_x, rho, d)
    assert query[0] >= query[1] >= 0.0
    assert 0.0 <= value[0] <= value[1]
    doubled = theory.gaussian_query_grad_sq_norm(n, d, 2 * sigma_x, rho, d, 1 / d, 1 / d, 3.0)
    assert_allclose(doubled, 64 * 9 * query, rtol=1e-12)  # sigma_x^6 tau^2
    assert_allclose(
        theory.gaussian_value_grad_sq_norm(n, d, 2 * sigma_x, rho, d), 4 * value, rtol=1e-12
    )


# ------------------------------------------------- inverse temperature


def test_tau_star_balances_queries_and_values():
    n, d, rho = np.array([2, 25.2, 100])[:, None], 64, np.array([-0.005, 0.0, 0.2, 0.9])
    tau = theory.tau_star(n, d, 0.7, rho, 0.3 / d, 0.8 / d)
    query = theory.gaussian_query_grad_sq_norm(n, d, 0.7, rho, d, 0.3 / d, 0.8 / d, tau)
    assert tau.shape == (3, 4)
    assert_allclose(query, theory.gaussian_value_grad_sq_norm(n, d, 0.7, rho, d), rtol=1e-13)
    assert np.isinf(theory.tau_star(16, d, 1.0, 1.0, 1 / d, 1 / d))
    assert theory.tau_star(5, d, 1.0, -0.25, 1 / d, 1 / d) == 0.0


def test_tau_star_table_has_the_reference_values():
    table = theory.tau_star_table()
    reference = [
        (1.0, 1.0, [1.00, 2.05, 3.01, 4.09, 7.21], 0.555),
        (1.0, 0.5, [1.99, 4.09, 6.02, 8.18, 14.4], 0.313),
        (1.5, 1.0, [0.66, 1.36, 2.01, 2.73, 4.81], 0.675),
        (1.5, 0.5, [1.33, 2.73, 4.01, 5.45, 9.61], 0.457),
        (1.0, 1.0, [1.0, 4.2, 9.1, 16.7, 52.0], 0.191),
    ]
    assert [record.squared_norms for record in table] == [False] * 4 + [True]
    assert len({record.convention for record in table}) == 5
    for record, (sigma_x_sq, factor, stars, rho) in zip(table, reference, strict=True):
        assert (record.sigma_x_sq, record.variance_factor) == (sigma_x_sq, factor)
        assert record.rho == (0.0, 0.1, 0.2, 0.3, 0.5)
        assert_allclose(record.tau_star, stars, rtol=0.01)
        assert_allclose(record.rho_for_target, rho, atol=6e-4)
        # the root gives back 8.5
        variance = factor / 512
        back = theory.tau_star(
            25.2, 512, sigma_x_sq**0.5, record.rho_for_target, variance, variance
        )
        assert_allclose(back ** (1 + record.squared_norms), 8.5, rtol=1e-10)


@pytest.mark.parametrize("tau", [1e-3, 1.0, 8.5, 1e4])
def test_rho_for_tau_inverts_tau_star(tau):
    rho = theory.rho_for_tau(tau, 16, 64, 1.0, 1 / 64, 1 / 64)
    assert_allclose(theory.tau_star(16, 64, 1.0, rho, 1 / 64, 1 / 64), tau, rtol=1e-6)


# ------------------------------------------------- broadcasting and inputs


def test_broadcasting_equals_scalar_calls():
    n, d, rho = (
        np.array([2, 8])[:, None, None],
        np.array([4, 16, 32])[:, None],
        np.array([0.0, 0.5]),
    )
    functions = [
        lambda n, d, r: theory.gaussian_value_grad_sq_norm(n, d, 0.5, r, d),
        lambda n, d, r: theory.gaussian_query_grad_sq_norm(n, d, 0.5, r, d, 1 / d, 1 / d, 2.0),
        lambda n, d, r: theory.gaussian_input_grad_sq_norm(n, d, 0.5, r, d, 1 / d, 1 / d, 1 / d),
        lambda n, d, r: theory.tau_star(n, d, 0.5, r, 1 / d, 1 / d),
    ]
    for function in functions:
        grid = function(n, d, rho)
        assert grid.shape == (2, 3, 2)
        swapped = function(n.T, d.T[..., None], rho[:, None, None])
        assert_allclose(np.moveaxis(swapped, (0, 1, 2), (2, 1, 0)), grid, rtol=1e-13)
        for i, j, k in np.ndindex(2, 3, 2):
            one = function(float(n[i, 0, 0]), float(d[j, 0]), rho[k])
            assert_allclose(grid[i, j, k], one, rtol=1e-13)


def test_statistics_ignore_token_order_and_batch_shape():
    rng = np.random.default_rng(12)
    x = rng.standard_normal((3, 2, 5, 4))
    stats, shuffled = (
        theory.token_statistics(x),
        theory.token_statistics(x[..., [3, 0, 4, 1, 2], :]),
    )
    for field in fields(stats):
        assert_allclose(getattr(stats, field.name), getattr(shuffled, field.name), rtol=1e-13)
    single = theory.token_statistics(x[1, 0])
    batched = theory.query_grad_sq_norm(stats, 4, 0.2, np.array([0.1, 0.3]), 1.5)
    assert batched.shape == (3, 2)
    assert_allclose(batched[1, 0], theory.query_grad_sq_norm(single, 4, 0.2, 0.1, 1.5), rtol=1e-13)


SQUARE = (16, 8, 1.0, 0.1, 8)
BAD_CALLS = [
    (lambda s: theory.token_statistics(np.zeros((1, 4))), r"x has shape \(1, 4\)"),
    (lambda s: theory.token_statistics(np.zeros(4)), r"x has shape \(4,\)"),
    (lambda s: theory.token_statistics([[0.0, np.nan], [0.0, 1.0]]), "x = nan "),
    (lambda s: theory.value_grad_sq_norm(s, 0), "d_v = 0 "),
    (lambda s: theory.query_grad_sq_norm(s, 4, -0.1, 0.1), "var_v = -0.1 "),
    (lambda s: theory.query_grad_sq_norm(s, 4, 0.1, 0.1, np.inf), "tau = inf "),
    (lambda s: theory.key_grad_sq_norm(s, 4, 0.1, -0.1), "var_q = -0.1 "),
    (lambda s: theory.input_grad_sq_norm(s, -3, 4, 0.1, 0.1, 0.1), "d_model = -3 "),
    (lambda s: theory.input_grad_bound_reconstructed(s, 3, 4, 0.1, -1, 0.1), "var_k = -1 "),
    (lambda s: theory.multi_head_value_grad_sq_norm(s, 8, 4, 0.1, 0), "n_heads = 0 "),
    (lambda s: theory.multi_head_query_grad_sq_norm(s, 8, 0, 0.1, 0.1, 0.1), "d_head = 0 "),
    (lambda s: theory.gaussian_value_grad_sq_norm(1, 8, 1.0, 0.1, 8), "n_tokens = 1 "),
    (lambda s: theory.gaussian_value_grad_sq_norm(4, 8, 1.0, -0.5, 8), "rho = -0.5 "),
    (lambda s: theory.gaussian_query_grad_sq_norm(4, 8, -1.0, 0.1, 8, 1, 1), "sigma_x = -1 "),
    (lambda s: theory.gaussian_input_grad_sq_norm(*SQUARE, "x", 1, 1), "var_q = 'x' "),
    (lambda s: theory.tau_star(4, 8, 0.0, 0.1, 1, 1), "sigma_x = 0 "),
    (lambda s: theory.tau_star(4, 8, 1.0, 0.1, 1, 0), "var_k = 0 "),
    (lambda s: theory.rho_for_tau(0.0, 4, 8, 1.0, 1, 1), "tau = 0 "),
]


@pytest.mark.parametrize(("call", "pattern"), BAD_CALLS)
def test_bad_input_is_one_clear_line(call, pattern):
    stats = theory.token_statistics(np.eye(3))
    with pytest.raises(ValueError, match=pattern) as error:
        call(stats)
    assert "\n" not in str(error.value)
    assert "pass " in str(error.value)

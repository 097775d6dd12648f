"""Forward theory of Noci et al. 2022 against recursions, quadrature, Monte Carlo and limits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.integrate import quad

from sigprop.theory import noci2022 as theory
from sigprop.theory import noci2022_maps as maps

MAX_Z = 3.5  # |Monte Carlo - theory| in standard errors


def assert_monte_carlo(samples: np.ndarray, expected: float, max_relative_se: float) -> None:
    """Mean of `samples` within 3.5 standard errors of `expected`, and precise enough to matter."""
    mean, se = samples.mean(), samples.std(ddof=1) / np.sqrt(samples.size)
    assert se / expected <= max_relative_se, f"standard error {se / expected:.3%} is too large"
    assert abs(mean - expected) <= MAX_Z * se, f"{mean:.6g} +- {se:.2g} against {expected:.6g}"


def gaussian_tokens(rng, n_networks, n, d, sigma_x, rho):
    shared = rng.standard_normal((n_networks, 1, d))
    own = rng.standard_normal((n_networks, n, d))
    return sigma_x * (np.sqrt(1.0 - rho) * own + np.sqrt(rho) * shared)


def layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)


def run_uniform_network(rng, x, depth, alphas, *, norm, activation, var_v, var_f1, var_f2, d_ff):
    """Explicit weights, uniform attention. x: (networks, n, d) -> list of depth + 1 states."""
    networks, _, d = x.shape
    branch_in = layer_norm if norm == "pre" else (lambda v: v)
    after = layer_norm if norm == "post" else (lambda v: v)
    act = (lambda v: np.maximum(v, 0.0)) if activation == "relu" else (lambda v: v)
    states = [x]
    for _ in range(depth):
        w_v = np.sqrt(var_v) * rng.standard_normal((networks, d, d))
        w_1 = np.sqrt(var_f1) * rng.standard_normal((networks, d, d_ff))
        w_2 = np.sqrt(var_f2) * rng.standard_normal((networks, d_ff, d))
        x = after(x + alphas[0] * branch_in(x).mean(1, keepdims=True) @ w_v)
        x = after(x + alphas[1] * act(branch_in(x) @ w_1) @ w_2)
        states.append(x)
    return states


def mean_cosine(x):
    unit = x / np.linalg.norm(x, axis=-1, keepdims=True)
    n = x.shape[-2]
    return (np.linalg.norm(unit.sum(-2), axis=-1) ** 2 - n) / (n * (n - 1))


# ---------------------------------------------------------------- gains


def test_init_variance_rules():
    assert theory.init_variance("fan_in", 8, 32) == 1 / 8
    assert theory.init_variance("xavier", 8, 32) == 2 / 40
    # Xavier with gain 1/sqrt(2) on a square projection is 1/(2d)
    assert_allclose(theory.init_variance("xavier", 512, 512, np.sqrt(0.5)), 1 / 1024, rtol=1e-14)


@pytest.mark.parametrize("activation", ["linear", "relu"])
@pytest.mark.parametrize("he", [True, False])
def test_branch_gains_of_the_usual_inits(activation, he):
    g_a, g_f = theory.branch_gains("fan_in", 64, 256, activation=activation, he=he)
    assert g_a == 1.0
    assert g_f == (0.5 if activation == "relu" and not he else 1.0)
    g_a, g_f = theory.branch_gains(
        "xavier", 64, 256, activation=activation, he=he, output_projection=True
    )
    assert g_a == 1.0
    # 4 d d_ff / (d + d_ff)^2 at d_ff = 4 d
    assert_allclose(g_f, 0.64 * (0.5 if activation == "relu" and not he else 1.0), rtol=1e-14)


def test_attention_gain_monte_carlo_two_heads_with_output_projection():
    rng = np.random.default_rng(1)
    networks, n, d, heads, d_head = 20_000, 3, 5, 2, 4
    x = rng.standard_normal((n, d))
    w_v = np.sqrt(0.3) * rng.standard_normal((networks, heads, d, d_head))
    w_o = np.sqrt(0.2) * rng.standard_normal((networks, heads, d_head, d))
    branch = np.einsum("d,bhde,bhef->bf", x.mean(0), w_v, w_o)
    gain = theory.attention_gain(d, heads * d_head, 0.3, 0.2)
    assert_monte_carlo((branch**2).sum(-1), gain * (x.mean(0) ** 2).sum(), 0.02)


@pytest.mark.parametrize("activation", ["linear", "relu"])
def test_feedforward_gain_monte_carlo(activation):
    rng = np.random.default_rng(2)
    networks, d, d_ff = 20_000, 5, 9
    z = rng.standard_normal(d)
    hidden = z @ (np.sqrt(0.3) * rng.standard_normal((networks, d, d_ff)))
    hidden = np.maximum(hidden, 0.0) if activation == "relu" else hidden
    w_2 = np.sqrt(0.2) * rng.standard_normal((networks, d_ff, d))
    branch = np.einsum("bf,bfd->bd", hidden, w_2)
    gain = theory.feedforward_gain(d, d_ff, 0.3, 0.2, activation)
    assert_monte_carlo((branch**2).sum(-1), gain * (z**2).sum(), 0.02)


# ---------------------------------------------------------------- Lemmas 3.2 and 3.3


def recursion(t, c, n, alpha_sq, beta_sq):
    """Direct iteration of one block at a time: T <- b (T + alpha^2 C / n), C <- a b C."""
    states = [(t, c)]
    for a_sq, b_sq in zip(alpha_sq, beta_sq, strict=True):
        t, c = (1 + b_sq) * (t + a_sq * c / n), (1 + a_sq) * (1 + b_sq) * c
        states.append((t, c))
    return np.array(states).T


def test_expected_sums_equal_the_recursion():
    n, t_0, c_0, depth = 7, 3.0, 11.0, 12
    t, c = theory.expected_sums(np.arange(depth + 1), t_0, c_0, n, 0.7, 1.3, 0.9, 0.5)
    ref = recursion(t_0, c_0, n, [0.49 * 0.9] * depth, [1.69 * 0.5] * depth)
    assert_allclose([t, c], ref, rtol=1e-13)


def test_per_layer_alphas_equal_the_recursion():
    rng = np.random.default_rng(3)
    n, depth = 5, 9
    alpha, beta = rng.uniform(0.0, 1.5, (2, 4, depth))  # 4 settings each
    t, c = theory.expected_sums_per_layer(2.0, 3.0, n, alpha, beta, 0.8, 0.6)
    delta = theory.one_minus_rho_per_layer(n, (3.0 / 2.0 - 1.0) / (n - 1), alpha, 0.8)
    assert t.shape == c.shape == delta.shape == (4, depth + 1)
    for k in range(4):
        ref = recursion(2.0, 3.0, n, alpha[k] ** 2 * 0.8, beta[k] ** 2 * 0.6)
        assert_allclose([t[k], c[k]], ref, rtol=1e-13)
        rho = (ref[1] - ref[0]) / ((n - 1) * ref[0])
        assert_allclose(delta[k], 1 - rho, rtol=1e-11)
    assert_allclose(theory.correlation_ratio(t, c, n), 1 - delta, atol=1e-13)


def test_expected_sums_monte_carlo():
    rng = np.random.default_rng(4)
    networks, n, d, d_ff, depth = 20_000, 5, 12, 10, 2
    x = gaussian_tokens(rng, networks, n, d, 1.1, 0.2)
    variances = {"var_v": 0.7 / d, "var_f1": 1.2 / d, "var_f2": 0.9 / d_ff}
    x = run_uniform_network(
        rng, x, depth, (0.8, 0.6), norm="none", activation="linear", d_ff=d_ff, **variances
    )[-1]
    g_a = theory.attention_gain(d, d, variances["var_v"])
    g_f = theory.feedforward_gain(d, d_ff, variances["var_f1"], variances["var_f2"], "linear")
    t_0, c_0 = theory.gaussian_token_sums(n, d, 1.1, 0.2)
    t, c = theory.expected_sums(depth, t_0, c_0, n, 0.8, 0.6, g_a, g_f)
    assert_monte_carlo((x**2).sum((1, 2)), t, 0.01)
    assert_monte_carlo((x.sum(1) ** 2).sum(1), c, 0.01)


def test_reference_rows_of_lemmas_3_2_and_3_3():
    t_0, c_0 = theory.gaussian_token_sums(10, 32, 1.0, 0.2)
    assert (t_0, c_0) == (320.0, pytest.approx(896.0, rel=1e-14))
    t, c = theory.expected_sums(6, t_0, c_0, 10)
    assert_allclose([t, c], [3.817e5, 3.670e6], rtol=2e-4)
    t, c = theory.expected_sums(12, t_0, c_0, 10, 12**-0.5, 12**-0.5)
    assert_allclose([t, c], [1213.8, 6117.9], rtol=1e-4)


def test_depth_scaled_limit_of_the_sums():
    depth = np.array([1e3, 1e5, 1e7])
    t, c = theory.expected_sums(depth, 2.0, 3.0, 5, np.sqrt(1.3 / depth), np.sqrt(0.4 / depth), 0.9)
    t_inf, c_inf = theory.expected_sums_limit(2.0, 3.0, 5, 1.3, 0.4, 0.9)
    for finite, limit in ((t, t_inf), (c, c_inf)):
        gaps = 1 - finite / limit
        assert_allclose(gaps[:-1] / gaps[1:], 100.0, rtol=0.02)  # first order in 1/L
        assert 0 < gaps[-1] < 1e-6


def test_overflowing_sums_are_inf_not_nan():
    t, c = theory.expected_sums(1e5, 2.0, np.array([0.0, 3.0]), 5)
    assert np.isinf(t).all()
    assert c[0] == 0.0
    assert np.isinf(c[1])


# ---------------------------------------------------------------- Theorem 3.2


def test_rho_closed_form_against_the_sums():
    l = np.arange(1, 15)
    rho_0 = np.array([-0.1, 0.0, 0.3, 0.9])[:, None]
    n, t_0 = 8, 4.0
    c_0 = t_0 * (1 + (n - 1) * rho_0)
    t, c = theory.expected_sums(l, t_0, c_0, n, 0.9, 1.7, 0.8, 0.5)
    rho = theory.rho_at_layer(l, n, rho_0, 0.9, 0.8)
    assert_allclose(rho, theory.correlation_ratio(t, c, n), atol=1e-13)


@pytest.mark.parametrize(
    ("layer", "alpha_sq", "rho_0", "expected"),
    [(6, 1.0, 0.2, 0.9571), (12, 1 / 12, 0.2, 0.4489), (12, 2 / 12, 0.5, 0.8733)],
)
def test_reference_rows_of_theorem_3_2(layer, alpha_sq, rho_0, expected):
    assert abs(theory.rho_at_layer(layer, 10, rho_0, np.sqrt(alpha_sq)) - expected) < 6e-5


def test_reference_limits_and_the_two_equivalent_forms():
    at1, rho_0, n = np.array([1.0, 2.0, 1.0]), np.array([0.2, 0.0, 0.5]), np.array([10, 100, 32])
    limit = 1 - theory.one_minus_rho_limit(n, rho_0, at1)
    assert_allclose(limit, [0.45987, 0.06005, 0.73489], atol=6e-6)
    assert_allclose(theory.rho_limit_paper_form(n, rho_0, at1), limit, rtol=1e-12)
    million = theory.rho_at_layer(1e6, n, rho_0, np.sqrt(at1 / 1e6))
    assert_allclose(million, limit, atol=2e-6)
    assert (million < limit).all()  # (1 + at/L)^L rises to e^at


@given(st.integers(2, 200), st.floats(0.0, 1.0), st.floats(0.0, 20.0), st.floats(0.1, 2.0))
def test_limit_forms_agree(n, position, at1, gain):
    rho_0 = -1 / (n - 1) + position * n / (n - 1)
    limit = 1 - theory.one_minus_rho_limit(n, min(rho_0, 1.0), at1, gain)
    assert_allclose(theory.rho_limit_paper_form(n, min(rho_0, 1.0), at1, gain), limit, atol=1e-13)


def test_unscaled_collapse_and_its_asymptote():
    exact = theory.one_minus_rho_at_layer(np.array([10, 60, 1000]), 16, 0.1)
    asymptote = theory.one_minus_rho_asymptotic(np.array([10, 60, 1000]), 16, 0.1)
    assert_allclose(exact[1:], asymptote[1:], rtol=1e-13)
    assert_allclose(exact[0] / asymptote[0], 1 / (1 + (16 / 2.5 - 1) / 1024), rtol=1e-13)
    assert_allclose(asymptote[0], 0.9 * 16 / 2.5 / 1024, rtol=1e-13)


def test_centred_tokens_never_collapse():
    n = np.arange(2, 60)
    rho_0 = -1.0 / (n - 1)
    delta = theory.one_minus_rho_at_layer(np.array([1, 10, 1e4])[:, None], n, rho_0)
    assert_allclose(delta, np.broadcast_to(1 - rho_0, delta.shape), rtol=1e-13)
    assert np.isinf(theory.depth_to_reach(0.5, n, rho_0)).all()
    linear = maps.mean_field_trajectory(200, n, rho_0, norm="none", activation="linear")
    assert_allclose(linear.one_minus_rho[:, -1], 1 - rho_0, rtol=1e-13)


def test_depth_to_reach_inverts_the_closed_form():
    rho_0 = np.array([-0.05, 0.0, 0.4])[:, None]
    target = np.array([0.5, 0.9, 0.999999])
    depth = theory.depth_to_reach(target, 16, rho_0, 0.6, 0.8)
    assert depth.shape == (3, 3)
    assert_allclose(
        theory.one_minus_rho_at_layer(depth, 16, rho_0, 0.6, 0.8),
        np.broadcast_to(1 - target, (3, 3)),
        rtol=1e-9,
    )
    assert theory.depth_to_reach(0.3, 16, 0.3) == 0.0
    assert theory.depth_to_reach(0.2, 16, 0.3) == 0.0
    assert np.isinf(theory.depth_to_reach(1.0, 16, 0.3))
    assert np.isinf(theory.depth_to_reach(0.5, 16, 0.3, 0.0))


@given(
    st.integers(2, 100),
    st.floats(0.0, 1.0),
    st.floats(0.0, 3.0),
    st.sampled_from(["none", "post", "pre"]),
    st.sampled_from(["linear", "relu"]),
)
@settings(max_examples=60)
def test_rho_stays_in_range_and_never_falls_with_depth(n, position, alpha, norm, activation):
    rho_0 = min(-1 / (n - 1) + position * n / (n - 1), 1.0)
    closed = theory.one_minus_rho_at_layer(np.arange(30), n, rho_0, alpha)
    state = maps.mean_field_trajectory(
        30, n, rho_0, norm=norm, activation=activation, alpha_attn=alpha, alpha_ff=0.7
    )
    for delta in (closed, state.one_minus_rho):
        assert (delta >= 0.0).all()
        assert (delta <= (n / (n - 1)) * (1 + 1e-13)).all()
        assert (np.diff(delta) <= 1e-13).all()
    assert (np.diff(state.log_q) >= 0.0).all()


# ---------------------------------------------------------------- kappa


def test_kappa_against_quadrature():
    # polar coordinates: the two projections of a planar Gaussian at angle theta,
    for u in (-1.0, -0.5, 0.0, 0.3, 0.8, 0.99, 1.0):
        theta = np.arccos(u)
        # E[r^2] = 2, direction p uniform on the circle, both cosines positive
        product = quad(lambda p, t=theta: np.cos(p) * np.cos(p - t), theta - np.pi / 2, np.pi / 2)
        assert_allclose(maps.kappa(u), 2 * product[0] / np.pi, atol=1e-12)
    assert_allclose(maps.kappa([-0.5, 0.3, 0.8, 0.99]), [0.109, 0.4827, 0.8271, 0.9903], atol=6e-5)
    assert_allclose(maps.kappa(0.0), 1 / np.pi, rtol=1e-14)
    assert (maps.kappa(1.0), maps.kappa(-1.0)) == (1.0, 0.0)


def test_kappa_monte_carlo():
    rng = np.random.default_rng(5)
    g, h = rng.standard_normal((2, 400_000))
    pair = 0.3 * g + np.sqrt(1 - 0.09) * h
    samples = 2 * np.maximum(g, 0) * np.maximum(pair, 0)
    assert_monte_carlo(samples, float(maps.kappa(0.3)), 0.01)


def test_one_minus_kappa_keeps_relative_precision():
    delta = np.array([1e-300, 1e-30, 1e-15, 1e-9, 1e-6])
    series = delta - 2 * np.sqrt(2) / (3 * np.pi) * delta**1.5 * (1 + delta / 20)
    assert_allclose(maps.one_minus_kappa(delta), series, rtol=1e-13)
    u = np.linspace(-1, 1, 2001)
    assert_allclose(maps.one_minus_kappa(1 - u), 1 - maps.kappa(u), atol=1e-14)
    # the branch point of the Taylor series, theta = 1/2
    theta = np.array([0.5 - 1e-9, 0.5 + 1e-9])
    gap = 1 - np.cos(theta) - maps.one_minus_kappa(1 - np.cos(theta))
    assert_allclose(np.pi * gap, np.sin(theta) - theta * np.cos(theta), rtol=1e-13)


# ---------------------------------------------------------------- mean-field maps


def naive_map(depth, n, rho, q, *, norm, activation, attn_sq, ff_sq):
    """The (q, p) map written literally, one setting at a time."""
    p, states = rho * q, [(q, rho)]
    for _ in range(depth):
        s = 1.0 if norm == "pre" else q
        u = (1 + (n - 1) * p / q) / n
        q, p = q + attn_sq * s * u, p + attn_sq * s * u
        if norm == "post":
            q, p = 1.0, p / q
        s, r = (1.0 if norm == "pre" else q), p / q
        if activation == "relu":
            r = (np.sqrt(1 - r * r) + r * (np.pi - np.arccos(r))) / np.pi
        q, p = q + ff_sq * s, p + ff_sq * s * r
        if norm == "post":
            q, p = 1.0, p / q
        states.append((q, p / q))
    return np.array(states).T


NORMS = pytest.mark.parametrize("norm", ["none", "post", "pre"])
ACTIVATIONS = pytest.mark.parametrize("activation", ["linear", "relu"])
SETTINGS = {"alpha_attn": 0.8, "alpha_ff": 1.2, "gain_attn": 0.9, "gain_ff": 0.5, "q_0": 0.3}


@NORMS
@ACTIVATIONS
def test_trajectory_equals_the_literal_map(norm, activation):
    n, rho = np.array([4, 16])[:, None], np.array([-0.05, 0.0, 0.1, 0.9])
    variant = {"norm": norm, "activation": activation}
    state = maps.mean_field_trajectory(9, n, rho, **variant, **SETTINGS)
    assert state.q.shape == state.rho.shape == (2, 4, 10)
    for i, k in np.ndindex(2, 4):
        q, r = naive_map(9, n[i, 0], rho[k], 0.3, attn_sq=0.64 * 0.9, ff_sq=1.44 * 0.5, **variant)
        assert_allclose(state.q[i, k], q, rtol=1e-12)
        assert_allclose(state.rho[i, k], r, atol=1e-12)


@NORMS
@ACTIVATIONS
def test_half_layers_and_per_layer_schedules(norm, activation):
    variant = {"norm": norm, "activation": activation}
    whole = maps.mean_field_trajectory(5, 8, 0.2, **variant, **SETTINGS)
    half = maps.mean_field_trajectory(5, 8, 0.2, half_layers=True, **variant, **SETTINGS)
    assert half.rho.shape == (11,)
    assert_allclose(half.rho[::2], whole.rho, rtol=1e-13)
    assert_allclose(half.log_q[::2], whole.log_q, rtol=1e-13, atol=1e-13)
    # attention keeps q - p: (1 - rho) q is the same before and after it (up to the norm's rescale)
    if norm != "post":
        spread = half.one_minus_rho * half.q
        assert_allclose(spread[1::2], spread[:-1:2], rtol=1e-13)
    schedule = np.array([[0.5] * 5, [0.1, 0.2, 0.4, 0.8, 1.6]])
    keep = {"gain_attn": 0.9, "gain_ff": 0.5, "q_0": 0.3}
    varying = maps.mean_field_trajectory(
        5, 8, 0.2, alpha_attn=schedule, alpha_ff=schedule, per_layer=True, **variant, **keep
    )
    constant = maps.mean_field_trajectory(
        5, 8, 0.2, alpha_attn=0.5, alpha_ff=0.5, **variant, **keep
    )
    assert_allclose(varying.rho[0], constant.rho, rtol=1e-14)
    rho, log_q = 0.2, np.log(0.3)  # layer by layer, restarting from the previous state
    for l, alpha in enumerate(schedule[1]):
        step = maps.mean_field_trajectory(
            1, 8, rho, alpha_attn=alpha, alpha_ff=alpha, **variant, **keep | {"q_0": np.exp(log_q)}
        )
        rho, log_q = step.rho[-1], step.log_q[-1]
        assert_allclose(varying.rho[1, l + 1], rho, rtol=1e-12)
        assert_allclose(varying.log_q[1, l + 1], log_q, atol=1e-12)


def test_linear_trajectory_equals_theorem_3_2():
    state = maps.mean_field_trajectory(
        60, 16, 0.1, norm="none", activation="linear", alpha_attn=0.9, gain_attn=0.8, q_0=0.3
    )
    closed = theory.one_minus_rho_at_layer(np.arange(61), 16, 0.1, 0.9, 0.8)
    assert_allclose(state.one_minus_rho, closed, rtol=1e-12)
    assert closed[-1] < 1e-10
    t, _ = theory.expected_sums(np.arange(61), 16 * 0.3, 16 * 0.3 * 2.5, 16, 0.9, 1.0, 0.8)
    assert_allclose(state.q, t / 16, rtol=1e-12)


def test_no_norm_and_post_norm_share_the_rho_recursion():
    kwargs = {"activation": "relu", "alpha_attn": 0.8, "alpha_ff": 1.1, "q_0": 0.2}
    none = maps.mean_field_trajectory(40, 16, 0.1, norm="none", **kwargs)
    post = maps.mean_field_trajectory(40, 16, 0.1, norm="post", **kwargs)
    assert_allclose(none.one_minus_rho, post.one_minus_rho, rtol=1e-12)
    assert_allclose(post.q[1:], 1.0, rtol=0)


def test_collapse_halves_per_layer_at_every_precision():
    for norm, activation in (("none", "relu"), ("post", "relu"), ("post", "linear")):
        state = maps.mean_field_trajectory(900, 16, 0.1, norm=norm, activation=activation)
        ratio = state.one_minus_rho[1:] / state.one_minus_rho[:-1]
        assert_allclose(ratio[60:], 0.5, rtol=1e-8)  # down to 1 - rho ~ 1e-271
        assert 0 < state.one_minus_rho[-1] < 1e-260
        assert np.isfinite(state.log_q).all()


def test_reference_map_values():
    kwargs = {"activation": "relu"}
    scaled = maps.mean_field_trajectory(
        24, 16, 0.1, norm="none", alpha_attn=24**-0.5, alpha_ff=24**-0.5, **kwargs
    )
    post = maps.mean_field_trajectory(4, 16, 0.1, norm="post", **kwargs)
    pre = maps.mean_field_trajectory(24, 16, 0.1, norm="pre", **kwargs)
    linear = maps.mean_field_trajectory(24, 16, 0.1, norm="pre", activation="linear")
    values = [s.rho[-1] for s in (scaled, post, pre, linear)]
    assert_allclose(values, [0.499, 0.865, 0.851, 0.716], atol=6e-4)
    assert (
        abs(1 - maps.mean_field_trajectory(48, 16, 0.1, norm="pre", **kwargs).rho[-1] - 0.102)
        < 6e-4
    )


def test_pre_norm_collapse_is_polynomial():
    # 1 - rho ~ l^(-alpha1^2 / (alpha1^2 + alpha2^2)); ReLU approaches it from below
    attn = np.sqrt([1.0, 2.0])
    layers = np.unique(np.geomspace(2000, 20000, 30).astype(int))
    for activation, expected, tolerance in (
        ("linear", [-1 / 2, -2 / 3], 3e-3),
        ("relu", [-1 / 2], 0.03),
    ):
        state = maps.mean_field_trajectory(
            20000, 16, 0.1, norm="pre", activation=activation, alpha_attn=attn[: len(expected)]
        )
        for k, exponent in enumerate(expected):
            slope = np.polyfit(np.log(layers), np.log(state.one_minus_rho[k, layers]), 1)[0]
            assert abs(slope - exponent) < tolerance
        # the stream grows by at most 2 units per layer and by at least 1
        assert (state.q[0, -1] > 20000) & (state.q[0, -1] < 2 * 20000 + 2)


@pytest.mark.parametrize(
    ("norm", "activation"), [("none", "relu"), ("post", "relu"), ("pre", "relu"), ("pre", "linear")]
)
def test_map_against_wide_random_networks(norm, activation):
    rng = np.random.default_rng(6)
    networks, n, d, depth = 3, 6, 640, 3
    x = gaussian_tokens(rng, networks, n, d, 0.7, 0.2)
    he = 2.0 if activation == "relu" else 1.0
    states = run_uniform_network(
        rng, x, depth, (0.9, 0.8), norm=norm, activation=activation,
        var_v=1 / d, var_f1=1 / d, var_f2=he / d, d_ff=d,
    )  # fmt: skip
    expected = maps.mean_field_trajectory(
        depth, n, 0.2, norm=norm, activation=activation, alpha_attn=0.9, alpha_ff=0.8, q_0=0.49
    )
    # independent networks at width 640: standard error and finite-width bias are both near 0.01
    measured = np.array([mean_cosine(s).mean() for s in states])
    assert_allclose(measured, expected.rho, atol=0.03)
    powers = np.array([(s**2).mean() for s in states])
    assert_allclose(powers, expected.q, rtol=0.06)


# ---------------------------------------------------------------- continuous depth


def test_depth_limit_linear_equals_the_closed_form():
    n = np.array([4, 16, 100])[:, None]
    rho_0 = np.array([-0.01, 0.0, 0.3, 0.9, 1.0])
    t = np.linspace(0, 1, 5)
    for norm in ("none", "post"):
        state = maps.mean_field_limit(
            n, rho_0, norm=norm, activation="linear", alpha_attn_sq_L=3.0, gain_attn=0.8, t=t
        )
        closed = theory.one_minus_rho_limit(n[..., None], rho_0[:, None], 3.0 * t, 0.8)
        assert state.rho.shape == (3, 5, 5)
        assert_allclose(state.one_minus_rho, closed, rtol=1e-10)
    t_sum, _ = theory.expected_sums_limit(16, 16 * 2.5, 16, 3.0, 0.7)
    state = maps.mean_field_limit(
        16, 0.1, norm="none", activation="linear", alpha_attn_sq_L=3.0, alpha_ff_sq_L=0.7
    )
    assert_allclose(state.q[-1], t_sum / 16, rtol=1e-10)


def test_depth_limit_reference_values():
    n, rho_0 = np.array([16, 32]), np.array([0.1, 0.0])
    relu = maps.mean_field_limit(n, rho_0, norm="none", activation="relu")
    linear = maps.mean_field_limit(n, rho_0, norm="none", activation="linear")
    assert_allclose(relu.rho[:, 0], [0.511, 0.393], atol=6e-4)
    assert_allclose(relu.rho[0, 0], 0.51138, atol=6e-6)
    assert_allclose(linear.rho[:, 0], [0.290, 0.051], atol=6e-4)
    depths = (64, 512, 4096)
    finite = [
        maps.mean_field_trajectory(
            L, 16, 0.1, norm="none", activation="relu", alpha_attn=L**-0.5, alpha_ff=L**-0.5
        ).rho[-1]
        for L in depths
    ]
    assert_allclose(finite, [0.5067, 0.5108, 0.5113], atol=6e-5)


@NORMS
@ACTIVATIONS
def test_depth_limit_is_the_limit_of_the_map(norm, activation):
    variant = {"norm": norm, "activation": activation, "q_0": 0.6}
    limit = maps.mean_field_limit(
        9, 0.2, alpha_attn_sq_L=1.5, alpha_ff_sq_L=0.8, gain_ff=0.5, t=[0.0, 0.5, 1.0], **variant
    )
    gaps = []
    for depth in (400, 800):
        state = maps.mean_field_trajectory(
            depth, 9, 0.2, alpha_attn=np.sqrt(1.5 / depth), alpha_ff=np.sqrt(0.8 / depth),
            gain_ff=0.5, **variant,
        )  # fmt: skip
        picks = [0, depth // 2, depth]
        gaps.append([limit.rho - state.rho[picks], limit.log_q - state.log_q[picks]])
    rho_gap, q_gap = np.moveaxis(gaps, 1, 0)
    assert_allclose(rho_gap[0, 1:] / rho_gap[1, 1:], 2.0, rtol=0.02)  # O(1/L)
    assert np.abs(rho_gap[1]).max() < 2e-3
    if norm == "post":
        assert (limit.q == 1.0).all()
    else:
        assert_allclose(q_gap[0, 1:] / q_gap[1, 1:], 2.0, rtol=0.02)


# ---------------------------------------------------------------- broadcasting, logits, inputs


def test_broadcasting_is_a_permutation_of_scalar_calls():
    n = np.array([4, 16])[:, None, None]
    rho_0 = np.array([0.0, 0.2, 0.7])[:, None]
    alpha = np.array([0.3, 1.0, 1.5, 2.0])
    kwargs = {"norm": "pre", "activation": "relu"}
    grid = maps.mean_field_trajectory(5, n, rho_0, alpha_attn=alpha, **kwargs).rho
    swapped = maps.mean_field_trajectory(
        5, n.T, rho_0[None], alpha_attn=alpha[:, None, None], **kwargs
    ).rho
    assert grid.shape == (2, 3, 4, 6)
    assert_allclose(np.moveaxis(swapped, (0, 1, 2), (2, 1, 0)), grid, rtol=1e-13)
    limit = maps.mean_field_limit(n, rho_0, alpha_attn_sq_L=alpha, **kwargs).rho
    closed = theory.rho_at_layer(5, n, rho_0, alpha)
    assert limit.shape == (2, 3, 4, 1)
    for i, j, k in np.ndindex(2, 3, 4):
        setting = (n[i, 0, 0], rho_0[j, 0])
        one = maps.mean_field_trajectory(5, *setting, alpha_attn=alpha[k], **kwargs).rho
        assert_allclose(grid[i, j, k], one, rtol=1e-13)
        one = maps.mean_field_limit(*setting, alpha_attn_sq_L=alpha[k], **kwargs).rho
        assert_allclose(limit[i, j, k], one, atol=1e-10)
        one = theory.rho_at_layer(5, *setting, alpha[k])
        assert_allclose(closed[i, j, k], one, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("i", "j"), [(0, 1), (1, 1)])
def test_logit_second_moment_monte_carlo(i, j):
    rng = np.random.default_rng(7)
    networks, d, d_k, tau = 40_000, 6, 8, 1.7
    x = rng.standard_normal((2, d))
    q = x @ (np.sqrt(0.3) * rng.standard_normal((networks, d, d_k)))
    k = x @ (np.sqrt(0.2) * rng.standard_normal((networks, d, d_k)))
    logits = tau / np.sqrt(d_k) * (q[:, i] * k[:, j]).sum(-1)
    norms = (x**2).sum(-1)
    expected = theory.logit_second_moment(norms[i], norms[j], 0.3, 0.2, tau)
    assert_monte_carlo(logits**2, float(expected), 0.015)


@pytest.mark.parametrize("d_k", [32, 128])
def test_reference_logit_sizes(d_k):
    # rms logit at d = 32, sigma_x = 1 (E||x||^4 = d^2 ignoring its spread), variances 1/d_k
    rms = np.sqrt(theory.logit_second_moment(32.0, 32.0, 1 / d_k, 1 / d_k))
    assert_allclose(rms, 32 / d_k, rtol=1e-14)


BAD_CALLS = [
    (lambda: theory.rho_at_layer(1, 1, 0.0), "n_tokens = 1 "),
    (lambda: theory.rho_at_layer(-1, 4, 0.0), "layer = -1 "),
    (lambda: theory.rho_at_layer(1, 4, [0.1, 1.2]), "rho_0 = 1.2 "),
    (lambda: theory.rho_at_layer(1, [3, 5], -0.4), "rho_0 = -0.4 .* -0.25 "),
    (lambda: theory.rho_at_layer(1, 4, 0.1, np.nan), "alpha_attn = nan "),
    (lambda: theory.rho_at_layer(1, 4, 0.1, 1.0, -1.0), "gain_attn = -1 "),
    (lambda: theory.rho_at_layer(1, 4, "high"), "rho_0 = 'high' "),
    (lambda: theory.one_minus_rho_limit(4, 0.1, -1.0), "alpha_attn_sq_L = -1 "),
    (lambda: theory.one_minus_rho_per_layer(4, 0.1, 1.0), "alpha_attn = 1.0 has no layer axis"),
    (lambda: theory.depth_to_reach(1.5, 4, 0.1), "rho_target = 1.5 "),
    (lambda: theory.expected_sums(1, 2.0, 9.0, 4), "c_0 = 9 "),
    (lambda: theory.expected_sums(1, 0.0, 0.0, 4), "t_0 = 0 "),
    (lambda: theory.gaussian_token_sums(4, 0, 1.0, 0.1), "d_model = 0 "),
    (lambda: theory.gaussian_token_sums(4, 8, -1.0, 0.1), "sigma_x = -1 "),
    (lambda: theory.init_variance("he", 8, 8), "rule = 'he' "),
    (lambda: theory.init_variance("fan_in", 0, 8), "d_in = 0 "),
    (lambda: theory.attention_gain(8, 4, 0.1), "d_v = 4 "),
    (lambda: theory.attention_gain(8, 8, -0.1), "var_v = -0.1 "),
    (lambda: theory.feedforward_gain(8, 8, 0.1, 0.1, "gelu"), "activation = 'gelu' "),
    (lambda: maps.kappa(1.01), "u = 1.01 "),
    (lambda: maps.one_minus_kappa([0.1, 2.5]), "one_minus_u = 2.5 "),
    (lambda: theory.logit_second_moment(1.0, 1.0, np.inf, 1.0), "var_q = inf "),
]


@pytest.mark.parametrize(("call", "pattern"), BAD_CALLS)
def test_bad_input_is_one_clear_line(call, pattern):
    with pytest.raises(ValueError, match=pattern) as error:
        call()
    assert "\n" not in str(error.value)
    assert "pass " in str(error.value)


@pytest.mark.parametrize(
    ("override", "pattern"),
    [
        ({"depth": 0}, "depth = 0 "),
        ({"depth": 2.5}, "depth = 2.5 "),
        ({"norm": "layer"}, "norm = 'layer' "),
        ({"activation": "gelu"}, "activation = 'gelu' "),
        ({"q_0": 0.0}, "q_0 = 0 "),
        ({"per_layer": True}, "alpha_attn = 1.0 has no layer axis"),
        (
            {"per_layer": True, "alpha_attn": np.ones(2), "alpha_ff": np.ones(3)},
            "alpha_attn has 2 layers",
        ),
    ],
)
def test_bad_trajectory_input(override, pattern):
    kwargs = {"depth": 3, "n_tokens": 4, "rho_0": 0.1, "norm": "none", "activation": "relu"}
    with pytest.raises(ValueError, match=pattern):
        maps.mean_field_trajectory(**(kwargs | override))


@pytest.mark.parametrize("t", [-0.1, 1.1, [0.5, 0.2], [[0.1]]])
def test_bad_depth_fraction(t):
    with pytest.raises(ValueError, match="t = "):
        maps.mean_field_limit(4, 0.1, norm="none", activation="relu", t=t)

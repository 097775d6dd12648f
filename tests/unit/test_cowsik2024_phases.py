"""Exponents, critical lines and fixed points against the maps, limits and explicit iteration."""

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from sigprop.theory.cowsik2024 import (
    Architecture,
    Block,
    backward_matrix,
    block_map,
    deepscale,
    gradient_trajectory,
    lambda_g_traj,
    spectral_radius,
    terms,
    tied,
    trajectory,
)
from sigprop.theory.cowsik2024_phases import (
    angle_factor,
    collapsed_norm,
    critical_alpha,
    critical_alpha_ff,
    critical_sigma_w,
    exponents,
    fixed_points,
    lambda_a,
    lambda_g,
    lambda_g_star,
    power_exponents,
    small_alpha_exponents,
    stable_rho,
    trainable_alpha,
    trainable_depth,
)
from sigprop.theory.mlp_moments import mlp_moments

ALPHA = np.array([0.01, 0.1, 0.3, 0.5, 0.7, 0.9])

# Any setting with constant exponents
SETTINGS = {
    "alpha_attn": st.floats(0.0, 0.97),
    "alpha_ff": st.floats(0.02, 1.0),
    "sigma_w1": st.floats(0.2, 5.0),
    "sigma_w2": st.floats(0.3, 4.0),
    "sigma_v": st.floats(0.3, 2.0),
    "mode": st.sampled_from(["conv", "renorm"]),
}


# ---------------------------------------------------------------- golden values


@pytest.mark.parametrize(
    ("architecture", "angle", "gradient"),
    [
        (tied(0.5, 0.5, 1.2), -0.294453, 0.0510),
        (tied(0.5, 0.5, 2.5), 0.169048, 0.2769),
        (tied(0.3, 0.8, 2.0), 0.299461, 0.3388),
        (tied(0.5, 0.5, 2.5, mode="renorm"), 0.112286, 0.3354),
        (Architecture(0.5, 0.5, 2.5, 1.0), -0.172394, 0.1658),
        (tied(0.5, 0.5, 2.0, activation="relu"), -0.064539, 0.0),
        (tied(0.5, 0.0, 2.0), np.log(0.75), 0.0),
    ],
)
def test_golden_exponents(architecture, angle, gradient):
    assert_allclose(lambda_a(architecture), angle, atol=1e-6)
    assert_allclose(lambda_g(architecture), gradient, atol=6e-5)


@pytest.mark.parametrize(
    ("mode", "joint", "expected"),
    [
        ("conv", True, [1.7959, 1.8002, 1.8372, 1.9259, 2.1194, 2.7368]),
        ("renorm", True, [1.7960, 1.8086, 1.9119, 2.1272, 2.4715, 2.9659]),
        ("conv", False, [3.3775, 3.3985, 3.5839, 4.0653, 5.3181, np.nan]),
    ],
)
def test_golden_critical_sigma_w(mode, joint, expected):
    found = critical_sigma_w(Architecture(ALPHA, ALPHA, 1.0, 1.0, mode=mode), tied=joint)
    known = np.isfinite(expected)
    assert_allclose(found[known], np.array(expected)[known], atol=6e-5)
    assert (found[~known] > 6.0).all()


@pytest.mark.parametrize(
    ("alpha", "sigma_w", "expected"),
    [(0.5, 2.5, (0.347, 0.368)), (0.5, 2.1, (0.816, 0.818)), (0.7, 3.0, (0.112, 0.170))],
)
def test_golden_simplex(alpha, sigma_w, expected):
    _, rho = stable_rho(tied(alpha, alpha, sigma_w, n_tokens=[np.inf, 64.0]))
    assert_allclose(rho, expected, atol=6e-4)


@pytest.mark.parametrize(
    ("alpha", "sigma_w"), [(0.01, 2.646), (0.3, 2.698), (0.5, 2.823), (0.7, 3.135)]
)
def test_golden_weight_scale_of_orthogonal_tokens(alpha, sigma_w):
    """rho* > 0 just below this sigma_w, and 0 just above; n = inf."""
    _, rho = stable_rho(tied(alpha, alpha, [sigma_w - 2e-3, sigma_w + 2e-3], n_tokens=np.inf))
    assert 1e-5 < rho[0] < 0.01
    assert_allclose(rho[1], 0.0, atol=1e-6)  # rounding over alpha^2 and the distance 2e-3


def test_golden_gradient_at_the_simplex():
    a = tied([0.5, 0.5, 0.7], [0.5, 0.5, 0.7], [2.5, 2.1, 3.0], n_tokens=64)
    assert_allclose(lambda_g_star(a), [0.2614, 0.1120, 0.5671], atol=6e-5)


# ---------------------------------------------------------------- exponents


@settings(max_examples=40)
@given(**SETTINGS)
def test_angle_exponent_is_the_slope_of_the_map(**values):
    """One block from the collapsed norm multiplies a small 1 - rho by e^lambda_a."""
    a = Architecture(**values, n_tokens=16)
    q = collapsed_norm(a)
    block, delta = Block(a), np.asarray(1e-7)
    after = block.step(q, delta)
    assert_allclose(after[0], q, rtol=1e-6)
    assert_allclose(np.log(after[1] / delta), lambda_a(a), atol=2e-5)
    assert_allclose(np.log(angle_factor(a, q)), lambda_a(a), atol=1e-12)


@pytest.mark.parametrize("mode", ["conv", "renorm", "unit"])
@pytest.mark.parametrize("attention", ["softmax", "shaped", "centered"])
def test_angle_factor_is_a_finite_difference_off_the_fixed_point(mode, attention):
    a = tied(0.6, 0.4, 1.7, sigma_v=1.4, n_tokens=9, mode=mode, attention=attention)
    q, h = 2.3, 1e-5
    after_q, after_p = block_map(a, q, q * (1 - h))
    assert_allclose((1 - after_p / after_q) / h, angle_factor(a, q), rtol=1e-3)


@settings(max_examples=40)
@given(**SETTINGS)
def test_identity_and_poincare(**values):
    """lambda_g - lambda_a = log(1 + s / (c_A q*)) >= 0, and lambda_g >= 0 for tanh.

    The right side from its definition, with q* iterated rather than solved for.
    """
    a = Architecture(**values)
    t, q = terms(a), np.asarray(1.0)
    if a.mode == "conv":
        for _ in range(60_000):
            before, q = q, t.c_mlp * (t.c_attn * q + t.s) + t.m * t.b
            if abs(q - before) < 1e-15 * q:
                break
    gap = np.log(1.0 + t.s / (t.c_attn * q))
    assert_allclose(lambda_g(a) - lambda_a(a), gap, atol=1e-9)
    assert lambda_g(a) >= -1e-12
    assert gap >= 0.0


@settings(max_examples=40)
@given(**SETTINGS)
def test_gradient_modes_at_collapse(**values):
    """Eigenvalues of the backward matrix: e^lambda_g (coherent) and e^lambda_a (difference)."""
    a = Architecture(**values, n_tokens=12)
    q = collapsed_norm(a)
    b = backward_matrix(a, q, q)
    assert_allclose(b @ np.ones(2), np.exp(lambda_g(a)) * np.ones(2), rtol=1e-9)
    found = np.sort(np.linalg.eigvals(b).real)
    assert_allclose(found, np.exp([lambda_a(a), lambda_g(a)]), rtol=1e-8, atol=1e-12)
    assert_allclose(np.log(spectral_radius(b)), lambda_g(a), atol=1e-9)


@settings(max_examples=40)
@given(activation=st.sampled_from(["relu", "linear"]), **SETTINGS)
def test_relu_and_linear_have_no_chaotic_phase(activation, **values):
    a = Architecture(**values, activation=activation)
    assert lambda_a(a) <= 1e-13
    assert_allclose(lambda_g(a), 0.0, atol=1e-13)
    assert np.isnan(critical_sigma_w(a, missing="nan"))
    assert np.isnan(critical_alpha(a)[0])


def test_a_phase_diagram_is_quick():
    """Both exponents on 200 x 200 settings in less than 5 s of processor time."""
    alpha, sigma_w = np.meshgrid(np.linspace(0.0, 0.98, 200), np.linspace(0.61, 4.01, 200))
    start = time.process_time()
    a = tied(alpha, alpha, sigma_w)
    angle, gradient = lambda_a(a), lambda_g(a)
    assert time.process_time() - start < 5.0
    assert angle.shape == gradient.shape == (200, 200)


def test_independent_of_logit_scale_and_tokens():
    a = tied(0.5, 0.5, 2.5, sigma_a=[0.5, 1.0, 4.0], n_tokens=np.array([[8.0], [32.0], [np.inf]]))
    assert lambda_a(a).shape == (3, 3)
    assert max(np.ptp(lambda_a(a)), np.ptp(lambda_g(a))) < 1e-14


def test_attention_only():
    """conv: lambda_a = log(1 - alpha^2); unit: 1 - rho falls as q0 / (q0 + alpha^2 sigma_v^2 t)."""
    alpha = np.array([0.0, 0.3, 0.9, 1.0])
    with np.errstate(divide="ignore"):
        assert_allclose(lambda_a(tied(alpha, 0.0, 1.0)), np.log(1 - alpha**2), rtol=1e-12)
    a = tied(0.6, 0.0, 1.0, mode="unit")
    states = trajectory(a, 50, q=2.0, rho=1.0 - 1e-9)
    expected = 1e-9 * 2.0 / (2.0 + 0.36 * np.arange(51))
    assert_allclose(states.one_minus_rho, expected, rtol=1e-6)
    assert_allclose(power_exponents(a)[0], -1.0)


def test_small_alpha_exponents_are_the_leading_order():
    """The relative error falls as alpha^2."""
    alpha = np.array([0.04, 0.02, 0.01])
    for mode in ("conv", "renorm"):
        a = tied(alpha, 0.8 * alpha, 2.3, sigma_v=1.2, mode=mode)
        exact = np.stack([lambda_a(a), lambda_g(a)])
        error = np.abs(np.stack(small_alpha_exponents(a)) / exact - 1.0)
        assert error[:, 2].max() < 4e-3
        assert_allclose(error[:, 1:] / error[:, :-1], 0.25, atol=0.02)


@pytest.mark.parametrize(("sigma_w", "expected"), [(1.2, -0.4994), (2.5, 0.5092)])
def test_unit_mode_follows_power_laws(sigma_w, expected):
    """Slopes of log(1 - rho) and of the coherent gradient against log t, deep in the network."""
    a = tied(0.5, 0.5, sigma_w, mode="unit")
    depth = 2000
    kappa_a, kappa_g = power_exponents(a)
    assert_allclose(kappa_a, expected, atol=6e-5)
    states = trajectory(a, depth, rho=1.0 - 1e-12)
    layer = np.arange(depth + 1)
    late = slice(500, None)
    slope = np.polyfit(np.log(layer[late]), np.log(states.one_minus_rho[late]), 1)[0]
    assert_allclose(slope, kappa_a, atol=2e-3)
    log_g = gradient_trajectory(a, states, coherence=1.0).log_g
    slope = np.polyfit(np.log(layer[late]), -log_g[late], 1)[0]
    assert_allclose(slope, kappa_g, atol=3e-3)


@pytest.mark.parametrize("attention", ["shaped", "centered"])
def test_variants_never_collapse(attention):
    """Attention that is neutral for the angle: lambda_a = lambda_g > 0 for tanh."""
    a = tied(0.6, 0.5, np.array([0.4, 1.0, 2.0]), attention=attention)
    assert (lambda_a(a) > 0.0).all()
    assert_allclose(lambda_a(a), lambda_g(a))
    assert np.isnan(critical_sigma_w(a, missing="nan")).all()
    shaped_unit = replace(a, mode="unit")
    assert (power_exponents(shaped_unit)[0] > 0.0).all()


def test_deepscale_has_depth_independent_exponents():
    """alpha^2 = k / L: L lambda tends to a constant of order k."""
    depth = np.array([50.0, 200.0, 800.0, 3200.0])
    a = deepscale(depth, k=1.5, sigma_w1=1.5)
    for scaled in (depth * lambda_a(a), depth * lambda_g(a)):
        assert np.abs(scaled).max() < 3.0
        assert_allclose(scaled[2], scaled[3], rtol=3e-3)


# ---------------------------------------------------------------- critical lines


@pytest.mark.parametrize("mode", ["conv", "renorm"])
@pytest.mark.parametrize("activation", ["tanh", "erf"])
def test_lambda_a_changes_sign_on_the_critical_line(mode, activation):
    alpha = np.array([0.2, 0.5, 0.8])
    a = Architecture(alpha, 0.6, 1.0, 1.3, sigma_v=0.8, mode=mode, activation=activation)
    for joint in (True, False):
        root = critical_sigma_w(a, tied=joint)

        def at(sigma, joint=joint):
            return lambda_a(replace(a, sigma_w1=sigma, sigma_w2=sigma if joint else 1.3))

        assert_allclose(at(root), 0.0, atol=1e-11)
        assert (at(0.99 * root) < 0.0).all()
        assert (at(1.01 * root) > 0.0).all()


@settings(max_examples=40)
@given(
    alpha_attn=st.floats(0.05, 0.9),
    ratio=st.floats(0.4, 2.5),
    sigma_w=st.floats(1.0, 5.0),
    mode=st.sampled_from(["conv", "renorm"]),
)
def test_critical_alpha_is_a_zero_of_lambda_a(alpha_attn, ratio, sigma_w, mode):
    """Where the closed form has a root, lambda_a is 0 there and positive just below; else the
    sign of lambda_a is the same at every scale."""
    a = tied(alpha_attn, min(1.0, ratio * alpha_attn), sigma_w, mode=mode)
    attn, mlp = critical_alpha(a)
    if np.isfinite(attn):
        root = replace(a, alpha_attn=attn, alpha_ff=mlp)
        assert_allclose(lambda_a(root), 0.0, atol=1e-9)
        assert lambda_a(replace(a, alpha_attn=0.95 * attn, alpha_ff=0.95 * mlp)) > 0.0
        assert_allclose(critical_alpha_ff(root), mlp, rtol=1e-6)
        assert_allclose(critical_sigma_w(root), sigma_w, rtol=1e-7)
    else:
        largest = 1.0 / np.maximum(a.alpha_attn, a.alpha_ff)
        scale = np.linspace(0.01, 0.999, 50) * largest
        values = lambda_a(replace(a, alpha_attn=scale * a.alpha_attn, alpha_ff=scale * a.alpha_ff))
        assert (values > 0.0).all() or (values < 0.0).all()


def test_small_alpha_critical_line():
    """alpha_M^2 (G - B) = alpha_A^2 sigma_V^2: off by alpha_A^2 in conv, so 1 % at alpha 0.1."""
    alpha = np.array([0.05, 0.1])
    a = tied(alpha, alpha, critical_sigma_w(tied(alpha, alpha, 1.0)))
    t = terms(a)
    assert_allclose(t.m * (t.g - t.b) / t.s - 1.0, 1.0 / (1.0 - alpha**2) - 1.0, rtol=1e-9)
    exact = critical_alpha_ff(a)
    leading = critical_alpha_ff(a, order="leading")
    assert_allclose(exact, alpha, rtol=1e-9)
    assert_allclose(leading, alpha * np.sqrt(1.0 - alpha**2), rtol=1e-9)
    unit = critical_sigma_w(replace(a, mode="unit"))
    assert_allclose(power_exponents(tied(alpha, alpha, unit, mode="unit"))[0], 0.0, atol=1e-10)


def test_lambda_g_on_the_critical_line():
    """lambda_g = log(q1 / (c_A q*)) where lambda_a = 0: both vanish only as alpha -> 0."""
    a = tied(ALPHA, ALPHA, critical_sigma_w(tied(ALPHA, ALPHA, 1.0)))
    t, q = terms(a), collapsed_norm(a)
    assert_allclose(lambda_g(a), np.log((t.c_attn * q + t.s) / (t.c_attn * q)), rtol=1e-9)
    assert (np.diff(lambda_g(a)) > 0.0).all()


# ---------------------------------------------------------------- depth


@pytest.mark.parametrize("sigma_w", [1.2, 3.0])
def test_trainable_alpha_falls_as_the_square_root_of_depth(sigma_w):
    depth = np.array([64, 128, 256, 512])
    found = [trainable_alpha(tied(1.0, 1.0, sigma_w), l) for l in depth]
    alpha = np.array([float(attn) for attn, _ in found])
    assert_allclose([float(mlp) for _, mlp in found], alpha)
    assert_allclose(np.polyfit(np.log(depth), np.log(alpha), 1)[0], -0.5, atol=0.02)
    a = tied(alpha, alpha, sigma_w)
    assert_allclose(trainable_depth(a), depth, rtol=1e-6)
    assert (trainable_depth(tied(0.9 * alpha, 0.9 * alpha, sigma_w)) > depth).all()


def test_trainable_alpha_is_capped():
    """A shallow network is trainable at every strength; arrays of directions broadcast."""
    attn, mlp = trainable_alpha(tied([0.3, 0.6], 0.3, 2.0, mode="renorm"), 1, budget=10.0)
    assert_allclose(np.maximum(attn, mlp), 1.0, rtol=1e-9)
    assert_allclose(attn / mlp, [1.0, 2.0])


# ---------------------------------------------------------------- fixed points


@pytest.mark.parametrize("n_tokens", [16.0, np.inf])
@pytest.mark.parametrize("mode", ["conv", "renorm"])
def test_stable_point_is_where_iteration_ends(n_tokens, mode):
    a = tied([0.6, 0.5, 0.4], [0.6, 0.7, 0.4], [2.6, 3.2, 1.2], n_tokens=n_tokens, mode=mode)
    q, rho = stable_rho(a)
    ends = [trajectory(a, 800, q=2.0, rho=start) for start in (1e-3, 0.9999)]
    for end in ends:
        assert_allclose(end.rho[-1], rho, atol=1e-6)
        assert_allclose(end.q[-1], q, rtol=1e-6)


def test_no_bistability():
    """One stable point on the grid, and it is the one that stable_rho finds."""
    for alpha in (0.3, 0.7):
        for sigma_w in (1.2, 1.9, 2.5, 4.0):
            a = tied(alpha, alpha, sigma_w, n_tokens=np.inf)
            points = fixed_points(a)
            stable = [point for point in points if point.stable]
            assert len(stable) == 1
            q, rho = stable_rho(a)
            assert_allclose((stable[0].q, stable[0].rho), (q, rho), atol=1e-7)
            assert points[0].rho == 1.0
            expected = [np.exp(lambda_a(a)), (1 - alpha**2) ** 2]
            assert_allclose(sorted(points[0].multipliers), sorted(expected))
            for point in points:
                q, p = block_map(a, point.q, point.q * point.rho)
                assert_allclose((q, p), (point.q, point.q * point.rho), atol=1e-9)


@pytest.mark.parametrize("alpha", [0.3, 0.6])
def test_orthogonal_simplex_multiplier(alpha):
    """n = inf, rho = 0: m_0 = (c_A + s/q0)(c_M + m sigma_1^2 sigma_2^2 (E phi')^2 / q1)."""
    sigma_w = 2.5
    a = tied(alpha, alpha, sigma_w, n_tokens=np.inf)
    t = terms(a)
    q0 = t.m * t.b / (1 - t.c_attn * t.c_mlp)
    slope_square = mlp_moments(sigma_w, 0.0)[1]
    m0 = (t.c_attn + t.s / q0) * (t.c_mlp + t.m * sigma_w**4 * slope_square / (t.c_attn * q0))
    point = fixed_points(a)[-1]
    assert point.rho == pytest.approx(0.0, abs=1e-12)
    assert_allclose(point.q, q0, rtol=1e-9)
    assert_allclose(max(point.multipliers), m0, rtol=1e-6)


@pytest.mark.parametrize(
    ("alpha", "sigma_w"), [(0.01, 2.646), (0.3, 2.698), (0.5, 2.823), (0.7, 3.135)]
)
def test_where_tokens_become_orthogonal(alpha, sigma_w):
    sigma_w = sigma_w + np.array([-0.004, 0.004])
    below, above = stable_rho(tied(alpha, alpha, sigma_w, n_tokens=np.inf))[1]
    assert below > 1e-4
    assert abs(above) < 1e-6


def test_transition_is_continuous():
    """rho* leaves 1 linearly in lambda_a."""
    alpha = 0.3
    edge = critical_sigma_w(tied(alpha, alpha, 1.0))
    a = tied(alpha, alpha, edge + np.array([-1e-3, 1e-4, 1e-3, 1e-2]), n_tokens=np.inf)
    _, rho = stable_rho(a)
    assert rho[0] == 1.0
    assert_allclose((1 - rho[2]) / (1 - rho[1]), 10.0, rtol=0.05)
    assert_allclose((1 - rho[3]) / (1 - rho[2]), 10.0, rtol=0.2)


def test_unit_mode_tends_to_its_simplex():
    a = tied(0.6, 0.6, 2.4, n_tokens=16, mode="unit")
    q, rho = stable_rho(a)
    assert q == np.inf
    # at large q the correlation drifts towards it from both sides, and not at all from it
    block = Block(tied([0.6] * 3, 0.6, 2.4, n_tokens=16, mode="unit"))
    start = rho + np.array([-0.02, 0.0, 0.02])
    drift = (1.0 - start) - block.step(np.full(3, 1e4), 1.0 - start)[1]
    assert drift[0] > 0.0 > drift[2]
    assert abs(drift[1]) < 1e-2 * np.abs(drift[[0, 2]]).min()
    points = fixed_points(a)
    assert [point.stable for point in points] == [False, True]
    assert_allclose(points[1].rho, rho, atol=1e-9)
    assert_allclose(points[0].multipliers[0], np.exp(power_exponents(a)[0]), rtol=1e-9)


@pytest.mark.parametrize("sigma_w", [1.2, 2.5])
def test_gradient_of_deep_networks_grows_as_lambda_g_star(sigma_w):
    a = tied(0.5, 0.5, sigma_w, n_tokens=16)
    q, rho = stable_rho(a)
    log_g = gradient_trajectory(a, trajectory(a, 300, q=q, rho=rho)).log_g
    assert_allclose(log_g[0] - log_g[100], 100 * lambda_g_star(a), rtol=1e-6)
    if sigma_w == 1.2:
        assert_allclose(lambda_g_star(a), lambda_g(a), rtol=1e-9)


# ---------------------------------------------------------------- the calculator


def test_report_of_the_chaotic_phase():
    a = tied(0.5, 0.5, 2.5)
    report = exponents(a, 24)
    assert report.phase == "chaotic"
    assert_allclose((report.lambda_a, report.lambda_g), (0.169048, 0.276917), atol=1e-6)
    assert_allclose(report.lambda_g_traj, lambda_g_traj(a, 24))
    assert_allclose(report.lambda_g_star, lambda_g_star(a))
    assert_allclose(report.depth_scale_a * report.lambda_a, 1.0)
    assert_allclose((report.q_star, report.rho_star), stable_rho(a))
    assert_allclose(report.critical_sigma_w, 1.9259, atol=1e-4)
    assert report.critical_alpha is not None
    assert_allclose(critical_sigma_w(tied(*report.critical_alpha, 1.0)), 2.5, rtol=1e-9)
    assert report.power_a is report.power_g is None


def test_report_of_the_other_phases():
    ordered = exponents(tied(0.5, 0.5, 1.2, mode="renorm"))
    assert ordered.phase == "ordered"
    assert (ordered.q_star, ordered.rho_star, ordered.lambda_g_traj) == (1.0, 1.0, None)
    assert ordered.critical_alpha is None
    edge = exponents(tied(0.5, 0.5, float(critical_sigma_w(tied(0.5, 0.5, 1.0)))))
    assert edge.phase == "edge"
    free = exponents(tied(0.0, 0.0, 2.0))
    assert (free.phase, free.lambda_a, free.depth_scale_a) == ("edge", 0.0, np.inf)
    assert free.critical_sigma_w is None
    one_step = exponents(tied(1.0, 0.5, 2.0), 3)
    assert (one_step.lambda_a, one_step.depth_scale_a) == (-np.inf, 0.0)
    unit = exponents(tied(0.5, 0.5, 2.5, mode="unit"), 24)
    assert (unit.phase, unit.lambda_a, unit.lambda_g_star) == ("chaotic", 0.0, None)
    assert_allclose(unit.power_a, 0.5092, atol=1e-4)
    fixed_readout = exponents(Architecture(0.5, 0.5, 2.5, 1.0))
    assert_allclose(fixed_readout.critical_sigma_w, 4.0653, atol=1e-4)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lambda_a(tied(0.5, 0.5, 1.0, mode="unit")), r"mode = 'unit' has power laws"),
        (lambda: power_exponents(tied(0.5, 0.5, 1.0)), r"mode = 'conv' has exponents per block"),
        (lambda: power_exponents(tied(0.0, 0.0, 1.0, mode="unit")), r"alpha_attn = alpha_ff = 0"),
        (
            lambda: critical_sigma_w(tied(0.5, 0.5, 1.0), bracket=(2.0, 4.0)),
            r"bracket = \(2, 4\) holds no critical sigma_w .* pass a bracket with a sign change",
        ),
        (lambda: critical_sigma_w(tied(0.0, 0.5, 1.0)), r"bracket = .* missing='nan'"),
        (
            lambda: critical_sigma_w(tied(0.5, 0.5, 1.0), bracket=(0.0, 4.0)),
            r"bracket = 0 is out of range: pass bracket > 0",
        ),
        (lambda: critical_sigma_w(tied(0.5, 0.5, 1.0), missing="skip"), r"missing = 'skip'"),
        (lambda: critical_alpha_ff(tied(0.5, 0.5, 1.0), order="all"), r"order = 'all' is unknown"),
        (lambda: trainable_alpha(tied(0.0, 0.0, 1.0), 10), r"has no direction to scale"),
        (lambda: trainable_alpha(tied(0.5, 0.5, 1.0), 0), r"depth = 0 is out of range"),
        (lambda: trainable_depth(tied(0.5, 0.5, 1.0), budget=0.0), r"budget = 0 is out of range"),
        (lambda: angle_factor(tied(0.5, 0.5, 1.0), -1.0), r"q = -1 is out of range"),
        (lambda: exponents(tied([0.5, 0.6], 0.5, 1.0)), r"architecture has shape \(2,\): pass one"),
        (lambda: fixed_points(tied([0.5, 0.6], 0.5, 1.0)), r"architecture has shape \(2,\)"),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)

"""Update maps, trajectories and gradients of one block against explicit random networks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from sigprop.theory.cowsik2024 import (
    Architecture,
    Block,
    attention_map,
    backward_matrix,
    block_map,
    deepscale,
    gradient_trajectory,
    lambda_g_traj,
    mlp_map,
    sigma_reparam,
    spectral_radius,
    terms,
    tied,
    trajectory,
)
from sigprop.theory.mlp_moments import mlp_moments
from sigprop.theory.softmax_moments import softmax_moments

# ---------------------------------------------------------------- golden values


@pytest.mark.parametrize(
    ("alphas", "sigma_w", "expected"),
    [
        ((0.5, 0.5), 2.5, (1.75373, 0.90926)),
        ((0.5, 0.5), 1.2, (0.82679, 0.46737)),
        ((0.3, 0.8), 2.0, (1.97087, 0.92025)),
    ],
)
def test_golden_block(alphas, sigma_w, expected):
    assert_allclose(block_map(tied(*alphas, sigma_w), 1.0, 0.5), expected, atol=1e-5)


def test_golden_attention():
    assert_allclose(attention_map(tied(0.5, 0.5, 2.5), 1.0, 0.5), (0.88118, 0.50492), atol=1e-5)


@pytest.mark.parametrize(
    ("sigma_w", "expected"),
    [
        (2.5, [[2.350541, 0.718310], [0.022832, 1.895625]]),
        (1.2, [[0.760121, 0.351040], [0.007383, 0.926398]]),
    ],
)
def test_golden_backward(sigma_w, expected):
    assert_allclose(backward_matrix(tied(0.5, 0.5, sigma_w), 1.0, 0.5), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "rho", "lambda_g"),
    [
        (tied(0.5, 0.5, 1.2), 0.9953, 0.0398),
        (tied(0.8, 0.3, 1.5), 1.0000, 0.0492),
        (tied(0.6, 0.0, 1.0), 1.0000, 0.0084),
        (tied(0.5, 0.5, 2.5), 0.1244, 0.3711),
        (tied(0.3, 0.8, 2.0), 0.0130, 0.3896),
        (tied(0.5, 0.5, 2.5, sigma_a=3.0), 0.0828, 0.5603),
        (tied(0.5, 0.5, 2.5, mode="renorm"), 0.3675, 0.3543),
        (tied(0.5, 0.5, 2.5, mode="unit"), 0.0277, 0.2350),
        (tied(0.5, 0.5, 2.0, activation="relu"), 0.9461, 0.0238),
    ],
)
def test_golden_trajectories(architecture, rho, lambda_g):
    assert_allclose(trajectory(architecture, 24).rho[-1], rho, atol=6e-5)
    assert_allclose(lambda_g_traj(architecture, 24), lambda_g, atol=6e-5)


# ---------------------------------------------------------------- explicit random networks


PHI = {
    "tanh": (np.tanh, lambda u: 1.0 / np.cosh(u) ** 2),
    "relu": (lambda u: np.maximum(u, 0.0), lambda u: (u > 0.0) * 1.0),
}


def normalize(x):
    """(x scaled to |x_i|^2 = d, its rms): LN at large width."""
    rms = np.sqrt((x**2).mean(-1, keepdims=True))
    return x / rms, rms


def normalize_back(delta, unit, rms):
    return (delta - unit * (delta * unit).mean(-1, keepdims=True)) / rms


class Network:
    """One block with explicit weights: X (n, d) -> X', and the vector-Jacobian product."""

    def __init__(self, rng, a, d):
        def draw(sigma):
            return sigma / np.sqrt(d) * rng.standard_normal((d, d))

        self.a, self.d = a, d
        self.m, self.v = draw(a.sigma_a), draw(a.sigma_v)
        self.w1, self.w2 = draw(a.sigma_w1), draw(a.sigma_w2)
        self.skips = (
            [np.sqrt(1 - x**2) for x in (a.alpha_attn, a.alpha_ff)] if a.mode == "conv" else [1, 1]
        )

    def forward(self, x):
        a, n = self.a, len(x)
        self.x, self.x_rms = normalize(x)
        logits = self.x @ self.m @ self.x.T / np.sqrt(self.d)
        e = np.exp(logits - logits.max(1, keepdims=True))
        self.soft = e / e.sum(1, keepdims=True)
        shift = {"softmax": 0.0, "centered": -1.0 / n, "shaped": np.eye(n) - 1.0 / n}[a.attention]
        self.attn = self.soft + shift
        y = self.skips[0] * x + a.alpha_attn * self.attn @ self.x @ self.v.T
        self.y, self.y_rms = normalize(y)
        self.pre = self.y @ self.w1.T
        out = self.skips[1] * y + a.alpha_ff * PHI[a.activation][0](self.pre) @ self.w2.T
        if a.mode == "renorm":
            self.out, self.out_rms = normalize(out)
            return y, self.out
        return y, out

    def backward(self, delta):
        a = self.a
        if a.mode == "renorm":
            delta = normalize_back(delta, self.out, self.out_rms)
        inner = (delta @ self.w2 * PHI[a.activation][1](self.pre)) @ self.w1
        delta = self.skips[1] * delta + a.alpha_ff * normalize_back(inner, self.y, self.y_rms)
        b = delta @ self.v @ self.x.T  # delta_i . V x_j
        w = self.soft * (b - (self.soft * b).sum(1, keepdims=True))
        inner = self.attn.T @ delta @ self.v
        inner = inner + (w @ self.x @ self.m.T + w.T @ self.x @ self.m) / np.sqrt(self.d)
        return self.skips[0] * delta + a.alpha_attn * normalize_back(inner, self.x, self.x_rms)


def moments(x):
    """(mean |x_i|^2 / d, mean x_i.x_k / d) of (n, d)."""
    n, d = x.shape
    gram = x @ x.T / d
    return gram.trace() / n, (gram.sum() - gram.trace()) / (n * (n - 1))


def measure(a, q, p, d, seeds):
    """Means and standard errors of (q1, p1, q', p') and of B, over networks."""
    n = a.n_tokens
    gram = p + (q - p) * np.eye(n)
    states, matrices = [], []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        frame = np.linalg.qr(rng.standard_normal((d, n)))[0].T * np.sqrt(d)
        network = Network(rng, a, d)
        y, out = network.forward(np.linalg.cholesky(gram) @ frame)
        states.append([*moments(y), *moments(out)])
        # exact (g, h) = (1, 0) and (1, 1) at the exit
        apart = np.linalg.qr(rng.standard_normal((d, n)))[0].T * np.sqrt(d)
        same = np.tile(rng.standard_normal(d), (n, 1))
        same *= np.sqrt(d) / np.linalg.norm(same[0])
        first, both = (np.array(moments(network.backward(delta))) for delta in (apart, same))
        matrices.append(np.stack([first, both - first], axis=1))
    states, matrices = np.array(states), np.array(matrices)
    return [
        (values.mean(0), values.std(0, ddof=1) / np.sqrt(seeds)) for values in (states, matrices)
    ]


NETWORKS = {
    "chaotic": Architecture(0.5, 0.6, 2.5, 2.0, 1.0, 1.3, 12),
    "strong logits": Architecture(0.8, 0.4, 1.2, 1.2, 3.0, 1.0, 12),
    "renorm": Architecture(0.6, 0.5, 2.0, 1.5, 2.0, 0.8, 12, mode="renorm"),
    "relu, unit": Architecture(0.7, 0.5, 1.5, 1.5, 1.5, 1.0, 12, activation="relu", mode="unit"),
    "shaped": Architecture(0.7, 0.5, 1.5, 1.5, 2.0, 1.0, 12, attention="shaped"),
    "centered": Architecture(0.7, 0.5, 1.5, 1.5, 2.0, 1.0, 12, attention="centered"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_block_and_gradient_against_explicit_networks(name):
    """Within 4 standard errors and 1.5 % of the largest entry (the theory is for d -> inf)."""
    a, q, p = NETWORKS[name], 1.0, 0.4
    (states, states_se), (matrix, matrix_se) = measure(a, q, p, d=96, seeds=150)
    q1, p1 = attention_map(a, q, p)
    expected = np.array([q1, p1, *block_map(a, q, p)])
    assert (states_se <= 0.03 * expected.max()).all()
    assert (np.abs(states - expected) <= 4 * states_se + 0.015 * expected.max()).all(), (
        states,
        expected,
    )
    b = backward_matrix(a, q, p)
    # rows are g_in and h_in, on scales that differ by 1/n
    scale = np.abs(b).max(axis=1, keepdims=True)
    assert (matrix_se <= 0.07 * scale).all()
    assert (np.abs(matrix - b) <= 4 * matrix_se + 0.015 * scale).all(), (matrix, b)


# ---------------------------------------------------------------- maps


def test_maps_are_their_formulas():
    a = Architecture([0.3, 0.9], [0.8, 0.2], 1.4, [0.7, 2.0], 1.7, 1.2, 10)
    q, p = 1.7, 0.6
    rho = p / q
    found = softmax_moments(1.7**2 * (1 - rho), rho, 10)
    alpha, beta = np.array([0.3, 0.9]), np.array([0.8, 0.2])
    q1 = (1 - alpha**2) * q + alpha**2 * 1.44 * (rho + (1 - rho) * found.s)
    p1 = (1 - alpha**2) * p + alpha**2 * 1.44 * (rho + (1 - rho) * found.r)
    assert_allclose(attention_map(a, q, p), (q1, p1), rtol=1e-9)
    v2, v2_one = mlp_moments(1.4, p1 / q1)[0], mlp_moments(1.4)[0]
    q2 = (1 - beta**2) * q1 + beta**2 * np.array([0.49, 4.0]) * v2_one
    p2 = (1 - beta**2) * p1 + beta**2 * np.array([0.49, 4.0]) * v2
    assert_allclose(mlp_map(a, q1, p1), (q2, p2), rtol=1e-9)
    assert_allclose(block_map(a, q, p), (q2, p2), rtol=1e-9)
    renorm = replace(a, mode="renorm")
    q2, p2 = mlp_map(renorm, *attention_map(renorm, 1.0, 0.4))
    assert_allclose(block_map(renorm, 1.0, 0.4), (np.ones(2), p2 / q2), rtol=1e-12)


def test_no_branches_is_the_identity():
    a = tied(0.0, 0.0, 2.0)
    assert_allclose(block_map(a, 1.3, 0.4), (1.3, 0.4), rtol=1e-13)
    assert_allclose(backward_matrix(a, 1.3, 0.4), np.eye(2), atol=1e-13)


def test_many_tokens_limit():
    """Maps and backward matrix at n = 1e6 approach n = inf."""
    a = tied(0.6, 0.5, 2.0, sigma_a=1.3, n_tokens=[1e4, 1e6, np.inf])
    q, p = block_map(a, 1.0, 0.3)
    assert_allclose((q[1], p[1]), (q[2], p[2]), rtol=1e-5)
    assert abs(p[0] - p[2]) > 5 * abs(p[1] - p[2])
    b = backward_matrix(a, 1.0, 0.3)
    assert_allclose(b[..., 1], b[..., 2], rtol=1e-4, atol=1e-5)
    assert_allclose(b[1, 0, 2], 0.0, atol=0.0)
    assert_allclose(attention_map(a, 1.0, 0.3)[0][2], 0.64 * 1.0 + 0.36 * 0.3, rtol=1e-12)


@settings(max_examples=40)
@given(
    alpha=st.floats(0.0, 0.99),
    beta=st.floats(0.0, 1.0),
    sigma_w=st.sampled_from([0.7, 1.8, 3.0]),
    fraction=st.floats(0.0, 1.0),
    mode=st.sampled_from(["conv", "renorm", "unit"]),
)
def test_correlation_stays_possible(alpha, beta, sigma_w, fraction, mode):
    """-1/(n-1) <= rho' <= 1, and collapsed tokens stay collapsed."""
    n = 8
    rho = -1.0 / (n - 1) + fraction * (1.0 + 1.0 / (n - 1))
    a = tied(alpha, beta, sigma_w, n_tokens=n, mode=mode)
    q, p = block_map(a, 1.0, min(rho, 1.0))
    assert -1.0 / (n - 1) - 1e-9 <= p / q <= 1.0
    q, p = block_map(a, 1.0, 1.0)
    assert q == p > 0.0


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("mode", ["conv", "renorm"])
@pytest.mark.parametrize("attention", ["softmax", "shaped", "centered"])
def test_eigenvalues_at_collapse(mode, attention):
    """(c_A + a r)(c_M + m G/q1) and (c_A + a u)(c_M + m G/q1), a = s/q, over q' in renorm."""
    a = tied(0.6, 0.7, 2.2, sigma_v=1.3, n_tokens=20, mode=mode, attention=attention)
    t, q = terms(a), 1.0
    r, u = t.row_sum, float(attention == "shaped")
    q1 = t.c_attn * q + t.s * r
    m = t.c_mlp + t.m * t.g / q1
    scale = t.c_mlp * q1 + t.m * t.b if mode == "renorm" else 1.0
    expected = np.array([(t.c_attn + t.s * r) * m, (t.c_attn + t.s * u) * m]) / scale
    b = backward_matrix(a, q, q)
    assert_allclose(np.sort(np.linalg.eigvals(b)), np.sort(expected), rtol=1e-9)
    assert_allclose(spectral_radius(b), expected.max(), rtol=1e-9)


def test_values_conserve_the_total_gradient():
    """sum_jl of the value path is r^2 times that of the gradient; logits add to the diagonal only
    through queries: with sigma_a -> 0 and no MLP, g + N h is multiplied by c_A + a."""
    n = 12
    a = tied(0.6, 0.0, 1.0, sigma_a=1e-6, n_tokens=n)
    b = backward_matrix(a, 1.3, 0.5)
    total = np.array([1.0, n - 1.0])
    assert_allclose(total @ b, (0.64 + 0.36 / 1.3) * total, rtol=1e-9)


def test_spectral_radius_against_numpy():
    matrices = np.random.default_rng(0).standard_normal((2, 2, 50))
    expected = [np.abs(np.linalg.eigvals(matrices[..., k])).max() for k in range(50)]
    assert_allclose(spectral_radius(matrices), expected, rtol=1e-12)


def test_gradient_trajectory_is_the_matrix_product():
    a, depth = tied([0.4, 0.7], 0.6, [1.5, 2.5], n_tokens=[8, 32]), 6
    states = trajectory(a, depth, q=1.4, rho=0.3)
    found = gradient_trajectory(a, states, coherence=[0.2, 1.0])
    for k in range(2):
        vector = np.array([1.0, [0.2, 1.0][k]])
        for l in reversed(range(depth)):
            b = backward_matrix(a, states.q[l], states.p[l])[..., k]
            vector = b @ vector
            assert_allclose(found.log_g[l, k], np.log(vector[0]), rtol=1e-8, atol=1e-8)
            assert_allclose(found.coherence[l, k], vector[1] / vector[0], rtol=1e-7)
    expected = found.log_g[0] / depth
    assert_allclose(lambda_g_traj(a, depth, q=1.4, rho=0.3, coherence=[0.2, 1.0]), expected)


def test_trajectory_of_the_chaotic_case_by_layer():
    states = trajectory(tied(0.5, 0.5, 2.5), 24)
    expected = [0.009, 0.015, 0.025, 0.043, 0.083, 0.124]
    assert_allclose(states.rho[[1, 2, 4, 8, 16, 24]], expected, atol=6e-4)
    assert_allclose(states.p, states.q * states.rho)


def test_deep_trajectories_keep_their_digits():
    """At depth 400, 1 - rho = e^(-118) still falls by e^lambda_a in each block."""
    states = trajectory(tied(0.5, 0.5, 1.2), 400)
    slope = np.diff(np.log(states.one_minus_rho[200:]))
    assert_allclose(slope, -0.294453, atol=1e-6)


def test_vectorized_trajectory_equals_single_ones():
    alpha, sigma_w, n = np.array([0.3, 0.6]), np.array([[1.2], [2.5]]), np.array([4.0, np.inf])
    many = trajectory(tied(alpha, 0.5, sigma_w, n_tokens=n), 5, rho=0.2)
    assert many.q.shape == (6, 2, 2)
    for i in range(2):
        for j in range(2):
            one = trajectory(tied(alpha[j], 0.5, sigma_w[i, 0], n_tokens=n[j]), 5, rho=0.2)
            assert_allclose(many.one_minus_rho[:, i, j], one.one_minus_rho, rtol=1e-9)
            assert_allclose(many.q[:, i, j], one.q, rtol=1e-9)


# ---------------------------------------------------------------- published schemes as settings


def test_deepscale_keeps_unit_norm():
    """Unit branch variance: q stays 1 at the correlation the scheme is set for."""
    a = deepscale(24, k=2.0, sigma_w1=1.5, rho=0.3, n_tokens=16)
    q1, _ = attention_map(a, 1.0, 0.3)
    assert_allclose(q1, 1.0, rtol=1e-9)
    assert_allclose(block_map(a, 1.0, 0.3)[0], 1.0, rtol=1e-9)
    assert_allclose(a.alpha_attn, np.sqrt(2.0 / 24.0))


def test_sigma_reparam_scales():
    """Spectral norm of a square Gaussian matrix: 2 sigma, to 2 % at d = 1000."""
    norm = np.linalg.norm(np.random.default_rng(0).standard_normal((1000, 1000)), 2)
    assert_allclose(norm / np.sqrt(1000), 2.0, rtol=0.02)
    a = sigma_reparam(0.5, 0.5, gamma_qk=4.0, gamma_v=2.0, gamma_w=5.0)
    assert (a.sigma_a, a.sigma_v, a.sigma_w1, a.sigma_w2) == (1.0, 1.0, 2.5, 2.5)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tied(1.2, 0.5, 1.0), r"alpha_attn = 1.2 is out of range: pass 0 <= alpha_attn"),
        (lambda: tied(0.5, [-0.1, 0.5], 1.0), r"alpha_ff = -0.1 is out of range"),
        (lambda: tied(0.5, np.nan, 1.0), r"alpha_ff = nan is not finite"),
        (lambda: tied(0.5, 0.5, 0.0), r"sigma_w1 = 0 is out of range: pass sigma_w1 > 0"),
        (lambda: Architecture(0.5, 0.5, 1.0, -1.0), r"sigma_w2 = -1 is out of range"),
        (lambda: tied(0.5, 0.5, 1.0, sigma_a=-1.0), r"sigma_a = -1 is out of range"),
        (lambda: tied(0.5, 0.5, 1.0, sigma_v=0.0), r"sigma_v = 0 is out of range"),
        (lambda: tied(0.5, 0.5, 1.0, n_tokens=1), r"n_tokens = 1 is out of range"),
        (lambda: tied(0.5, 0.5, 1.0, mode="post"), r"mode = 'post' is unknown: pass one of conv"),
        (lambda: tied(0.5, 0.5, 1.0, activation="elu"), r"activation = 'elu' is unknown"),
        (lambda: tied(0.5, 0.5, 1.0, attention="linear"), r"attention = 'linear' is unknown"),
        (lambda: tied([0.5, 0.1], 0.5, [1.0, 2.0, 3.0]), r"shapes .* do not broadcast"),
        (lambda: trajectory(tied(0.5, 0.5, 1.0), 0), r"depth = 0 is out of range: pass depth >= 1"),
        (lambda: trajectory(tied(0.5, 0.5, 1.0), 2.5), r"depth = 2.5 is not a whole number"),
        (lambda: trajectory(tied(0.5, 0.5, 1.0), 2, rho=-0.1), r"rho = -0.1 is out of range"),
        (lambda: trajectory(tied(0.5, 0.5, 1.0), 2, q=0.0), r"q = 0 is out of range: pass q > 0"),
        (lambda: trajectory(tied(0.5, 0.5, 1.0), 2, rho=[0.1, 0.2]), r"q and rho of shapes"),
        (lambda: block_map(tied(0.5, 0.5, 1.0), 1.0, 1.2), r"rho = 1.2 is out of range"),
        (
            lambda: block_map(tied(1.0, 0.5, 1.0, n_tokens=np.inf), 1.0, 0.0),
            r"alpha_attn = 1 leaves a stream of norm 0 .* pass alpha_attn < 1",
        ),
        (lambda: lambda_g_traj(tied(0.5, 0.5, 1.0), 3, coherence=2.0), r"coherence = 2 is out of"),
        (lambda: deepscale(0), r"depth = 0 is out of range: pass depth >= 1"),
        (lambda: sigma_reparam(0.5, 0.5, gamma_v=0.0), r"gamma_v = 0 is out of range"),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_block_prepares_once():
    block = Block(tied([0.3, 0.5], 0.5, 2.0))
    assert block.terms is block.terms
    q, delta = block.step(np.ones(2), np.full(2, 0.5))
    assert_allclose((q, q * (1 - delta)), block_map(block.architecture, 1.0, 0.5), rtol=1e-13)

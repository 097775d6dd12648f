"""Token and gradient moments against plain loops, autograd, closed forms and known exponents."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from sigprop.instruments.geometry import (
    gradient_trajectory,
    growth_rate,
    pair_cosines,
    token_moments,
    token_norms,
    trajectory,
)
from sigprop.models.block import layer_norm
from sigprop.models.cowsik import Mode, cowsik_scheme
from sigprop.models.encoder import EncoderConfig, make_sampler
from sigprop.models.gradients import ExplicitGradients, LawGradients
from sigprop.models.samplers import ExplicitSampler, Families
from sigprop.tasks.tokens import simplex_tokens


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=seeded(seed))


# -------------------------------------------------------------------- one layer


def test_moments_are_the_means_over_tokens_and_pairs() -> None:
    x = normal(3, 4, 7, seed=1)
    found = token_moments(x, 7)
    for b in range(3):
        rows = [[float(z) for z in row] for row in x[b]]
        dots = [[sum(s * t for s, t in zip(a, c, strict=True)) / 7 for c in rows] for a in rows]
        q = sum(dots[i][i] for i in range(4)) / 4
        p = sum(dots[i][k] for i in range(4) for k in range(4) if i != k) / 12
        assert float(found["q"][b]) == pytest.approx(q, rel=1e-13)
        assert float(found["p"][b]) == pytest.approx(p, rel=1e-12)
        assert float(found["q_minus_p"][b]) == pytest.approx(q - p, rel=1e-12)


def test_difference_keeps_its_precision_near_collapse() -> None:
    rho = 1 - 1e-12
    x = simplex_tokens(5, 6, 40, q=3.0, rho=rho, generator=seeded(2), dtype=torch.float64)
    found = token_moments(x, 40)["q_minus_p"]
    torch.testing.assert_close(found, torch.full_like(found, 3 * (1 - rho)), rtol=1e-3, atol=0)
    assert torch.all(token_moments(x[:, :1].expand_as(x), 40)["q_minus_p"] == 0)


def test_norms_and_cosines() -> None:
    x = normal(2, 5, 9, seed=3)
    a = x.numpy()
    norms = np.linalg.norm(a, axis=-1)
    np.testing.assert_allclose(token_norms(x, 9).numpy(), norms**2 / 9, rtol=1e-13)
    expected = [
        [a[b, i] @ a[b, k] / norms[b, i] / norms[b, k] for i in range(5) for k in range(i + 1, 5)]
        for b in range(2)
    ]
    np.testing.assert_allclose(pair_cosines(x).numpy(), expected, rtol=1e-12)


def test_one_token_has_no_pairs() -> None:
    with pytest.raises(ValueError, match="at least two tokens"):
        token_moments(torch.zeros(3, 1, 5), 5)


# -------------------------------------------------------------------- exponents


def test_growth_rate_of_exact_exponentials() -> None:
    layers = [2, 3, 7]
    at = torch.tensor(layers, dtype=torch.float64)[:, None]
    factors = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    rate, error = growth_rate(layers, torch.exp(0.3 * at) * factors, torch.exp(0.1 * at) * factors)
    assert rate == pytest.approx(0.2, rel=1e-12)
    assert error == pytest.approx(0.0, abs=1e-12)


def test_growth_rate_is_of_means_and_not_a_mean_of_rates() -> None:
    values = torch.tensor([[1.0, 1.0], [1.0, 3.0]])
    assert growth_rate([0, 1], values)[0] == pytest.approx(math.log(2), rel=1e-6)


def test_jackknife_error_is_the_spread_of_the_estimate() -> None:
    """Over 400 repetitions of 30 networks, against the delta method's standard error."""
    b, s = 30, 0.3
    z = normal(400, 2, b, seed=4)
    found = [growth_rate([0, 4], torch.exp(s * one)) for one in z]
    rates, errors = (
        torch.tensor(column, dtype=torch.float64) for column in zip(*found, strict=True)
    )
    # log of a mean of b lognormals: variance (exp(s^2) - 1) / b, two of them, over 4 layers
    expected = math.sqrt(2 * math.expm1(s * s) / b) / 4
    assert float(rates.std()) == pytest.approx(expected, rel=4 / math.sqrt(2 * 400))
    assert float(errors.mean()) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("shape", [(1, 5), (3, 1), (2, 5)])
def test_growth_rate_needs_layers_and_networks(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least two layers, at least two networks"):
        growth_rate(range(3 if shape == (2, 5) else shape[0]), torch.ones(shape))


# -------------------------------------------------------------------- gradients


class Recorded(ExplicitSampler):
    """Explicit weights that can be looked at afterwards."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__(generator)
        self.weights: list[dict[str, Tensor]] = []

    def project(self, x: Tensor, families: Families, n_heads: int = 1) -> tuple[Tensor, ...]:
        d = x.shape[-1]
        w = {
            family: math.sqrt(variance) * self._draw(len(x), d, width, x)
            for family, (width, variance) in families.items()
        }
        self.weights.append(w)
        return tuple(x @ matrix for matrix in w.values())


@pytest.mark.parametrize("mode", ["conv", "renorm", "unit"])
@pytest.mark.parametrize("common", [False, True])
def test_gradients_equal_autograd_through_the_whole_stack(mode: Mode, common: bool) -> None:
    n, d, depth, networks = 4, 10, 3, 2
    config = EncoderConfig(n, d, depth, activation="tanh")
    scheme = cowsik_scheme(0.5, 0.7, sigma_a=2.0, sigma_w1=2.0, mode=mode)
    sampler = Recorded(seeded(5))
    x = normal(networks, n, d, seed=6)
    readout = normal(networks, 1 if common else n, d, seed=7)
    found = gradient_trajectory(x, config, scheme, sampler, readout)

    states = [x.clone().requires_grad_()]
    skip = [math.sqrt(1 - a * a) if mode == "conv" else 1.0 for a in (0.5, 0.7)]
    for layer in range(depth):
        w = {k: v for call in sampler.weights[3 * layer : 3 * layer + 3] for k, v in call.items()}
        z = layer_norm(states[-1])
        a = torch.softmax((z @ w["q"]) @ (z @ w["k"]).mT / math.sqrt(d), -1)
        y = skip[0] * states[-1] + 0.5 * a @ (z @ w["v"])
        out = skip[1] * y + 0.7 * torch.tanh(layer_norm(y) @ w["ff1"]) @ w["ff2"]
        states.append(layer_norm(out) if mode == "renorm" else out)
    gradients = torch.autograd.grad((readout * states[-1]).sum(), states)
    for layer in range(depth + 1):
        delta = gradients[layer]
        dots = delta @ delta.mT
        g = dots.diagonal(dim1=1, dim2=2).mean(-1)
        h = (dots.sum((1, 2)) - n * g) / (n * (n - 1))
        torch.testing.assert_close(found["g"][layer], g)
        torch.testing.assert_close(found["h"][layer], h)
        torch.testing.assert_close(found["g_minus_h"][layer], g - h, rtol=1e-7, atol=1e-12)
        q = states[layer].detach().square().sum((-2, -1)) / (n * d)
        torch.testing.assert_close(found["q"][layer], q)


def test_kept_layers() -> None:
    config = EncoderConfig(3, 16, 4, activation="tanh")
    x, scheme = normal(2, 3, 16, seed=1), cowsik_scheme(0.5, 0.5)
    whole = gradient_trajectory(x, config, scheme, ExplicitSampler(seeded(1)), x)
    some = gradient_trajectory(x, config, scheme, ExplicitSampler(seeded(1)), x, layers=[4, 1])
    for name, value in whole.items():
        assert torch.equal(some[name], value[[1, 4]])
    forward = trajectory(x, config, scheme, ExplicitSampler(seeded(1)), layers=[1, 4])
    for name, value in forward.items():
        torch.testing.assert_close(value, whole[name][[1, 4]])


def test_law_and_explicit_gradients_have_equal_means() -> None:
    """g and h at the input, 400 networks each, within 4 standard errors of the difference."""
    n, d, depth, networks = 4, 20, 4, 400
    config = EncoderConfig(n, d, depth, activation="tanh")
    scheme = cowsik_scheme(0.5, 0.6, sigma_a=2.0, sigma_w1=2.0)
    found = []
    for sampler in (LawGradients(seeded(8)), ExplicitGradients(seeded(9))):
        draws = {"q": 1.0, "rho": 0.2, "generator": seeded(10), "dtype": torch.float64}
        x = simplex_tokens(networks, n, d, **draws)
        readout = normal(networks, n, d, seed=11)
        found.append(gradient_trajectory(x, config, scheme, sampler, readout, layers=[0, 2]))
    for name in ("g", "h", "q", "p"):
        law, explicit = (at[name] for at in found)
        error = ((law.var(1) + explicit.var(1)) / networks).sqrt()
        assert ((law.mean(1) - explicit.mean(1)).abs() < 4 * error).all(), name


def test_bad_arguments() -> None:
    config, scheme = EncoderConfig(3, 16, 2, activation="tanh"), cowsik_scheme(0.5, 0.5)
    x = torch.zeros(2, 3, 16)
    with pytest.raises(ValueError, match=r"x must be \(networks, ..., 3, 16\)"):
        gradient_trajectory(x[..., :5], config, scheme, ExplicitSampler(seeded(1)), x)
    with pytest.raises(ValueError, match="readout must be broadcastable to x"):
        gradient_trajectory(x, config, scheme, ExplicitSampler(seeded(1)), x[..., :5])
    huge = cowsik_scheme(1e3, 1e3, sigma_v=1e20, mode="unit")
    with pytest.raises(FloatingPointError, match="activations of scheme 'cowsik_unit'"):
        gradient_trajectory(x + 1e38, config, huge, ExplicitSampler(seeded(1)), x)


# -------------------------------------------------------------------- what the networks do


def test_one_block_keeps_the_known_moments() -> None:
    """Attention and MLP maps at n = 32, conv, alpha 0.5, 0.5, sigma_w 2.5, from (q, p) = (1, 0.5).

    q' = 1.75373, p' = 0.90926 at infinite width, from softmax integrals and Gaussian quadrature.
    """
    config = EncoderConfig(32, 2048, 1, activation="tanh")
    scheme = cowsik_scheme(0.5, 0.5, sigma_w1=2.5, sigma_w2=2.5)
    x = simplex_tokens(60, 32, 2048, q=1.0, rho=0.5, generator=seeded(12))
    found = trajectory(x, config, scheme, make_sampler(config, seeded(13), "law"), layers=[1])
    for name, expected in (("q", 1.75373), ("p", 0.90926)):
        value = found[name][0]
        error = float(value.std()) / math.sqrt(len(value))
        # the theory is exact at infinite width; allow for 1 / d
        assert abs(float(value.mean()) - expected) < 4 * error + 2 / 2048


@pytest.mark.parametrize("alpha", [0.3, 0.7])
def test_attention_alone_collapses_at_its_known_rate(alpha: float) -> None:
    """Conv mode without MLP: lambda_a = log(1 - alpha^2), whatever sigma_a."""
    config = EncoderConfig(8, 1024, 8, activation="tanh")
    scheme = cowsik_scheme(alpha, 0.0, sigma_a=2.0)
    draws = {"q": 1.0, "rho": 1 - 1e-6, "generator": seeded(14), "dtype": torch.float64}
    x = simplex_tokens(100, 8, 1024, **draws)
    sampler = make_sampler(config, seeded(15), "law")
    found = trajectory(x, config, scheme, sampler, layers=[0, 8])
    rate, error = growth_rate([0, 8], found["q_minus_p"], found["q"])
    assert 0 < error < 0.01
    assert abs(rate - math.log(1 - alpha**2)) < 4 * error + 1 / 1024


def test_coherent_gradients_of_relu_networks_neither_grow_nor_decay() -> None:
    """lambda_g = 0 at the collapsed fixed point, since E phi^2 = sigma^2 E phi'^2 for ReLU."""
    alpha, sigma = 0.5, 2.0
    b = sigma**4 / 2
    q = ((1 - alpha**2) * alpha**2 + alpha**2 * b) / (1 - (1 - alpha**2) ** 2)
    config = EncoderConfig(4, 128, 6, activation="relu")
    scheme = cowsik_scheme(alpha, alpha, sigma_w1=sigma, sigma_w2=sigma)
    draws = {"q": q, "rho": 1 - 1e-6, "generator": seeded(16), "dtype": torch.float64}
    x = simplex_tokens(400, 4, 128, **draws)
    readout = normal(400, 1, 128, seed=17)
    found = gradient_trajectory(x, config, scheme, LawGradients(seeded(18)), readout, layers=[0, 6])
    rate, error = growth_rate([0, 6], found["g"])
    assert 0 < error < 0.01
    assert abs(rate) < 4 * error + 1 / 128
    # tokens at 1 - rho = 1e-6 differ in few of their ReLUs: coherent all the same
    torch.testing.assert_close(found["h"], found["g"], rtol=0.05, atol=0)

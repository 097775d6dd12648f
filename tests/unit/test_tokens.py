"""The input model: zero mean, variance sigma_x^2, correlation rho between tokens, also negative."""

import math

import pytest
import torch

from sigprop.tasks.tokens import gaussian_tokens


def draw(rho: float, seed: int = 0, n: int = 4, d: int = 50, networks: int = 4000, **options):
    generator = torch.Generator().manual_seed(seed)
    options = {"sigma_x": 0.5, "dtype": torch.float64} | options
    return gaussian_tokens(networks, n, d, rho=rho, generator=generator, **options)


@pytest.mark.parametrize("rho", [-1 / 3, -0.2, 0.0, 0.1, 0.9, 1.0])
def test_covariance_over_tokens(rho: float) -> None:
    """Each entry within 4.5 standard errors; 16 entries and 6 settings make 3 too tight a limit.

    For Gaussian pairs Var(x y) = s^4 (1 + rho^2), so over m = 4000 * 50 coordinates the standard
    error of a covariance is s^2 sqrt((1 + rho^2) / m), at most 0.32 % of s^2.
    """
    sigma_x = 0.5
    x = draw(rho, sigma_x=sigma_x).transpose(0, 1).flatten(1)  # (n, networks * d)
    found = x @ x.T / x.shape[1]
    expected = sigma_x**2 * torch.full((4, 4), rho, dtype=torch.float64).fill_diagonal_(1.0)
    correlation = expected / sigma_x**2
    error = sigma_x**2 * ((1 + correlation**2) / x.shape[1]).sqrt()
    assert error.max() < 0.0033 * sigma_x**2
    assert ((found - expected).abs() < 4.5 * error).all()


def test_mean_is_zero_and_coordinates_are_independent() -> None:
    x = draw(0.3, sigma_x=1.0, d=6)  # (networks, n, 6)
    mean_error = math.sqrt((1 + 3 * 0.3) / 4 / len(x))  # of one coordinate's mean over tokens
    assert x.mean((0, 1)).abs().max() < 4.5 * mean_error
    across = torch.corrcoef(x[:, 0].T)[*torch.triu_indices(6, 6, 1)]
    assert across.abs().max() < 4.5 / math.sqrt(len(x))


def test_networks_are_independent() -> None:
    x = draw(0.3, networks=40, d=2000)[:, 0]
    across = torch.corrcoef(x)[*torch.triu_indices(40, 40, 1)]
    assert across.abs().max() < 4.5 / math.sqrt(2000)


def test_the_extremes_are_exact() -> None:
    same = draw(1.0)
    assert torch.allclose(same, same[:, :1].expand_as(same), atol=1e-14)
    centred = draw(-1 / 3)
    assert centred.sum(1).abs().max() < 1e-13


def test_the_shape_of_the_distribution_is_gaussian() -> None:
    """Fourth moment 3 s^4, with standard error s^4 sqrt(96 / m)."""
    x = draw(0.0, sigma_x=1.0).flatten()
    assert abs(x.pow(4).mean() - 3) < 4 * math.sqrt(96 / len(x))


def test_sigma_x_only_scales() -> None:
    assert torch.allclose(draw(0.2, sigma_x=3.0), 3.0 * draw(0.2, sigma_x=1.0), rtol=1e-14)


def test_the_same_generator_state_gives_the_same_tokens() -> None:
    assert torch.equal(draw(0.2, seed=1), draw(0.2, seed=1))
    assert not torch.equal(draw(0.2, seed=1), draw(0.2, seed=2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shape_and_dtype(dtype: torch.dtype) -> None:
    x = draw(0.1, n=3, d=5, networks=2, dtype=dtype)
    assert x.shape == (2, 3, 5) and x.dtype == dtype


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n": 1}, "n_tokens must be at least 2, got 1"),
        ({"rho": -0.34}, r"rho must lie in .* got -0.34"),
        ({"rho": 1.01}, r"rho must lie in .* got 1.01"),
        ({"rho": math.nan}, r"rho must lie in .* got nan"),
        ({"sigma_x": 0.0}, "sigma_x must be positive, got 0.0"),
        ({"sigma_x": math.nan}, "sigma_x must be positive, got nan"),
    ],
)
def test_bad_input_is_one_line(changes: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        draw(**{"rho": 0.1} | changes)
    assert "\n" not in str(error.value)

"""The input models: correlated Gaussian tokens, and simplices with an exact Gram matrix."""

import math

import pytest
import torch

from sigprop.tasks.tokens import gaussian_tokens, simplex_tokens


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


# -------------------------------------------------------------------- exact simplices


@pytest.mark.parametrize("rho", [-1 / 4, 0.0, 0.3, 1 - 1e-6, 1.0])
def test_simplex_has_its_gram_matrix_exactly(rho: float) -> None:
    generator = torch.Generator().manual_seed(3)
    x = simplex_tokens(6, 5, 20, q=2.5, rho=rho, generator=generator, dtype=torch.float64)
    expected = torch.full((6, 5, 5), rho * 2.5, dtype=torch.float64)
    expected.diagonal(dim1=1, dim2=2).fill_(2.5)
    torch.testing.assert_close(x @ x.mT / 20, expected, rtol=0, atol=1e-13)


def test_simplex_keeps_small_differences() -> None:
    """|x_i - x_k|^2 = 2 q d (1 - rho), to relative precision."""
    rho = torch.tensor([1 - 1e-9] * 3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    x = simplex_tokens(3, 4, 50, q=1.0, rho=rho, generator=generator, dtype=torch.float64)
    squared = (x[:, 1:] - x[:, :-1]).square().sum(-1)
    expected = (2 * 50 * (1 - rho))[:, None].expand(3, 3)
    torch.testing.assert_close(squared, expected, rtol=1e-5, atol=0)


def test_simplex_has_a_random_direction() -> None:
    """Each coordinate of a token has variance q and is uncorrelated with the others."""
    networks, d = 4000, 6
    x = simplex_tokens(
        networks,
        3,
        d,
        q=1.0,
        rho=0.4,
        generator=torch.Generator().manual_seed(5),
        dtype=torch.float64,
    )[:, 0]
    found = x.T @ x / networks
    # fourth moments of a uniform direction: 3 d / (d + 2) on, d / (d + 2) off the diagonal
    error = torch.full((d, d), math.sqrt(d / (d + 2) / networks), dtype=torch.float64)
    error.fill_diagonal_(math.sqrt((3 * d / (d + 2) - 1) / networks))
    assert ((found - torch.eye(d, dtype=torch.float64)).abs() < 4.5 * error).all()
    assert (x.mean(0).abs() < 4.5 / math.sqrt(networks)).all()


def test_simplex_of_each_network_its_own() -> None:
    q, rho = torch.tensor([1.0, 4.0]), torch.tensor([0.0, 0.5])
    options = {"q": q, "rho": rho, "dtype": torch.float64}
    x = simplex_tokens(2, 3, 8, generator=torch.Generator().manual_seed(1), **options)
    gram = x @ x.mT / 8
    assert gram[0, 0, 0] == pytest.approx(1.0)
    assert gram[1, 0, 0] == pytest.approx(4.0)
    assert gram[1, 0, 1] == pytest.approx(2.0)
    shared = simplex_tokens(1, 3, 8, generator=torch.Generator().manual_seed(1), **options)
    assert shared.shape == (2, 3, 8)
    torch.testing.assert_close(shared[1].mean(0), shared[0].mean(0) * 2 * math.sqrt(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rho": -0.6}, r"rho must lie in .*got values from -0.6"),
        ({"rho": 1.1}, "rho must lie in"),
        ({"q": 0.0}, "q must be positive, got 0.0"),
        ({"n_tokens": 9}, r"n_tokens must lie in \[2, d_model\] = \[2, 8\], got 9"),
        ({"n_tokens": 1}, "n_tokens must lie in"),
    ],
)
def test_simplex_that_does_not_exist(change: dict, message: str) -> None:
    some = {"n_networks": 2, "n_tokens": 3, "d_model": 8, "q": 1.0, "rho": 0.1} | change
    sizes = [some.pop(name) for name in ("n_networks", "n_tokens", "d_model")]
    with pytest.raises(ValueError, match=message):
        simplex_tokens(*sizes, generator=torch.Generator(), **some)

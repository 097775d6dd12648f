"""Correlated Gaussian tokens, the input model of Noci et al. 2022 (arXiv 2206.03126, section 3)."""

import torch
from torch import Tensor


def gaussian_tokens(
    n_networks: int,
    n_tokens: int,
    d_model: int,
    *,
    sigma_x: float,
    rho: float,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Zero-mean Gaussian tokens: Var X_kj = sigma_x^2, Cov(X_kj, X_k'j) = rho sigma_x^2.

    Coordinates j are independent. The covariance over tokens has eigenvalue 1 + (n-1) rho along
    the mean token and 1 - rho across it, so with Z iid standard normal and Zbar its mean token

        X = sigma_x ( sqrt(1 - rho) (Z - Zbar) + sqrt(1 + (n-1) rho) Zbar ),

    which also holds for negative rho.

    Returns:
        (n_networks, n_tokens, d_model) tensor of `dtype` on the generator's device.

    Raises:
        ValueError: rho outside [-1/(n_tokens-1), 1], or sigma_x not positive.
    """
    if n_tokens < 2:
        raise ValueError(f"n_tokens must be at least 2, got {n_tokens}")
    if not -1 / (n_tokens - 1) <= rho <= 1:
        raise ValueError(
            f"rho must lie in [-1/(n_tokens-1), 1] = [{-1 / (n_tokens - 1):.6g}, 1], got {rho}"
        )
    if not sigma_x > 0:
        raise ValueError(f"sigma_x must be positive, got {sigma_x}")
    z = torch.randn(
        n_networks,
        n_tokens,
        d_model,
        generator=generator,
        dtype=dtype,
        device=generator.device,
    )
    mean = z.mean(-2, keepdim=True)  # (B, 1, d)
    along, across = (1 + (n_tokens - 1) * rho) ** 0.5, (1 - rho) ** 0.5
    return sigma_x * (across * (z - mean) + along * mean)

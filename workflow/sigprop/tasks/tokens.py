"""Input tokens: correlated Gaussians (Noci et al. 2022, arXiv 2206.03126) and exact simplices."""

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


def simplex_tokens(
    n_networks: int,
    n_tokens: int,
    d_model: int,
    *,
    q: float | Tensor,
    rho: float | Tensor,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Tokens whose Gram matrix is exact: x_i.x_i = q d and x_i.x_k = rho q d for i != k.

    A regular simplex in a random direction (Cowsik et al. 2024, arXiv 2403.02579): with the rows
    of F (n, d) a random orthonormal frame and Fbar their mean,

        X = sqrt(q d) ( sqrt(1 - rho) (F - Fbar) + sqrt(1 + (n-1) rho) Fbar ).

    Args:
        q: |x_i|^2 / d, a number or one per network, (n_networks,). With n_networks = 1 several
            values make several inputs from the same frame.
        rho: cosine of every pair, likewise.
        generator: seeded by the caller; also the device of the result.

    Returns:
        (n_networks or number of values, n_tokens, d_model) tensor of `dtype`.

    Raises:
        ValueError: fewer than two tokens, more tokens than d_model, q not positive, or rho outside
            [-1/(n_tokens-1), 1].
    """
    if not 2 <= n_tokens <= d_model:
        raise ValueError(f"n_tokens must lie in [2, d_model] = [2, {d_model}], got {n_tokens}")
    device, double = generator.device, torch.float64
    q = torch.as_tensor(q, dtype=double, device=device).reshape(-1, 1, 1)
    rho = torch.as_tensor(rho, dtype=double, device=device).reshape(-1, 1, 1)
    if not (q > 0).all():
        raise ValueError(f"q must be positive, got {float(q.min())}")
    if not ((rho >= -1 / (n_tokens - 1)) & (rho <= 1)).all():
        raise ValueError(
            f"rho must lie in [-1/(n_tokens-1), 1] = [{-1 / (n_tokens - 1):.6g}, 1], "
            f"got values from {float(rho.min())} to {float(rho.max())}"
        )
    z = torch.randn(n_networks, d_model, n_tokens, generator=generator, dtype=double, device=device)
    frame, r = torch.linalg.qr(z)
    # With these signs the frame is uniform, without them it leans on the axes.
    f = (frame * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).mT  # (B, n, d)
    mean = f.mean(-2, keepdim=True)
    along, across = (1 + (n_tokens - 1) * rho).clamp(min=0).sqrt(), (1 - rho).sqrt()
    return ((q * d_model).sqrt() * (across * (f - mean) + along * mean)).to(dtype)

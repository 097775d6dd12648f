"""How far tokens have aligned and how large they are: the forward quantities of the paper.

For one sequence X (n, d) with rows X_k, unit rows u_k = X_k / |X_k| and means xbar, ubar
(Noci et al. 2022, arXiv 2206.03126, section 3):

    cos_mean       = 1 / (n (n-1)) sum_{k != k'} <u_k, u_k'>  =  1 - n/(n-1) mean_k |u_k - ubar|^2
    sum_sq_norm  T = ||X||_F^2
    sum_inner    C = sum_{k,k'} <X_k, X_k'>  =  n^2 |xbar|^2
    rank_residual  = ||X - 1 xbar^T||_F / ||X||_F

cos_mean averages a ratio over networks, `rho_ratio` is a ratio of averages; they agree only as
d grows, so tables keep both.
"""

import torch
from torch import Tensor


def measure(x: Tensor, attention: Tensor | None = None) -> dict[str, Tensor]:
    """Forward quantities of every sequence in x, in float64.

    Args:
        x: (B, ..., n, d), at least two tokens, any floating dtype.
        attention: (B, ..., h, n, n) probabilities; adds `attention_entropy`.

    Returns:
        Tensors (B, ...), one value per sequence: `cos_mean`, `one_minus_cos` (the same quantity
        from one, which keeps its relative precision near collapse), `sum_sq_norm`, `sum_inner`,
        `rank_residual` and, with `attention`, `attention_entropy` in nats (0 to ln n), the mean
        over rows and heads.

    Raises ValueError for fewer than two tokens. Zero tokens give NaN cosines.
    """
    n = x.shape[-2]
    if n < 2:
        raise ValueError(f"x must have at least two tokens, got shape {tuple(x.shape)}")
    x = x.double()
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # (..., n, 1)
    spread = _sum_sq_deviation(x / norm) / (n - 1)
    sum_sq_norm = norm.square().sum(dim=(-2, -1))
    measured = {
        "cos_mean": 1 - spread,
        "one_minus_cos": spread,
        "sum_sq_norm": sum_sq_norm,
        "sum_inner": x.sum(dim=-2).square().sum(dim=-1),
        "rank_residual": (_sum_sq_deviation(x) / sum_sq_norm).sqrt(),
    }
    if attention is not None:
        measured["attention_entropy"] = attention_entropy(attention)
    return measured


def attention_entropy(attention: Tensor) -> Tensor:
    """-sum_j A_ij ln A_ij in nats, mean over rows and heads, (B, ..., h, n, n) -> (B, ...)."""
    return torch.special.entr(attention.double()).sum(dim=-1).mean(dim=(-2, -1))


def rho_ratio(sum_sq_norm: Tensor, sum_inner: Tensor, n_tokens: int) -> Tensor:
    """sum(C - T) / ((n - 1) sum(T)) over networks (dim 0), the rho of Theorem 3.2.

    (B, ...) float64 -> (...). ValueError for n_tokens < 2.
    """
    if n_tokens < 2:
        raise ValueError(f"n_tokens must be at least 2, got {n_tokens}")
    total = sum_sq_norm.sum(dim=0)
    return (sum_inner - sum_sq_norm).sum(dim=0) / ((n_tokens - 1) * total)


def _sum_sq_deviation(x: Tensor) -> Tensor:
    """sum_k |x_k - xbar|^2, (..., n, d) -> (...)."""
    return (x - x.mean(dim=-2, keepdim=True)).square().sum(dim=(-2, -1))

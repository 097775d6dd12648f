"""Sums over the tokens of a sequence on which attention gradients depend.

With P = I - 11^T/n, G = X^T P X and xbar the mean token (Noci et al. 2022, arXiv 2206.03126,
Lemma 3.1):

    sum_sq_norm = ||X||_F^2       spread_sq_norm = ||P X||_F^2
    gram_sq_norm = ||G||_F^2      mean_sq_norm   = n ||xbar||^2
"""

import torch
from torch import Tensor


def token_sums(x: Tensor) -> dict[str, Tensor]:
    """The four sums of every sequence in x (..., n, d), float64, shape (...).

    Tokens are centred before they are multiplied, so spread and Gram norm keep their relative
    precision near rank collapse. ||G|| is taken from the n x n Gram matrix, which has the same
    norm. ValueError for fewer than two tokens.
    """
    if x.ndim < 2 or x.shape[-2] < 2:
        raise ValueError(f"x must be (..., at least two tokens, d), got {tuple(x.shape)}")
    x = x.double()
    offset = x - x[..., :1, :]
    centred = offset - offset.mean(-2, keepdim=True)  # P X, (..., n, d)
    gram = centred @ centred.mT  # (..., n, n)
    spread = centred.square().sum((-2, -1))
    mean = x.shape[-2] * x.mean(-2).square().sum(-1)
    return {
        "sum_sq_norm": torch.linalg.vector_norm(x, dim=(-2, -1)).square(),
        "gram_sq_norm": gram.square().sum((-2, -1)),
        "spread_sq_norm": spread,
        "mean_sq_norm": mean,
    }

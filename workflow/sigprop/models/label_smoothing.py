"""Cross-entropy with label smoothing, readout included, for large vocabularies.

    Z = H W^T ,   P = softmax(Z)                                              (N, V)
    loss_i = logsumexp(Z_i) - (1 - eps) Z_{i, y_i} - eps mean_v Z_{i, v}
    d loss_i / d Z_i = P_i - (1 - eps) e_{y_i} - eps / V

The last two terms have rank one or are sparse, so they meet W and H without an (N, V) array. One
such array is held, the unnormalized exp(Z); automatic differentiation holds four.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable


class _SmoothedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, hidden: Tensor, weight: Tensor, target: Tensor, eps: float
    ) -> Tensor:
        z = hidden @ weight.T  # (N, V)
        mean = hidden @ weight.mean(0).to(hidden.dtype)  # mean_v Z, (N,)
        picked = z.gather(1, target[:, None]).squeeze(1)
        top = z.amax(1)
        e = z.sub_(top[:, None]).exp_()
        total = e.sum(1, dtype=torch.promote_types(e.dtype, torch.float32))
        ctx.save_for_backward(hidden, weight, target, e, total)
        ctx.eps = eps  # type: ignore[attr-defined]  # the context takes any attribute
        return top + total.log() - (1 - eps) * picked - eps * mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden, weight, target, e, total = ctx.saved_tensors
        g, eps = grad[:, None], ctx.eps
        rows = (g / total[:, None]).to(e.dtype)  # turns rows of e into g softmax(Z)
        h, w = hidden.to(e.dtype), weight.to(e.dtype)
        # (N, V) (V, d) -> (N, d)
        grad_hidden = (e @ w) * rows - g * ((1 - eps) * weight[target] + eps * weight.mean(0))
        # (V, N) (N, d) -> (V, d)
        grad_weight = (e.T @ (rows * h)).to(weight.dtype)
        pulled = (g * hidden).to(weight.dtype)
        grad_weight.index_add_(0, target, pulled, alpha=eps - 1)
        grad_weight -= eps / len(weight) * pulled.sum(0)
        return grad_hidden.to(hidden.dtype), grad_weight, None, None


def smoothed_cross_entropy(
    hidden: Tensor, weight: Tensor, target: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """Loss of each token, (N,), in nats.

    The same function as `cross_entropy(hidden @ weight.T, target, label_smoothing=...)` of PyTorch,
    which spreads eps over all V symbols, the right one included. First derivatives only.

    Args:
        hidden: (N, d), float.
        weight: (V, d), float.
        target: (N,) int64, symbols in [0, V).
        label_smoothing: eps in [0, 1).

    Raises:
        ValueError: label_smoothing outside [0, 1).
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must lie in [0, 1), got {label_smoothing}")
    loss: Tensor = _SmoothedCrossEntropy.apply(hidden, weight, target, label_smoothing)
    return loss

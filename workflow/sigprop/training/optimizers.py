"""torch's own optimizers, and the two things done to gradients before they act.

Both are elementwise, so parameters with a leading member axis are trained as independent members.
Parameters of E members are read as (E, everything else), which a single network's are too, E = 1.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from sigprop.training.settings import TrainSettings


class DecoupledSGD(SGD):
    """torch's SGD with decoupled weight decay: w <- (1 - lr * weight_decay) w, then the update.

    The decay does not enter the momentum (Loshchilov & Hutter 2019, arXiv 1711.05101, Algorithm 1).
    """

    def __init__(self, params: Any, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(params, lr=lr, momentum=momentum)
        for group in self.param_groups:
            group["decoupled_decay"] = weight_decay

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            kept = 1 - group["lr"] * group["decoupled_decay"]
            if kept != 1:
                for p in group["params"]:
                    if p.grad is not None:
                        p.mul_(kept)
        return super().step(closure)


def make_optimizer(parameters: Iterable[Tensor], settings: TrainSettings) -> Optimizer:
    """The optimizer that `settings` ask for."""
    if settings.optimizer == "sgd":
        return DecoupledSGD(parameters, settings.lr, settings.momentum, settings.weight_decay)
    return AdamW(
        parameters,
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,  # one kernel for all tensors, on the CPU too
    )


def gradient_norms(parameters: Iterable[Tensor], n_members: int) -> Tensor:
    """Norm of each member's whole gradient, (E,)."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    squares = [g.square().view(n_members, -1).sum(1) for g in gradients]
    return torch.stack(squares).sum(0).sqrt()


def clip_gradients(parameters: Iterable[Tensor], max_norm: float, n_members: int) -> Tensor:
    """Scale each member's gradient to norm `max_norm` at most; the norms before, (E,)."""
    parameters = list(parameters)
    norms = gradient_norms(parameters, n_members)
    scale_members(parameters, (max_norm / (norms + 1e-6)).clamp(max=1.0))
    return norms


def scale_members(parameters: Iterable[Tensor], factor: Tensor) -> None:
    """Multiply each member's gradient by its factor, (E,), in place."""
    for p in parameters:
        if p.grad is not None:
            p.grad.view(len(factor), -1).mul_(factor.to(p.grad.dtype)[:, None])


@torch.no_grad()
def silence(optimizer: Optimizer, members: Tensor) -> None:
    """Put weights and optimizer state of `members` (E,) bool to zero, where they then stay.

    A member that overflowed holds NaN. As zeros it costs nothing and cannot spread, provided that
    its gradients are held at zero too (`scale_members`, after `torch.nan_to_num_`).
    """
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.view(len(members), -1)[members] = 0
            for value in optimizer.state.get(p, {}).values():
                if isinstance(value, Tensor) and value.shape == p.shape:
                    value.view(len(members), -1)[members] = 0

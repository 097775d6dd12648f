"""Losses with one value per member."""

import torch
from torch import Tensor
from torch.nn import functional


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    weights: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
) -> Tensor:
    """Mean cross-entropy of each member in nats, (E, ..., C) and (E, ...) int64 -> (E,) float32.

    `weights`, broadcastable to the targets, weigh the mean; None is 1 each. Targets equal to
    `ignore_index` (padding) count neither in the sum nor in the mean; a member with nothing else
    gets NaN.
    """
    each = functional.cross_entropy(
        logits.flatten(0, -2).float(),
        targets.flatten(),
        label_smoothing=label_smoothing,
        ignore_index=ignore_index,
        reduction="none",
    ).view(targets.shape)  # zero where ignored
    counted = targets != ignore_index
    if weights is not None:
        each, counted = each * weights, counted * weights
    return each.flatten(1).sum(1) / counted.flatten(1).sum(1)


def accuracy(
    logits: Tensor, targets: Tensor, *, weights: Tensor | None = None, ignore_index: int = -100
) -> Tensor:
    """Share of positions whose largest logit is the target's, (E,); `weights` as in the loss."""
    counted = targets != ignore_index
    hits = (logits.argmax(-1) == targets) & counted
    if weights is not None:
        hits, counted = hits * weights, counted * weights
    return hits.flatten(1).sum(1) / counted.flatten(1).sum(1, dtype=torch.float32)

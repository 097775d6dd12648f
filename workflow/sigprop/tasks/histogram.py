"""Counting: at every position, how often does this position's symbol occur in the sequence?

    class_i = min(c_i, n_classes) - 1 ,   c_i = #{ k : x_k = x_i }

Symbols are independent and uniform. The task needs attention, to count, and distinct tokens, to
know what to count, so a network whose tokens have become equal can only guess. It is our choice:
Cowsik et al. 2024 (arXiv 2403.02579) train on tasks of their own.
"""

from typing import NamedTuple

import torch
from torch import Tensor

N_CLASSES = 5


class HistogramBatch(NamedTuple):
    """tokens, targets: (E, B, n) int64, targets in [0, N_CLASSES)."""

    tokens: Tensor
    targets: Tensor


def count_classes(tokens: Tensor, n_classes: int = N_CLASSES) -> Tensor:
    """min(count of each position's symbol in its sequence, n_classes) - 1, (..., n) -> (..., n)."""
    count = (tokens[..., :, None] == tokens[..., None, :]).sum(-1)  # (..., n)
    return count.clamp(max=n_classes) - 1


def histogram_batch(
    generator: torch.Generator, batch_size: int, n_tokens: int, n_symbols: int
) -> HistogramBatch:
    """One batch for E = 1, (1, B, n), on the CPU."""
    tokens = torch.randint(n_symbols, (1, batch_size, n_tokens), generator=generator)
    return HistogramBatch(tokens, count_classes(tokens))


class HistogramData:
    """An endless source of fresh batches; all E members see the same sequences.

    Equal data, together with equal normal draws of the weights, leave the settings as the only
    difference between members (common random numbers).

    Args:
        generator: on the CPU; the position is its state.
        n_members: E. batch_size: B. n_tokens: n. n_symbols: size of the alphabet.
        device: where the batches go.

    Raises ValueError when a size is below one.
    """

    def __init__(
        self,
        generator: torch.Generator,
        n_members: int,
        batch_size: int,
        n_tokens: int,
        n_symbols: int,
        device: torch.device | str = "cpu",
    ) -> None:
        for name, value in (
            ("n_members", n_members),
            ("batch_size", batch_size),
            ("n_tokens", n_tokens),
            ("n_symbols", n_symbols),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.generator, self.n_members = generator, n_members
        self.size = (batch_size, n_tokens, n_symbols)
        self.device = torch.device(device)

    def next(self) -> HistogramBatch:
        """The next batch, one copy in memory seen by every member."""
        batch = histogram_batch(self.generator, *self.size)
        return HistogramBatch(
            *(part.to(self.device).expand(self.n_members, -1, -1) for part in batch)
        )

    def state_dict(self) -> dict[str, Tensor]:
        """The generator's state."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a position."""
        self.generator.set_state(state["generator"].clone())

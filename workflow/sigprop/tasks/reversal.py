"""Digit reversal: a sequence of digits in, the same digits backwards out.

A toy task for training (Noci et al. 2022, arXiv 2206.03126, Figure 5): 20 digits from 0 to 9,
embedding size 16 with variance 1, sinusoidal positions. Batches are fresh at every step.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

N_DIGITS = 10
# Mean square of an input coordinate: embedding 1, sinusoidal positions 1/2.
INPUT_VARIANCE = 1.5


class ReversalBatch(NamedTuple):
    """tokens, targets: (E, B, n) int64, targets[..., k] = tokens[..., n - 1 - k]."""

    tokens: Tensor
    targets: Tensor


def reversal_batch(
    generators: Sequence[torch.Generator], batch_size: int, n_tokens: int
) -> ReversalBatch:
    """Independent uniform digits for each member, from its own generator, on the CPU."""
    size = (batch_size, n_tokens)
    tokens = torch.stack([torch.randint(N_DIGITS, size, generator=g) for g in generators])
    return ReversalBatch(tokens, tokens.flip(-1))


class ReversalData:
    """An endless source of fresh batches, E members side by side.

    Member e sees the same sequences in an ensemble and alone. The position is the generators'.

    Args:
        generators: one per member, on the CPU.
        batch_size: B. n_tokens: n.
        device: where the batches go.

    Raises ValueError when a size is below one.
    """

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        batch_size: int,
        n_tokens: int,
        device: torch.device | str = "cpu",
    ) -> None:
        for name, value in (("batch_size", batch_size), ("n_tokens", n_tokens)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.generators, self.batch_size, self.n_tokens = generators, batch_size, n_tokens
        self.device = torch.device(device)

    def next(self) -> ReversalBatch:
        """The next batch."""
        batch = reversal_batch(self.generators, self.batch_size, self.n_tokens)
        return ReversalBatch(*(part.to(self.device, non_blocking=True) for part in batch))

    def state_dict(self) -> dict[str, Tensor]:
        """The generators' states, (E, bytes) uint8."""
        return {"generators": torch.stack([g.get_state() for g in self.generators])}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a position."""
        for generator, own in zip(self.generators, state["generators"], strict=True):
            generator.set_state(own.clone())  # PyTorch crashes on a row of a larger tensor


def correlated_input(
    r: Sequence[float],
    d_model: int,
    generators: Sequence[torch.Generator],
    *,
    positions: bool = True,
) -> tuple[Tensor, Tensor]:
    """Scale (E,) and offset (E, d_model) that give the input tokens a common part of share r.

        X = sqrt(1 - r) (Emb[x] + pos) + sqrt(1.5 r) s ,   s ~ N(0, I_d)

    s is drawn once per member and then fixed; the mean square of a coordinate stays 1.5. Without
    `positions`, which are then left to the attention, it is 1, and the root is that of r. The paper
    does not say how it sets the initial correlation; this form is our choice. With r = 1 the tokens
    are equal and carry nothing.

    Raises ValueError for r outside [0, 1].
    """
    for value in r:
        if not 0 <= value <= 1:
            raise ValueError(f"r must lie in [0, 1], got {value}")
    share = torch.tensor(list(r))  # (E,)
    s = torch.stack([torch.randn(d_model, generator=g) for g in generators])  # (E, d)
    power = INPUT_VARIANCE if positions else 1.0
    return (1 - share).sqrt(), math.sqrt(power) * share.sqrt()[:, None] * s

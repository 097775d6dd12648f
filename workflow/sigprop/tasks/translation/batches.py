"""Batches of sentence pairs: buckets of similar length under a token budget, resumable exactly."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sigprop.tasks.translation.pairs import Pairs, Ragged
from sigprop.tasks.translation.subwords import EOS, PAD


@dataclass(frozen=True)
class SentenceBatch:
    """b sentence pairs padded on the right with `PAD`.

    Attributes:
        index: (b,) int64 positions in the corpus.
        source: (b, s) int64, closed by `EOS`.
        source_padding: (b, s) bool, true at padding.
        target_in: (b, t) int64, what the decoder reads: `EOS`, then the target but its last token
            (fairseq starts a target with the end mark).
        target_out: (b, t) int64, what it must predict: the target, closed by `EOS`.
        target_padding: (b, t) bool, true at padding, the same for both.
    """

    index: Tensor
    source: Tensor
    source_padding: Tensor
    target_in: Tensor
    target_out: Tensor
    target_padding: Tensor

    @property
    def n_tokens(self) -> int:
        """Target tokens without padding: what the loss averages over."""
        return int((~self.target_padding).sum())

    def to(self, device: torch.device | str) -> "SentenceBatch":
        """The same batch on another device."""
        return SentenceBatch(
            *(getattr(self, name).to(device) for name in self.__dataclass_fields__)
        )


def pad(sentences: Ragged, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Sentences `index` as one (b, longest) int64 tensor padded with `PAD`, and its padding mask.

    The mask is (b, longest) bool, true at padding.
    """
    lengths = sentences.lengths[index]  # (b,)
    columns = np.arange(lengths.max())
    padding = columns >= lengths[:, None]  # (b, longest)
    places = np.where(padding, 0, sentences.offsets[index][:, None] + columns)
    tokens = np.where(padding, PAD, sentences.tokens[places]).astype(np.int64)
    return torch.from_numpy(tokens), torch.from_numpy(padding)


def collate(pairs: Pairs, index: NDArray[np.int64]) -> SentenceBatch:
    """Pairs `index` of the corpus as one batch on the CPU."""
    source, source_padding = pad(pairs.source, index)
    target, target_padding = pad(pairs.target, index)
    target_in = target.roll(1, dims=1)
    target_in[:, 0] = EOS
    target_in[target_padding] = PAD  # the roll has put a shorter sentence's end mark there
    return SentenceBatch(
        index=torch.from_numpy(index),
        source=source,
        source_padding=source_padding,
        target_in=target_in,
        target_out=target,
        target_padding=target_padding,
    )


def cut(order: NDArray[np.int64], lengths: NDArray[np.int64], budget: int) -> list[Any]:
    """Cut `order` into runs whose padded size, pairs times the longest, stays within `budget`.

    A run is as long as the budget allows. Returns arrays of indices.
    """
    batches, start, longest = [], 0, 0
    for place, length in enumerate(lengths[order].tolist()):
        grown = max(longest, length)
        if grown * (place + 1 - start) > budget:
            batches.append(order[start:place])
            start, grown = place, length
        longest = grown
    batches.append(order[start:])
    return batches


class Batches:
    """Batches of one corpus, epoch after epoch.

    Pairs are ordered by length with ties in random order, cut under the budget, and the batches
    come in random order, as in fairseq but with new ties each epoch. Both draws depend on `seed`
    and the epoch's number alone, so `state_dict` is a few integers and a run that is resumed gets
    the batches that it would have got.

    Without `shuffle` the order is by length and the same each epoch: for validation and decoding,
    where `SentenceBatch.index` puts results back in place.

    Raises ValueError: no pairs, or a pair that does not fit `max_tokens` (the message names it).
    """

    def __init__(self, pairs: Pairs, max_tokens: int, seed: int = 0, *, shuffle: bool = True):
        if len(pairs) == 0:
            raise ValueError("pairs must hold at least one pair, got none")
        lengths = pairs.lengths
        longest = int(lengths.argmax())
        if lengths[longest] > max_tokens:
            raise ValueError(
                f"max_tokens must be at least {lengths[longest]}, the length of pair {longest}, "
                f"got {max_tokens}"
            )
        self.pairs = pairs
        self.max_tokens = max_tokens
        self.seed = seed
        self.shuffle = shuffle
        self._lengths = lengths
        self._begin(0)

    def _begin(self, epoch: int) -> None:
        self.epoch = epoch
        self.position = 0
        n = len(self.pairs)
        rng = np.random.default_rng([self.seed, epoch]) if self.shuffle else None
        order = np.arange(n) if rng is None else rng.permutation(n)
        # By target length, then by source length; lexsort is stable, so ties keep their order.
        keys = (self.pairs.source.lengths[order], self.pairs.target.lengths[order])
        self._plan = cut(order[np.lexsort(keys)], self._lengths, self.max_tokens)
        if rng is not None:
            self._plan = [self._plan[place] for place in rng.permutation(len(self._plan))]

    def __len__(self) -> int:
        """Batches of the current epoch."""
        return len(self._plan)

    def __iter__(self) -> Iterator[SentenceBatch]:
        """The rest of the current epoch, possibly nothing; then the next epoch is current."""
        while self.position < len(self._plan):
            index = self._plan[self.position]
            self.position += 1  # before the batch is used: a state saved after its step is past it
            yield collate(self.pairs, index)
        self._begin(self.epoch + 1)

    def forever(self) -> Iterator[SentenceBatch]:
        """Batches without end, over all epochs to come."""
        while True:
            yield from self

    def state_dict(self) -> dict[str, int]:
        """Where it stands: the batch that comes next, and what fixes the order."""
        return {
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self.position,
            "max_tokens": self.max_tokens,
            "n_pairs": len(self.pairs),
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go where `state` says.

        Raises ValueError: the state is of another corpus, budget or seed, or past the epoch's end.
        """
        mine = self.state_dict()
        for name in ("seed", "max_tokens", "n_pairs"):
            if state.get(name) != mine[name]:
                raise ValueError(
                    f"{name} of the saved state is {state.get(name)}, here it is {mine[name]}; "
                    f"resume with the settings that the run began with"
                )
        epoch, position = state.get("epoch", -1), state.get("position", -1)
        if epoch < 0:
            raise ValueError(f"epoch of the saved state must not be negative, got {epoch}")
        self._begin(epoch)
        if not 0 <= position <= len(self._plan):
            self._begin(mine["epoch"])
            self.position = mine["position"]
            raise ValueError(
                f"position of the saved state must lie in [0, {len(self._plan)}], got {position}"
            )
        self.position = position

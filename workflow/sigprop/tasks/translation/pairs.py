"""Numbered sentences as flat arrays: what a prepared corpus is on disk and in memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Ragged:
    """Sentences of different length end to end.

    Attributes:
        tokens: (n_tokens,) int32, every sentence closed by `EOS`.
        offsets: (n_sentences + 1,) int64; sentence i is tokens[offsets[i]:offsets[i + 1]].
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]]) -> "Ragged":
        lengths = np.fromiter((len(s) for s in sentences), np.int64, len(sentences))
        tokens = np.fromiter((t for s in sentences for t in s), np.int32, int(lengths.sum()))
        return cls(tokens, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))

    def __post_init__(self) -> None:
        bounds = self.offsets
        if bounds.ndim != 1 or bounds[0] != 0 or bounds[-1] != len(self.tokens):
            raise ValueError("offsets must run from 0 to the number of tokens")
        if (np.diff(bounds) < 1).any():
            raise ValueError("offsets must rise: every sentence holds at least its end mark")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(n_sentences,) int64 token counts, end mark included."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Pairs:
    """Numbered sentence pairs: sentence i of `source` is translated by sentence i of `target`."""

    source: Ragged
    target: Ragged

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise ValueError(
                f"source and target must be equally many, got {len(self.source)} and "
                f"{len(self.target)}"
            )

    def __len__(self) -> int:
        return len(self.source)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(n_pairs,) the longer side's tokens, end mark included: what a pair costs in a batch."""
        return np.maximum(self.source.lengths, self.target.lengths)

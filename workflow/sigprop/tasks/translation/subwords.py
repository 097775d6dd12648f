"""Subwords: joint byte-pair encoding and vocabularies, as fairseq's IWSLT'14 recipe has them.

The encoding is that of subword-nmt (Sennrich et al. 2016, arXiv 1508.07909), the library that the
recipe calls, so that merges, ties included, and token counts are the recipe's. Units that do not
end a word carry the mark `@@`.
"""

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sigprop.tasks.translation.archives import CorpusError
from sigprop.tasks.translation.text import no_bar

# The four special units and their numbers, as in fairseq's dictionaries.
BOS, PAD, EOS, UNK = range(4)
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
_HEAD = "#version: 0.2\n"


class _Counting(io.StringIO):
    """Receives subword-nmt's output, one line a merge, and reports each."""

    def __init__(self, advance: Callable[[int], object]) -> None:
        super().__init__()
        self._advance = advance

    def write(self, text: str) -> int:
        if text != _HEAD:
            self._advance(1)
        return super().write(text)


def learn(lines: Iterable[str], n_merges: int, advance: Callable[[int], object] = no_bar) -> str:
    """Learn up to `n_merges` merges from tokenized lines; fewer when no pair occurs twice.

    Returns the text of subword-nmt's codes file. `advance(1)` is called after each merge.

    Raises CorpusError: nothing to merge, because no pair of letters occurs twice.
    """
    from subword_nmt.learn_bpe import learn_bpe

    counts = Counter(word for line in lines for word in line.split())
    if all(len(word) < 2 for word in counts):
        raise CorpusError("training text: no word of two letters or more; give more text")
    codes = _Counting(advance)
    with contextlib.redirect_stderr(io.StringIO()):  # its own bar, which knows no delay
        learn_bpe(
            [f"{word} {count}" for word, count in counts.items()], codes, n_merges, is_dict=True
        )
    if codes.getvalue() == _HEAD:
        raise CorpusError("training text: no two letters follow each other twice; give more text")
    return codes.getvalue()


@dataclass(frozen=True)
class Encoder:
    """Splits words by the merges in `codes`, the text that `learn` returned."""

    codes: str

    def __post_init__(self) -> None:
        merges = self.codes.removeprefix(_HEAD).splitlines()
        wrong = [n for n, merge in enumerate(merges, 2) if len(merge.split(" ")) != 2]
        if not self.codes.startswith(_HEAD) or wrong:
            where = f", line {wrong[0]}" if wrong else ""
            raise CorpusError(
                f"subword codes{where}: not subword-nmt's version 0.2; prepare the data again"
            )

    @cached_property
    def _bpe(self) -> Any:
        from subword_nmt.apply_bpe import BPE

        return BPE(io.StringIO(self.codes))

    @property
    def n_merges(self) -> int:
        return self.codes.count("\n") - 1

    def split(
        self, lines: Iterable[str], advance: Callable[[int], object] = no_bar
    ) -> Iterator[str]:
        """Each tokenized line with its words split into units."""
        for line in lines:
            yield self._bpe.segment(line) if line else ""
            advance(1)


def join(line: str) -> str:
    """Undo `Encoder.split`: units back to words."""
    return (line + " ").replace("@@ ", "").rstrip()


@dataclass(frozen=True)
class Vocabulary:
    """Numbers of units: the four special ones first, then by falling frequency, ties by text.

    The size is a multiple of 8, filled with units that never occur, as in fairseq's dictionaries
    (matrix units of a GPU like it).
    """

    units: tuple[str, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, counts: Counter[str]) -> "Vocabulary":
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        filled = -(len(ordered) + len(SPECIAL)) % 8
        blanks = [(f"madeupword{n:04d}", 0) for n in range(filled)]
        units, numbers = zip(*ordered, *blanks, strict=True)
        return cls(units, numbers)

    def __len__(self) -> int:
        return len(SPECIAL) + len(self.units)

    @cached_property
    def _number(self) -> dict[str, int]:
        return {unit: n for n, unit in enumerate(self.units, len(SPECIAL))}

    def encode(self, line: str) -> list[int]:
        """Numbers of a line of units, with the end mark; `UNK` for a unit that is not known."""
        return [*(self._number.get(unit, UNK) for unit in line.split()), EOS]

    def decode(self, numbers: Iterable[int]) -> str:
        """Units up to the first end mark, separated by spaces; padding and start marks left out.

        Raises ValueError: a number outside the vocabulary.
        """
        units = []
        for number in numbers:
            if number == EOS:
                break
            if not 0 <= number < len(self):
                raise ValueError(f"unit number must lie in [0, {len(self)}), got {number}")
            if number not in (BOS, PAD):
                units.append(
                    (*SPECIAL, *self.units)[number] if number < 4 else self.units[number - 4]
                )
        return " ".join(units)

    def dump(self) -> str:
        """Text of the form of fairseq's dict.*.txt: unit and count, one a line."""
        return "".join(f"{u} {n}\n" for u, n in zip(self.units, self.counts, strict=True))

    @classmethod
    def parse(cls, text: str) -> "Vocabulary":
        """Read what `dump` wrote. Raises CorpusError: a line that is not a unit and a count."""
        units, counts = [], []
        for n, line in enumerate(text.removesuffix("\n").split("\n"), 1):
            unit, _, count = line.rpartition(" ")
            if not unit or not count.isdecimal():
                raise CorpusError(f"vocabulary, line {n}: not `unit count`; prepare the data again")
            units.append(unit)
            counts.append(int(count))
        return cls(tuple(units), tuple(counts))

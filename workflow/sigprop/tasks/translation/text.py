"""Cleaning of parallel text, step by step as the community prepares IWSLT'14 De-En.

The steps are those of fairseq's `examples/translation/prepare-iwslt14.sh` and of the Moses scripts
it calls, in its order: tokenize (`tokenizer.perl`), drop pairs by length (`clean-corpus-n.perl`),
lower-case (`lowercase.perl`), and move every 23rd pair to the validation set. Tokenization is
sacremoses, a port of the Moses tokenizer, with that script's default options.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

Pair = tuple[str, str]  # source sentence, target sentence

LONGEST_WORD = 1000  # characters; clean-corpus-n.perl drops a pair with a longer token


def no_bar(done: int) -> None:
    """Progress that nobody watches."""


@cache
def _tokenizer(language: str) -> Any:
    from sacremoses import MosesTokenizer

    return MosesTokenizer(lang=language)


@cache
def _detokenizer(language: str) -> Any:
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer(lang=language)


def tokenize(
    lines: Iterable[str], language: str, advance: Callable[[int], object] = no_bar
) -> list[str]:
    """Moses tokens of each line, separated by single spaces.

    Default options of `tokenizer.perl`: hyphenated words stay whole and the characters that Moses
    gives a meaning are escaped (`'` becomes `&apos;`, `&` `&amp;`, `|` `&#124;`). `language` is a
    two-letter code and chooses the abbreviations after which a full stop stays. `advance(1)` is
    called after each line.
    """
    moses = _tokenizer(language)
    tokenized = []
    for line in lines:
        text = moses.tokenize(line, return_str=True, aggressive_dash_splits=False, escape=True)
        # As clean-corpus-n.perl collapses white space, U+00A0 and U+2028 included.
        tokenized.append(" ".join(text.split()))
        advance(1)
    return tokenized


def detokenize(lines: Iterable[str], language: str) -> list[str]:
    """Plain text from lines of Moses tokens: escapes undone, punctuation joined to its word."""
    moses = _detokenizer(language)
    return [moses.detokenize(line.split(" "), unescape=True) for line in lines]


@dataclass(frozen=True)
class LengthRule:
    """Which pairs `clean-corpus-n.perl` keeps: token counts before subwords, both sides.

    Attributes:
        shortest, longest: fewest and most tokens of a side.
        ratio: largest quotient of the two token counts, either way; the quotient itself passes.
    """

    shortest: int = 1
    longest: int = 175
    ratio: float = 1.5

    def objection(self, source: str, target: str) -> str:
        """Why the pair of tokenized sentences is dropped, or "" when it stays.

        `empty`, `length`, `ratio` or `word` (a token above `LONGEST_WORD` characters).
        """
        sides = (source.split(), target.split())
        counts = [len(side) for side in sides]
        if min(counts) == 0:
            return "empty"
        if min(counts) < self.shortest or max(counts) > self.longest:
            return "length"
        if max(counts) / min(counts) > self.ratio:
            return "ratio"
        if any(len(word) > LONGEST_WORD for side in sides for word in side):
            return "word"
        return ""


def clean(pairs: Sequence[Pair], rule: LengthRule) -> tuple[list[int], dict[str, int]]:
    """Indices of the tokenized pairs that `rule` keeps, and how many it drops for each reason."""
    objections = [rule.objection(*pair) for pair in pairs]
    kept = [index for index, objection in enumerate(objections) if not objection]
    dropped = Counter(filter(None, objections))
    return kept, {reason: dropped[reason] for reason in ("empty", "length", "ratio", "word")}


def every(indices: Sequence[int], step: int, start: int = 0) -> tuple[list[int], list[int]]:
    """Split by position: the members at 1-based positions equal to `start` modulo `step`, the rest.

    `every(range(160_000), 23)` gives the validation set and the training set of the recipe.
    """
    taken = [index for position, index in enumerate(indices, 1) if position % step == start]
    rest = [index for position, index in enumerate(indices, 1) if position % step != start]
    return taken, rest

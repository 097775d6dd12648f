"""Parallel text from its four sources, as raw sentence pairs. What comes after is the same for all.

embedded   Home Assistant's interface strings, German-English, from its wheel (Apache-2.0)
iwslt14    the archive de-en.tgz of IWSLT'14 (TED talks), as fairseq's recipe reads it
multi30k   the raw files of Multi30k, task 1 (image captions)
files      any pair of text files, one sentence a line
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sigprop.tasks.translation import homeassistant
from sigprop.tasks.translation.archives import CorpusError, lines_of, read_bytes, read_tar
from sigprop.tasks.translation.text import Pair

VALID_EVERY = 23  # pair 23, 46, ... of the cleaned training text validates, as in the recipe


@dataclass(frozen=True)
class Corpus:
    """Raw sentence pairs, source first.

    Attributes:
        name: of the source.
        licence: what is known of it.
        languages: two-letter codes, source first.
        train: training pairs, before any cleaning.
        valid: validation pairs; empty when they are to be taken from `train` after cleaning.
        test: test pairs; empty when they too are to be taken from `train`.
        published: counts that others obtained from this source (pairs after cleaning).
    """

    name: str
    licence: str
    languages: tuple[str, str]
    train: list[Pair]
    valid: list[Pair] = field(default_factory=list)
    test: list[Pair] = field(default_factory=list)
    published: Mapping[str, int] = field(default_factory=dict)


def _together(
    left: list[str], right: list[str], names: tuple[object, object], unit: str = "lines"
) -> list[Pair]:
    if len(left) != len(right):
        raise CorpusError(
            f"{names[0]} has {len(left)} {unit}, {names[1]} has {len(right)}; line n of one must "
            f"translate line n of the other"
        )
    return list(zip(left, right, strict=True))


def read_pairs(source: Path, target: Path) -> list[Pair]:
    """Pairs of two parallel UTF-8 files, `.gz` or plain, one sentence a line, stripped.

    Raises CorpusError: a file is absent, empty, damaged or not UTF-8, or the line counts differ
    (the message has both).
    """
    sides = [
        [line.strip() for line in lines_of(read_bytes(path), path)] for path in (source, target)
    ]
    return _together(sides[0], sides[1], (source, target))


# ---------------------------------------------------------------- IWSLT'14

_DROPPED = ("<url>", "<talkid>", "<keywords>")  # whole lines
_TAGS = re.compile("</?title>|</?description>")  # only the tags: these lines are training text
_SEGMENT_START = re.compile(r'<seg id="[0-9]*">\s*')
_SEGMENT_END = re.compile(r"\s*</seg>\s*")

IWSLT14_TEST = (
    "IWSLT14.TED.dev2010",
    "IWSLT14.TEDX.dev2012",
    "IWSLT14.TED.tst2010",
    "IWSLT14.TED.tst2011",
    "IWSLT14.TED.tst2012",
)
_TRAIN = "de-en/train.tags.de-en"


def training_lines(lines: list[str]) -> list[str]:
    """Text of a tagged training file: lines with url, talk id or keywords dropped, tags of title
    and description deleted. White space around a line goes, as the tokenizer would drop it.
    """
    kept = (line for line in lines if not any(tag in line for tag in _DROPPED))
    return [_TAGS.sub("", line).strip() for line in kept]


def evaluation_lines(lines: list[str]) -> list[str]:
    """Text of an XML evaluation file: its `<seg id` lines without the tag.

    U+2019 becomes an ASCII apostrophe. Entities (`&amp;`) stay as they are written, which is what
    the recipe does and what published scores contain.
    """
    segments = (line for line in lines if "<seg id" in line)
    bare = (_SEGMENT_END.sub("", _SEGMENT_START.sub("", line)) for line in segments)
    return [line.replace("’", "'") for line in bare]


def read_iwslt14(archive: Path) -> Corpus:
    """IWSLT'14 German-English from `de-en.tgz`; validation pairs come out of the training text.

    Test is dev2010, dev2012 (TEDx), tst2010, tst2011 and tst2012, in this order. `train.en` of the
    archive is not used: it is monolingual.

    Raises CorpusError: unreadable or unsafe archive, a member is missing, not UTF-8, or the two
    sides of one have different line counts.
    """
    names = {language: f"{_TRAIN}.{language}" for language in ("de", "en")}
    tests = [{x: f"de-en/{name}.de-en.{x}.xml" for x in ("de", "en")} for name in IWSLT14_TEST]
    wanted = {*names.values(), *(name for test in tests for name in test.values())}
    members = read_tar(archive, wanted.__contains__)
    for name in sorted(wanted - members.keys()):
        raise CorpusError(
            f"{archive}: member {name} is missing; give the original de-en.tgz of IWSLT'14"
        )

    def sides(member: dict[str, str], training: bool) -> list[Pair]:
        text = []
        for language in ("de", "en"):
            where = f"{archive}: {member[language]}"
            lines = lines_of(members[member[language]], where)
            text.append(training_lines(lines) if training else evaluation_lines(lines))
        where_both = (f"{archive}: {member['de']}", member["en"])
        return _together(text[0], text[1], where_both, "text lines")

    return Corpus(
        name="iwslt14",
        licence="TED talks; terms of the archive's distributor (CC BY-NC-ND, not verified)",
        languages=("de", "en"),
        train=sides(names, True),
        test=[pair for test in tests for pair in sides(test, False)],
        published={"train": 160_239, "valid": 7_283, "test": 6_750},
    )


# ---------------------------------------------------------------- the others

MULTI30K = {"train": "train", "valid": "val", "test": "test_2016_flickr"}  # split -> file stem


def read_multi30k(files: Mapping[str, Path]) -> Corpus:
    """Multi30k task 1, German-English: official train, validation and 2016 Flickr test sets.

    `files` maps the names `train.de.gz`, `train.en.gz`, `val.de.gz`, ... to paths.

    Raises CorpusError as `read_pairs`.
    """
    parts = {
        split: read_pairs(files[f"{stem}.de.gz"], files[f"{stem}.en.gz"])
        for split, stem in MULTI30K.items()
    }
    return Corpus(
        name="multi30k",
        licence="none stated; non-commercial research and education only",
        languages=("de", "en"),
        train=parts["train"],
        valid=parts["valid"],
        test=parts["test"],
        published={"valid": 1014, "test": 1000},
    )


def beside(stem: str, language: str) -> Path:
    """`STEM.de`, or `STEM.de.gz` when only that exists."""
    plain = Path(f"{stem}.{language}")
    packed = Path(f"{stem}.{language}.gz")
    return packed if packed.is_file() and not plain.is_file() else plain


def read_files(
    stem: str, languages: tuple[str, str], valid: str | None = None, test: str | None = None
) -> Corpus:
    """The user's own text: `STEM.de` and `STEM.en`, and likewise for `valid` and `test` if given.

    Raises CorpusError as `read_pairs`.
    """
    parts = {
        split: read_pairs(*(beside(given, language) for language in languages))
        for split, given in (("train", stem), ("valid", valid), ("test", test))
        if given is not None
    }
    return Corpus(
        name="files",
        licence="the user's own text",
        languages=languages,
        train=parts["train"],
        valid=parts.get("valid", []),
        test=parts.get("test", []),
    )


def read_embedded(wheel: Path) -> Corpus:
    """Home Assistant's interface strings from its wheel, split by component.

    Raises CorpusError as `homeassistant.read_wheel`.
    """
    parts = homeassistant.read_wheel(wheel)
    return Corpus(
        name="embedded",
        licence="Apache-2.0 (Home Assistant's interface strings)",
        languages=("de", "en"),
        train=parts["train"],
        valid=parts["valid"],
        test=parts["test"],
    )

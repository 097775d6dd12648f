"""Byte pairs and vocabularies against cases worked out by hand."""

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sigprop.tasks.translation.archives import CorpusError
from sigprop.tasks.translation.subwords import EOS, PAD, UNK, Encoder, Vocabulary, join, learn

LINES = ["low low low low low lower lower", "newest newest newest newest newest newest", "widest"]


def test_the_first_merges_are_the_most_frequent_pairs() -> None:
    """Counts: e-s and s-t</w> 7, then l-o 7 and w-e 8 (lower 2, newest 6); w-e leads."""
    codes = learn(LINES, 3)
    assert codes.splitlines()[0] == "#version: 0.2"
    # After w-e: s-t</w> 7, l-o 7, e-s 1 ("newest" now holds we-s). Ties go to the later text.
    assert codes.splitlines()[1:] == ["w e", "s t</w>", "l o"]


def test_words_are_split_and_joined() -> None:
    encoder = Encoder(learn(LINES, 3))
    assert list(encoder.split(["low newest", "", "x"])) == ["lo@@ w n@@ e@@ we@@ st", "", "x"]
    assert join("lo@@ w n@@ e@@ we@@ st") == "low newest"
    assert join("cut of@@") == "cut of"  # a hypothesis may end inside a word


def test_merges_stop_when_no_pair_occurs_twice() -> None:
    encoder = Encoder(learn(["abab ab"], 1000))
    assert 1 <= encoder.n_merges < 10


def test_merges_equal_those_of_the_library_s_own_command() -> None:
    text = "\n".join(LINES * 3 + ["zwei größere ☃ wörter", "a&b größer"]) + "\n"
    command = [sys.executable, "-m", "subword_nmt.learn_bpe", "-s", "20"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    assert learn(text.split("\n"), 20) == done.stdout.decode()


def test_each_merge_is_counted_and_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []
    learn(LINES, 5, seen.append)
    assert seen == [1] * 5
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("lines", [[], ["a b c"], ["abc"]])
def test_text_with_nothing_to_merge_is_refused(lines: list[str]) -> None:
    with pytest.raises(CorpusError, match="give more text"):
        learn(lines, 10)


@pytest.mark.parametrize("codes", ["", "a b\n", "#version: 0.2\na b\nabc\n"])
def test_an_unknown_subword_model_is_refused(codes: str) -> None:
    with pytest.raises(CorpusError, match=r"subword codes.*prepare the data again"):
        Encoder(codes)


_WORD = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=12)


@settings(max_examples=60)
@given(st.lists(st.lists(_WORD, min_size=1, max_size=8), min_size=1, max_size=6))
def test_round_trip_of_any_text(sentences: list[list[str]]) -> None:
    """Words that end in the mark itself are the one exception, which Moses text never holds."""
    lines = [" ".join(w for w in words if not w.endswith("@@")) for words in sentences]
    encoder = Encoder(learn([*LINES, *lines], 40))
    units = list(encoder.split(lines))
    assert [join(line) for line in units] == lines
    vocabulary = Vocabulary.of(Counter(unit for line in units for unit in line.split()))
    assert [vocabulary.decode(vocabulary.encode(line)) for line in units] == units


# ---------------------------------------------------------------- vocabulary


def test_numbers_go_by_frequency_then_text() -> None:
    vocabulary = Vocabulary.of(Counter({"b": 2, "c": 5, "a": 2}))
    assert vocabulary.units[:3] == ("c", "a", "b")
    assert len(vocabulary) == 8  # 4 special, 3 units, 1 to fill up
    assert vocabulary.encode("b c x") == [6, 4, UNK, EOS]
    assert vocabulary.decode([0, 6, PAD, 4, UNK, EOS, 5]) == "b c <unk>"


@pytest.mark.parametrize("number", [-1, 8])
def test_a_number_outside_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match=rf"must lie in \[0, 8\), got {number}"):
        Vocabulary.of(Counter("a")).decode([number])


def test_a_vocabulary_survives_its_file() -> None:
    vocabulary = Vocabulary.of(Counter({"a@@": 3, "ü": 2, "&#124;": 1, '"': 1}))
    assert Vocabulary.parse(vocabulary.dump()) == vocabulary
    assert vocabulary.dump().startswith('a@@ 3\nü 2\n"')


@pytest.mark.parametrize("text", ["", "a\n", "a b\n", "a 1\n\nb 1\n"])
def test_a_damaged_vocabulary_is_refused(text: str) -> None:
    with pytest.raises(CorpusError, match=r"vocabulary, line \d: not `unit count`"):
        Vocabulary.parse(text)

"""Cleaning of parallel text: every rule of the IWSLT'14 recipe on a line or two."""

import pytest

from sigprop.tasks.translation.text import LengthRule, clean, detokenize, every, tokenize

# ---------------------------------------------------------------- tokens


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("He's well-known.", "He &apos;s well-known ."),  # hyphens stay
        ("Salt & pepper, 3 % <b>", "Salt &amp; pepper , 3 % &lt; b &gt;"),
        ("a|b [c]", "a &#124; b &#91; c &#93;"),
        ('Say "no".', "Say &quot; no &quot; ."),
        ("Mr. Smith paid 1,000.50 today.", "Mr. Smith paid 1,000.50 today ."),
        ("  two\u00a0spaces\u2028here \t x ", "two spaces here x"),
        ("", ""),
        ("   ", ""),
    ],
)
def test_english_tokens(line: str, tokens: str) -> None:
    assert tokenize([line], "en") == [tokens]


def test_the_language_chooses_the_abbreviations() -> None:
    line = "Das gilt z.B. für Eva bzw. Frau Meier."
    assert tokenize([line], "de") == ["Das gilt z.B. für Eva bzw. Frau Meier ."]
    assert tokenize([line], "en") == ["Das gilt z.B. für Eva bzw . Frau Meier ."]


def test_every_line_is_counted() -> None:
    seen: list[int] = []
    tokenize(["one", "", "three"], "en", seen.append)
    assert seen == [1, 1, 1]


@pytest.mark.parametrize(
    ("language", "line"),
    [
        ("en", "It's 3 % more, isn't it?"),
        ("de", "Das Geschäft läuft gut – wirklich (sehr gut)!"),
        ("en", "Salt & pepper | <b> [c]"),
    ],
)
def test_detokenizing_undoes_tokenizing(language: str, line: str) -> None:
    (back,) = detokenize(tokenize([line], language), language)
    assert back.replace(" ", "") == line.replace(" ", "")
    assert "&" not in back.replace("& pepper", "")


# ---------------------------------------------------------------- lengths


def words(n: int) -> str:
    return " ".join(["w"] * n)


@pytest.mark.parametrize(
    ("source", "target", "objection"),
    [
        ("a b", "c d", ""),
        ("", "c d", "empty"),
        ("a b", "  ", "empty"),
        (words(175), words(175), ""),
        (words(176), words(175), "length"),
        (words(175), words(176), "length"),
        (words(3), words(2), ""),  # a ratio of exactly 1.5 stays
        (words(2), words(3), ""),
        (words(4), words(2), "ratio"),
        (words(20), words(31), "ratio"),
        ("x" * 1000, "y", ""),
        ("x" * 1001, "y", "word"),
        ("y", "x" * 1001, "word"),
    ],
)
def test_length_rule(source: str, target: str, objection: str) -> None:
    assert LengthRule().objection(source, target) == objection


def test_the_shortest_side_counts_too() -> None:
    rule = LengthRule(shortest=2)
    assert rule.objection("a", "b") == "length"
    assert rule.objection("a b", "c d") == ""


def test_clean_keeps_the_order_and_counts_what_it_drops() -> None:
    pairs = [("a", "b"), ("", "b"), ("a", "b c"), ("a b", "c d"), (words(200), words(200))]
    kept, dropped = clean(pairs, LengthRule())
    assert kept == [0, 3]
    assert dropped == {"empty": 1, "length": 1, "ratio": 1, "word": 0}


# ---------------------------------------------------------------- split


def test_every_23rd_pair_counted_from_one() -> None:
    taken, rest = every(range(100, 170), 23)
    assert taken == [122, 145, 168]  # lines 23, 46 and 69
    assert sorted(taken + rest) == list(range(100, 170))
    assert every([7, 8, 9, 10, 11], 2, 1) == ([7, 9, 11], [8, 10])

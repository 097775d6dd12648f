"""BLEU against the formula worked out by hand and against a second implementation."""

import math
from collections import Counter

import numpy as np
import pytest

from sigprop.tasks.translation.bleu import sacrebleu, tokenized


def by_hand(hypotheses: list[str], references: list[str]) -> float:
    """Papineni et al. 2002, word by word, one reference, no smoothing."""
    matches, totals, c, r = [0] * 4, [0] * 4, 0, 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        h, g = hypothesis.split(), reference.split()
        c, r = c + len(h), r + len(g)
        for n in range(1, 5):
            ours = Counter(tuple(h[i : i + n]) for i in range(len(h) - n + 1))
            theirs = Counter(tuple(g[i : i + n]) for i in range(len(g) - n + 1))
            matches[n - 1] += sum((ours & theirs).values())
            totals[n - 1] += sum(ours.values())
    if min(matches) == 0:
        return 0.0
    mean = sum(math.log(m / t) for m, t in zip(matches, totals, strict=True)) / 4
    return 100 * min(1.0, math.exp(1 - r / c)) * math.exp(mean)


def test_a_small_case() -> None:
    """Precisions 5/6, 3/5, 2/4, 1/3; 6 tokens against 6."""
    score = tokenized(["the cat sat on a mat"], ["the cat sat on the mat"])
    expected = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert score.score == pytest.approx(expected, abs=1e-9)
    assert score.precisions == pytest.approx((500 / 6, 60, 50, 100 / 3))
    assert (score.hypothesis_length, score.reference_length) == (6, 6)


def test_brevity() -> None:
    score = tokenized(["a b c d"], ["a b c d e f"])
    assert score.score == pytest.approx(100 * math.exp(1 - 6 / 4), abs=1e-9)


def test_a_word_repeated_is_clipped() -> None:
    score = tokenized(["the the the the the"], ["the cat sat on the mat"])
    assert score.precisions[0] == pytest.approx(40)
    assert score.score == 0  # no 2-gram matches, and nothing is smoothed


def test_random_text_against_the_formula() -> None:
    rng = np.random.default_rng(0)
    words = np.array(list("abcdef"))
    for _ in range(20):
        references = [" ".join(rng.choice(words, rng.integers(4, 20))) for _ in range(12)]
        hypotheses = [
            " ".join(w if rng.random() < 0.8 else "x" for w in line.split()[: rng.integers(4, 20)])
            for line in references
        ]
        expected = by_hand(hypotheses, references)
        assert tokenized(hypotheses, references).score == pytest.approx(expected, abs=1e-9)


def test_tokens_are_taken_as_they_are_and_case_is_dropped() -> None:
    assert tokenized(["it &apos;S a B test"], ["It &apos;s a b Test"]).score == pytest.approx(100)
    assert tokenized(["one-two three, four five"], ["one-two three , four five"]).score < 100
    # sacrebleu's own tokenizer splits the comma off.
    plain = sacrebleu(["one two three, four five"], ["one two three , four five"], lowercase=False)
    assert plain.score == pytest.approx(100)


def test_labels_and_signatures_say_what_was_done() -> None:
    line = ["A small house by the sea."]
    cased, lower = (sacrebleu(line, line, lowercase=x) for x in (False, True))
    community = tokenized(line, line)
    assert (cased.label, lower.label) == ("sacreBLEU (cased)", "sacreBLEU (lower-cased)")
    assert community.label == "tokenized BLEU (lower-cased)"
    assert "case:mixed" in cased.signature and "tok:13a|smooth:exp" in cased.signature
    assert "case:lc" in lower.signature
    assert "case:lc|eff:no|tok:none|smooth:none" in community.signature


def test_case_counts_only_when_asked() -> None:
    ours, reference = ["a small house by the sea"], ["A Small house by the Sea"]
    assert sacrebleu(ours, reference, lowercase=True).score == pytest.approx(100)
    assert sacrebleu(ours, reference, lowercase=False).score < 60


@pytest.mark.parametrize(("ours", "theirs"), [(["a"], ["a", "b"]), ([], [])])
def test_uneven_or_empty_input_is_refused(ours: list[str], theirs: list[str]) -> None:
    says = f"equally many and at least one, got {len(ours)} and {len(theirs)}"
    for score in (lambda: tokenized(ours, theirs), lambda: sacrebleu(ours, theirs, lowercase=True)):
        with pytest.raises(ValueError, match=says):
            score()

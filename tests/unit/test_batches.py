"""Batches: every pair once an epoch, within the budget, and the same after a resume."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sigprop.tasks.translation.batches import Batches, SentenceBatch, collate
from sigprop.tasks.translation.pairs import Pairs, Ragged
from sigprop.tasks.translation.subwords import EOS, PAD


def corpus(n: int = 200, seed: int = 0, longest: int = 30) -> Pairs:
    """Pairs of random lengths; the tokens of pair i are 10 + i, so it can be recognized."""
    rng = np.random.default_rng(seed)
    sides = [
        Ragged.of([[10 + i] * int(k - 1) + [EOS] for i, k in enumerate(lengths)])
        for lengths in rng.integers(2, longest + 1, (2, n))
    ]
    return Pairs(*sides)


def same(a: SentenceBatch, b: SentenceBatch) -> bool:
    return all(torch.equal(getattr(a, x), getattr(b, x)) for x in a.__dataclass_fields__)


# ---------------------------------------------------------------- padding


def test_a_batch_by_hand() -> None:
    pairs = Pairs(Ragged.of([[7, 8, EOS], [9, EOS]]), Ragged.of([[5, EOS], [6, 7, 8, EOS]]))
    batch = collate(pairs, np.array([1, 0]))
    assert batch.index.tolist() == [1, 0]
    assert batch.source.tolist() == [[9, EOS, PAD], [7, 8, EOS]]
    assert batch.source_padding.tolist() == [[False, False, True], [False, False, False]]
    assert batch.target_out.tolist() == [[6, 7, 8, EOS], [5, EOS, PAD, PAD]]
    assert batch.target_in.tolist() == [[EOS, 6, 7, 8], [EOS, 5, PAD, PAD]]
    assert batch.target_padding.tolist() == [[False] * 4, [False, False, True, True]]
    assert batch.n_tokens == 6
    assert batch.source.dtype == batch.target_in.dtype == torch.int64


def test_a_batch_moves_whole() -> None:
    moved = collate(corpus(4), np.arange(4)).to("meta")
    assert {getattr(moved, x).device.type for x in moved.__dataclass_fields__} == {"meta"}


# ---------------------------------------------------------------- an epoch


@settings(max_examples=40)
@given(st.integers(1, 120), st.integers(30, 400), st.integers(0, 9), st.booleans())
def test_every_pair_once_and_within_the_budget(
    n: int, budget: int, seed: int, shuffle: bool
) -> None:
    pairs = corpus(n, seed)
    batches = Batches(pairs, budget, seed, shuffle=shuffle)
    for _ in range(2):
        seen = []
        for batch in batches:
            rows, columns = len(batch.index), max(batch.source.shape[1], batch.target_in.shape[1])
            assert rows * columns <= budget
            seen += batch.index.tolist()
            for row, index in enumerate(batch.index.tolist()):
                for tokens, padding, side in (
                    (batch.source, batch.source_padding, pairs.source),
                    (batch.target_out, batch.target_padding, pairs.target),
                ):
                    assert tokens[row][~padding[row]].tolist() == side[index].tolist()
        assert sorted(seen) == list(range(n))


def test_pairs_of_like_length_are_together() -> None:
    """Less than a tenth of the places hold padding, against near half in random order."""
    pairs = corpus(3000)
    batches = list(Batches(pairs, 600))
    places = sum(batch.target_in.numel() for batch in batches)
    assert 1 - len(pairs.target.tokens) / places < 0.1


def test_epochs_and_seeds_differ_and_repeat() -> None:
    def order(batches: Batches) -> list[int]:
        return [i for batch in batches for i in batch.index.tolist()]

    pairs = corpus()
    one, again, other = (Batches(pairs, 200, seed) for seed in (1, 1, 2))
    first = order(one)
    assert first == order(again)
    assert first != order(other)
    assert first != order(one)  # the second epoch


def test_without_shuffling_the_order_is_by_length_and_stays() -> None:
    batches = Batches(corpus(), 200, shuffle=False)
    first = [batch.index.tolist() for batch in batches]
    assert first == [batch.index.tolist() for batch in batches]
    longest = [int(corpus().target.lengths[i].max()) for i in first]
    assert longest == sorted(longest)


# ---------------------------------------------------------------- resuming


@pytest.mark.parametrize("done", [0, 1, 17, 60, 61, 62, 130])
def test_a_resumed_run_gets_the_same_batches(done: int) -> None:
    pairs = corpus()
    straight = Batches(pairs, 80, seed=3)
    stream = straight.forever()
    for _ in range(done):
        next(stream)
    state = json.loads(json.dumps(straight.state_dict()))  # plain integers
    resumed = Batches(pairs, 80, seed=3)
    resumed.load_state_dict(state)
    other = resumed.forever()
    assert all(same(next(stream), next(other)) for _ in range(150))
    assert straight.state_dict() == resumed.state_dict()


def test_a_state_counts_the_batch_in_hand_as_done() -> None:
    batches = Batches(corpus(), 80)
    for step, _ in enumerate(batches, 1):
        assert batches.state_dict()["position"] == step
        if step == len(batches):
            break
    assert list(batches) == []  # the epoch is over, and the next one begins
    assert batches.state_dict()["epoch"] == 1
    assert batches.state_dict()["position"] == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seed": 9}, "seed of the saved state is 9, here it is 0"),
        ({"max_tokens": 81}, "max_tokens of the saved state is 81, here it is 80"),
        ({"n_pairs": 5}, "n_pairs of the saved state is 5, here it is 200"),
        ({"position": 10_000}, r"position of the saved state must lie in \[0, \d+\], got 10000"),
        ({"epoch": -1}, "epoch of the saved state must not be negative, got -1"),
    ],
)
def test_another_state_is_refused_and_changes_nothing(change: dict, says: str) -> None:
    batches = Batches(corpus(), 80)
    next(iter(batches))
    before = batches.state_dict()
    with pytest.raises(ValueError, match=says):
        batches.load_state_dict(before | change)
    assert batches.state_dict() == before


# ---------------------------------------------------------------- bad input


def test_a_pair_above_the_budget_is_named() -> None:
    pairs = Pairs(Ragged.of([[5, EOS], [5] * 40 + [EOS]]), Ragged.of([[5, EOS], [6, EOS]]))
    with pytest.raises(ValueError, match="at least 41, the length of pair 1, got 40"):
        Batches(pairs, 40)
    assert len(Batches(pairs, 41)) == 2


def test_no_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one pair, got none"):
        Batches(Pairs(Ragged.of([]), Ragged.of([])), 100)


def test_sides_must_match_and_offsets_fit() -> None:
    with pytest.raises(ValueError, match="equally many, got 1 and 2"):
        Pairs(Ragged.of([[EOS]]), Ragged.of([[EOS], [EOS]]))
    tokens = np.zeros(3, np.int32)
    for offsets, says in (([0, 2], "from 0 to the number"), ([0, 3, 3], "must rise")):
        with pytest.raises(ValueError, match=says):
            Ragged(tokens, np.array(offsets))

"""The counting task: targets by brute force, class frequencies, position of the stream."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from sigprop.tasks.histogram import N_CLASSES, HistogramData, count_classes, histogram_batch


def data(seed: int = 0, members: int = 3, **changes: Any) -> HistogramData:
    sizes = {"batch_size": 4, "n_tokens": 16, "n_symbols": 8} | changes
    return HistogramData(torch.Generator().manual_seed(seed), members, **sizes)


def test_targets_are_capped_counts() -> None:
    batch = histogram_batch(torch.Generator().manual_seed(1), 20, 16, 8)
    assert batch.tokens.shape == batch.targets.shape == (1, 20, 16)
    for tokens, targets in zip(batch.tokens[0].tolist(), batch.targets[0].tolist(), strict=True):
        count = Counter(tokens)
        assert targets == [min(count[token], 5) - 1 for token in tokens]
    assert count_classes(torch.tensor([1, 1, 1, 0]), 2).tolist() == [1, 1, 1, 0]


def test_class_frequencies_are_binomial() -> None:
    """The count is 1 + Bin(15, 1/8); guessing the frequencies costs 1.536 nat."""
    generator = torch.Generator().manual_seed(2)
    targets = histogram_batch(generator, 4000, 16, 8).targets[0]
    expected = stats.binom.pmf(range(4), 15, 1 / 8)
    expected = np.append(expected, 1 - expected.sum())
    shares = np.stack([(targets == c).float().mean(1).numpy() for c in range(N_CLASSES)], 1)
    error = shares.std(0, ddof=1) / np.sqrt(len(shares))  # sequences are independent
    assert (np.abs(shares.mean(0) - expected) < 4 * error).all()
    assert -(expected * np.log(expected)).sum() == pytest.approx(1.536, abs=5e-4)


def test_all_members_see_the_same_fresh_batches() -> None:
    source = data()
    first, second = source.next(), source.next()
    assert first.tokens.shape == (3, 4, 16)
    for batch in (first, second):
        assert bool((batch.tokens == batch.tokens[:1]).all())
    assert not torch.equal(first.tokens, second.tokens)
    alone = data(members=1)
    assert torch.equal(alone.next().tokens[0], first.tokens[2])
    assert not torch.equal(data(seed=1).next().tokens, first.tokens)


def test_goes_on_from_a_position() -> None:
    source = data()
    source.next()
    state = {name: value.clone() for name, value in source.state_dict().items()}
    expected = source.next()
    other = data(seed=9)
    other.load_state_dict(state)
    assert torch.equal(other.next().tokens, expected.tokens)


@pytest.mark.parametrize("name", ["batch_size", "n_tokens", "n_symbols"])
def test_refuses_sizes_below_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        data(**{name: 0})

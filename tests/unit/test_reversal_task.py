"""Digit reversal: targets are the digits backwards, and the input has the asked correlation."""

import math

import pytest
import torch

from sigprop.tasks.reversal import (
    INPUT_VARIANCE,
    N_DIGITS,
    ReversalData,
    correlated_input,
    reversal_batch,
)


def seeded(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_targets_are_reversed_and_digits_uniform() -> None:
    batch = reversal_batch(seeded(1, 2), 500, 20)
    assert batch.tokens.shape == batch.targets.shape == (2, 500, 20)
    assert batch.tokens.dtype == torch.int64
    assert torch.equal(batch.tokens[1, 3], torch.tensor(batch.targets[1, 3].tolist()[::-1]))
    counts = batch.tokens.flatten().bincount(minlength=N_DIGITS)
    expected = batch.tokens.numel() / N_DIGITS
    # Chi-squared with 9 degrees of freedom: above 33.7 once in ten thousand seeds.
    assert float((counts - expected).square().sum() / expected) < 33.7
    assert len(counts) == N_DIGITS


def test_members_see_their_own_data_alone_or_together() -> None:
    together = ReversalData(seeded(1, 2), 3, 5)
    alone = ReversalData(seeded(2), 3, 5)
    for _ in range(3):
        batch = together.next()
        assert torch.equal(batch.tokens[1], alone.next().tokens[0])
        assert not torch.equal(batch.tokens[0], batch.tokens[1])


def test_position_is_saved_and_restored() -> None:
    data = ReversalData(seeded(1, 2), 3, 5)
    data.next()
    state = data.state_dict()
    expected = [data.next().tokens for _ in range(3)]
    other = ReversalData(seeded(8, 9), 3, 5)
    other.load_state_dict(state)
    assert all(torch.equal(other.next().tokens, tokens) for tokens in expected)


def test_common_part_has_share_r_of_the_power() -> None:
    """4,000 members: mean square of the offset is 1.5 r; tokens' part keeps 1 - r."""
    n_members, d = 4000, 16
    shares = [0.0, 0.5, 0.9, 1.0] * (n_members // 4)
    scale, offset = correlated_input(shares, d, seeded(*range(n_members)))
    assert offset.shape == (n_members, d)
    for i, r in enumerate((0.0, 0.5, 0.9, 1.0)):
        assert float(scale[i]) == pytest.approx(math.sqrt(1 - r), abs=1e-6)
        power = offset[i::4].square().mean(1)
        error = INPUT_VARIANCE * r * math.sqrt(2 / (d * n_members / 4))
        assert abs(float(power.mean()) - INPUT_VARIANCE * r) <= 4 * error
    one, two = offset[1], offset[5]
    assert not torch.equal(one, two)  # s is the member's own


@pytest.mark.parametrize("r", [-0.1, 1.5, math.nan])
def test_refuses_r_outside_the_unit_interval(r: float) -> None:
    with pytest.raises(ValueError, match=r"r must lie in \[0, 1\], got"):
        correlated_input([0.5, r], 4, seeded(1, 2))


@pytest.mark.parametrize(("batch_size", "n_tokens", "name"), [(0, 4, "batch_size"), (3, 0, "n_t")])
def test_refuses_empty_batches(batch_size: int, n_tokens: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.* must be at least 1, got 0"):
        ReversalData(seeded(1), batch_size, n_tokens)

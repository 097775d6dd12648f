"""Losses and measurements with one value per member, against direct computation."""

import math

import pytest
import torch
from torch.nn import functional

from sigprop.training.losses import accuracy, cross_entropy
from sigprop.training.optimizers import make_optimizer
from sigprop.training.probes import effective_rates, gradient_power, token_correlation
from sigprop.training.settings import TrainSettings


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_cross_entropy_is_torchs_for_each_member() -> None:
    logits = torch.randn(3, 4, 5, 7, generator=seeded(1))
    targets = torch.randint(7, (3, 4, 5), generator=seeded(2))
    targets[0, :, 3:] = -100
    targets[2, 0] = -100
    for smoothing in (0.0, 0.1):
        losses = cross_entropy(logits, targets, label_smoothing=smoothing)
        for e in range(3):
            direct = functional.cross_entropy(
                logits[e].flatten(0, 1), targets[e].flatten(), label_smoothing=smoothing
            )
            torch.testing.assert_close(losses[e], direct)


def test_padding_and_chance() -> None:
    logits, targets = torch.zeros(2, 3, 10), torch.zeros(2, 3, dtype=torch.int64)
    targets[1] = 4
    torch.testing.assert_close(
        cross_entropy(logits, targets, ignore_index=4),
        torch.tensor([math.log(10), math.nan]),
        equal_nan=True,
    )


def test_weights_are_repetitions() -> None:
    """Loss and accuracy with whole-number weights are those of positions repeated so often."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(2, 4, 3, generator=generator)
    targets = torch.randint(3, (2, 4), generator=generator)
    weights = torch.tensor([[2.0, 0.0, 1.0, 3.0]])
    rows = torch.tensor([0, 0, 2, 3, 3, 3])
    for measure in (cross_entropy, accuracy):
        expected = measure(logits[:, rows], targets[:, rows])
        torch.testing.assert_close(measure(logits, targets, weights=weights), expected)
        assert not torch.allclose(measure(logits, targets), expected)


def test_accuracy_counts_what_is_not_padding() -> None:
    logits = functional.one_hot(torch.tensor([[0, 1, 2, 3], [0, 0, 0, 0]]), 5).float()
    targets = torch.tensor([[0, 1, 4, -100], [1, 1, 1, 0]])
    torch.testing.assert_close(accuracy(logits, targets), torch.tensor([2 / 3, 1 / 4]))


def test_gradient_power_by_family_member_and_layer() -> None:
    w = torch.zeros(2, 3, 4, 5)
    w.grad = torch.randn(2, 3, 4, 5, generator=seeded(1))
    found = gradient_power({"q": w})
    assert set(found) == {"grad_q"}
    assert found["grad_q"].shape == (2, 3)
    assert float(found["grad_q"][1, 2]) == pytest.approx(float((w.grad[1, 2] ** 2).sum()))
    with pytest.raises(ValueError, match="weights 'v' have no gradient: measure after backward"):
        gradient_power({"v": torch.zeros(1, 1, 1, 1)})


@pytest.mark.parametrize("n_updates", [1, 7])
def test_effective_rate_is_what_adam_multiplies_the_average_gradient_with(n_updates: int) -> None:
    """Against the update itself: eta_eff = |w_{t+1} - w_t| / |m_hat| at unchanged m and v.

    With constant gradients g, v_hat = g^2 at every step, so eta_eff = lr / (|g| + eps).
    """
    eps, lr = 1e-3, 0.05
    w = torch.nn.Parameter(torch.zeros(2, 3, 4, 5))
    g = torch.randn(2, 3, 4, 5, generator=seeded(3))
    optimizer = make_optimizer([w], TrainSettings(steps=9, batch_size=1, lr=lr, eps=eps))
    for _ in range(n_updates):
        w.grad = g.clone()
        before = w.detach().clone()
        optimizer.step()
    found = effective_rates(optimizer, {"q": w}, lr)["log_rate_q"]
    by_entry = ((before - w.detach()).abs() / g.abs()).double().log().flatten(2)
    assert found.shape == (2, 3)
    for e in range(2):
        for l in range(3):
            ordered = sorted(by_entry[e, l].tolist())
            assert float(found[e, l]) == pytest.approx((ordered[9] + ordered[10]) / 2, abs=1e-3)


def test_effective_rates_need_adam_and_an_update() -> None:
    w = torch.nn.Parameter(torch.zeros(1, 1, 2, 2))
    adam = make_optimizer([w], TrainSettings(steps=9, batch_size=1))
    with pytest.raises(ValueError, match="weights 'q': effective rates need Adam and one update"):
        effective_rates(adam, {"q": w}, 0.1)
    w.grad = torch.ones_like(w)
    sgd = make_optimizer([w], TrainSettings(steps=9, batch_size=1, optimizer="sgd"))
    sgd.step()
    with pytest.raises(ValueError, match="effective rates need Adam"):
        effective_rates(sgd, {"q": w}, 0.1)


def test_token_correlation_by_member_and_layer() -> None:
    states = [torch.randn(2, 3, 4, 6, generator=seeded(layer)) for layer in range(3)]
    states.append(torch.ones(2, 3, 4, 6))
    found = token_correlation(states)["cos_mean"]
    assert found.shape == (2, 4)
    direct = []
    for b in range(3):
        x = functional.normalize(states[1][1, b].double(), dim=-1)
        gram = x @ x.T
        direct.append(float((gram.sum() - gram.trace()) / 12))
    assert float(found[1, 1]) == pytest.approx(sum(direct) / 3)
    torch.testing.assert_close(found[:, 3], torch.ones(2, dtype=torch.float64))

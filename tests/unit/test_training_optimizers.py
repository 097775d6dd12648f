"""torch's optimizers, with decoupled decay and with gradients clipped member by member."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sigprop.training.optimizers import (
    clip_gradients,
    gradient_norms,
    make_optimizer,
    scale_members,
    silence,
)
from sigprop.training.settings import TrainSettings

GRADIENTS = (0.5, -2.0, 1.5)


def descend(**settings: Any) -> list[float]:
    """One weight, started at 1, over the three gradients."""
    w = torch.nn.Parameter(torch.ones(1, 1, dtype=torch.float64))
    optimizer = make_optimizer([w], TrainSettings(steps=9, batch_size=1, **settings))
    path = []
    for g in GRADIENTS:
        w.grad = torch.full_like(w, g)
        optimizer.step()
        path.append(float(w.detach()))
    return path


def test_adam_steps_by_hand() -> None:
    """Kingma & Ba 2015, Algorithm 1, with w <- (1 - lr wd) w first (Loshchilov & Hutter 2019)."""
    lr, b1, b2, eps, decay = 0.1, 0.8, 0.95, 1e-6, 0.3
    w, m, v, expected = 1.0, 0.0, 0.0, []
    for t, g in enumerate(GRADIENTS, start=1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        w *= 1 - lr * decay
        w -= lr * (m / (1 - b1**t)) / (math.sqrt(v / (1 - b2**t)) + eps)
        expected.append(w)
    found = descend(optimizer="adam", lr=lr, betas=(b1, b2), eps=eps, weight_decay=decay)
    assert found == pytest.approx(expected, rel=1e-9)


def test_sgd_steps_by_hand() -> None:
    """The decay shrinks the weight and stays out of the momentum."""
    lr, momentum, decay = 0.1, 0.9, 0.3
    w, velocity, expected = 1.0, 0.0, []
    for g in GRADIENTS:
        velocity = momentum * velocity + g
        w = (1 - lr * decay) * w - lr * velocity
        expected.append(w)
    found = descend(optimizer="sgd", lr=lr, momentum=momentum, weight_decay=decay)
    assert found == pytest.approx(expected, rel=1e-12)
    coupled = torch.nn.Parameter(torch.ones(1, 1, dtype=torch.float64))
    optimizer = torch.optim.SGD([coupled], lr=lr, momentum=momentum, weight_decay=decay)
    for g in GRADIENTS:
        coupled.grad = torch.full_like(coupled, g)
        optimizer.step()
    assert float(coupled.detach()) != pytest.approx(expected[-1], rel=1e-3)  # the test can tell


def parameters() -> list[Tensor]:
    """Two members; gradient norms 5 and 0.05."""
    first, second = torch.zeros(2, 2, 1), torch.zeros(2, 1)
    first.grad = torch.tensor([[[3.0], [0.0]], [[0.03], [0.0]]])
    second.grad = torch.tensor([[4.0], [0.04]])
    return [first, second, torch.zeros(2, 1)]  # the last has no gradient


def test_clipping_is_per_member() -> None:
    own = parameters()
    torch.testing.assert_close(gradient_norms(own, 2), torch.tensor([5.0, 0.05]))
    before = clip_gradients(own, 1.0, 2)
    torch.testing.assert_close(before, torch.tensor([5.0, 0.05]))
    torch.testing.assert_close(gradient_norms(own, 2), torch.tensor([1.0, 0.05]))
    assert own[0].grad is not None
    torch.testing.assert_close(own[0].grad[:, 0, 0], torch.tensor([0.6, 0.03]))


def test_clipping_is_torchs_for_one_member() -> None:
    ours = [torch.zeros(3, 2), torch.zeros(1, 4)]  # with and without the member axis
    generator = torch.Generator().manual_seed(1)
    for p in ours:
        p.grad = torch.randn(p.shape, generator=generator)
    theirs = [torch.zeros_like(p) for p in ours]
    for p, q in zip(ours, theirs, strict=True):
        assert p.grad is not None
        q.grad = p.grad.clone()
    norms = clip_gradients(ours, 0.7, 1)
    norm = torch.nn.utils.clip_grad_norm_(theirs, 0.7)
    torch.testing.assert_close(norms[0], norm)
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_scaling_by_zero_and_one_selects_members() -> None:
    own = parameters()
    scale_members(own, torch.tensor([True, False]))
    assert gradient_norms(own, 2).tolist() == pytest.approx([5.0, 0.0])


def test_silence_zeroes_weights_and_state_of_the_named_members() -> None:
    w = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = make_optimizer([w], TrainSettings(steps=9, batch_size=1))
    w.grad = torch.ones_like(w)
    optimizer.step()
    silence(optimizer, torch.tensor([False, True, False]))
    state = optimizer.state[w]
    for value in (w.detach(), state["exp_avg"], state["exp_avg_sq"]):
        assert (value == 0).tolist() == [[False] * 2, [True] * 2, [False] * 2]
    assert float(state["step"]) == 1
    silence(optimizer, torch.tensor([True]))  # the same numbers as those of one network
    assert not w.detach().any() and not state["exp_avg"].any()

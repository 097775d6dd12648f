"""Schedules against their closed forms, and as torch's scheduler applies them."""

import math
from typing import Any

import pytest
import torch

from sigprop.training.schedules import learning_rate, make_scheduler, temperature
from sigprop.training.settings import TrainSettings


def settings(**changes: Any) -> TrainSettings:
    return TrainSettings(**{"steps": 100, "batch_size": 1, "lr": 0.5} | changes)


def test_constant() -> None:
    f = learning_rate(settings())
    assert [f(t) for t in (0, 50, 10**6)] == [1, 1, 1]


def test_steps_at_forty_and_eighty_percent() -> None:
    f = learning_rate(settings(schedule="steps"))
    found = [f(t) for t in (0, 39, 40, 79, 80, 100)]
    assert found == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    f = learning_rate(settings(schedule="steps", milestones=(0.5,), decay=0.3))
    assert [f(t) for t in (49, 50)] == pytest.approx([1, 0.3])


def test_linear_warmup_moves_at_once_and_ends_at_one() -> None:
    f = learning_rate(settings(schedule="linear_warmup", warmup_steps=4))
    assert [f(t) for t in range(6)] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


def test_inverse_sqrt_peaks_at_the_end_of_the_warmup() -> None:
    """Vaswani et al. 2017, eq. 3, in units of its peak: min(n / w, sqrt(w / n)), n = t + 1."""
    f = learning_rate(settings(schedule="inverse_sqrt", warmup_steps=25))
    n = range(1, 400)
    peak = 25**-0.5
    vaswani = [min(k**-0.5, k * 25**-1.5) / peak for k in n]
    assert [f(k - 1) for k in n] == pytest.approx(vaswani)
    assert f(24) == max(f(t) for t in range(400)) == 1
    assert f(99) == pytest.approx(0.5)


def test_linear_decay_rises_to_one_and_falls_to_zero_at_the_end() -> None:
    f = learning_rate(settings(steps=10, schedule="linear_decay", warmup_steps=3))
    up, down = [1 / 3, 2 / 3, 1], [7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]
    assert [f(t) for t in range(10)] == pytest.approx(up + down)
    assert f(10) == 0  # the step after the last update
    f = learning_rate(settings(steps=10, schedule="linear_decay", warmup_steps=10))
    assert [f(t) for t in (0, 9)] == pytest.approx([0.1, 1])


def test_torch_applies_the_factor_to_the_rate() -> None:
    own = settings(schedule="inverse_sqrt", warmup_steps=10)
    w = torch.nn.Parameter(torch.zeros(1, 1))
    optimizer = torch.optim.SGD([w], lr=own.lr)
    scheduler = make_scheduler(optimizer, own)
    for t in range(30):
        rate = 0.5 * min((t + 1) / 10, math.sqrt(10 / (t + 1)))
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(
    ("form", "expected"),
    [("from_one", [1.0, 1 + 7.5 / 4, 8.5, 8.5]), ("from_zero", [0.0, 8.5 / 4, 8.5, 8.5])],
)
def test_temperature_warm_up(form: str, expected: list[float]) -> None:
    tau = temperature(settings(tau=8.5, tau_warmup_steps=1000, tau_form=form))
    assert [tau(t) for t in (0, 250, 1000, 5000)] == pytest.approx(expected)


def test_temperature_without_warm_up_and_without_tau() -> None:
    assert temperature(settings(tau=8.5))(0) == 8.5
    assert temperature(settings())(10) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": -2}, "batch_size must be at least 1, got -2"),
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"lr": math.nan}, "lr must be positive, got nan"),
        ({"betas": (0.9, 1.0)}, r"betas must be in \[0, 1\), got 1.0"),
        ({"momentum": -0.1}, r"momentum must be in \[0, 1\), got -0.1"),
        ({"weight_decay": -1.0}, "weight_decay must be 0 or more, got -1.0"),
        ({"label_smoothing": 1.0}, r"label_smoothing must be in \[0, 1\), got 1.0"),
        ({"milestones": (0.4, 1.5)}, r"milestones must be fractions of the run, .* got 1.5"),
        ({"clip_norm": 0.0}, "clip_norm must be positive, or None, got 0.0"),
        ({"tau": -1.0}, "tau must be positive, or None, got -1.0"),
        ({"optimizer": "adamw"}, "optimizer must be one of adam, sgd, got 'adamw'"),
        ({"schedule": "cosine"}, "schedule must be one of constant, .* got 'cosine'"),
        ({"on_nonfinite": "skip"}, "on_nonfinite must be one of stop, freeze, got 'skip'"),
        ({"tau_form": "sqrt"}, "tau_form must be one of from_one, from_zero, got 'sqrt'"),
        ({"schedule": "inverse_sqrt"}, "warmup_steps must be at least 1 with schedule 'inverse_s"),
        ({"schedule": "linear_decay"}, "warmup_steps must be at least 1 with schedule 'linear_de"),
        (
            {"schedule": "linear_decay", "warmup_steps": 101},
            "warmup_steps must be at most steps=100 with schedule 'linear_decay', got 101",
        ),
    ],
)
def test_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        settings(**changes)
    assert "\n" not in str(caught.value)


def test_steps_may_be_warmed_up() -> None:
    """lr(t) = min(1, (t + 1) / w) * decay^k: both factors at once."""
    settings = TrainSettings(
        steps=10, batch_size=1, schedule="steps", warmup_steps=4, milestones=(0.7,), decay=0.3
    )
    factor = learning_rate(settings)
    expected = [0.25, 0.5, 0.75, 1, 1, 1, 1, 0.3, 0.3, 0.3]
    assert [factor(step) for step in range(10)] == pytest.approx(expected)

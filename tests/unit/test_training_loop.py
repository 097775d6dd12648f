"""The loop trains what a plain PyTorch loop trains, member by member, and stops clearly."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import tiny_run
import torch
from torch import Tensor
from torch.nn import functional

from sigprop.artifacts.errors import UserError
from sigprop.tasks.reversal import ReversalBatch
from sigprop.training.loop import Run, train
from sigprop.training.losses import cross_entropy
from sigprop.training.measurements import History, Measurement, Moment


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_against_a_hand_written_loop(optimizer: str) -> None:
    """Weights after 30 updates equal those of ten lines of plain PyTorch."""
    lr, decay = 0.02, 0.1
    done = tiny_run.run(
        None, n_members=1, steps=30, optimizer=optimizer, lr=lr, weight_decay=decay,
        schedule="linear_warmup", warmup_steps=10,
    )  # fmt: skip
    model, data, _ = tiny_run.make(1)
    if optimizer == "adam":
        plain: torch.optim.Optimizer = torch.optim.AdamW(
            model.parameters(), lr=lr, weight_decay=decay, foreach=False
        )
    else:
        plain = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for step in range(30):
        plain.param_groups[0]["lr"] = lr * min(1, (step + 1) / 10)
        batch = data.next()
        logits = model(batch.tokens)
        plain.zero_grad()
        functional.cross_entropy(logits.view(-1, 10), batch.targets.view(-1)).backward()
        if optimizer == "sgd":
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(plain.param_groups[0]["lr"] * decay * p)
        plain.step()
    theirs = dict(model.named_parameters())
    for name, ours in done.model.named_parameters():
        torch.testing.assert_close(ours, theirs[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"optimizer": "sgd", "lr": 0.1, "clip_norm": 0.5}])
def test_an_ensemble_equals_separate_runs(changes: dict[str, Any]) -> None:
    """To rounding: batched products add in another order, and 20 updates amplify that."""
    together = tiny_run.run(None, n_members=3, steps=20, **changes)
    _, losses = together.history.stacked("train_loss")
    for e in range(3):
        model, _, settings = tiny_run.make(1, steps=20, **changes)
        ensemble_start, _, _ = tiny_run.make(3)
        own = {name: p[e : e + 1] for name, p in ensemble_start.named_parameters()}
        model.load_state_dict(own, strict=False)
        data = tiny_run.ReversalData(tiny_run.generators(1, 100 + e), 2, 4)
        alone = train(model, data, loss_of(model), settings)
        _, own_losses = alone.history.stacked("train_loss")
        torch.testing.assert_close(losses[:, e], own_losses[:, 0], rtol=1e-3, atol=1e-4)


def loss_of(model: torch.nn.Module) -> Any:
    def loss(batch: ReversalBatch, tau: float | None) -> Tensor:
        return cross_entropy(model(batch.tokens, tau=tau), batch.targets)

    return loss


def test_measurements_see_the_state_before_the_update() -> None:
    """At step 0 the initial weights with a gradient, at the last step the final weights."""
    model, data, settings = tiny_run.make(2, steps=12)
    start = model.embedding.detach().clone()
    seen: dict[int, tuple[Tensor, float]] = {}

    def look(moment: Moment) -> dict[str, Tensor]:
        assert not torch.is_grad_enabled()
        assert not moment.model.training
        assert model.embedding.grad is not None
        seen[moment.step] = (model.embedding.clone(), moment.lr)
        return {"power": model.embedding.grad.square().sum((1, 2))}

    done = train(
        model, data, loss_of(model), settings, measurements=[Measurement({0, 5, 12}, look)]
    )
    assert sorted(seen) == [0, 5, 12]
    assert torch.equal(seen[0][0], start)
    assert torch.equal(seen[12][0], model.embedding)
    assert not torch.equal(seen[5][0], start)
    # Steps schedule, 40 % and 80 % of 12 updates.
    assert [seen[step][1] for step in (0, 5, 12)] == pytest.approx([0.01, 0.001, 0.0001])
    steps, power = done.history.stacked("power")
    assert steps == [0, 5, 12]
    assert power.shape == (3, 2)
    assert power.dtype == torch.float64
    assert done.step == 12
    assert done.history.stacked("train_loss")[0] == [0, 5, 10, 12]


def test_the_temperature_reaches_loss_and_measurements() -> None:
    model, data, settings = tiny_run.make(1, steps=4, tau=5.0, tau_warmup_steps=2)
    seen: list[float | None] = []
    looked: list[float | None] = []

    def loss(batch: ReversalBatch, tau: float | None) -> Tensor:
        seen.append(tau)
        return cross_entropy(model(batch.tokens, tau=tau), batch.targets)

    def look(moment: Moment) -> dict[str, Tensor]:
        looked.append(moment.tau)
        return {}

    train(model, data, loss, settings, measurements=[Measurement(range(9), look)])
    assert seen == looked == [1.0, 3.0, 5.0, 5.0, 5.0]


def test_the_log_is_json_lines(tmp_path: Path) -> None:
    tiny_run.run(tmp_path, steps=10)
    tiny_run.run(tmp_path / "again", steps=10, tau=2.0)
    lines = [json.loads(line) for line in (tmp_path / "tiny.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 5, 10]
    assert set(lines[0]) == {"step", "loss", "lr", "seconds"}
    assert all(math.isfinite(line["loss"]) for line in lines)
    assert lines[2]["seconds"] > lines[0]["seconds"] > 0
    with_tau = (tmp_path / "again" / "tiny.jsonl").read_text().splitlines()
    assert json.loads(with_tau[0])["tau"] == 2.0


# ------------------------------------------------------------------ losses that are not finite


def train_with_bad_member(bad: int, at: int, value: float, **changes: Any) -> Run:
    """Member `bad` gets a loss of `value` from step `at` on."""
    model, data, settings = tiny_run.make(3, steps=12, **changes)
    calls = iter(range(100))

    def loss(batch: ReversalBatch, tau: float | None) -> Tensor:
        losses = cross_entropy(model(batch.tokens, tau=tau), batch.targets)
        factor = torch.ones(3)
        factor[bad] = value if next(calls) >= at else 1.0
        return losses * factor

    def look(moment: Moment) -> dict[str, Tensor]:
        return {"norm": model.embedding.square().sum((1, 2))}

    return train(model, data, loss, settings, measurements=[Measurement(range(0, 99, 4), look)])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_the_run(value: float) -> None:
    with pytest.raises(
        FloatingPointError,
        match=r"loss of member 1 of 3 is not finite at step 7 \(last finite: \d\.\d+; lr 0\.001\): "
        r"lower lr, add warm-up, clip gradients",
    ) as caught:
        train_with_bad_member(1, 7, value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "changes", [{}, {"optimizer": "sgd", "clip_norm": 1.0, "weight_decay": 0.1}]
)
def test_a_frozen_member_leaves_the_others_alone(value: float, changes: dict[str, Any]) -> None:
    healthy = tiny_run.run(None, n_members=3, steps=12, **changes)
    frozen = train_with_bad_member(1, 7, value, on_nonfinite="freeze", **changes)
    assert frozen.divergence.at.tolist() == [-1, 7, -1]
    for (name, p), q in zip(
        frozen.model.named_parameters(), healthy.model.parameters(), strict=True
    ):
        assert torch.equal(p[[0, 2]], q[[0, 2]]), name
        assert bool((p[1] == 0).all()), name
    steps, norms = frozen.history.stacked("norm")
    assert steps == [0, 4, 8, 12]
    assert norms.isnan().tolist() == [[False] * 3] * 2 + [[False, True, False]] * 2
    assert math.isfinite(frozen.mean_loss)


def test_freezing_every_member_goes_on_to_the_end() -> None:
    """So that members of one group are never lost with it."""
    model, data, settings = tiny_run.make(2, steps=4, on_nonfinite="freeze")
    run = train(model, data, lambda batch, tau: loss_of(model)(batch, tau) * math.nan, settings)
    assert run.done and run.divergence.at.tolist() == [0, 0]
    assert torch.isnan(run.history.stacked("train_loss")[1]).all()


def test_a_frozen_member_stays_frozen_over_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = train_with_bad_member(0, 3, math.nan, on_nonfinite="freeze")
    model, data, settings = tiny_run.make(3, steps=12, on_nonfinite="freeze")
    fresh = Run(model, data, loss_of(model), settings)
    fresh.load_state_dict(done.state_dict())
    assert fresh.divergence.gone.tolist() == [True, False, False]
    fresh.done, fresh.settings = False, tiny_run.make(steps=20)[2]
    fresh.advance()
    assert bool((model.embedding[0] == 0).all())


# ------------------------------------------------------------------ other bad luck


def test_out_of_gpu_memory_names_the_batch_size() -> None:
    model, data, settings = tiny_run.make(2, batch_size=64)

    def loss(batch: ReversalBatch, tau: float | None) -> Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB\nmore")

    with pytest.raises(
        UserError, match=r"at step 0 with batch_size=64: lower batch_size"
    ) as caught:
        train(model, data, loss, settings)
    assert "\n" not in str(caught.value)


def test_mixed_precision_changes_nothing_on_the_cpu() -> None:
    full, mixed = (tiny_run.run(None, steps=3, mixed_precision=m) for m in (False, True))
    assert tiny_run.digest(full) == tiny_run.digest(mixed)


def test_history_knows_the_best_step() -> None:
    history, alive = History(), torch.tensor([False, False])
    for step, value in ((0, 3.0), (5, 1.0), (10, 2.0)):
        history.add(step, "loss", torch.full((2,), value), alive)
        assert history.is_best("loss", step) == (step != 10)
        assert not history.is_best("loss", step + 1)
    assert not history.is_best("accuracy", 10)
    with pytest.raises(KeyError):
        history.stacked("accuracy")

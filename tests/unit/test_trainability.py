"""Trainability tables: the model against plain formulas, common random numbers, resumption."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional

from sigprop.artifacts.errors import UserError
from sigprop.experiments.context import Context
from sigprop.experiments.frames import schema
from sigprop.experiments.settings import parse
from sigprop.experiments.trainability import simulation as trainability
from sigprop.experiments.trainability import theory as trainability_theory
from sigprop.experiments.trainability.settings import Configuration, TrainabilitySettings
from sigprop.tasks.histogram import N_CLASSES, HistogramBatch, histogram_batch
from sigprop.theory.cowsik2024 import tied
from sigprop.theory.cowsik2024_phases import exponents
from sigprop.training.checkpoints import Checkpoints
from sigprop.training.losses import accuracy, cross_entropy

TRAINING: dict[str, Any] = {"steps": 6, "batch_size": 4, "lr": 0.003, "log_every": 5}
LHS: dict[str, Any] = {
    "n_points": 5,
    "design_seed": 1,
    "alpha_attn": [0.05, 0.9],
    "alpha_ff": [0.05, 0.9],
    "sigma_w": [0.6, 4.0],
    "sigma_v": [0.5, 2.0],
    "sigma_a": [0.5, 3.0],
}
BASE: dict[str, Any] = {
    "lhs": LHS,
    "depth": [2, 3],
    "n_tokens": 5,
    "n_symbols": 3,
    "d_model": 8,
    "n_seeds": 2,
    "ensemble": 3,
    "training": TRAINING,
    "test_sequences": 8,
}
KEYS = ["mode", "depth", "config", "seed", "quantity"]


def settings(**changes: Any) -> TrainabilitySettings:
    return parse(TrainabilitySettings, BASE | changes)


def make(context: Context | None = None, **changes: Any) -> pd.DataFrame:
    torch.set_num_threads(1)
    table = trainability.run(settings(**changes), context or Context("t", 1))
    return schema(TrainabilitySettings).validate(table)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make()


def by_config(table: pd.DataFrame, quantity: str) -> pd.DataFrame:
    rows = table[table["quantity"] == quantity]
    return rows.pivot(index=["depth", "seed"], columns="config", values="value")


def test_every_configuration_has_every_row_once(table: pd.DataFrame) -> None:
    assert not table.duplicated(KEYS).any()
    for quantity in ("test_loss", "train_loss", "accuracy", "diverged", "grad0"):
        assert (table["quantity"] == quantity).sum() == 5 * 2 * 2
    assert set(table["design"]) == {"lhs"} and set(table["source"]) == {"simulation"}
    assert (by_config(table, "grad0") > 0).all(axis=None)
    assert not by_config(table, "diverged").any(axis=None)


def test_the_same_seed_gives_the_same_table_and_another_does_not(table: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(make(), table)
    other = by_config(make(Context("t", 2)), "grad0")
    assert not np.isclose(other, by_config(table, "grad0")).any()


def test_results_do_not_depend_on_the_ensemble(table: pd.DataFrame) -> None:
    alone = make(ensemble=1)
    for quantity in ("grad0", "test_loss"):
        np.testing.assert_allclose(
            by_config(alone, quantity), by_config(table, quantity), rtol=1e-3
        )


def test_training_seeds_draw_anew(table: pd.DataFrame) -> None:
    start = by_config(table, "grad0")
    for depth in (2, 3):
        assert not np.isclose(start.loc[(depth, 0)], start.loc[(depth, 1)]).any()


def test_configurations_share_all_random_numbers() -> None:
    """Two that are equal train to the same loss; weights differ by their sigmas alone."""
    table = make(lhs=None, grid={"alpha": [0.4, 0.4], "sigma_w": 1.5})
    for quantity in ("grad0", "test_loss", "train_loss", "accuracy"):
        values = by_config(table, quantity)
        np.testing.assert_allclose(values[0], values[1], rtol=1e-5)
    group = next(settings().groups())
    model = trainability._model(group, settings(), Context("t", 1))
    weights = model.encoder.weights
    for family, scale in (
        ("ff1", lambda p: p.sigma_w),
        ("ff2", lambda p: p.sigma_w),
        ("v", lambda p: p.sigma_v),
        ("q", lambda p: math.sqrt(p.sigma_a)),
        ("k", lambda p: math.sqrt(p.sigma_a)),
    ):
        draws = [weights[family][e] / scale(point) for e, point in enumerate(group.points)]
        for other in draws[1:]:
            torch.testing.assert_close(other, draws[0])
    many = settings(d_model=64, depth=4)
    deep = trainability._model(next(many.groups()), many, Context("t", 1))
    sigma = next(many.groups()).points[0].sigma_w
    # 4 * 64^2 entries: the relative standard error of a standard deviation is 1 / sqrt(2 N)
    found = float(deep.encoder.weights["ff1"][0].detach().std()) * 8 / sigma
    assert found == pytest.approx(1, abs=5 / math.sqrt(2 * 4 * 64**2))
    assert float(deep.readout.detach().std()) * 8 == pytest.approx(0.1, abs=0.02)


def plain_forward(
    mode: str, point: Configuration, w: dict[str, torch.Tensor], x: torch.Tensor
) -> torch.Tensor:
    """The last LN of one network by the formulas, x (B, n, d); w by family, (L, d, d)."""

    def norm(z: torch.Tensor) -> torch.Tensor:
        centred = z - z.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    d = x.shape[-1]
    skip = [1.0, 1.0]
    if mode == "conv":
        skip = [math.sqrt(1 - point.alpha_attn**2), math.sqrt(1 - point.alpha_ff**2)]
    for q, k, v, w1, w2 in zip(w["q"], w["k"], w["v"], w["ff1"], w["ff2"], strict=True):
        z = norm(x)
        a = torch.softmax((z @ q) @ (z @ k).mT / math.sqrt(d), -1)
        y = skip[0] * x + point.alpha_attn * (a @ (z @ v))
        x = skip[1] * y + point.alpha_ff * (torch.tanh(norm(y) @ w1) @ w2)
        x = norm(x) if mode == "renorm" else x
    return norm(x)


@pytest.mark.parametrize("mode", ["conv", "renorm", "unit"])
def test_the_networks_are_those_of_the_theory(mode: str) -> None:
    chosen = settings(mode=mode, ensemble=5)
    group = next(chosen.groups())
    model = trainability._model(group, chosen, Context("t", 1))
    one = histogram_batch(torch.Generator().manual_seed(3), 4, 5, 3)
    tokens, targets = (part.expand(5, -1, -1) for part in one)
    logits = model(tokens)
    for e, point in enumerate(group.points):
        w = {family: values[e].detach() for family, values in model.encoder.weights.items()}
        emb = model.embedding[e].detach().requires_grad_()
        expected = plain_forward(mode, point, w, emb[tokens[e]]) @ model.readout[e].detach()
        torch.testing.assert_close(logits[e], expected, rtol=2e-4, atol=2e-5)
    assert logits.shape == (5, 4, 5, N_CLASSES)
    loss = functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
    loss.backward()
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen and all("strength" in name for name in frozen)
    assert not [name for name, _ in model.named_parameters() if "gain" in name or "biases" in name]
    assert model.readout_bias.requires_grad and model.positions is None


@pytest.mark.parametrize("mode", ["conv", "renorm", "unit"])
@pytest.mark.parametrize("n_symbols", [3, 8])
def test_counted_symbols_are_the_tokens_written_out(mode: str, n_symbols: int) -> None:
    """Loss, accuracy and all gradients, to float64 rounding; 8 symbols are more than 5 tokens."""
    chosen = settings(mode=mode, ensemble=5, n_symbols=n_symbols)
    group = next(chosen.groups())
    model = trainability._model(group, chosen, Context("t", 1)).double()
    batch = histogram_batch(torch.Generator().manual_seed(3), 4, 5, n_symbols)
    written = HistogramBatch(*(part.expand(5, -1, -1) for part in batch))
    once = trainability.counted(batch, n_symbols, 5, "cpu")
    assert once.tokens.shape == (5, 4, min(n_symbols, 5)) and bool((once.counts.sum(-1) == 5).all())
    found: list[list[torch.Tensor]] = []
    for tokens, targets, counts in ((*written, None), once):
        logits = model(tokens, counts=None if counts is None else counts.double())
        losses = cross_entropy(logits, targets, weights=counts)
        model.zero_grad()
        losses.sum().backward()
        gradients = [p.grad for p in model.parameters() if p.requires_grad and p.grad is not None]
        found.append([losses.detach(), accuracy(logits, targets, weights=counts), *gradients])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)  # losses are float32


def test_a_loss_that_is_no_number_is_recorded_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Member 1 loses its readout to NaN; the others train as if it were not there."""
    grid = {"alpha": [0.3, 0.4, 0.5], "sigma_w": 1.5}
    fine = make(lhs=None, grid=grid, depth=2, n_seeds=1)
    model = trainability._model

    def damaged(*args: Any) -> Any:
        made = model(*args)
        with torch.no_grad():
            made.readout[1] = math.nan
        return made

    monkeypatch.setattr(trainability, "_model", damaged)
    table = make(lhs=None, grid=grid, depth=2, n_seeds=1)
    gone = table[table["config"] == 1].set_index("quantity")["value"]
    assert dict(gone) == {"test_loss": 2.0, "train_loss": 2.0, "diverged": 1.0}
    for quantity in ("test_loss", "train_loss", "accuracy", "diverged", "grad0"):
        found, expected = by_config(table, quantity), by_config(fine, quantity)
        np.testing.assert_allclose(found[[0, 2]], expected[[0, 2]], rtol=1e-5)


def test_theory_agrees_with_the_calculator() -> None:
    chosen = settings(depth=3, n_seeds=1)
    theory = schema(TrainabilitySettings).validate(trainability_theory.run(chosen, Context("t", 1)))
    assert set(theory["source"]) == {"theory"} and theory["seed"].isna().all()
    assert not theory.duplicated(["depth", "config", "quantity"]).any()
    for point in chosen.points(3):
        report = exponents(
            tied(
                point.alpha_attn,
                point.alpha_ff,
                point.sigma_w,
                sigma_a=point.sigma_a,
                sigma_v=point.sigma_v,
                n_tokens=5,
            ),
            3,
            rho=1 / 3,
        )
        rows = theory[theory["config"] == point.config].set_index("quantity")["value"]
        for name in ("lambda_a", "lambda_g", "lambda_g_star", "lambda_g_traj"):
            assert rows[name] == pytest.approx(getattr(report, name), rel=1e-8, abs=1e-12)
    unit = trainability_theory.run(settings(mode="unit", depth=3), Context("t", 1))
    assert set(unit["quantity"]) == {"lambda_g_traj"}


def test_the_hypercube_is_one_and_comes_from_its_own_seed() -> None:
    points = settings(lhs=LHS | {"n_points": 20}).points(3)
    for name in ("alpha_attn", "alpha_ff", "sigma_w", "sigma_v", "sigma_a"):
        low, high = LHS[name]
        cells = [int((getattr(p, name) - low) / (high - low) * 20) for p in points]
        assert sorted(cells) == list(range(20))
    assert points[:5] != settings(lhs=LHS | {"n_points": 20, "design_seed": 2}).points(3)[:5]
    plain = settings(lhs={k: v for k, v in LHS.items() if k not in ("sigma_v", "sigma_a")})
    assert {(p.sigma_v, p.sigma_a) for p in plain.points(2)} == {(1.0, 1.0)}


def test_the_grid_scales_with_depth() -> None:
    grid = {"alpha": [0.8, 1.6], "depth_power": 0.5, "sigma_w": [1.2, 3.0]}
    chosen = settings(lhs=None, grid=grid, depth=[4, 16])
    assert [p.alpha_attn for p in chosen.points(4)] == pytest.approx([0.4, 0.4, 0.8, 0.8])
    assert [p.alpha_ff for p in chosen.points(16)] == pytest.approx([0.2, 0.2, 0.4, 0.4])
    assert [p.sigma_w for p in chosen.points(4)] == [1.2, 3.0, 1.2, 3.0]


class Killed(Exception):
    """Stands for a kill."""


def test_a_killed_table_resumes_to_the_same_bits(
    tmp_path: Path, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Context("t", 1, checkpoints=str(tmp_path / "checkpoints"))
    save, count = Checkpoints.save, iter(range(1000))

    def save_and_die(self: Checkpoints, step: int, state: dict[str, Any]) -> Path:
        path = save(self, step, state)
        if next(count) in (1, 3):
            raise Killed
        return path

    monkeypatch.setattr(Checkpoints, "save", save_and_die)
    for _ in range(2):
        with pytest.raises(Killed):
            make(context)
    pd.testing.assert_frame_equal(make(context), table, check_exact=True)
    assert {file.suffix for file in (tmp_path / "checkpoints").iterdir()} == {".jsonl"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lhs": None}, "give one design, grid or lhs"),
        ({"grid": {"alpha": 0.5, "sigma_w": 1.0}}, "give one design, grid or lhs"),
        (
            {"lhs": None, "grid": {"alpha": 2.0, "depth_power": 0.5, "sigma_w": 1.0}, "depth": 2},
            "grid.alpha reaches 1.41421 at depth 2; at most 1",
        ),
        ({"lhs": LHS | {"sigma_w": [2.0, 1.0]}}, r"sigma_w=\[2, 1\] is empty; give low < high"),
        ({"lhs": LHS | {"alpha_ff": [0.1, 1.5]}}, "lhs.alpha_ff.*1.5 is not allowed"),
        ({"mode": "convv"}, "mode.*'convv' is not allowed"),
        ({"training": TRAINING | {"milestones": [1.5]}}, "milestones.*1.5 is not allowed"),
        ({"training": TRAINING | {"stepz": 3}}, "training.stepz: unknown key; did you m"),
    ],
)
def test_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        settings(**changes)
    assert "\n" not in str(caught.value)

"""Tables of the reversal experiment: shape, repeatability, resumption, independence."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from sigprop.artifacts.errors import UserError
from sigprop.experiments.context import Context
from sigprop.experiments.frames import schema
from sigprop.experiments.reversal import simulation as reversal
from sigprop.experiments.reversal.settings import ReversalSettings
from sigprop.experiments.settings import parse
from sigprop.training.checkpoints import Checkpoints

ONE = {"coefficient": 1.0, "depth_power": 0.0}
SCALED = {"coefficient": 1.0, "depth_power": 0.5}
BASE: dict[str, Any] = {
    "residual": [ONE, SCALED],
    "depth": [2, 3],
    "r": [0.0, 0.9],
    "n_tokens": 4,
    "d_model": 8,
    "d_ff": 8,
    "n_seeds": 2,
    "ensemble": 4,
    "training": {"steps": 12, "batch_size": 4, "lr": 0.01, "log_every": 5},
    "evaluate_every": 5,
    "test_sequences": 8,
    "probe_steps": [0, 10],
}


def settings(**changes: Any) -> ReversalSettings:
    return parse(ReversalSettings, BASE | changes)


def make(context: Context | None = None, **changes: Any) -> pd.DataFrame:
    torch.set_num_threads(1)
    return schema(ReversalSettings).validate(
        reversal.run(settings(**changes), context or Context("t", 1))
    )


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make()


def test_every_network_has_every_row_once(table: pd.DataFrame) -> None:
    keys = ["alpha_rule", "depth", "r", "seed", "quantity", "step", "layer"]
    assert not table.duplicated(keys).any()
    looks, cases, seeds = 4, 8, 2
    for quantity, rows in table.groupby("quantity"):
        if quantity in ("loss", "accuracy"):
            assert len(rows) == looks * cases * seeds
            assert sorted(rows["step"].unique()) == [0, 5, 10, 12]
            assert rows["layer"].isna().all()
        elif str(quantity) in ("solved", "steps_to_solve"):
            assert len(rows) == cases * seeds
            assert set(rows["step"]) == {12}
        else:
            layers = 1 if quantity == "cos_mean" else 0
            probes = 1 if str(quantity).startswith("log_rate") else 2  # Adam has no rate at step 0
            assert len(rows) == probes * seeds * 4 * (2 + 3 + 2 * layers)
            deep = rows[rows["depth"] == 3]
            assert sorted(deep["layer"].unique()) == list(range(3 + layers))
    assert set(table["source"]) == {"simulation"}
    strengths = table.groupby(["alpha_rule", "depth"])["alpha_attn"].unique()
    assert strengths[("1", 3)] == [1.0]
    assert strengths[(r"1/\sqrt{L}", 3)] == pytest.approx([3**-0.5])


def test_the_same_seed_gives_the_same_table_and_another_does_not(table: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(make(), table)
    other = make(Context("t", 2))
    loss = table["quantity"] == "loss"
    assert not np.isclose(other.loc[loss, "value"], table.loc[loss, "value"]).any()


def test_a_network_depends_on_its_case_and_index_alone(table: pd.DataFrame) -> None:
    """Neither on the ensemble it is in, nor on the other cases; to rounding."""
    keys = ["alpha_rule", "depth", "r", "seed", "quantity", "step", "layer"]
    own = make(residual=SCALED, depth=3, r=0.9, n_seeds=3, ensemble=1)
    both = own.merge(table, on=keys, how="inner", suffixes=("", "_in_ensemble"))
    assert len(both) == (table["depth"] == 3).sum() / 4
    # The first update has no rounding to amplify; later ones do.
    start = both[both["step"] == 0]
    np.testing.assert_allclose(start["value"], start["value_in_ensemble"], rtol=1e-4, atol=1e-7)
    late = both[both["quantity"].isin(["loss", "cos_mean"])]
    np.testing.assert_allclose(late["value"], late["value_in_ensemble"], rtol=1e-2, atol=1e-2)


def test_correlation_at_the_input_follows_r(table: pd.DataFrame) -> None:
    """E <X_k, X_k'> / E |X_k|^2 >= r; the fixed embedding adds a little at d = 8."""
    first = table[(table["quantity"] == "cos_mean") & (table["step"] == 0) & (table["layer"] == 0)]
    by_r = first.groupby("r")["value"].mean()
    assert by_r[0.9] > 0.75
    assert by_r[0.0] < 0.6


@pytest.mark.parametrize("scheme", ["post_ln_qk_norm", "post_ln_rotary", "deepnorm", "rezero"])
def test_other_records_train_and_keep_their_names(scheme: str) -> None:
    """The same streams as post_ln where the record is the same but for what it names."""
    own = make(scheme=scheme, residual=None, depth=[2], r=[0.0])
    assert set(own["scheme"]) == {scheme}
    losses = own[own["quantity"] == "loss"].pivot_table(index="step", values="value")["value"]
    assert losses.iloc[-1] < losses.iloc[0] < 4
    plain = make(scheme="post_ln", residual=None, depth=[2], r=[0.0])
    assert not np.isin(losses, plain["value"]).any()


def test_turned_pairs_need_an_even_head() -> None:
    with pytest.raises(UserError, match=r"attention .rotary. turns pairs .* d_k = 1"):
        settings(scheme="post_ln_rotary", n_heads=8)


def test_solved_is_the_first_look_at_the_threshold() -> None:
    """With a threshold at the median of what was reached, some networks are censored."""
    plain = make(training=BASE["training"] | {"lr": 0.03})
    accuracy = plain[plain["quantity"] == "accuracy"]
    best = accuracy.groupby(["alpha_rule", "depth", "r", "seed"])["value"].max()
    threshold = float(best.median())
    table = make(training=BASE["training"] | {"lr": 0.03}, solved_at=threshold)
    found = table[table["quantity"].isin(["solved", "steps_to_solve"])].pivot(
        index=["alpha_rule", "depth", "r", "seed"], columns="quantity", values="value"
    )
    for key, row in found.iterrows():
        names = ["alpha_rule", "depth", "r", "seed"]
        own = accuracy[(accuracy[names] == list(key)).all(axis=1)]  # type: ignore[call-overload]
        reached = own.loc[own["value"] >= threshold, "step"]
        assert row["solved"] == (len(reached) > 0)
        assert row["steps_to_solve"] == (reached.min() if len(reached) else 12)
    assert set(found["solved"]) == {0.0, 1.0}


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

    monkeypatch.setattr(Checkpoints, "save", save_and_die)  # a checkpoint ends each ensemble
    for _ in range(2):
        with pytest.raises(Killed):
            make(context)
    resumed = make(context)
    pd.testing.assert_frame_equal(resumed, table, check_exact=True)
    assert {file.suffix for file in (tmp_path / "checkpoints").iterdir()} == {".jsonl"}


def test_checkpoints_of_other_settings_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Context("t", 1, checkpoints=str(tmp_path))
    monkeypatch.setattr(Checkpoints, "clear", lambda self: None)
    make(context, depth=2, r=0.0, residual=ONE)
    changed = BASE["training"] | {"lr": 0.02}
    with pytest.raises(UserError, match=r"other settings \(training\.lr was 0\.01, now 0\.02\)"):
        make(context, depth=2, r=0.0, residual=ONE, training=changed)


def test_a_loss_that_overflows_stops_with_one_line() -> None:
    wild = BASE["training"] | {"optimizer": "sgd", "lr": 1000.0, "steps": 60}
    with pytest.raises(FloatingPointError, match="is not finite at step") as caught:
        make(scheme="no_ln", training=wild, depth=3, residual=ONE, r=0.0)
    assert "\n" not in str(caught.value)


def test_control_without_digits_stays_at_chance() -> None:
    table = make(r=1.0, depth=2, residual=ONE, training=BASE["training"] | {"steps": 60})
    last = table[(table["quantity"] == "loss") & (table["step"] == 60)]["value"]
    assert bool((last > math.log(10) - 0.15).all())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": 1.5}, "r.*1.5 is not allowed"),
        ({"depth": 0}, "depth.*0 is not allowed"),
        ({"n_seeds": 1}, "n_seeds: 1 is not allowed"),
        ({"n_heads": 3}, "n_heads=3 does not divide d_model=8; choose a divisor"),
        ({"d_model": 9}, "d_model=9 is odd"),
        ({"probe_steps": 13}, "probe_steps=13 lies beyond training.steps=12"),
        ({"scheme": "post"}, "scheme: 'post' is not allowed"),
        ({"training": BASE["training"] | {"lr": 0.0}}, "training.lr: 0.0 is not allowed"),
        ({"training": BASE["training"] | {"stepz": 3}}, "training.stepz: unknown key; did you m"),
        (
            {"training": BASE["training"] | {"schedule": "inverse_sqrt"}},
            "training: warmup_steps must be at least 1 with schedule 'inverse_sqrt', got 0",
        ),
    ],
)
def test_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        settings(**changes)
    assert "\n" not in str(caught.value)

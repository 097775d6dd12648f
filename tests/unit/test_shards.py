"""A table made in parts is the table: whatever their number, to the bit."""

import itertools
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tiny_translation

from sigprop.artifacts.errors import UserError
from sigprop.artifacts.tables import read_sidecar
from sigprop.cli.main import main
from sigprop.experiments.config import load, shards
from sigprop.experiments.context import Context, chosen, parse_part
from sigprop.experiments.reversal.settings import ReversalSettings
from sigprop.experiments.settings import parse
from sigprop.experiments.trainability.settings import TrainabilitySettings
from sigprop.experiments.translation.settings import TranslationSettings

FEW: dict[str, Any] = {"steps": 3, "batch_size": 2, "lr": 0.003}
REVERSAL: dict[str, Any] = {
    "residual": {"coefficient": 1.0, "depth_power": 0.5},
    "depth": [1, 2],
    "r": [0.0, 0.5],
    "n_tokens": 4,
    "d_model": 8,
    "d_ff": 8,
    "n_seeds": 3,
    "ensemble": 4,  # 2 of 6 networks at each depth
    "training": FEW,
    "evaluate_every": 2,
    "test_sequences": 4,
    "probe_steps": [0, 2],
}
TRAINABILITY: dict[str, Any] = {
    "grid": {"alpha": [0.1, 0.5], "sigma_w": [0.6, 2.0]},
    "depth": [1, 2],
    "n_tokens": 4,
    "n_symbols": 3,
    "d_model": 8,
    "n_seeds": 2,
    "ensemble": 3,
    "training": FEW,
    "test_sequences": 4,
}


def settings_of(name: str, folder: Path) -> dict[str, Any]:
    if name == "translation_ours":
        tiny_translation.write_text(folder)
        training = {"steps": 4, "tau_warmup_steps": 2}
        return tiny_translation.record(
            folder, n_seeds=3, depth=1, probe_steps=[0], training=training
        )
    return REVERSAL if name == "reversal_scaled" else TRAINABILITY


def make(table: str, settings: dict[str, Any], output: Path, *more: str) -> None:
    main(["run", table, "--preset", "smoke", "--settings", json.dumps(settings), "--device", "cpu",
          "-o", str(output), *more])  # fmt: skip


@pytest.mark.parametrize(
    ("table", "runs", "n_parts"),
    [("reversal_scaled", 4, 3), ("train_grid", 8, 5), ("translation_ours", 3, 2)],
)
def test_parts_together_are_the_table(table: str, runs: int, n_parts: int, tmp_path: Path) -> None:
    settings = settings_of(table, tmp_path)
    make(table, settings, tmp_path / "whole.parquet", "--checkpoints", str(tmp_path / "a" / table))
    names = [tmp_path / f"{i}.parquet" for i in range(n_parts)]
    for i in reversed(range(n_parts)):  # in any order
        make(table, settings, names[i], "--part", f"{i}/{n_parts}", "--checkpoints",
             str(tmp_path / "b" / table))  # fmt: skip
    make(table, settings, tmp_path / "joined.parquet", "--join", *map(str, names))
    whole, joined = (pd.read_parquet(tmp_path / f"{x}.parquet") for x in ("whole", "joined"))
    pd.testing.assert_frame_equal(whole, joined, check_exact=True)
    record = read_sidecar(tmp_path / "joined.parquet")
    assert len(record["parts"]) == n_parts and "part" not in record
    same = read_sidecar(tmp_path / "whole.parquet")
    assert all(record[key] == same[key] for key in ("settings", "seed", "sha256", "rows"))
    left = {path.name for x in "ab" for path in (tmp_path / x / table).glob("*.pt")}
    assert all(name.endswith(".best.pt") for name in left)  # nothing to resume from is left


def test_the_number_of_runs_is_that_of_what_is_trained() -> None:
    """The count that sizes the parts, without training: against the lists themselves."""
    from sigprop.experiments.reversal.simulation import _ensembles

    for changes in ({}, {"ensemble": 1}, {"ensemble": 100}, {"r": 0.5, "depth": 3}):
        one: ReversalSettings = parse(ReversalSettings, REVERSAL | changes)
        assert one.n_runs == len([*_ensembles(one)])
    edge = {"n_points": 3, "design_seed": 1, "alpha_attn": [0.05, 0.9], "alpha_ff": [0.05, 0.9],
            "sigma_w": [0.6, 4.0]}  # fmt: skip
    for design in (
        {},
        {"mode": ["conv", "unit"], "ensemble": 1},
        {"grid": None, "lhs": edge | {"n_points": 7}},
        {"grid": None, "edge": edge, "depth": 16},
    ):
        two: TrainabilitySettings = parse(TrainabilitySettings, TRAINABILITY | design)
        assert two.n_runs == len([*two.groups(chosen(two))])
    three = parse(TranslationSettings, tiny_translation.record(Path(), depth=[1, 2], n_seeds=3))
    assert three.n_runs == 6


def test_no_more_jobs_than_runs() -> None:
    laptop = load("laptop")
    assert all(shards(laptop, name) == 1 for name in laptop.experiments)
    many = laptop.model_copy(update={"shards": 1000})
    assert shards(many, "deep") == shards(many, "translation_init") == 1
    assert shards(many, "translation_rezero") == 1  # left out: no run
    assert shards(many, "translation_ours") == many.experiments["translation_ours"].n_runs == 3


@pytest.mark.parametrize(("runs", "n"), [(7, 3), (3, 3), (10, 4)])
def test_parts_share_the_runs_out_in_order(runs: int, n: int) -> None:
    parts = [Context("t", 1, part=(i, n)).mine([*"abcdefghij"[:runs]]) for i in range(n)]
    assert [*itertools.chain(*parts)] == [*enumerate("abcdefghij"[:runs])]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["2/2", "3", "-1/2", "a/b", "0/0", ""])
def test_a_part_that_cannot_be_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match=r"^--part: '.*' is not allowed; use I/N"):
        parse_part(text)


def test_more_parts_than_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--part: '0/9': train_grid has 8 runs; use at most"):
        make("train_grid", TRAINABILITY, tmp_path / "x.parquet", "--part", "0/9")
    with pytest.raises(SystemExit, match="--part: '0/2': deep has 1 runs; use at most"):
        main(["run", "deep", "--preset", "smoke", "-o", str(tmp_path / "x.parquet"),
              "--part", "0/2"])  # fmt: skip
    assert not [*tmp_path.iterdir()]


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for i in range(2):
        make("train_grid", TRAINABILITY, tmp_path / f"{i}.parquet", "--part", f"{i}/2")
    first, second = (str(tmp_path / f"{i}.parquet") for i in range(2))
    out = tmp_path / "out.parquet"
    for files, says in (
        ((second, first), r"1\.parquet: is part \[1, 2\], not \[0, 2\]"),
        ((first,), r"0\.parquet: is part \[0, 2\], not \[0, 1\]"),
        ((first, str(tmp_path / "2.parquet")), r"2\.parquet: no such table"),
    ):
        with pytest.raises(SystemExit, match=says):
            make("train_grid", TRAINABILITY, out, "--join", *files)
    with pytest.raises(SystemExit, match=r"0\.parquet: has another settings than the table"):
        make("train_grid", TRAINABILITY | {"n_seeds": 1}, out, "--join", first, second)
    assert not out.exists()

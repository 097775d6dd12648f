"""`sigprop translate`: the run's own score comes out again, and each bad input is one line."""

import argparse
import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny_translation as tiny
import torch

from sigprop.artifacts.errors import UserError
from sigprop.artifacts.tables import write_table
from sigprop.cli.translate import add_command, best_of, translated
from sigprop.experiments.context import Context
from sigprop.experiments.frames import schema
from sigprop.experiments.translation import simulation as translation
from sigprop.experiments.translation.model import prepared
from sigprop.experiments.translation.settings import TranslationSettings
from sigprop.tasks.translation import bleu

SCHEMA = schema(TranslationSettings)
GOOD = "Der Hund sieht eine Katze"


class Run:
    """Two trained models, their weights and their table where the workflow has them."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        tiny.write_text(folder)
        training = {"optimizer": "adam", "lr": 0.01, "schedule": "constant", "steps": 60}
        self.settings = tiny.settings(folder, n_seeds=2, training=training, evaluate_every=20)
        self.weights = folder / "checkpoints" / "tiny"
        self.table = translation.run(
            self.settings, Context("tiny", 1, checkpoints=str(self.weights))
        )
        self.file = folder / "data" / "tiny.parquet"
        sidecar = {"settings": self.settings.model_dump(mode="json"), "seed": 1}
        write_table(self.table, self.file, SCHEMA, sidecar)
        (self.best,) = self.weights.glob("*-seed0-*.best.pt")
        self.data = prepared(self.settings, folder / "corpora")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("translate"))


def call(*arguments: str) -> None:
    parser = argparse.ArgumentParser()
    add_command(parser.add_subparsers())
    chosen = parser.parse_args(["translate", *arguments])
    chosen.command(chosen)


def test_raw_test_sentences_give_the_score_in_the_table(run: Run) -> None:
    lines = translated(run.best, run.data.sentences("test", 0))
    again = bleu.sacrebleu(lines, run.data.sentences("test"), lowercase=run.data.lowercase)
    scores = run.table[(run.table["quantity"] == "sacrebleu") & (run.table["seed"] == 0)]
    recorded = scores["value"].item()
    assert again.score == pytest.approx(recorded, rel=1e-9)


def test_file_and_standard_input_give_the_same(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = f"\ufeff{GOOD}\r\n{GOOD} und rennt\r\n".encode()
    (tmp_path / "in.txt").write_bytes(raw)
    call(str(run.best), str(tmp_path / "in.txt"), "--beam", "1")
    first = capsys.readouterr().out
    assert first.count("\n") == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    call(str(run.best), "--beam", "1")
    assert capsys.readouterr().out == first


def losses(run: Run, seed: int) -> pd.DataFrame:
    return run.table[(run.table["quantity"] == "valid_loss") & (run.table["seed"] == seed)]


def test_a_table_stands_for_its_best_run(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    least = [losses(run, seed)["value"].min() for seed in (0, 1)]
    (best,) = run.weights.glob(f"*-seed{int(np.argmin(least))}-*.best.pt")
    assert least[0] != least[1] and best_of(run.file) == best
    (tmp_path / "in.txt").write_text(GOOD)
    call(str(best), str(tmp_path / "in.txt"))
    call(str(run.file), str(tmp_path / "in.txt"), "--output", str(tmp_path / "new" / "out.txt"))
    assert (tmp_path / "new" / "out.txt").read_text() == capsys.readouterr().out


def test_the_other_run_is_taken_when_it_is_the_best(run: Run, tmp_path: Path) -> None:
    """Its losses made the smaller ones in the table; also with the weights elsewhere."""
    worse = int(np.argmax([losses(run, seed)["value"].min() for seed in (0, 1)]))
    table = run.table.copy()
    table.loc[losses(run, worse).index, "value"] -= 10
    changed = tmp_path / "data" / "tiny.parquet"
    write_table(
        table,
        changed,
        SCHEMA,
        json.loads(run.file.with_suffix(".json").read_text()),
    )
    shutil.copytree(run.weights, tmp_path / "elsewhere")
    found = best_of(changed, tmp_path / "elsewhere")
    assert found.parent == tmp_path / "elsewhere" and f"-seed{worse}-" in found.name


def test_weights_of_other_settings_are_not_taken(run: Run, tmp_path: Path) -> None:
    """A training with other settings or another root seed, stopped half-way, next to its own."""
    (tmp_path / "weights").mkdir()
    for path in run.weights.glob("*.best.pt"):
        for i, (key, value) in enumerate({"seed": 2, "length_penalty": 0.5}.items()):
            record = torch.load(path, weights_only=True)
            record["settings"][key] = value
            stem = path.name.removesuffix(".best.pt")[:-12]
            torch.save(record, tmp_path / "weights" / f"{stem}{i:012d}.best.pt")
    with pytest.raises(UserError, match=r"best run .* are not there; train again") as caught:
        best_of(run.file, tmp_path / "weights")
    assert "snakemake simulate_tiny --force" in str(caught.value)
    shutil.copytree(run.weights, tmp_path / "weights", dirs_exist_ok=True)
    assert best_of(run.file, tmp_path / "weights").name == best_of(run.file).name


def test_bad_tables(run: Run, tmp_path: Path) -> None:
    sidecar = json.loads(run.file.with_suffix(".json").read_text())
    write_table(run.table.iloc[:0], tmp_path / "empty.parquet", SCHEMA, sidecar)
    (tmp_path / "half.parquet").write_bytes(run.file.read_bytes()[:200])
    run.table.drop(columns="scheme").to_parquet(tmp_path / "other.parquet")
    for name, says in (
        ("none", "none.parquet: no such table; build it with"),
        ("half", "half.parquet: unreadable or truncated parquet"),
        ("other", "other.parquet: not a valid translation table"),
        ("empty", "empty.parquet: holds no run; its method was left out"),
    ):
        with pytest.raises(UserError, match=says) as caught:
            best_of(tmp_path / f"{name}.parquet")
        assert "\n" not in str(caught.value)


def test_a_bad_sentence_leaves_no_output(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(f"{GOOD}\n" + "hund " * 200)
    with pytest.raises(UserError, match="sentence 2: has 200 tokens"):
        call(str(run.file), str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt"))
    assert not (tmp_path / "out.txt").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no sentence"),
        (b"gut\n\xff\xfe\n", "line 2: not UTF-8"),
        (f"{GOOD}\n\n{GOOD}\n".encode(), "line 2: is empty"),
        (b"hund " * 200, "sentence 1: has 200 tokens, must have 1 to 175"),
    ],
)
def test_bad_sentences(run: Run, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "in.txt").write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        call(str(run.best), str(tmp_path / "in.txt"))
    assert "\n" not in str(caught.value)


def test_bad_arguments(run: Run, tmp_path: Path) -> None:
    whole = run.best.read_bytes()
    (tmp_path / "half.pt").write_bytes(whole[: len(whole) // 2])
    torch.save({"a": 1}, tmp_path / "other.pt")
    for arguments, message in (
        ([str(tmp_path / "none.pt")], "no such checkpoint"),
        ([str(tmp_path / "half.pt")], "truncated, or not a checkpoint"),
        ([str(tmp_path / "other.pt")], "not the checkpoint of a translation run"),
        ([str(run.best), "--beam", "0"], "--beam: 0 is not allowed; use 1 to 1000"),
        ([str(run.best), "--length-penalty", "-1"], "--length-penalty: -1 is not allowed"),
        ([str(run.best), "--threads", "0"], "--threads: 0 is not allowed"),
        ([str(run.best), "--corpora", str(tmp_path)], "the text of this run is not there"),
    ):
        (tmp_path / "in.txt").write_text(GOOD)
        with pytest.raises(UserError, match=message) as caught:
            call(arguments[0], str(tmp_path / "in.txt"), *arguments[1:])
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="cannot be read"):
        call(str(run.best), str(tmp_path / "absent.txt"))


def test_a_sentence_beyond_the_model_is_named(run: Run) -> None:
    """175 tokens of unknown letters are more subwords than any model position."""
    long = " ".join(["donaudampfschifffahrt"] * 170)
    with pytest.raises(UserError, match=r"sentence 2: has \d+ subwords, the model takes 1024"):
        translated(run.best, [GOOD, long])

"""`sigprop translate`: the run's own score comes out again, and each bad input is one line."""

import argparse
import io
import sys
from pathlib import Path

import pytest
import tiny_translation as tiny
import torch

from sigprop.artifacts.errors import UserError
from sigprop.experiments import translation
from sigprop.experiments.context import Context
from sigprop.experiments.translate_command import add_command, translated
from sigprop.experiments.translation_model import prepared
from sigprop.tasks import bleu

GOOD = "Der Hund sieht eine Katze"


class Run:
    """One trained model, its best checkpoint and its table."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        tiny.write_text(folder)
        training = {"optimizer": "adam", "lr": 0.01, "schedule": "constant", "steps": 60}
        self.settings = tiny.settings(folder, n_seeds=1, training=training, evaluate_every=20)
        context = Context("tiny", 1, checkpoints=str(folder / "checkpoints"))
        self.table = translation.run(self.settings, context)
        (self.best,) = (folder / "checkpoints").glob("*.best.pt")
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
    recorded = run.table[run.table["quantity"] == "sacrebleu"]["value"].item()
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no sentence"),
        (b"gut\n\xff\xfe\n", "line 2: not UTF-8"),
        (f"{GOOD}\n\n{GOOD}\n".encode(), "sentence 2: is empty"),
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

"""Killed at any moment, resumed to the same bits; checkpoints that do not fit are refused."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tiny_run
import torch

from sigprop.artifacts.errors import UserError
from sigprop.training.checkpoints import Checkpoints, differences
from sigprop.training.loop import Run

CODE = Path(__file__).resolve().parents[3] / "workflow"


def start(folder: Path, output: Path) -> subprocess.Popen[str]:
    command = [sys.executable, tiny_run.__file__, str(folder), str(output)]
    environment = os.environ | {"PYTHONPATH": str(CODE), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def wait_for_step(folder: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Until a checkpoint of `step` or later is there, or the process has ended."""
    while process.poll() is None:
        steps = [int(file.stem.rsplit("-", 1)[1]) for file in folder.glob("tiny-*.pt")]
        if max(steps, default=-1) >= step:
            return
        time.sleep(0.002)


@pytest.fixture(scope="module")
def uninterrupted() -> Run:
    torch.set_num_threads(1)
    return tiny_run.run(None)


@pytest.mark.slow
def test_sigkill_at_random_steps_changes_no_bit(tmp_path: Path, uninterrupted: Run) -> None:
    """Three kills of a real process, at random places within random steps."""
    rng = random.Random(7)
    folder, output = tmp_path / "checkpoints", tmp_path / "digest"
    for step in sorted(rng.sample(range(1, 36), 3)):
        process = start(folder, output)
        wait_for_step(folder, step, process)
        time.sleep(rng.uniform(0, 0.06))  # anywhere in the step, or in the middle of a write
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not output.exists()
    process = start(folder, output)
    _, told = process.communicate(timeout=600)
    assert process.returncode == 0, told
    assert "training: resumed at step" in told
    assert output.read_text() == tiny_run.digest(uninterrupted)
    lines = [json.loads(line) for line in (folder / "tiny.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(0, 41, 5))  # each once


def test_sigterm_saves_and_leaves_with_143(tmp_path: Path, uninterrupted: Run) -> None:
    folder, output = tmp_path / "checkpoints", tmp_path / "digest"
    process = start(folder, output)
    wait_for_step(folder, 5, process)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=600)
    assert process.returncode == 143
    assert "SIGTERM at step" in told
    assert f"saved in {folder}" in told
    assert "Traceback" not in told
    assert not output.exists()
    assert tiny_run.digest(tiny_run.run(folder)) == tiny_run.digest(uninterrupted)


class Stop(Exception):
    """Stands for whatever ends a process."""


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": "sgd", "weight_decay": 0.1, "schedule": "inverse_sqrt", "warmup_steps": 9},
        {"tau": 8.5, "tau_warmup_steps": 30, "clip_norm": 0.1},
    ],
)
def test_resuming_restores_every_part(
    tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tiny_run.run(None, **changes)
    stop(tmp_path, 17, monkeypatch, **changes)
    again = tiny_run.run(tmp_path, **changes)
    assert tiny_run.digest(again) == tiny_run.digest(whole)
    # Finished: a third call trains nothing and still has the results.
    third = tiny_run.run(tmp_path, **changes)
    assert third.done
    assert tiny_run.digest(third) == tiny_run.digest(whole)


def stop(folder: Path, step: int, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Run until `step` has been saved, then die."""
    save = Checkpoints.save

    def save_and_die(self: Checkpoints, at: int, state: dict[str, object]) -> Path:
        path = save(self, at, state)
        if at == step:
            raise Stop
        return path

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_and_die)
        with pytest.raises(Stop):
            tiny_run.run(folder, **changes)


def test_a_truncated_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path,
    uninterrupted: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stop(tmp_path, 20, monkeypatch)
    older, newest = sorted(tmp_path.glob("tiny-*.pt"))
    newest.write_bytes(newest.read_bytes()[:1000])
    again = tiny_run.run(tmp_path)
    told = capsys.readouterr().err
    assert f"{newest}: truncated or unreadable, going back to the one before" in told
    assert "resumed at step 19" in told
    assert older.name.endswith("-000000019.pt")
    assert tiny_run.digest(again) == tiny_run.digest(uninterrupted)


def test_both_checkpoints_unreadable_starts_anew(
    tmp_path: Path, uninterrupted: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop(tmp_path, 20, monkeypatch)
    for file, content in zip(sorted(tmp_path.glob("tiny-*.pt")), (b"", b"not a file"), strict=True):
        file.write_bytes(content)
    assert tiny_run.digest(tiny_run.run(tmp_path)) == tiny_run.digest(uninterrupted)


def test_a_checkpoint_of_other_settings_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop(tmp_path, 5, monkeypatch)
    with pytest.raises(UserError, match=r"lr was 0\.01, now 0\.02, steps was 40, now 60") as caught:
        tiny_run.run(tmp_path, lr=0.02, steps=60)
    assert "\n" not in str(caught.value)
    assert f"delete {tmp_path} to start anew" in str(caught.value)


def test_settings_that_do_not_change_results_do_not_refuse(
    tmp_path: Path, uninterrupted: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop(tmp_path, 5, monkeypatch)
    again = tiny_run.run(tmp_path, checkpoint_seconds=30.0)
    assert tiny_run.digest(again) == tiny_run.digest(uninterrupted)


def test_a_checkpoint_of_other_code_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Checkpoints(tmp_path, "run", {"lr": 0.1}, code="a").save(3, {"x": 1})
    other = Checkpoints(tmp_path, "run", {"lr": 0.1}, code="b")
    assert other.latest() is None
    assert "made by other code, not used" in capsys.readouterr().err
    assert Checkpoints(tmp_path, "run", {"lr": 0.1}, code="a").latest() == {"x": 1}
    assert Checkpoints(tmp_path, "another", {"lr": 0.2}, code="a").latest() is None


def test_two_newest_are_kept_and_clear_removes_them(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "run", {"lr": 0.1}, code="a")
    assert list(tmp_path.iterdir()) == []
    for step in (8, 9, 10, 11):
        checkpoints.save(step, {"step": torch.tensor(step)})
    checkpoints.save_best(9, {"model": 1})
    assert [file.name[-6:] for file in checkpoints.files()] == ["010.pt", "011.pt"]
    state = checkpoints.latest()
    assert state is not None
    assert int(state["step"]) == 11
    assert checkpoints.load_best() == (9, {"model": 1})
    checkpoints.clear()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="no readable checkpoint"):
        checkpoints.load_best()


def test_a_half_written_file_of_a_killed_run_is_removed(tmp_path: Path) -> None:
    stem = Checkpoints(tmp_path, "run", {}, code="a").stem
    (tmp_path / f".{stem}-000000003.pt.abc.pt").write_bytes(b"half")
    (tmp_path / ".other-000000003.pt.abc.pt").write_bytes(b"not ours")
    Checkpoints(tmp_path, "run", {}, code="a")
    assert [file.name for file in tmp_path.iterdir()] == [".other-000000003.pt.abc.pt"]


def test_code_in_a_checkpoint_is_not_executed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "run", {}, code="a")
    path = checkpoints.save(1, {})
    record = {"settings": {}, "code": "a", "step": 1, "state": subprocess.Popen}
    torch.save(record, path)  # pickles a reference that could be called
    assert checkpoints.latest() is None


def test_an_unwritable_folder_is_one_line_before_training(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be", encoding="utf-8")
    with pytest.raises(UserError, match="cannot write there") as caught:
        Checkpoints(blocked / "folder", "run", {}, code="a")
    assert "\n" not in str(caught.value)


def test_differences_name_nested_settings() -> None:
    there = {"lr": 0.1, "training": {"steps": 3, "tau": None}, "gone": [1]}
    here = {"lr": 0.1, "training": {"steps": 4, "tau": 8.5}}
    assert differences(there, here) == [
        "gone was [1], now null",
        "training.steps was 3, now 4",
        "training.tau was null, now 8.5",
    ]


def test_best_weights_are_kept(tmp_path: Path) -> None:
    done = tiny_run.run(tmp_path, keep_best="train_loss", n_members=1)
    checkpoints = Checkpoints(tmp_path, "tiny", done.settings.record(), code="test")
    assert not checkpoints.best.exists()  # recorded, but not by a measurement
    done = tiny_run.run(tmp_path / "second", keep_best="grad_q", n_members=1)
    checkpoints = Checkpoints(tmp_path / "second", "tiny", done.settings.record(), code="test")
    step, state = checkpoints.load_best()
    steps, values = done.history.stacked("grad_q")
    assert step == steps[int(values.mean((1, 2)).argmin())]
    fresh, _, _ = tiny_run.make(1)
    fresh.load_state_dict(state["model"])

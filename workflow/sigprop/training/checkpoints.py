"""Checkpoints: whole or absent, of these settings and this code or refused.

A file is called `<name>-<digest>-<step>.pt`, where the digest stands for the settings and the code
that together decide the result. The two newest are kept, so that one may be lost.
"""

import glob
import hashlib
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sigprop.artifacts.errors import UserError
from sigprop.artifacts.files import atomic_path
from sigprop.training.log import say

KEPT = 2


class Checkpoints:
    """The checkpoints of one run in `folder`.

    Args:
        folder: made if need be; several runs may share it under different names.
        name: of the run, without `/`.
        settings: everything besides the code that decides the result, JSON types.
        code: digest of the code, see `sigprop.artifacts.sources.code_digest`.

    Raises UserError, before any training, when the folder cannot be written.
    """

    def __init__(
        self, folder: str | Path, name: str, settings: Mapping[str, Any], code: str
    ) -> None:
        self.folder, self.name, self.code = Path(folder), name, code
        self.settings: dict[str, Any] = json.loads(json.dumps(settings, sort_keys=True))
        key = json.dumps([self.settings, code], sort_keys=True)
        self.stem = f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
        with atomic_path(self.folder / f"{self.stem}.try"):
            pass
        (self.folder / f"{self.stem}.try").unlink(missing_ok=True)
        for stale in self.folder.glob(f".{glob.escape(self.stem)}-*"):
            stale.unlink(missing_ok=True)  # half-written, of a run that was killed

    @property
    def log(self) -> Path:
        """Where this run's log goes, JSON lines; a new run of the same name starts it anew."""
        return self.folder / f"{self.name}.jsonl"

    @property
    def best(self) -> Path:
        """Where `save_best` writes."""
        return self.folder / f"{self.stem}.best.pt"

    def files(self) -> list[Path]:
        """This run's checkpoints, oldest first."""
        return sorted(self.folder.glob(f"{glob.escape(self.stem)}-*.pt"))

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write `state` (tensors and plain types) as the checkpoint of `step`; drop older ones."""
        path = self.folder / f"{self.stem}-{step:09d}.pt"
        self._write(path, step, state)
        for old in self.files()[:-KEPT]:
            old.unlink(missing_ok=True)
        return path

    def save_best(self, step: int, state: Mapping[str, Any]) -> None:
        """Write `state` as the best so far, in place of the one before."""
        self._write(self.best, step, state)

    def load_best(self) -> tuple[int, dict[str, Any]]:
        """Step and state of the best so far; UserError when there is none."""
        record = _read(self.best)
        if record is None:
            raise UserError(f"{self.best}: no readable checkpoint; train again")
        return record["step"], record["state"]

    def _write(self, path: Path, step: int, state: Mapping[str, Any]) -> None:
        record = {"settings": self.settings, "code": self.code, "step": step, "state": dict(state)}
        with atomic_path(path) as temporary:
            torch.save(record, temporary)

    def latest(self) -> dict[str, Any] | None:
        """State of the newest readable checkpoint, None to start from the beginning.

        A file that cannot be read is passed over and a file of other code is left alone, each with
        a line on stderr.

        Raises UserError when the newest file of this name has other settings; the line names them.
        """
        for path in reversed(self.files()):
            record = _read(path)
            if record is not None:
                state: dict[str, Any] = record["state"]
                return state
            say(f"{path}: truncated or unreadable, going back to the one before")
        self._refuse_others()
        return None

    def _refuse_others(self) -> None:
        pattern = f"{glob.escape(self.name)}-{'?' * 12}-{'?' * 9}.pt"
        others = set(self.folder.glob(pattern)) - set(self.files())
        for path in sorted(others, key=lambda file: file.stat().st_mtime, reverse=True):
            record = _read(path)
            if record is None:
                continue
            if record["code"] != self.code:
                say(f"{path}: made by other code, not used")
                continue
            different = differences(record["settings"], self.settings)
            if different:
                raise UserError(
                    f"{path}: checkpoint of other settings ({', '.join(different)}); "
                    f"restore them to resume, or delete {self.folder} to start anew"
                )

    def _named(self) -> set[Path]:
        """Checkpoints of this name, whatever their settings and code."""
        return set(self.folder.glob(f"{glob.escape(self.name)}-{'?' * 12}-{'?' * 9}.pt"))

    def clear(self) -> None:
        """Remove the checkpoints of this name, of other code too; the log stays."""
        for path in [*self._named(), self.best]:
            path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    """The record in a checkpoint file; None when it is truncated or something else."""
    try:
        record = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError):
        return None
    whole = isinstance(record, dict) and {"settings", "code", "step", "state"} <= record.keys()
    return record if whole else None


def differences(there: Mapping[str, Any], here: Mapping[str, Any], where: str = "") -> list[str]:
    """`key was 1, now 2` for every setting that differs, blocks inside blocks included."""
    words: list[str] = []
    for key in sorted(there.keys() | here.keys()):
        old, new = there.get(key), here.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            words += differences(old, new, f"{where}{key}.")
        elif old != new:
            words.append(f"{where}{key} was {_short(old)}, now {_short(new)}")
    return words


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."

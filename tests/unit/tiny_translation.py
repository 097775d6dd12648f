"""A tiny translation run for the tests; as a program it trains until it kills itself.

python tiny_translation.py SETTINGS.json CHECKPOINTS STEP
"""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sigprop.experiments.context import Context
from sigprop.experiments.settings import parse
from sigprop.experiments.translation import simulation as translation
from sigprop.experiments.translation.settings import TranslationSettings, TranslationTraining
from sigprop.training.checkpoints import Checkpoints

METHODS = ("post_ln_xavier", "pre_ln_xavier", "residual_scaling", "rezero", "t_fixup")
WORDS = {
    "de": ("der", "hund", "sieht", "eine", "katze", "und", "rennt", "schnell", "nach", "hause"),
    "en": ("the", "dog", "sees", "a", "cat", "and", "runs", "quickly", "back", "home"),
}


def write_text(folder: Path, n_pairs: int = 230) -> str:
    """Word-by-word translations of 3 to 9 words in random order; returns their stem."""
    generator = torch.Generator().manual_seed(1)
    rows = [
        torch.randint(10, (int(n),), generator=generator).tolist()
        for n in torch.randint(3, 10, (n_pairs,), generator=generator)
    ]
    for language, words in WORDS.items():
        lines = (" ".join(words[i] for i in row) for row in rows)
        (folder / f"text.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "text")


def record(folder: Path, **changes: Any) -> dict[str, Any]:
    """Settings as a preset would give them; `training` is merged."""
    base: dict[str, Any] = {
        "data": {"source": "files", "path": str(folder / "text"), "bpe_size": 40},
        "cache": str(folder / "corpora"),
        "scheme": "residual_scaling",
        "depth": 2,
        "d_model": 16,
        "d_ff": 16,
        "n_heads": 2,
        "dropout": 0.1,
        "n_seeds": 2,
        "evaluate_every": 4,
        "probe_steps": [0, 5],
        "probe_sentences": 4,
        "beam": 2,
    }
    training = {
        "steps": 10,
        "batch_size": 60,
        "optimizer": "sgd",
        "lr": 0.05,
        "schedule": "steps",
        "tau": 8.5,
        "tau_warmup_steps": 8,
        "label_smoothing": 0.1,
        "log_every": 5,
    }
    own = changes.pop("training", {})
    return base | changes | {"training": training | own}


def settings(folder: Path, **changes: Any) -> TranslationSettings:
    """The same, checked."""
    checked: TranslationSettings = parse(TranslationSettings, record(folder, **changes))
    return checked


def train_and_die(chosen: TranslationSettings, folder: str, step: int) -> None:
    """Train with a checkpoint after every update, and SIGKILL this process after `step` of them."""
    save = Checkpoints.save

    def save_and_die(self: Checkpoints, at: int, state: dict[str, Any]) -> Path:
        path = save(self, at, state)
        if at == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return path

    Checkpoints.save = save_and_die  # type: ignore[method-assign]  # only in this process
    plain = TranslationTraining.train_settings
    TranslationTraining.train_settings = (  # type: ignore[method-assign]  # likewise
        lambda self: replace(plain(self), checkpoint_seconds=0.0)
    )
    translation.run(chosen, Context("tiny", 1, checkpoints=folder))


if __name__ == "__main__":
    torch.set_num_threads(1)
    given = Path(sys.argv[1]).read_text(encoding="utf-8")
    train_and_die(parse(TranslationSettings, json.loads(given)), sys.argv[2], int(sys.argv[3]))

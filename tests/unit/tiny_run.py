"""A tiny training run for tests that kill it: `tiny_run.py FOLDER OUTPUT`."""

import hashlib
import sys
import time
from pathlib import Path
from typing import Any

import torch

from sigprop.models.encoder import EncoderConfig
from sigprop.models.schemes import SCHEMES
from sigprop.models.trained import TokenClassifier, TrainedEncoder
from sigprop.tasks.reversal import ReversalBatch, ReversalData
from sigprop.training.checkpoints import Checkpoints
from sigprop.training.loop import Run, train
from sigprop.training.losses import accuracy, cross_entropy
from sigprop.training.measurements import Measurement, Moment
from sigprop.training.probes import effective_rates, gradient_power
from sigprop.training.settings import TrainSettings

SETTINGS: dict[str, Any] = {
    "steps": 40,
    "batch_size": 2,
    "lr": 0.01,
    "schedule": "steps",
    "log_every": 5,
    "checkpoint_seconds": 0.0,
}


def generators(n_members: int, first: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(first + e) for e in range(n_members)]


def make(n_members: int = 2, **changes: Any) -> tuple[TokenClassifier, ReversalData, TrainSettings]:
    """A model of 2 layers, its data and settings."""
    own = generators(n_members)
    config = EncoderConfig(4, 8, 2, d_ff=8)
    encoder = TrainedEncoder(config, SCHEMES["post_ln"], own)
    model = TokenClassifier(encoder, 10, 10, own)
    settings = TrainSettings(**SETTINGS | changes)
    return model, ReversalData(generators(n_members, 100), settings.batch_size, 4), settings


def run(folder: str | Path | None, pause: float = 0.0, n_members: int = 2, **changes: Any) -> Run:
    """Train; `pause` seconds in every loss give a killer time to aim."""
    model, data, settings = make(n_members, **changes)

    def loss(batch: ReversalBatch, tau: float | None) -> torch.Tensor:
        time.sleep(pause)
        return cross_entropy(model(batch.tokens, tau=tau), batch.targets)

    def look(moment: Moment) -> dict[str, torch.Tensor]:
        logits = model(moment.batch.tokens)
        found = {"accuracy": accuracy(logits, moment.batch.targets)}
        found |= gradient_power(model.encoder.weights)
        if moment.step and settings.optimizer == "adam":
            found |= effective_rates(moment.optimizer, model.encoder.weights, moment.lr)
        return found

    checkpoints = None
    if folder is not None:
        checkpoints = Checkpoints(folder, "tiny", settings.record(), code="test")
    measurements = [Measurement(range(0, 1000, 10), look)]
    return train(model, data, loss, settings, measurements=measurements, checkpoints=checkpoints)


def digest(done: Run) -> str:
    """Every bit of the weights, the optimizer's state and what was measured."""
    found = hashlib.sha256()
    for name, value in done.model.state_dict().items():
        found.update(name.encode() + value.numpy().tobytes())
    for state in done.optimizer.state.values():
        for value in state.values():
            found.update(value.numpy().tobytes())
    for quantity in sorted(done.history.steps):
        steps, values = done.history.stacked(quantity)
        found.update(f"{quantity}{steps}".encode() + values.numpy().tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path(sys.argv[2]).write_text(digest(run(sys.argv[1], pause=0.05)), encoding="utf-8")

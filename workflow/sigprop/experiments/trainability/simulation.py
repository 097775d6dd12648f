"""Do the exponents at initialization predict the loss after training? (Cowsik et al. 2024)

Small deep transformers learn to count symbols (`tasks.histogram`) from many initializations, the
configurations of a design. All configurations of one training seed have the same normal draws,
multiplied by their own sigmas, and see the same sequences, so that what differs between their
losses is due to their settings. Another training seed draws everything anew.

The networks are those of the theory (arXiv 2403.02579): one head, tanh, no positions, and LN
without trainable gain or bias, here during training too, so that the stream stays normalized as
the theory says. The readout has a bias, which starts at 0. Without positions equal symbols of a
sequence have equal states in every layer, so each is computed once, with its count (`Counted`).
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from sigprop.artifacts.seeds import seed_stream, torch_seed
from sigprop.experiments.context import Context
from sigprop.experiments.ensembles import train_each
from sigprop.experiments.trainability.rows import group_frame
from sigprop.experiments.trainability.settings import (
    DIVERGED_LOSS,
    Group,
    TrainabilitySettings,
)

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from sigprop.models.trained import TokenClassifier
    from sigprop.tasks.histogram import HistogramBatch
    from sigprop.training.checkpoints import Checkpoints
    from sigprop.training.measurements import History


def run(settings: TrainabilitySettings, context: Context) -> pd.DataFrame:
    """Train every configuration of the design; one row per configuration, seed and quantity.

    A network whose loss is no longer a number stops there and is recorded with `DIVERGED_LOSS`; the
    others of its ensemble continue. With `context.checkpoints` a killed run resumes where it
    stopped. The checkpoints are removed once all is trained.

    Raises:
        UserError: checkpoints of other settings, or that cannot be written.
    """
    frames: list[pd.DataFrame] = []
    groups = list(settings.groups(context.designed(settings)))

    def train_group(group: Group, checkpoints: "Checkpoints | None", name: str) -> "History":
        return _train(group, settings, context, checkpoints, name)

    for group, history in train_each(groups, train_group, settings, context, __name__):
        frames += _rows(group, history, settings)
    return pd.concat(frames, ignore_index=True)


def _model(group: Group, settings: TrainabilitySettings, context: Context) -> "TokenClassifier":
    """The networks of a group, (E, ...) parameters: equal draws times own sigmas."""
    import torch

    from sigprop.models.cowsik import cowsik_gains
    from sigprop.models.encoder import EncoderConfig
    from sigprop.models.trained import TokenClassifier, TrainedEncoder
    from sigprop.tasks.histogram import N_CLASSES

    columns = [asdict(point) for point in group.points]
    p = {name: torch.tensor([each[name] for each in columns]) for name in columns[0]}
    generators = [_generator(group, context, "weights") for _ in group.points]
    encoder = TrainedEncoder(
        EncoderConfig(settings.n_tokens, settings.d_model, group.depth, activation="tanh"),
        group.scheme,  # but for strengths and sigmas, which differ by member
        generators,
        strengths={"attention": p["alpha_attn"], "feed_forward": p["alpha_ff"]},
        train_norms=False,
    )
    # The task does not ask where a symbol stands.
    model = TokenClassifier(encoder, settings.n_symbols, N_CLASSES, generators, positions=False)
    gains = cowsik_gains(p["sigma_a"], p["sigma_v"], p["sigma_w"], p["sigma_w"])
    with torch.no_grad():
        for family, gain in gains.items():
            encoder.weights[family].mul_(gain.sqrt()[:, None, None, None])  # (E, L, d, d)
        model.readout.mul_(settings.readout)
    return model.to(context.device)


def _generator(group: Group, context: Context, purpose: str) -> "Generator":
    """A stream that depends on table, depth and training seed, and not on the configuration."""
    import torch

    names = (context.table, f"L{group.depth}", f"seed {group.seed}", purpose)
    return torch.Generator().manual_seed(torch_seed(seed_stream(context.seed, *names)))


class Counted(NamedTuple):
    """Sequences as multisets, all (E, B, m): tokens and targets int64, counts float32."""

    tokens: "Tensor"
    targets: "Tensor"
    counts: "Tensor"


def counted(batch: "HistogramBatch", n_symbols: int, n_members: int, device: str) -> Counted:
    """The sequences of a batch, the same for all E members, with every symbol once: m = n_symbols.

    With more symbols than tokens the tokens stay as they are, m = n, and count one each. A symbol
    that does not occur has count 0 and thus no weight, neither in the attention nor in the loss.
    """
    import torch
    from torch.nn.functional import one_hot

    from sigprop.tasks.histogram import N_CLASSES

    tokens, targets = (part[0].to(device) for part in batch)  # (B, n)
    counts = torch.ones_like(tokens)
    if n_symbols <= tokens.shape[-1]:
        counts = one_hot(tokens, n_symbols).sum(-2)  # (B, n_symbols)
        tokens = torch.arange(n_symbols, device=device).expand_as(counts)
        targets = counts.clamp(1, N_CLASSES) - 1
    return Counted(*(each.expand(n_members, -1, -1) for each in (tokens, targets, counts.float())))


def _train(
    group: Group,
    settings: TrainabilitySettings,
    context: Context,
    checkpoints: "Checkpoints | None",
    name: str,
) -> "History":
    from sigprop.tasks.histogram import HistogramData, histogram_batch
    from sigprop.training.loop import train
    from sigprop.training.losses import accuracy, cross_entropy
    from sigprop.training.measurements import Measurement, Moment

    model, n_members = _model(group, settings, context), len(group.points)
    sizes = (settings.n_tokens, settings.n_symbols)
    own = _generator(group, context, "data")
    data = HistogramData(own, n_members, settings.training.batch_size, *sizes, context.device)
    one = histogram_batch(_generator(group, context, "test"), settings.test_sequences, *sizes)
    test = counted(one, settings.n_symbols, n_members, context.device)

    def start(moment: Moment) -> dict[str, "Tensor"]:
        gradient = model.embedding.grad  # (E, n_symbols, d)
        assert gradient is not None
        return {"grad0": gradient.double().square().flatten(1).sum(1)}

    def end(moment: Moment) -> dict[str, "Tensor"]:
        logits = model(test.tokens, counts=test.counts)
        return {
            "test_loss": cross_entropy(logits, test.targets, weights=test.counts),
            "accuracy": accuracy(logits, test.targets, weights=test.counts),
        }

    def loss(batch: "HistogramBatch", tau: float | None) -> "Tensor":
        now = counted(batch, settings.n_symbols, n_members, context.device)
        logits = model(now.tokens, counts=now.counts)
        return cross_entropy(logits, now.targets, weights=now.counts)

    run = train(
        model,
        data,
        loss,
        settings.training.train_settings(),
        measurements=[Measurement({0}, start), Measurement({settings.training.steps}, end)],
        checkpoints=checkpoints,
        description=name,
    )
    return run.history


def _rows(
    group: Group, history: "History", settings: TrainabilitySettings
) -> Iterator[pd.DataFrame]:
    last = {name: history.stacked(name)[1][-1].numpy() for name in history.steps}  # (E,)
    diverged = ~np.isfinite(last["test_loss"])
    last |= {name: np.where(diverged, DIVERGED_LOSS, last[name]) for name in _LOSSES}
    for quantity, values in (last | {"diverged": diverged.astype(np.float64)}).items():
        yield group_frame(group, settings, quantity, values, seed=group.seed)


_LOSSES = ("test_loss", "train_loss")

"""Training on digit reversal: does a network whose tokens start out aligned learn at all?

Noci et al. 2022, arXiv 2206.03126, Figures 5 and 6. Networks of one shape train side by side as an
ensemble; a network's random numbers depend on its case and its index alone.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sigprop.artifacts.seeds import seed_stream, torch_seed
from sigprop.experiments.context import Context
from sigprop.experiments.ensembles import train_each
from sigprop.experiments.frames import tidy
from sigprop.experiments.reversal.settings import ReversalCase, ReversalSettings

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from sigprop.models.schemes import Branch
    from sigprop.training.checkpoints import Checkpoints
    from sigprop.training.measurements import History


Member = tuple[ReversalCase, int]  # a case and the index of the network in it


def run(settings: ReversalSettings, context: Context) -> pd.DataFrame:
    """Train every network of the sweep; one row per network, quantity, step and layer.

    `steps_to_solve` is the first look at which the accuracy on the test batch reached `solved_at`;
    where that never happened it is the number of updates, and `solved` is 0 (censored).

    With `context.checkpoints` a killed run resumes where it stopped. The checkpoints are removed
    once all is trained.

    Raises:
        FloatingPointError: a loss is not finite; the message says where and what to do.
        UserError: checkpoints of other settings, or that cannot be written.
    """
    frames: list[pd.DataFrame] = []
    ensembles = list(_ensembles(settings))

    def train_members(
        members: list[Member], checkpoints: "Checkpoints | None", name: str
    ) -> "History":
        return _train(members, settings, context, checkpoints, name)

    for members, history in train_each(ensembles, train_members, settings, context, __name__):
        frames += _rows(members, history, settings)
    return pd.concat(frames, ignore_index=True)


def _ensembles(settings: ReversalSettings) -> Iterator[list[Member]]:
    """The members of each ensemble: networks of the same depth, `settings.ensemble` at a time."""
    for depth in settings.depth:
        cases = [case for case in settings.cases() if case.depth == depth]
        members = list(itertools.product(cases, range(settings.n_seeds)))
        for start in range(0, len(members), settings.ensemble):
            yield members[start : start + settings.ensemble]


def _train(
    members: Sequence[Member],
    settings: ReversalSettings,
    context: Context,
    checkpoints: "Checkpoints | None",
    name: str,
) -> "History":
    import torch

    from sigprop.models.attention import ATTENTION_VARIANTS
    from sigprop.models.encoder import EncoderConfig
    from sigprop.models.trained import TokenClassifier, TrainedEncoder
    from sigprop.tasks.reversal import (
        N_DIGITS,
        ReversalBatch,
        ReversalData,
        correlated_input,
        reversal_batch,
    )
    from sigprop.training.loop import train
    from sigprop.training.losses import accuracy, cross_entropy
    from sigprop.training.measurements import Measurement, Moment
    from sigprop.training.probes import effective_rates, gradient_power, token_correlation

    def generators(purpose: str) -> list["Generator"]:
        streams = (
            seed_stream(context.seed, context.table, case.key, f"seed {seed}", purpose)
            for case, seed in members
        )
        return [torch.Generator().manual_seed(torch_seed(stream)) for stream in streams]

    depth, n = members[0][0].depth, settings.n_tokens
    config = EncoderConfig(n, settings.d_model, depth, n_heads=settings.n_heads, d_ff=settings.d_ff)
    # Numbers where all members share them, which is faster.
    attn = [case.scheme.alpha_attn.at(depth) for case, _ in members]
    ff = [case.scheme.alpha_ff.at(depth) for case, _ in members]
    differ = len({*zip(attn, ff, strict=True)}) > 1
    each: dict[Branch, Tensor] = {
        "attention": torch.tensor(attn),
        "feed_forward": torch.tensor(ff),
    }
    weights = generators("weights")
    encoder = TrainedEncoder(
        config,
        members[0][0].scheme,
        weights,
        strengths=each if differ else None,
    )
    # Attention that turns by position takes the place of sinusoids.
    added = not ATTENTION_VARIANTS[encoder.scheme.attention].positional
    scale, offset = correlated_input(
        [case.r for case, _ in members], settings.d_model, generators("input"), positions=added
    )
    model = TokenClassifier(
        encoder, N_DIGITS, N_DIGITS, weights, scale=scale, offset=offset, positions=added
    ).to(context.device)
    data = ReversalData(generators("data"), settings.training.batch_size, n, context.device)
    own = torch.Generator()
    own.manual_seed(torch_seed(seed_stream(context.seed, context.table, "test")))
    one = reversal_batch([own], settings.test_sequences, n)
    test = ReversalBatch(*(part.expand(len(members), -1, -1).to(context.device) for part in one))

    def evaluate(moment: Moment) -> dict[str, "Tensor"]:
        logits = model(test.tokens, tau=moment.tau)
        return {
            "loss": cross_entropy(logits, test.targets),
            "accuracy": accuracy(logits, test.targets),
        }

    def probe(moment: Moment) -> dict[str, "Tensor"]:
        states: list[Tensor] = []
        model(test.tokens, tau=moment.tau, states=states)
        three = {family: encoder.weights[family] for family in ("q", "k", "v")}
        found = token_correlation(states) | gradient_power(three)
        if moment.step and settings.training.optimizer == "adam":
            found |= effective_rates(moment.optimizer, three, moment.lr)
        return found

    steps = settings.training.steps
    looks = {*range(0, steps, settings.evaluate_every), steps}
    run = train(
        model,
        data,
        lambda batch, tau: cross_entropy(model(batch.tokens, tau=tau), batch.targets),
        settings.training.train_settings(),
        measurements=[Measurement(looks, evaluate), Measurement({*settings.probe_steps}, probe)],
        checkpoints=checkpoints,
        description=name,
    )
    return run.history


def _rows(
    members: Sequence[Member], history: "History", settings: ReversalSettings
) -> Iterator[pd.DataFrame]:
    """Everything measured, as tidy rows; members that diverged end where they did."""
    for quantity in history.steps:
        if quantity in ReversalSettings.QUANTITIES:
            steps, values = history.stacked(quantity)
            yield _frame(members, quantity, np.asarray(steps), values.numpy())
    steps, accuracies = history.stacked("accuracy")
    reached = (accuracies >= settings.solved_at).numpy()  # (T, E)
    solved = np.asarray(reached.any(0), np.float64)  # (E,)
    budget = settings.training.steps
    first = np.where(solved, np.asarray(steps)[reached.argmax(0)], budget).astype(np.float64)
    yield _frame(members, "steps_to_solve", np.asarray([budget]), first[None])
    yield _frame(members, "solved", np.asarray([budget]), solved[None])


def _frame(
    members: Sequence[Member], quantity: str, steps: np.ndarray, values: np.ndarray
) -> pd.DataFrame:
    """Rows of one quantity, values (T, E) or (T, E, layers)."""
    by_layer = values.ndim == 3
    values = values if by_layer else values[..., None]
    t, e, l = (index.reshape(-1) for index in np.indices(values.shape))
    factors = pd.DataFrame([case.factors() for case, _ in members]).iloc[e].reset_index(drop=True)
    columns = dict(factors) | {
        "step": steps[t],
        "layer": pd.array(l if by_layer else [pd.NA] * len(l), dtype="Int64"),
    }
    frame = tidy(
        ReversalSettings,
        columns,
        seed=np.asarray([seed for _, seed in members])[e],
        quantity=quantity,
        value=values.reshape(-1),
        source="simulation",
    )
    return frame[np.isfinite(frame["value"])]

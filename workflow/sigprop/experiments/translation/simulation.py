"""Training on translation: every method of the paper on real sentence pairs.

Noci et al. 2022, arXiv 2206.03126, section 4, Figures 1, 7 and 15. A table is one method, which is
a scheme, an optimizer and a schedule of tau, at some depths with several seeds. Runs of the same
index share their draws across methods: the same sentences in the same order, and the same Gaussian
numbers behind the initial weights where the shapes are the same.
"""

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sigprop.experiments.context import Context
from sigprop.experiments.frames import tidy
from sigprop.experiments.translation.settings import TranslationCase, TranslationSettings

if TYPE_CHECKING:
    from torch import Tensor

    from sigprop.experiments.translation.data import TranslationData
    from sigprop.models.seq2seq import Seq2Seq
    from sigprop.tasks.translation.batches import SentenceBatch
    from sigprop.training.checkpoints import Checkpoints
    from sigprop.training.measurements import History, Measurement, Moment


@dataclass(frozen=True)
class One:
    """One run: a case and the index of its random numbers."""

    case: TranslationCase
    seed: int

    @property
    def name(self) -> str:
        """Of its checkpoints."""
        return f"{self.case.key}-seed{self.seed}"


def run(settings: TranslationSettings, context: Context) -> pd.DataFrame:
    """Train every depth and seed; one row per run, quantity, step and layer.

    A run whose loss stops being a number ends there, with `diverged` 1, and the others continue.
    With `context.checkpoints` a killed run resumes where it stopped; once all are trained their
    checkpoints are removed but for the best of each, `<name>-<digest>.best.pt`, for
    `sigprop translate`.

    Raises:
        UserError: text that cannot be prepared; checkpoints of other settings, or that cannot be
            written.
    """
    pairs = [*itertools.product(settings.cases(), range(settings.n_seeds))]
    ones = [One(*pair) for _, pair in context.mine(pairs)]
    if not ones:
        return _empty()
    with tempfile.TemporaryDirectory(prefix="sigprop-") as temporary:
        folder = Path(context.checkpoints or Path(temporary) / context.table)
        return _run(ones, settings, context, folder)


def corpora_of(folder: Path) -> Path:
    """Where the prepared text lies for checkpoints in `folder`, unless the settings say where."""
    return folder.parent / "corpora"


def _run(
    ones: list[One], settings: TranslationSettings, context: Context, folder: Path
) -> pd.DataFrame:
    from sigprop.artifacts.sources import code_digest
    from sigprop.experiments.translation.model import prepared
    from sigprop.training.checkpoints import Checkpoints

    data = prepared(settings, settings.cache or corpora_of(folder))
    code = code_digest(__name__)
    record = settings.model_dump(mode="json")
    record |= {"table": context.table, "seed": context.seed, "device": context.device}
    checkpoints = [
        Checkpoints(
            folder,
            one.name,
            record | {"own_case": one.case.key, "own_seed": one.seed, "text": data.folder.name},
            code,
        )
        for one in ones
    ]
    frames: list[pd.DataFrame] = []
    for i, one in enumerate(ones):
        name = f"{context.table} {i + 1}/{len(ones)}"
        frames += _rows(
            one, settings, data, _train(one, settings, context, data, checkpoints[i], name)
        )
        if settings.score:
            frames += _rows(
                one, settings, data, _bleu(one, settings, context, data, checkpoints[i])
            )
    for each in checkpoints:
        for path in each.files():
            path.unlink(missing_ok=True)
        for path in folder.glob(f"{each.name}-*.best.pt"):
            if path != each.best:
                path.unlink(missing_ok=True)  # of other settings or other code
    return pd.concat(frames, ignore_index=True)


def _train(
    one: One,
    settings: TranslationSettings,
    context: Context,
    data: "TranslationData",
    checkpoints: "Checkpoints",
    name: str,
) -> "History":
    """Everything measured in one run, `diverged` included."""
    import torch

    from sigprop.experiments.translation.model import Endless, build, run_seed
    from sigprop.tasks.translation.batches import Batches
    from sigprop.training.log import say
    from sigprop.training.loop import train
    from sigprop.training.measurements import History

    training = settings.training
    weights = torch.Generator().manual_seed(
        run_seed(context.seed, one.seed, f"weights L{one.case.depth}")
    )
    model = build(settings, data, one.case, weights).to(context.device)
    order = run_seed(context.seed, one.seed, "order")
    batches = Batches(data.train, training.batch_size, seed=order)
    torch.manual_seed(run_seed(context.seed, one.seed, "dropout"))
    smoothing = training.label_smoothing

    def loss(batch: "SentenceBatch", tau: float | None) -> "Tensor":
        return model.loss(
            batch.source, batch.target_in, batch.target_out, tau=tau, label_smoothing=smoothing
        )[None]

    measurements = _measurements(settings, data, model, context.device)
    looked = History()  # the loop's own is lost when it raises
    try:
        history = train(
            model,
            Endless(batches, context.device),
            loss,
            training.train_settings(),
            measurements=[_also(each, looked) for each in measurements],
            checkpoints=checkpoints,
            description=name,
        ).history
        diverged = 0.0
    except FloatingPointError as error:
        say(f"{name}: {error}")
        state = checkpoints.latest()
        history = _joined(History(*state["history"]) if state else History(), looked)
        diverged = 1.0
    history.add(training.steps, "diverged", torch.tensor([diverged]), torch.tensor([False]))
    return history


def _measurements(
    settings: TranslationSettings, data: "TranslationData", model: "Seq2Seq", device: str
) -> list["Measurement"]:
    """The looks at the validation text, and the probes of correlation, norms and strengths."""
    import torch

    from sigprop.experiments.translation.model import probe_batch, strengths, token_statistics
    from sigprop.tasks.translation.batches import Batches
    from sigprop.training.measurements import Measurement

    steps = settings.training.steps
    valid = Batches(data.valid, max(settings.training.batch_size, _longest(data)), shuffle=False)
    batches = [batch.to(device) for batch in valid]
    n_tokens = sum(batch.n_tokens for batch in batches)
    source, real = probe_batch(data, settings.probe_sentences, device)

    def validate(moment: "Moment") -> dict[str, "Tensor"]:
        total = torch.zeros(1, dtype=torch.float64)
        for batch in batches:
            each = model.loss(
                batch.source, batch.target_in, batch.target_out, tau=moment.tau, reduction="sum"
            )
            total += each.double().cpu()
        tau = model.scheme.tau if moment.tau is None else moment.tau
        return {
            "valid_loss": total / n_tokens,
            "learning_rate": torch.tensor([moment.lr], dtype=torch.float64),
            "tau": torch.tensor([tau], dtype=torch.float64),
        }

    def probe(moment: "Moment") -> dict[str, "Tensor"]:
        states: list[Tensor] = []
        model.encode(source, tau=moment.tau, states=states)
        found = token_statistics(states, real)
        if model.scheme.train_strengths:
            found |= strengths(model)
        return {quantity: value[None] for quantity, value in found.items()}

    looks = {*range(0, steps, settings.evaluate_every), steps}
    return [
        Measurement(looks, validate),
        Measurement({0, steps, *settings.probe_steps}, probe),
    ]


def _longest(data: "TranslationData") -> int:
    return int(data.valid.lengths.max())


def _also(measurement: "Measurement", history: "History") -> "Measurement":
    """`measurement`, which writes to `history` as well."""
    from sigprop.training.measurements import Measurement

    def measure(moment: "Moment") -> dict[str, "Tensor"]:
        import torch

        found = dict(measurement.measure(moment))
        for quantity, value in found.items():
            history.add(moment.step, quantity, value, torch.tensor([False]))
        return found

    return Measurement(measurement.at, measure)


def _joined(first: "History", then: "History") -> "History":
    """`first`, and what `then` has of later steps."""
    import torch

    for quantity in then.steps:
        last = max(first.steps.get(quantity, []), default=-1)
        for step, value in zip(then.steps[quantity], then.values[quantity], strict=True):
            if step > last:
                first.add(step, quantity, value, torch.tensor([False]))
    return first


def _bleu(
    one: One,
    settings: TranslationSettings,
    context: Context,
    data: "TranslationData",
    checkpoints: "Checkpoints",
) -> "History":
    """Both BLEUs on the test text, of the weights with the least validation loss."""
    import torch

    from sigprop.experiments.translation.model import build, search_of
    from sigprop.models.decoding import translate
    from sigprop.training.measurements import History
    from sigprop.training.schedules import temperature

    history = History()
    if not checkpoints.best.exists():  # its first validation loss was not a number
        return history
    step, state = checkpoints.load_best()
    model = build(settings, data, one.case)
    model.load_state_dict(state["model"])
    tau = temperature(settings.training.train_settings())(step)
    sentences = [data.test.source[i].tolist() for i in range(len(data.test))]
    search = search_of(settings.beam, settings.length_penalty)
    found = translate(model.to(context.device), sentences, search, tau=tau)
    scores = data.bleu("test", [hypothesis.tokens for hypothesis in found])
    for quantity, score in zip(("sacrebleu", "bleu_tokenized"), scores, strict=True):
        history.add(
            step, quantity, torch.tensor([score.score], dtype=torch.float64), torch.tensor([False])
        )
    return history


def _rows(
    one: One, settings: TranslationSettings, data: "TranslationData", history: "History"
) -> Iterator[pd.DataFrame]:
    """Everything measured, as tidy rows; a run that diverged ends where it did."""
    for quantity in history.steps:
        if quantity not in TranslationSettings.QUANTITIES:
            continue
        steps, values = history.stacked(quantity)
        factors = one.case.factors() | {
            "optimizer": settings.training.optimizer,
            "tau_final": settings.training.tau or one.case.scheme.tau,
            "d_model": settings.d_model,
            "corpus": data.record["source"],
        }
        yield frame(factors, one.seed, quantity, np.asarray(steps), values.numpy()[:, 0])


def frame(
    factors: dict[str, Any], seed: int, quantity: str, steps: np.ndarray, values: np.ndarray
) -> pd.DataFrame:
    """Rows of one quantity of one run, values (T,) or (T, layers); only finite ones."""
    by_layer = values.ndim == 2
    values = values if by_layer else values[:, None]
    t, l = (index.reshape(-1) for index in np.indices(values.shape))
    columns = factors | {
        "step": steps[t].astype(np.int64),
        "layer": pd.array(l if by_layer else [pd.NA] * len(l), dtype="Int64"),
    }
    table = tidy(
        TranslationSettings,
        columns,
        seed=[seed] * len(l),
        quantity=quantity,
        value=values.reshape(-1),
        source="simulation",
    )
    return table[np.isfinite(table["value"])]


def _empty() -> pd.DataFrame:
    """A table without rows, for a method that the preset leaves out."""
    empty = {"str": "", "int64": 0, "float64": 0.0}
    dtypes = TranslationSettings.FACTORS
    factors = {name: empty[kind] for name, kind in dtypes.items() if kind in empty}
    return frame(factors, 0, "diverged", np.zeros(1), np.zeros(1)).iloc[:0]

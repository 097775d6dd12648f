"""What experiments that train have in common: one ensemble after another, each resumable."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from sigprop.experiments.context import Context
from sigprop.experiments.settings import Experiment

if TYPE_CHECKING:
    from sigprop.training.checkpoints import Checkpoints
    from sigprop.training.measurements import History

Ensemble = TypeVar("Ensemble")
# (ensemble, its checkpoints, its name on the progress bar) -> what was measured
Train = Callable[[Ensemble, "Checkpoints | None", str], "History"]


def train_each(
    ensembles: Sequence[Ensemble],
    train: "Train[Ensemble]",
    settings: Experiment,
    context: Context,
    module: str,
) -> Iterator[tuple[Ensemble, "History"]]:
    """Train one ensemble after another, those of this part; each with what was measured.

    With `context.checkpoints` a killed run resumes where it stopped: an ensemble that is done is
    read, not trained. The checkpoints are removed once all are.

    Args:
        module: name of the experiment's module; checkpoints of other code are not used.

    Raises:
        UserError: checkpoints of other settings, or that cannot be written; before any training.
    """
    mine = context.mine(ensembles)
    checkpoints = [_checkpoints(i, settings, context, module) for i, _ in mine]
    for (i, ensemble), own in zip(mine, checkpoints, strict=True):
        yield ensemble, train(ensemble, own, f"{context.table} {i + 1}/{len(ensembles)}")
    for own in checkpoints:
        if own is not None:
            own.clear()


def _checkpoints(
    index: int, settings: Experiment, context: Context, module: str
) -> "Checkpoints | None":
    from sigprop.artifacts.sources import code_digest
    from sigprop.training.checkpoints import Checkpoints

    if context.checkpoints is None:
        return None
    record = settings.model_dump(mode="json")
    record |= {"table": context.table, "seed": context.seed, "device": context.device}
    return Checkpoints(
        context.checkpoints,
        f"{context.table}-{index:03d}",
        record,
        code_digest(*filter(None, (module, settings.design))),
    )

"""What is looked at during a run, when, and what is kept of it."""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True)
class Moment:
    """What a measurement may look at: the state after `step` updates, with its gradient in place.

    `lr` is the learning rate of the update to come, `tau` the inverse temperature of this step
    (None: the scheme's).
    """

    step: int
    model: nn.Module
    optimizer: Optimizer
    batch: Any
    lr: float
    tau: float | None


@dataclass(frozen=True)
class Measurement:
    """`measure`, at the steps in `at`: quantity -> (E, ...), without gradients."""

    at: Container[int]
    measure: Callable[[Moment], Mapping[str, Tensor]]


@dataclass
class History:
    """What was measured, by quantity: steps and values (E, ...), float64 on the CPU.

    Besides the measurements' own quantities there is `train_loss`, the loss of the batch at every
    `log_every` steps. Members that diverged have NaN from then on.
    """

    steps: dict[str, list[int]] = field(default_factory=dict)
    values: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, step: int, quantity: str, value: Tensor, diverged: Tensor) -> None:
        """Append one measurement, (E, ...); NaN for the members that `diverged`, (E,) bool."""
        value = value.detach().to("cpu", torch.float64, copy=True)
        value[diverged.cpu()] = torch.nan
        self.steps.setdefault(quantity, []).append(step)
        self.values.setdefault(quantity, []).append(value)

    def stacked(self, quantity: str) -> tuple[list[int], Tensor]:
        """Steps (T,) and values (T, E, ...). KeyError for what was never measured."""
        return self.steps[quantity], torch.stack(self.values[quantity])

    def is_best(self, quantity: str, step: int) -> bool:
        """Whether `quantity`, mean over members, was measured at `step` and is its least so far."""
        if self.steps.get(quantity, [])[-1:] != [step]:
            return False
        means = [float(value.nanmean()) for value in self.values[quantity]]
        return means[-1] <= min(means)

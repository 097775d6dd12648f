"""How an experiment trains, as a block of settings. Imports no torch."""

from typing import Literal, Self

from pydantic import Field, model_validator

from sigprop.experiments.settings import SettingsBlock
from sigprop.training.settings import TrainSettings


class Training(SettingsBlock):
    """The part of an experiment's settings that `training.settings.TrainSettings` is made from."""

    steps: int = Field(ge=1, le=10_000_000, description="updates")
    batch_size: int = Field(ge=1, le=1_000_000, description="sequences per network and update")
    optimizer: Literal["adam", "sgd"] = Field(
        default="adam", description="both with decoupled weight decay"
    )
    lr: float = Field(gt=0, le=1e3, description="learning rate before the schedule")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="adam only")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="adam only")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="sgd only")
    weight_decay: float = Field(default=0.0, ge=0, le=1e3, description="per unit of lr and update")
    schedule: Literal["constant", "steps", "inverse_sqrt", "linear_warmup", "linear_decay"] = Field(
        default="constant",
        description="factor on lr; steps: times 0.1 at 40 % and 80 % of the run; linear_decay: to "
        "0 at its end",
    )
    warmup_steps: int = Field(
        default=0, ge=0, description="updates of linear warm-up, not of constant"
    )
    clip_norm: float | None = Field(
        default=None, gt=0, description="upper limit of a network's gradient norm; null: none"
    )
    mixed_precision: bool = Field(default=False, description="bfloat16 products, on cuda only")
    log_every: int = Field(default=50, ge=1, description="updates between lines of the log")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.train_settings()  # says what does not go together
        return self

    def train_settings(self) -> TrainSettings:
        """The same thing as the loop knows it."""
        own = self.model_dump(exclude={"beta1", "beta2"})
        return TrainSettings(betas=(self.beta1, self.beta2), **own)

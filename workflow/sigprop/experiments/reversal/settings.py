"""Settings of the digit-reversal experiments. Imports no torch."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sigprop.experiments.schemes import OfSchemes, SchemeName
from sigprop.experiments.settings import Factor
from sigprop.experiments.training import Training
from sigprop.models.attention import check_head_size
from sigprop.models.schemes import Scheme, resolved


@dataclass(frozen=True)
class ReversalCase:
    """One curve: networks that differ by their random numbers only."""

    scheme: Scheme
    depth: int
    r: float

    @property
    def key(self) -> str:
        """A name that is the same for the same physics, whatever else the sweep holds."""
        return f"{self.scheme.name}|{self.scheme.alpha_attn.key}|L{self.depth}|r{self.r!r}"

    def factors(self) -> dict[str, Any]:
        """The factor columns of this case's rows, but for step and layer."""
        return {
            "scheme": self.scheme.identity,
            "alpha_rule": self.scheme.rule,
            "alpha_attn": self.scheme.alpha_attn.at(self.depth),
            "alpha_ff": self.scheme.alpha_ff.at(self.depth),
            "depth": self.depth,
            "r": self.r,
        }


class ReversalSettings(OfSchemes):
    """A sweep of trainings on digit reversal; lists are crossed."""

    # Losses and rates are of one update, so only gradients and the loss have units.
    QUANTITIES = {
        "loss": "nat",
        "accuracy": "1",
        "steps_to_solve": "update",
        "solved": "1",
        "cos_mean": "1",
        "grad_q": "nat^2",
        "grad_k": "nat^2",
        "grad_v": "nat^2",
        "log_rate_q": "1",
        "log_rate_k": "1",
        "log_rate_v": "1",
    }
    # `step` counts updates made. `layer` is null where a value belongs to the whole network;
    # cos_mean has layers 0 (the input) to L, weights of layer l read X^l and have 0 to L - 1.
    FACTORS = {
        "scheme": "str",
        "alpha_rule": "str",
        "alpha_attn": "float64",
        "alpha_ff": "float64",
        "depth": "int64",
        "r": "float64",
        "step": "int64",
        "layer": "Int64",
    }
    TRAINS = True
    THEORY = False

    experiment: Literal["reversal"] = Field(default="reversal", description="kind of experiment")

    scheme: SchemeName = Field(default="post_ln", description="normalization and initialization")
    depth: Factor[Annotated[int, Field(ge=1, le=1000)]] = Field(description="blocks, L")
    r: Factor[Annotated[float, Field(ge=0, le=1)]] = Field(
        description="share of the input's power that all tokens have in common; 1 leaves no digits"
    )
    n_tokens: int = Field(default=20, ge=2, le=65536, description="digits in a sequence")
    d_model: int = Field(default=16, ge=2, le=65536, description="width, even")
    d_ff: int = Field(default=64, ge=1, description="hidden width of the feed-forward")
    n_heads: int = Field(default=1, ge=1, description="attention heads, divides d_model")
    n_seeds: int = Field(ge=2, le=100_000, description="networks of each case, each with own data")
    ensemble: int = Field(
        ge=1,
        le=100_000,
        description="networks trained side by side in one program; decides speed, not results",
    )
    training: Training
    evaluate_every: int = Field(ge=1, description="updates between looks at the test batch")
    test_sequences: int = Field(ge=1, le=100_000, description="in the one fixed test batch")
    solved_at: float = Field(default=0.99, gt=0, le=1, description="accuracy that counts as solved")
    probe_steps: Factor[Annotated[int, Field(ge=0)]] = Field(
        description="updates after which correlation, gradients and Adam's rates are measured"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.d_model % self.n_heads:
            raise ValueError(
                f"n_heads={self.n_heads} does not divide d_model={self.d_model}; choose a divisor"
            )
        check_head_size(self.schemes[self.scheme].attention, self.d_model // self.n_heads)
        if self.d_model % 2:
            raise ValueError(f"d_model={self.d_model} is odd; sinusoidal positions need it even")
        late = [step for step in self.probe_steps if step > self.training.steps]
        if late:
            raise ValueError(
                f"probe_steps={late[0]} lies beyond training.steps={self.training.steps}"
            )
        return self

    def cases(self) -> Iterator[ReversalCase]:
        """Every case of the sweep, in a fixed order."""
        strengths = [each.strength() for each in self.residual] if self.residual else [None]
        for strength, depth, r in itertools.product(strengths, self.depth, self.r):
            yield ReversalCase(resolved(self.scheme, strength, self.schemes), depth, r)

    @property
    def n_runs(self) -> int:
        """Of how many ensembles the table is made; members of one have the same depth."""
        members = len(self.residual or [None]) * len(self.r) * self.n_seeds
        return len(self.depth) * math.ceil(members / self.ensemble)

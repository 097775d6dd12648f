"""Settings of the translation experiments. Imports no torch."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sigprop.experiments.propagation_settings import Residual
from sigprop.experiments.settings import Block, Factor
from sigprop.experiments.training_settings import Training
from sigprop.experiments.translation_data_settings import TranslationDataSettings
from sigprop.models.baselines import RECIPES, Recipe
from sigprop.training.settings import TrainSettings

RecipeName = Literal["post_ln", "pre_ln", "residual_scaling", "rezero", "t_fixup"]
Site = Literal["encoder", "decoder", "cross"]
Depths = Factor[Annotated[int, Field(ge=1, le=1000)]]
BEST = "valid_loss"


class TranslationTraining(Training):
    """How a translation model is trained."""

    batch_size: int = Field(
        ge=1, le=10_000_000, description="tokens of a batch: pairs times the longest sentence in it"
    )
    tau: float | None = Field(
        default=None, gt=0, le=1e3, description="final inverse temperature; null: 1 throughout"
    )
    tau_warmup_steps: int = Field(default=0, ge=0, description="updates until tau is reached")
    tau_form: Literal["from_one", "from_zero"] = Field(
        default="from_one", description="where tau starts: at 1, or at 0 (uniform attention)"
    )
    label_smoothing: float = Field(default=0.0, ge=0, lt=1, description="in the training loss only")

    def train_settings(self) -> TrainSettings:
        return replace(super().train_settings(), keep_best=BEST)


class Network(Block):
    """The shape of a translation model, which training and initialization share."""

    d_model: int = Field(default=512, ge=2, le=65536, description="width")
    d_ff: int = Field(default=1024, ge=1, description="hidden width of the feed-forward")
    n_heads: int = Field(default=4, ge=1, description="attention heads, divides d_model")
    share: Literal["none", "decoder", "all"] = Field(
        default="decoder", description="embeddings that are one matrix; all: needs one vocabulary"
    )
    data: TranslationDataSettings = Field(description="the text and its preparation")
    cache: str | None = Field(
        default=None,
        min_length=1,
        description="folder for prepared text; null: `corpora` beside the checkpoints",
    )
    max_tokens: int = Field(
        default=1024, ge=16, le=65536, description="longest sentence, in subwords"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.d_model % self.n_heads or self.d_model % 2:
            raise ValueError(
                f"d_model={self.d_model} must be even and a multiple of n_heads={self.n_heads}"
            )
        if self.share == "all" and not self.data.shared_vocabulary:
            raise ValueError("share=all needs data.shared_vocabulary=true; or use share=decoder")
        return self


@dataclass(frozen=True)
class Case:
    """One method at one depth: runs that differ by their random numbers only."""

    recipe: Recipe
    depth: int

    @property
    def key(self) -> str:
        """A name that is the same for the same model, whatever else the sweep holds."""
        alpha = self.recipe.scheme.alpha_attn
        return f"{self.recipe.name}-{alpha.coefficient!r}-{alpha.depth_power!r}-L{self.depth}"

    def factors(self) -> dict[str, Any]:
        """The factor columns that a case decides."""
        scheme = self.recipe.scheme
        return {
            "scheme": self.recipe.name,
            "alpha_rule": scheme.alpha_attn.label,
            "alpha_init": scheme.alpha_attn.at(self.depth),
            "depth": self.depth,
        }


def cases(scheme: str, residual: list[Residual] | None, depth: list[int]) -> Iterator[Case]:
    """A scheme with its own or the given strengths, at every depth, in a fixed order."""
    recipe = RECIPES[scheme]
    if residual is None:
        recipes = [recipe]
    else:
        strengths = [each.strength() for each in residual]
        recipes = [
            replace(recipe, scheme=replace(recipe.scheme, alpha_attn=alpha, alpha_ff=alpha))
            for alpha in strengths
        ]
    for each, l in itertools.product(recipes, depth):
        yield Case(each, l)


class TranslationSettings(Network):
    """One method, trained at some depths with several seeds."""

    scheme: RecipeName = Field(description="normalization, strengths and initial weights")
    residual: Factor[Residual] | None = Field(
        default=None, description="strength of all branches at the start; null: the scheme's own"
    )
    depth: Depths = Field(description="blocks of the encoder, and as many of the decoder")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="on embeddings and branches")
    attention_dropout: float = Field(default=0.0, ge=0, lt=1, description="on attention weights")
    heated: list[Site] = Field(
        default=["encoder", "decoder", "cross"], description="attentions that get tau"
    )
    n_seeds: int = Field(
        ge=0, le=10_000, description="runs per depth; 0 leaves the method out, the table is empty"
    )
    training: TranslationTraining
    evaluate_every: int = Field(ge=1, description="updates between looks at the validation text")
    probe_steps: Factor[Annotated[int, Field(ge=0)]] = Field(
        description="updates after which correlation, norms and strengths are measured; 0 and the "
        "last are always"
    )
    probe_sentences: int = Field(
        default=64, ge=1, le=100_000, description="validation sentences that are measured"
    )
    score: bool = Field(default=True, description="false: no BLEU, for tables that need none")
    beam: int = Field(default=5, ge=1, le=1000, description="hypotheses kept; 1 is greedy search")
    length_penalty: float = Field(default=1.0, ge=0, le=10, description="power of the length")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        late = [step for step in self.probe_steps if step > self.training.steps]
        if late:
            raise ValueError(
                f"probe_steps={late[0]} lies beyond training.steps={self.training.steps}"
            )
        return self

    def cases(self) -> Iterator[Case]:
        """Every case of the sweep."""
        return cases(self.scheme, self.residual, self.depth)

    @property
    def n_runs(self) -> int:
        """Of how many runs the table is made."""
        return len([*self.cases()]) * self.n_seeds


class TranslationInitSettings(Network):
    """Encoders on real text before any training."""

    scheme: RecipeName = Field(default="post_ln", description="normalization, initial weights")
    residual: Factor[Residual] = Field(description="strength of all branches")
    depth: Depths = Field(description="blocks of the encoder")
    n_seeds: int = Field(ge=2, le=10_000, description="networks per setting")
    probe_sentences: int = Field(
        default=64, ge=1, le=100_000, description="validation sentences that are measured"
    )

    def cases(self) -> Iterator[Case]:
        """Every case of the sweep."""
        return cases(self.scheme, self.residual, self.depth)

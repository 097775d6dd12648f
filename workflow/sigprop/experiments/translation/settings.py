"""Settings of the translation experiments. Imports no torch."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sigprop.experiments.schemes import OfSchemes, SchemeName
from sigprop.experiments.settings import Factor, SettingsBlock
from sigprop.experiments.training import Training
from sigprop.models.attention import check_head_size
from sigprop.models.schemes import Scheme, resolved
from sigprop.training.settings import TrainSettings

STRENGTHS = (
    "alpha_encoder_attention",
    "alpha_encoder_feed_forward",
    "alpha_decoder_attention",
    "alpha_decoder_cross_attention",
    "alpha_decoder_feed_forward",
)

Site = Literal["encoder", "decoder", "cross"]
Depths = Factor[Annotated[int, Field(ge=1, le=1000)]]
BEST = "valid_loss"
Source = Literal["embedded", "iwslt14", "multi30k", "files"]
Language = Annotated[str, Field(pattern=r"^[a-z]{2,3}$")]
Text = Annotated[str, Field(min_length=1)]

# Of the files in commit a3d2e0d26b56 of the public repository multi30k/dataset.
MULTI30K_SHA256 = {
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
}


class TranslationDataSettings(SettingsBlock):
    """Which parallel text, and how it becomes numbers."""

    source: Source = Field(
        default="embedded",
        description="embedded: Home Assistant's interface strings (fetched by the set-up); "
        "iwslt14, multi30k: downloaded unless path is given; files: your own text",
    )
    path: Text | None = Field(
        default=None,
        description="iwslt14: de-en.tgz; multi30k: folder of its six .gz files; embedded: the "
        "wheel; files: the stem, so that STEM.de and STEM.en are the two sides",
    )
    valid_path: Text | None = Field(
        default=None, description="files: stem of validation text; null takes every 23rd pair"
    )
    test_path: Text | None = Field(
        default=None, description="files: stem of test text; null takes another every 23rd pair"
    )
    languages: Annotated[list[Language], Field(min_length=2, max_length=2)] = Field(
        default=["de", "en"], description="source and target language; others than de, en: files"
    )
    n_pairs: Annotated[int, Field(ge=100, le=10**9)] | None = Field(
        default=None, description="use only the first so many training pairs; null: all"
    )
    lowercase: bool = Field(default=True, description="lower-case everything")
    min_length: int = Field(default=1, ge=1, le=1000, description="fewest tokens of a side")
    max_length: int = Field(
        default=175, ge=1, le=10_000, description="most tokens of a side, before subwords"
    )
    max_ratio: float = Field(
        default=1.5, ge=1, le=1000, description="largest ratio of the two token counts"
    )
    bpe_size: int = Field(
        default=10_000, ge=1, le=200_000, description="byte-pair merges, learnt on both languages"
    )
    shared_vocabulary: bool = Field(
        default=False, description="true: one vocabulary for both languages, so they can share rows"
    )
    sha256: dict[str, Text] = Field(
        default=MULTI30K_SHA256,
        description="file name: hex digest that the file must have; others are only recorded",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.source == "files":
            if self.path is None:
                raise ValueError("source=files needs path, the stem of your two text files")
            if self.languages[0] == self.languages[1]:
                raise ValueError(f"languages={self.languages} are equal; name source and target")
        else:
            for name in ("valid_path", "test_path"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is for source=files only; source is {self.source}")
            if self.languages != ["de", "en"]:
                raise ValueError(
                    f"languages={self.languages} need source=files; {self.source} has ['de', 'en']"
                )
        if self.max_length < self.min_length:
            raise ValueError(f"max_length={self.max_length} is below min_length={self.min_length}")
        for name, digest in self.sha256.items():
            if not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
                raise ValueError(f"sha256 of {name} must be 64 hex digits, got {digest!r}")
        return self


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


@dataclass(frozen=True)
class TranslationCase:
    """One method at one depth: runs that differ by their random numbers only."""

    scheme: Scheme
    depth: int

    @property
    def key(self) -> str:
        """A name that is the same for the same model, whatever else the sweep holds."""
        alpha = self.scheme.alpha_attn.key.replace(",", "-")
        return f"{self.scheme.name}-{alpha}-L{self.depth}"

    def factors(self) -> dict[str, Any]:
        """The factor columns that a case decides."""
        return {
            "scheme": self.scheme.identity,
            "alpha_rule": self.scheme.rule,
            "alpha_init": self.scheme.alpha_attn.at(self.depth),
            "depth": self.depth,
        }


class Network(OfSchemes):
    """The shape of a translation model, which training and initialization share."""

    # Losses are per target token; valid_loss has no label smoothing and no dropout. token_norm is
    # the mean over real tokens of |x|. BLEU is that of the weights with the least valid_loss, whose
    # step it has. learning_rate and tau are those of the update to come.
    QUANTITIES = {
        "train_loss": "nat",
        "valid_loss": "nat",
        "learning_rate": "1",
        "tau": "1",
        "cos_mean": "1",
        "token_norm": "1",
        **dict.fromkeys(STRENGTHS, "1"),
        "sacrebleu": "percent",
        "bleu_tokenized": "percent",
        "diverged": "1",
    }
    # `step` counts updates made. `layer` is null where a value belongs to the whole network;
    # cos_mean and token_norm have the encoder's layers 0 (its input) to L, strengths 0 to L - 1.
    FACTORS = {
        "scheme": "str",
        "optimizer": "str",
        "tau_final": "float64",
        "alpha_rule": "str",
        "alpha_init": "float64",
        "d_model": "int64",
        "depth": "int64",
        "corpus": "str",
        "step": "int64",
        "layer": "Int64",
    }
    TRAINS = True
    THEORY = False

    scheme: SchemeName = Field(
        default="post_ln_xavier", description="normalization, strengths and initial weights"
    )
    depth: Depths = Field(description="blocks of the encoder, and as many of the decoder")
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
        description="folder for prepared text; null: `corpora` next to the checkpoints",
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
        check_head_size(self.schemes[self.scheme].attention, self.d_model // self.n_heads)
        if self.share == "all" and not self.data.shared_vocabulary:
            raise ValueError("share=all needs data.shared_vocabulary=true; or use share=decoder")
        return self

    def cases(self) -> Iterator[TranslationCase]:
        """The scheme with its own or the given strengths, at every depth, in a fixed order."""
        strengths = [each.strength() for each in self.residual] if self.residual else [None]
        for strength, depth in itertools.product(strengths, self.depth):
            yield TranslationCase(resolved(self.scheme, strength, self.schemes), depth)


class TranslationSettings(Network):
    """One method, trained at some depths with several seeds."""

    experiment: Literal["translation"] = Field(
        default="translation", description="kind of experiment"
    )

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

    @property
    def n_runs(self) -> int:
        """Of how many runs the table is made."""
        return len([*self.cases()]) * self.n_seeds


class TranslationInitSettings(Network):
    """Encoders on real text before any training."""

    experiment: Literal["translation_init"] = Field(
        default="translation_init", description="kind of experiment"
    )

    n_seeds: int = Field(ge=2, le=10_000, description="networks per setting")
    probe_sentences: int = Field(
        default=64, ge=1, le=100_000, description="validation sentences that are measured"
    )

    @property
    def simulation(self) -> str:
        return self._module("init")

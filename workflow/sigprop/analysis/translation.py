"""Translation: scores by method, and hyperparameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd

from sigprop.analysis.data import choose, find, groups, load
from sigprop.analysis.stats import Array, student_mean
from sigprop.artifacts.tables import read_sidecar
from sigprop.models.schemes import SCHEMES, Strength, plain, scheme_of
from sigprop.tasks.translation import bleu

# Tables of the methods, in the order of the figures.
METHODS = (
    "translation_post_ln_adam",
    "translation_pre_ln_adam",
    "translation_rezero",
    "translation_t_fixup",
    "translation_post_ln_sgd",
    "translation_ours",
)

BRANCHES = {
    "alpha_encoder_attention": "encoder, attention",
    "alpha_encoder_feed_forward": "encoder, feed-forward",
    "alpha_decoder_attention": "decoder, attention",
    "alpha_decoder_cross_attention": "decoder, cross-attention",
    "alpha_decoder_feed_forward": "decoder, feed-forward",
}


def methods(tables: Mapping[str, str]) -> dict[str, pd.DataFrame]:
    """The tables of methods that were trained, in the order of `METHODS`.

    Raises ValueError when there are none.
    """
    found = {name: load(tables, name) for name in METHODS if name in tables}
    trained = {name: table for name, table in found.items() if len(table)}
    if not trained:
        raise ValueError("no method was trained; n_seeds is 0 in all of them")
    return trained


def titles(settings: Mapping[str, Mapping[str, Any]], *, plain: bool = False) -> dict[str, str]:
    """What each method was run with, in words, from its settings; `plain` without TeX.

    Two tables that were run with the same settings are told apart by their names.
    """
    told: dict[str, str] = {}
    for name, own in settings.items():
        scheme, strength = scheme_of(own["scheme"], own["records"][own["scheme"]]), _strength(own)
        title = "" if own["residual"] else SCHEMES[own["scheme"]].title
        words = [title or scheme.placement]
        if not title and strength != "1":
            words.append(strength.removesuffix(", trained"))
        words += ["tau"] if own["training"]["tau"] else []
        words.append({"adam": "Adam", "sgd": "SGD"}[own["training"]["optimizer"]])
        title = ", ".join(words) + (" (ours)" if name == "translation_ours" else "")
        title = f"{title}, {name}" if title in told.values() else title
        told[name] = title
    if plain:
        return told
    tex = (("1/sqrt(L)", r"$1/\sqrt{L}$"), (" tau,", r" $\tau$,"))
    return {name: reduce(lambda t, pair: t.replace(*pair), tex, t) for name, t in told.items()}


def scores(rows: pd.DataFrame, quantity: str) -> Array:
    """BLEU of every run of one setting, in the order of seeds."""
    own = choose(rows, quantity=quantity).sort_values("seed")
    return own["value"].to_numpy(np.float64)


def bleu_table(tables: Mapping[str, pd.DataFrame], names: Mapping[str, str]) -> pd.DataFrame:
    """Both BLEUs by method and depth: mean and 95 % interval over runs; the paper's is not known.

    The paper's column is empty because its values could not be established beyond doubt.
    """
    records = []
    for name, table in tables.items():
        for (depth,), rows in groups(table, "depth"):
            record: dict[str, Any] = {"method": names[name], "layers": f"{depth}+{depth}"}
            runs = choose(rows, quantity="diverged")
            record["runs"] = len(runs)
            record["diverged"] = int(runs["value"].sum())
            for quantity in ("sacrebleu", "bleu_tokenized"):
                record[quantity] = _scored(scores(rows, quantity))
            records.append(record | {"paper": ""})
    return pd.DataFrame(records)


def _scored(values: Array) -> str:
    """`mean [low, high]`; a single run has no interval, and one that found no weights no score."""
    if not len(values):
        return "none"
    mean, low, high = student_mean(values)
    return f"{mean:.2f}" if len(values) == 1 else f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def signatures(tables: Mapping[str, str]) -> tuple[str, str]:
    """What makes the two BLEUs comparable with others', as sacrebleu writes it."""
    lowercase = next(iter(settings_of(tables).values()))["data"]["lowercase"]
    plain = bleu.sacrebleu(["a"], ["a"], lowercase=lowercase)
    return plain.signature, bleu.tokenized(["a"], ["a"]).signature


# ---------------------------------------------------------------- hyperparameters


OURS = "our choice"


@dataclass(frozen=True)
class Row:
    """A hyperparameter: where it is in the settings, and what is known of the paper's value.

    Attributes:
        mark: of the values in `known`: stated in the paper, inferred (the toolkit's recipe that
            the paper builds on), or our choice.
        known: values that the mark belongs to; empty where nothing is known.
        only: "adam", "sgd" or "tau" for rows that only methods with it have.
    """

    label: str
    key: str
    mark: str = OURS
    known: tuple[Any, ...] = ()
    only: str | None = None


# Rows that no single setting holds.
STRENGTH, SCORED = "(strength)", "(scored)"

ROWS = (
    Row("text", "data.source", "stated", ("iwslt14",)),
    Row("training pairs used", "data.n_pairs", "inferred", ("all",)),
    Row("tokens of a sentence, fewest", "data.min_length", "inferred", (1,)),
    Row("tokens of a sentence, most", "data.max_length", "inferred", (175,)),
    Row("ratio of the two lengths, most", "data.max_ratio", "inferred", (1.5,)),
    Row("lower-cased", "data.lowercase", "inferred", (True,)),
    Row("subword merges", "data.bpe_size", "inferred", (10000,)),
    Row("one vocabulary for both sides", "data.shared_vocabulary", "inferred", (False,)),
    Row("positions, most", "max_tokens", "inferred", (1024,)),
    Row("scheme", "scheme", "stated"),
    Row("residual strength", STRENGTH, "stated"),
    Row("layers of each stack", "depth"),
    Row("width d", "d_model", "inferred", (512,)),
    Row("feed-forward width", "d_ff", "inferred", (1024,)),
    Row("heads", "n_heads", "inferred", (4,)),
    Row("shared embeddings", "share", "inferred", ("decoder",)),
    Row("dropout", "dropout", "inferred", (0.3,)),
    Row("dropout of attention", "attention_dropout"),
    Row("label smoothing", "training.label_smoothing", "inferred", (0.1,)),
    Row("optimizer", "training.optimizer", "stated"),
    Row("learning rate, Adam", "training.lr", "inferred", (5e-4,), "adam"),
    Row("learning rate, SGD", "training.lr", only="sgd"),
    Row("beta 1", "training.beta1", "inferred", (0.9,), "adam"),
    Row("beta 2", "training.beta2", "inferred", (0.98,), "adam"),
    Row("momentum", "training.momentum", only="sgd"),
    Row("weight decay, decoupled", "training.weight_decay", "inferred", (1e-4,)),
    Row("schedule, Adam", "training.schedule", "inferred", ("inverse_sqrt",), "adam"),
    Row("schedule, SGD (steps: 40 %, 80 %)", "training.schedule", "stated", ("steps",), "sgd"),
    Row("warm-up of the rate, Adam", "training.warmup_steps", "inferred", (4000,), "adam"),
    Row("warm-up of the rate, SGD", "training.warmup_steps", "stated", (0,), "sgd"),
    Row("gradient clipping", "training.clip_norm", "inferred", (None,)),
    Row("inverse temperature", "training.tau", "stated", (None, 8.5)),
    Row("warm-up of the temperature", "training.tau_warmup_steps", "stated", (1000,), "tau"),
    Row("form of that warm-up", "training.tau_form", only="tau"),
    Row("attentions that get it", "heated", only="tau"),
    Row("updates", "training.steps"),
    Row("tokens per batch", "training.batch_size", "inferred", (4096,)),
    Row("mixed precision (bf16)", "training.mixed_precision"),
    Row("updates between validations", "evaluate_every"),
    Row("weights that are scored", SCORED, "stated"),
    Row("runs", "n_seeds", "stated", (5,)),
    Row("beam", "beam", "inferred", (5,)),
    Row("length penalty", "length_penalty"),
)


def settings_of(tables: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Settings of every method, also of those left out, from the sidecars of their tables."""
    return {
        name: read_sidecar(find(tables[name]))["settings"] for name in METHODS if name in tables
    }


def hyperparameters(settings: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Table 1: one row per hyperparameter, one column per method, and the mark of the row.

    A row whose values are not those known of the paper is our choice, and says what is known.
    """
    records, names = [], titles(settings, plain=True)
    for row in ROWS:
        values = {
            name: _value(own, row.key)
            for name, own in settings.items()
            if row.only in (None, own["training"]["optimizer"], own["training"]["tau"] and "tau")
        }
        if not values:
            continue
        mark = row.mark
        others = [value for value in values.values() if row.known and value not in row.known]
        if others:
            mark = f"{OURS} (paper: {_short(row.known[-1])}, {row.mark})"
        record = {"hyperparameter": row.label}
        for name in settings:
            record[names[name]] = _short(values[name]) if name in values else ""
        records.append(record | {"mark": mark})
    return pd.DataFrame(records)


def _value(settings: Mapping[str, Any], key: str) -> Any:
    if key == STRENGTH:
        return _strength(settings)
    if key == SCORED:
        return "least validation loss"
    value: Any = settings
    for part in key.split("."):
        value = value[part]
    return "all" if key == "data.n_pairs" and value is None else value


def _strength(settings: Mapping[str, Any]) -> str:
    """The strengths at the start, the scheme's own or those of the settings; whether trained."""
    scheme = scheme_of(settings["scheme"], settings["records"][settings["scheme"]])
    own = [Strength(**each) for each in settings["residual"] or []]
    branches = dict.fromkeys([scheme.alpha_attn, scheme.alpha_ff])
    told = " and ".join(plain(each.label) for each in own or branches)
    return f"{told}, trained" if scheme.train_strengths else told


def _short(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_short, value))
    return f"{value:g}" if isinstance(value, float) else str(value)

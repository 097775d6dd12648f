"""The whole configuration as one checked record, and the presets. Imports no torch."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field

from sigprop.artifacts.errors import UserError, nearest
from sigprop.artifacts.provenance import code_root
from sigprop.experiments.geometry_settings import GeometrySettings
from sigprop.experiments.gradients_settings import GradientSettings
from sigprop.experiments.jacobian_exact_settings import ExactSettings
from sigprop.experiments.jacobian_settings import JacobianSettings
from sigprop.experiments.phases_settings import PhasesSettings
from sigprop.experiments.propagation_settings import PropagationSettings
from sigprop.experiments.reversal_settings import ReversalSettings
from sigprop.experiments.settings import PRESETS, Block, Preset, parse
from sigprop.experiments.softmax_rows_settings import SoftmaxRowsSettings
from sigprop.experiments.trainability_edge_settings import TrainabilityEdgeSettings
from sigprop.experiments.trainability_settings import TrainabilitySettings
from sigprop.experiments.translation_settings import TranslationInitSettings, TranslationSettings

# `--config strict_claims=true` arrives as a word.
Switch = Annotated[bool, BeforeValidator(lambda v: v == "true" if v in ("true", "false") else v)]


class Experiments(Block):
    """One block of settings per table."""

    moments: PropagationSettings
    post_ln_depth: PropagationSettings
    pre_ln_depth: PropagationSettings
    correlation: PropagationSettings
    deep: PropagationSettings
    depth_limit: PropagationSettings
    norm_density: PropagationSettings
    width: PropagationSettings
    samplers: PropagationSettings
    gradients: GradientSettings
    lemma31: JacobianSettings
    jacobian_sweeps: JacobianSettings
    jacobian_grid: JacobianSettings
    jacobian_exact: ExactSettings
    balance: JacobianSettings
    reversal_unscaled: ReversalSettings
    reversal_scaled: ReversalSettings
    reversal_depth_unscaled: ReversalSettings
    reversal_depth_scaled: ReversalSettings
    translation_init: TranslationInitSettings
    translation_depth: TranslationSettings
    translation_post_ln_adam: TranslationSettings
    translation_pre_ln_adam: TranslationSettings
    translation_rezero: TranslationSettings
    translation_t_fixup: TranslationSettings
    translation_post_ln_sgd: TranslationSettings
    translation_ours: TranslationSettings
    geometry: GeometrySettings
    geometry_gradients: GeometrySettings
    geometry_exponents: GeometrySettings
    geometry_phases: GeometrySettings
    geometry_fixed_points: GeometrySettings
    geometry_distributions: GeometrySettings
    phases: PhasesSettings
    softmax_rows: SoftmaxRowsSettings
    train_lhs: TrainabilitySettings
    train_grid: TrainabilitySettings
    train_depth: TrainabilitySettings
    train_unit: TrainabilitySettings
    train_edge: TrainabilityEdgeSettings


class Config(Block):
    """config/config.yaml with the preset and the user's own values merged over it."""

    preset: Preset = Field(description="smoke, laptop or paper; names the folder under results/")
    seed: int = Field(ge=0, lt=2**63, description="root of every random stream")
    device: Literal["auto", "cpu", "cuda"] = Field(description="auto takes cuda where there is one")
    strict_claims: Switch = Field(
        default=False, description="true: `snakemake claims` fails when a claim is not reproduced"
    )
    shards: int = Field(
        default=1,
        ge=1,
        le=100_000,
        description="jobs that make one table of trainings, at most one per run; decides how many "
        "can work at once, not results",
    )
    sentences: str | None = Field(
        default=None, description="for `snakemake translate`: UTF-8 text, one sentence a line"
    )
    table: str = Field(
        default="translation_ours",
        description="for `snakemake translate`: the table whose best run translates",
    )
    experiments: Experiments


@dataclass(frozen=True)
class Table:
    """How a table is made: by a simulation, with theory, if any, in a table of its own.

    `theory_reads_simulation`: the theory is evaluated at sums that the simulation measured.
    `trains`: the simulation is a training, which keeps checkpoints.
    `closed_form`: what stands for the simulation is itself theory, at settings that nobody
    simulates.
    """

    simulation: str
    theory: str | None = None
    theory_reads_simulation: bool = False
    trains: bool = False
    closed_form: bool = False


_FORWARD = Table("propagation", "propagation_theory")
_REVERSAL = Table("reversal", trains=True)
_GEOMETRY = Table("geometry", "geometry_theory")
_TRAINABILITY = Table("trainability", "trainability_theory", trains=True)
_TRANSLATION = Table("translation", trains=True)
_JACOBIAN = Table("jacobian", "jacobian_theory", theory_reads_simulation=True)

TABLES: dict[str, Table] = {
    "moments": _FORWARD,
    "post_ln_depth": _FORWARD,
    "pre_ln_depth": _FORWARD,
    "correlation": _FORWARD,
    "deep": _FORWARD,
    "depth_limit": _FORWARD,
    "norm_density": _FORWARD,
    "width": _FORWARD,
    "samplers": _FORWARD,
    "gradients": Table("gradients", "gradients_theory", theory_reads_simulation=True),
    "lemma31": _JACOBIAN,
    "jacobian_sweeps": _JACOBIAN,
    "jacobian_grid": _JACOBIAN,
    "jacobian_exact": Table("jacobian_exact"),
    "balance": Table("balance", "jacobian_theory", theory_reads_simulation=True),
    "reversal_unscaled": _REVERSAL,
    "reversal_scaled": _REVERSAL,
    "reversal_depth_unscaled": _REVERSAL,
    "reversal_depth_scaled": _REVERSAL,
    # Trains nothing, but reads the text that lies beside the checkpoints.
    "translation_init": Table("translation_init", trains=True),
    "translation_depth": _TRANSLATION,
    "translation_post_ln_adam": _TRANSLATION,
    "translation_pre_ln_adam": _TRANSLATION,
    "translation_rezero": _TRANSLATION,
    "translation_t_fixup": _TRANSLATION,
    "translation_post_ln_sgd": _TRANSLATION,
    "translation_ours": _TRANSLATION,
    "geometry": _GEOMETRY,
    "geometry_gradients": _GEOMETRY,
    "geometry_exponents": _GEOMETRY,
    "geometry_phases": _GEOMETRY,
    "geometry_fixed_points": _GEOMETRY,
    "geometry_distributions": _GEOMETRY,
    "phases": Table("phases", closed_form=True),
    "softmax_rows": Table("softmax_rows", "softmax_rows_theory"),
    "train_lhs": _TRAINABILITY,
    "train_grid": _TRAINABILITY,
    "train_depth": _TRAINABILITY,
    "train_unit": _TRAINABILITY,
    "train_edge": Table("trainability_edge", "trainability_edge_theory", trains=True),
}


def parts(table: str) -> list[str]:
    """Names of the files of a table without their suffix: the simulation and, if any, theory."""
    return [table, f"{table}_theory"] if TABLES[table].theory else [table]


def shards(config: Config, table: str) -> int:
    """How many jobs make the simulation of a table: at most one per run of those that train."""
    runs = getattr(getattr(config.experiments, table), "n_runs", 1)
    return max(1, min(config.shards, runs))


def check_preset(name: object) -> str:
    """`name` if it is a preset, else UserError with the nearest one."""
    if name in PRESETS:
        return str(name)
    raise UserError(
        f"preset: {name!r} is not allowed; use {', '.join(PRESETS)}{nearest(str(name), PRESETS)}"
    )


def validate(record: dict[str, Any]) -> Config:
    """Check a merged configuration; UserError with one line when it does not fit."""
    config: Config = parse(Config, record)
    return config


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`: blocks are merged key by key, everything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = merge(old, value) if both else value  # type: ignore[arg-type]  # both dicts
    return merged


def load(preset: str, *extra: str | Path) -> Config:
    """Defaults, then the preset, then any further YAML files, checked.

    Raises:
        UserError: unknown preset, unreadable or malformed file, or a setting that does not fit.
    """
    folder = code_root() / "config"
    files = [folder / "config.yaml", folder / "presets" / f"{check_preset(preset)}.yaml", *extra]
    record: dict[str, Any] = {}
    for file in files:
        record = merge(record, read_yaml(file))
    return validate(record | {"preset": preset})


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A YAML file that holds one mapping; UserError with file and line when it does not."""
    try:
        record = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: not valid YAML; {getattr(error, 'problem', '')}") from error
    if record is None:
        return {}
    if not isinstance(record, dict):
        raise UserError(f"{path}: must hold `key: value` lines, not a {type(record).__name__}")
    return record


def schema_yaml() -> str:
    """The JSON schema of the whole configuration, as YAML; config/schema.yaml is this text."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema"
    } | Config.model_json_schema()
    head = "# Made by `sigprop schema > config/schema.yaml`; a test keeps it true. Do not edit.\n"
    return head + yaml.safe_dump(schema, sort_keys=False, width=100)


def scaled_down(config: Config, tables: list[str]) -> str:
    """How `tables` of `config` differ from the paper preset, in words; empty when they do not."""
    here, there = config.experiments, _paper().experiments
    places: dict[str, list[str]] = {}  # change -> the blocks in which it is made
    for table in tables:
        changes = _differences(
            getattr(here, table).model_dump(), getattr(there, table).model_dump()
        )
        for change, place in changes:
            places.setdefault(change, []).append(place)
    return ", ".join(change + _where(blocks) for change, blocks in places.items())


def _where(blocks: list[str]) -> str:
    named = list(dict.fromkeys(filter(None, blocks)))
    if not named:
        return ""
    return f" ({', '.join(named)})" if len(named) <= 2 else f" ({len(named)} blocks)"


@cache
def _paper() -> Config:
    return load("paper")


_SPEED = ("ensemble", "log_every")  # decide speed and how often is looked, not results


def _differences(
    ours: dict[str, Any], theirs: dict[str, Any], where: str = ""
) -> list[tuple[str, str]]:
    """(`key theirs → ours`, block) for every setting that differs, in inner blocks too."""
    changes = []
    for key, value in ours.items():
        if key in _SPEED:
            continue
        other = theirs[key]
        if isinstance(value, dict) and isinstance(other, dict):
            changes += _differences(value, other, "" if key == "grids" else key)
        elif value != other:
            changes.append((f"{key} {_short(other)} → {_short(value)}", where))
    return changes


def _short(value: Any) -> str:
    if isinstance(value, list):
        if len(value) > 6:
            return f"{_short(value[0])}/../{_short(value[-1])} ({len(value)} values)"
        return "/".join(_short(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)

"""The whole configuration as one checked record, and the presets. Imports no torch."""

import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import yaml
from pydantic import BeforeValidator, Field

from sigprop.artifacts.errors import UserError, nearest
from sigprop.artifacts.provenance import code_root
from sigprop.experiments.settings import PRESETS, Experiment, Preset, SettingsBlock, parse

# The folders of this room, one per kind of experiment.
KINDS = (
    "propagation",
    "gradients",
    "jacobian",
    "geometry",
    "phases",
    "softmax_rows",
    "reversal",
    "trainability",
    "translation",
)


def _kinds() -> Iterator[type[Experiment]]:
    """The classes of settings that a table may have, told apart by their `experiment`."""
    for kind in KINDS:
        module = importlib.import_module(f"sigprop.experiments.{kind}.settings")
        for found in vars(module).values():
            own = isinstance(found, type) and found.__module__ == module.__name__
            if own and "experiment" in vars(found).get("__annotations__", {}):
                yield found


EXPERIMENTS: dict[str, type[Experiment]] = {
    kind.model_fields["experiment"].annotation.__args__[0]: kind  # type: ignore[union-attr]
    for kind in _kinds()
}
if TYPE_CHECKING:
    AnyExperiment = Experiment
else:
    AnyExperiment = Annotated[
        Union[tuple(EXPERIMENTS.values())],  # noqa: UP007  # made from a tuple
        Field(discriminator="experiment"),
    ]

# `--config strict_claims=true` arrives as a word.
Switch = Annotated[bool, BeforeValidator(lambda v: v == "true" if v in ("true", "false") else v)]


class Config(SettingsBlock):
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
    experiments: dict[str, AnyExperiment] = Field(
        description="one block of settings per table, by its name"
    )


def parts(table: str, config: Config | None = None) -> list[str]:
    """Names of the files of a table without their suffix: the simulation and, if any, theory.

    Without a configuration `table` is one of config/config.yaml.
    """
    kind = type(config.experiments[table]) if config else kind_of(table)
    return [table, f"{table}_theory"] if kind.THEORY else [table]


def kind_of(table: str) -> type[Experiment]:
    """The kind of experiment that makes a table of config/config.yaml."""
    return EXPERIMENTS[defaults()["experiments"][table]["experiment"]]


def shards(config: Config, table: str) -> int:
    """How many jobs make the simulation of a table: at most one per run of those that train."""
    return max(1, min(config.shards, config.experiments[table].n_runs))


def check_preset(name: object) -> str:
    """`name` if it is a preset, else UserError with the nearest one."""
    if name in PRESETS:
        return str(name)
    raise UserError(
        f"preset: {name!r} is not allowed; use {', '.join(PRESETS)}{nearest(str(name), PRESETS)}"
    )


def validate(record: dict[str, Any]) -> Config:
    """Check a merged configuration; UserError with one line when it does not fit."""
    blocks = record.get("experiments")
    if isinstance(blocks, dict):
        checked = {str(table): settings_of(str(table), block) for table, block in blocks.items()}
        record = record | {"experiments": checked}
    config: Config = parse(Config, record)
    return config


def settings_of(table: str, record: Any) -> Experiment:
    """The settings of one table from its block; UserError with one line when it does not fit.

    A block that does not say its kind of experiment has that of the table in config/config.yaml.
    """
    where = f"experiments.{table}"
    known = defaults()["experiments"]
    if not isinstance(record, dict):
        raise UserError(f"{where}: {record!r:.80} is not allowed; give `key: value` lines")
    if "experiment" not in record:
        if table not in known:
            raise UserError(
                f"{where}: unknown table{nearest(table, known)}; "
                "a table of your own needs `experiment:` with its kind"
            )
        record = {"experiment": known[table]["experiment"]} | record
    kind = record["experiment"]
    if kind not in EXPERIMENTS:
        hint = nearest(str(kind), EXPERIMENTS)
        raise UserError(
            f"{where}.experiment: {kind!r:.80} is not allowed; use {', '.join(EXPERIMENTS)}{hint}"
        )
    settings: Experiment = parse(EXPERIMENTS[kind], record, root=where)
    return settings


@cache
def defaults() -> dict[str, Any]:
    """config/config.yaml as it stands."""
    return read_yaml(code_root() / "config" / "config.yaml")


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
        if table not in there:
            continue  # a table of the user's own
        changes = _differences(here[table].model_dump(), there[table].model_dump())
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


# Decide speed and how often is looked, not results; records follow from the schemes that are named.
_NO_SIZE = ("ensemble", "log_every", "records")


def _differences(
    ours: dict[str, Any], theirs: dict[str, Any], where: str = ""
) -> list[tuple[str, str]]:
    """(`key theirs → ours`, block) for every setting that differs, in inner blocks too."""
    changes = []
    for key, value in ours.items():
        if key in _NO_SIZE:
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

"""Schemes in settings: names of records, strengths of one's own, and the records themselves.

Settings hold the records of the schemes that they name, so a table's job, its sidecar and its
checkpoints depend on these records and on no others. Imports no torch.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from sigprop.artifacts.errors import nearest
from sigprop.experiments.settings import Experiment, Factor, SettingsBlock
from sigprop.models.schemes import SCHEMES, Scheme, Strength, placed_like, record_of, scheme_of


def _known(name: str) -> str:
    if name not in SCHEMES:
        raise ValueError(
            f"{name!r} is not allowed; use {', '.join(SCHEMES)}{nearest(name, SCHEMES)}"
        )
    return name


def _readable(records: dict[str, Any]) -> dict[str, Any]:
    for name, record in records.items():
        scheme_of(name, record)
    return records


SchemeName = Annotated[str, AfterValidator(_known)]
Records = Annotated[dict[str, Any], AfterValidator(_readable)]
OF_RECORDS = "filled from config/schemes.yaml with the records of the schemes that are named here"


class Residual(SettingsBlock):
    """A residual strength alpha = coefficient * L**(-depth_power)."""

    coefficient: float = Field(ge=0, le=100, description="alpha at depth 1 (no unit)")
    depth_power: float = Field(
        ge=0, le=4, description="power of 1/L; 0.5 is the paper's 1/sqrt(L), 0 no scaling"
    )

    def strength(self) -> Strength:
        """The same thing as the models know it."""
        return Strength(self.coefficient, self.depth_power)


def records_of(names: Iterable[str]) -> dict[str, Any]:
    """The records of these schemes, in the order of config/schemes.yaml."""
    wanted = set(names)
    return {name: record_of(scheme) for name, scheme in SCHEMES.items() if name in wanted}


def _named(data: Mapping[str, Any]) -> dict[str, Any]:
    names = [data["scheme"]] if isinstance(data["scheme"], str) else data["scheme"]
    if data["residual"]:  # then they are named after the first of their kind, see `resolved`
        names = [*names, *(placed_like(SCHEMES[name], SCHEMES).name for name in names)]
    return records_of(names)


class OfSchemes(Experiment):
    """Settings of an experiment on networks that obey schemes."""

    scheme: Any
    residual: Factor[Residual] | None = Field(
        default=None,
        description="strengths of all branches, at the start of a training; null: the scheme's own",
    )
    records: Records = Field(default_factory=_named, description=OF_RECORDS)

    @property
    def schemes(self) -> dict[str, Scheme]:
        """The schemes of `records`, by name."""
        return schemes_of(self.records)


def schemes_of(records: Mapping[str, Any]) -> dict[str, Scheme]:
    """The schemes of these records, by name."""
    return {name: scheme_of(name, record) for name, record in records.items()}


# What the theory of Cowsik et al. 2024 means by its modes.
_MODES = {
    "conv": {"norm": "pre", "he": False, "skip": "variance_preserving"},
    "renorm": {"norm": "pre", "he": False, "renorm": True},
    "unit": {"norm": "pre", "he": False},
}


def records_of_modes(modes: Iterable[str]) -> dict[str, Any]:
    """The records of modes of Cowsik et al. 2024."""
    return records_of(f"cowsik_{mode}" for mode in modes)


def _covered(records: dict[str, Any]) -> dict[str, Any]:
    for name, record in records.items():
        mode = _MODES.get(name.removeprefix("cowsik_"))
        if record != mode:
            raise ValueError(
                f"{name} in config/schemes.yaml is {record}, but the theory alongside this table "
                f"covers {mode}; put it back, or give what differs a name of its own"
            )
    return records


ModeRecords = Annotated[dict[str, Any], AfterValidator(_covered)]

"""The index of figures, config/figures.yaml, as checked records. Imports no torch."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from sigprop.artifacts.errors import nearest
from sigprop.artifacts.provenance import code_root
from sigprop.experiments.config import defaults, read_yaml
from sigprop.experiments.settings import Preset, SettingsBlock, parse


def _known_table(name: str) -> str:
    tables = defaults()["experiments"]
    if name not in tables:
        raise ValueError(f"{name!r} is not a table; use {', '.join(tables)}{nearest(name, tables)}")
    return name


class Figure(SettingsBlock):
    """One figure or table of a paper, or one of our own."""

    id: str = Field(pattern=r"^(fig|geo|ext)\d\d$|^table1$|^bleu$")
    paper: Literal["noci2022", "cowsik2024", "extensions"]
    item: str = Field(description="what the paper calls it")
    title: str
    notebook: str
    tables: list[Annotated[str, AfterValidator(_known_table)]] = Field(
        default=[], description="each brings its simulation and its theory"
    )
    extra_inputs: list[Literal["schemes"]] = Field(default=[], description="tables without theory")
    also: list[Literal["csv", "md", "tex"]] = Field(
        default=[], description="formats in which its numbers are written next to the picture"
    )
    claims: list[str] | str = Field(description="claim ids, or `none: the reason`")
    smallest_preset: Preset = Field(description="the smallest preset at which it means something")
    paper_shows: str | None = Field(
        default=None, description="what the paper's own figure shows, in our words"
    )
    differs: str | None = Field(
        default=None, description="what differs from the paper here at any preset, and why"
    )

    @model_validator(mode="after")
    def _says_what_the_paper_shows(self) -> Self:
        if self.paper != "extensions" and not self.paper_shows:
            raise ValueError(
                "paper_shows: missing; say in your own words what the paper's figure shows, or "
                "that it is not known"
            )
        return self

    @property
    def claim_ids(self) -> list[str]:
        """Ids of its claims; empty where `claims` gives a reason instead."""
        return self.claims if isinstance(self.claims, list) else []


def figures() -> list[Figure]:
    """Every entry of config/figures.yaml, in its order; UserError when one does not fit."""
    entries = read_yaml(code_root() / "config" / "figures.yaml")
    return [
        parse(Figure, {"id": name} | dict(entry or {}), root=f"figures.yaml {name}")
        for name, entry in entries.items()
    ]

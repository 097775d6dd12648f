"""What a claim is: a statement of a paper, the rule that decides it, and all words about both."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any

import pandas as pd

from sigprop.claims.rules import Part
from sigprop.experiments.index import figures

Tables = Mapping[str, pd.DataFrame]
Check = Callable[[Tables], Iterable[Part]]


@dataclass(frozen=True)
class Claim:
    """One statement of a paper and how it is decided.

    Attributes:
        check: tables -> checked numbers. ValueError when the tables lack what the rule names.
        place: where the paper makes it, or what of ours it follows from.
        rule: the decision rule in words; written before any result was looked at.
        statistic: what is measured, with which interval.
        why: why the rule asks what it asks.
        tables: names of the tables it reads (each with its theory).
        if_not: what is known where it did not reproduce, or was not decided, in the settings of
            the laptop preset; shown with such a verdict, and decides nothing.
        smallest_preset: below it the sizes are too small to mean anything: `not run`.
        settings: column -> value that the rule is written for; other settings are `not run`.
    """

    id: str
    check: Check
    place: str
    statement: str
    rule: str
    statistic: str
    why: str
    tables: tuple[str, ...]
    if_not: str = ""
    smallest_preset: str = "laptop"
    settings: Mapping[str, float] = field(default_factory=dict)

    @property
    def figures(self) -> tuple[str, ...]:
        """Ids of the figures that name it in the index."""
        return tuple(figure for figure, claims in _index() if self.id in claims)

    @property
    def paper(self) -> str:
        """The paper by the name that the index of figures gives it."""
        return {"N": "noci2022", "C": "cowsik2024"}[self.id[0]]


def claim(name: str, **words: Any) -> Callable[[Check], Claim]:
    """Make the function below, its check, the claim `name` with these fields of `Claim`.

    Texts may be broken into lines anywhere between words.
    """
    said = {key: " ".join(w.split()) for key, w in words.items() if isinstance(w, str)}
    return lambda check: Claim(name, check, **words | said)


def claims_of(module: ModuleType) -> list[Claim]:
    """The claims of a module, in its order."""
    return [found for found in vars(module).values() if isinstance(found, Claim)]


@cache
def _index() -> list[tuple[str, list[str]]]:
    """(figure, its claims) of every figure."""
    return [(figure.id, figure.claim_ids) for figure in figures()]

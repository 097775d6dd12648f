"""What a claim is: a statement of a paper, and the rule that decides it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pandas as pd

from sigprop.claims.reasons import REASONS, Reason
from sigprop.claims.rules import Part

Tables = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Claim:
    """One statement of a paper and how it is decided; `reason` says why in this way.

    Attributes:
        place: where the paper makes it, or what of ours it follows from.
        rule: the decision rule in words; written before any result was looked at.
        tables: names of the tables it reads (each with its theory).
        figures: ids it belongs to.
        smallest_preset: below it the sizes are too small to mean anything: `not run`.
        check: tables -> checked numbers. ValueError when the tables lack what the rule names.
        settings: column -> value that the rule is written for; other settings are `not run`.
    """

    id: str
    place: str
    statement: str
    rule: str
    tables: tuple[str, ...]
    figures: tuple[str, ...]
    smallest_preset: str
    check: Callable[[Tables], list[Part]]
    settings: Mapping[str, float] = field(default_factory=dict)

    @property
    def paper(self) -> str:
        """The paper by the name that the index of figures gives it."""
        return {"N": "noci2022", "C": "cowsik2024"}[self.id[0]]

    @property
    def reason(self) -> Reason:
        """Its statistic, and why the rule asks what it asks."""
        return REASONS[self.id]

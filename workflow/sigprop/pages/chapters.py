"""Which chapter of which paper a claim belongs to, and how many verdicts each chapter has."""

import re
import sys
from collections.abc import Iterable
from typing import Any

from sigprop.claims.ledger import all_claims
from sigprop.pages.results import VERDICTS

_HEADING = re.compile(r"Claims of (?P<paper>.+?)(?: \(.*?\))? on (?P<topic>.+?)\.?$")
OTHER = "Other claims"


def chapters() -> dict[str, str]:
    """Claim id -> chapter, `Noci et al. 2022: the gradients of one attention layer`.

    From the claim's own module, whose first line reads "Claims of <paper> (<number>) on <topic>.".
    """
    named = {}
    for claim in all_claims().values():
        lines = (sys.modules[claim.check.__module__].__doc__ or "").splitlines()
        found = _HEADING.match(lines[0]) if lines else None
        named[claim.id] = f"{found['paper']}: {found['topic']}" if found else OTHER
    return named


def count(records: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Verdict -> how many of `records` have it, every verdict included."""
    verdicts = [record["verdict"] for record in records]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS}


def by_chapter(records: Iterable[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Chapter -> counts by verdict, chapters in the order of their first claim."""
    known = chapters()
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda record: str(record["id"])):
        groups.setdefault(known.get(record["id"], OTHER), []).append(record)
    return {name: count(group) for name, group in groups.items()}

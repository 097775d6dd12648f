"""Which chapter of which paper a claim belongs to, and how many verdicts each chapter has."""

import re
import sys
from collections.abc import Iterable
from typing import Any

from sigprop.claims.claim import Claim
from sigprop.claims.ledger import all_claims
from sigprop.pages.results import VERDICTS

_HEADING = re.compile(r"Claims of (?P<paper>.+?)(?: \(.*?\))? on (?P<topic>.+?)\.?$")
OTHER = "Other claims"


def chapter_of(claim: Claim) -> str:
    """`Noci et al. 2022: the gradients of one attention layer`, from the claim's own module.

    The first line of a claims module reads "Claims of <paper> (<number>) on <topic>.".
    """
    module = sys.modules.get(getattr(claim.check, "__module__", ""))
    lines = (getattr(module, "__doc__", None) or "").strip().splitlines()
    found = _HEADING.match(lines[0]) if lines else None
    if found is None:
        return OTHER
    return f"{found['paper']}: {found['topic']}"


def chapters() -> dict[str, str]:
    """Claim id -> chapter, for every claim of the ledger."""
    return {claim.id: chapter_of(claim) for claim in all_claims().values()}


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

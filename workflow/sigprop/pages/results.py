"""What a results folder holds, read as far as it is there: a page shows what exists."""

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sigprop.claims.ledger import all_claims, read_verdicts
from sigprop.experiments.config import defaults, parts
from sigprop.experiments.index import Figure

VERDICTS = ("reproduced", "not reproduced", "inconclusive", "not run")

# The record of a claim that the index of figures names and the ledger lacks.
NOT_RUN: dict[str, Any] = {
    "id": "",
    "statement": "This claim is named by the index of figures only.",
    "place": "",
    "statistic": "",
    "rule": "none yet",
    "why": "",
    "explanation": "",
    "seeds": [],
    "tables": [],
    "figures": [],
    "smallest_preset": "laptop",
    "verdict": "not run",
    "reason": "its chapter is not part of this version",
    "parts": [],
}


@dataclass(frozen=True)
class Measured:
    """What one run of a rule took: wall seconds and largest resident memory in MiB."""

    seconds: float
    memory_mib: float | None


@dataclass(frozen=True)
class Results:
    """One preset's folder, `results/<preset>` or a copy of it."""

    root: Path
    preset: str

    def picture(self, figure: Figure, suffix: str) -> Path:
        """`figures/<id>.<suffix>`, whether or not it is there."""
        return self.root / "figures" / f"{figure.id}.{suffix}"

    def notebook(self, figure: Figure, suffix: str) -> Path:
        """`notebooks/<id>.<suffix>`, whether or not it is there."""
        return self.root / "notebooks" / f"{figure.id}.{suffix}"

    def missing(self, figure: Figure) -> list[str]:
        """Outputs of a figure's rule that are not there, relative to the folder."""
        wanted = [self.picture(figure, suffix) for suffix in ("pdf", "png", "json", *figure.also)]
        wanted += [self.notebook(figure, suffix) for suffix in ("ipynb", "html")]
        return [str(path.relative_to(self.root)) for path in wanted if not path.is_file()]

    def figure_sidecar(self, figure: Figure) -> dict[str, Any]:
        """The figure's provenance record; empty when there is none."""
        return _json(self.picture(figure, "json"))

    def table_sidecar(self, part: str) -> dict[str, Any]:
        """The record of `data/<part>.parquet`; empty when there is none."""
        return _json(self.root / "data" / f"{part}.json")

    def benchmark(self, rule: str) -> Measured | None:
        """What the last run of a rule took; None where it was not measured, or is damaged."""
        path = self.root / "benchmarks" / f"{rule}.tsv"
        try:
            with path.open(encoding="utf-8", newline="") as stream:
                *_, last = csv.DictReader(stream, delimiter="\t")
            # Jobs shorter than the sampling interval have no memory.
            memory = None if last["max_rss"] in ("NA", "-") else float(last["max_rss"])
            return Measured(float(last["s"]), memory)
        except (OSError, LookupError, ValueError):
            return None

    def benchmarks(self) -> dict[str, Measured]:
        """Every measured rule by name."""
        rules = sorted(path.stem for path in (self.root / "benchmarks").glob("*.tsv"))
        return {rule: seen for rule in rules if (seen := self.benchmark(rule))}

    def claims(self) -> dict[str, dict[str, Any]]:
        """Records of claims.json and of the rest of the ledger by id; the rest is `not run`."""
        path = self.root / "claims" / "claims.json"
        written, reason = (
            [],
            f"no verdicts of the {self.preset} preset; `snakemake claims` makes them",
        )
        if path.is_file():
            written = read_verdicts(path)
            reason = "not in this record of verdicts; `snakemake claims` brings it up to date"
        records = {
            claim.id: NOT_RUN | vars(claim) | {"figures": claim.figures, "reason": reason}
            for claim in all_claims().values()
        }
        for record in written:  # those of older versions lack some of the words
            records[record["id"]] = NOT_RUN | records.get(record["id"], {}) | record
        return {name: self._current(records[name]) for name in sorted(records)}

    def _current(self, record: dict[str, Any]) -> dict[str, Any]:
        """`record`, without its verdict where a table of it was made again since."""
        digests = {
            part: self.table_sidecar(part).get("sha256", digest)
            for part, digest in record.get("inputs", {}).items()
        }
        if digests == record.get("inputs", {}):
            return record
        reason = "out of date: make it again with `snakemake claims`"
        return record | {"verdict": "not run", "reason": reason, "explanation": "", "parts": []}


def _json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def table_rules(tables: Iterable[str]) -> list[str]:
    """Names of the rules that make these tables: simulations, and theories where they exist."""
    kinds = ("simulate", "theory")
    return [
        f"{kind}_{table}" for table in tables for kind, _ in zip(kinds, parts(table), strict=False)
    ]


def table_of(rule: str) -> str | None:
    """The table that `simulate_<table>` or `theory_<table>` makes; None for other rules."""
    kind, _, table = rule.partition("_")
    known = kind in ("simulate", "theory") and table in defaults()["experiments"]
    return table if known else None

"""What a results folder holds, read as far as it is there: a page shows what exists."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sigprop.claims.ledger import all_claims, read_verdicts
from sigprop.experiments.config import defaults, parts
from sigprop.experiments.index import Figure

VERDICTS = ("reproduced", "not reproduced", "inconclusive", "not run")


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
        """What the last run of a rule took; None where it was not measured."""
        return read_benchmark(self.root / "benchmarks" / f"{rule}.tsv")

    def benchmarks(self) -> dict[str, Measured]:
        """Every measured rule by name."""
        found = {}
        for path in sorted((self.root / "benchmarks").glob("*.tsv")):
            measured = read_benchmark(path)
            if measured is not None:
                found[path.stem] = measured
        return found

    def claims(self) -> list[dict[str, Any]]:
        """Every claim of the ledger as a record of claims.json; `not run` where that has none."""
        path = self.root / "claims" / "claims.json"
        reason = f"no verdicts of the {self.preset} preset; `snakemake claims` makes them"
        written: dict[str, dict[str, Any]] = {}
        if path.is_file():
            # Records of older versions lack some of the words.
            words = {"statistic": "", "why": "", "explanation": "", "seeds": []}
            written = {record["id"]: words | record for record in read_verdicts(path)}
            reason = "not in this record of verdicts; `snakemake claims` brings it up to date"
        records = dict(written)
        for claim in all_claims().values():
            if claim.id not in records:
                records[claim.id] = {
                    "id": claim.id,
                    "statement": claim.statement,
                    "place": claim.place,
                    "statistic": claim.reason.statistic,
                    "rule": claim.rule,
                    "why": claim.reason.why,
                    "explanation": "",
                    "seeds": [],
                    "tables": list(claim.tables),
                    "figures": list(claim.figures),
                    "smallest_preset": claim.smallest_preset,
                    "verdict": "not run",
                    "reason": reason,
                    "parts": [],
                }
        return [self._current(records[name]) for name in sorted(records)]

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


def read_benchmark(path: Path) -> Measured | None:
    """A rule's benchmark file; None when absent or damaged. The last repetition counts."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t"))
        memory = rows[-1]["max_rss"]
        # Jobs shorter than the sampling interval have no memory.
        return Measured(float(rows[-1]["s"]), None if memory in ("NA", "-") else float(memory))
    except (OSError, LookupError, ValueError):
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def table_rules(tables: list[str]) -> list[str]:
    """Names of the rules that make these tables: simulations, and theories where they exist."""
    rules = []
    for table in tables:
        rules.append(f"simulate_{table}")
        if len(parts(table)) == 2:
            rules.append(f"theory_{table}")
    return rules


def table_of(rule: str) -> str | None:
    """The table that `simulate_<table>` or `theory_<table>` makes; None for other rules."""
    for kind in ("simulate_", "theory_"):
        if rule.startswith(kind) and rule.removeprefix(kind) in defaults()["experiments"]:
            return rule.removeprefix(kind)
    return None

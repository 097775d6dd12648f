"""The ledger: every claim with its rule, and the verdicts that the tables of a preset give."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sigprop.analysis.files import markdown as markdown_table
from sigprop.artifacts.errors import UserError, nearest
from sigprop.artifacts.files import sha256, write_json, write_text
from sigprop.artifacts.tables import read_sidecar, read_table
from sigprop.claims.claim import Claim, Tables, claims_of
from sigprop.claims.cowsik2024 import geometry, phases, trainability
from sigprop.claims.explain import distance
from sigprop.claims.noci2022 import depth, forward, gradients, training, translation
from sigprop.claims.rules import Part, Verdict, together
from sigprop.experiments.config import parts
from sigprop.experiments.settings import PRESETS

CHAPTERS = (forward, gradients, depth, training, translation, geometry, phases, trainability)


@dataclass(frozen=True)
class Record:
    """A claim's verdict on one preset."""

    claim: Claim
    verdict: Verdict
    parts: list[Part]
    reason: str


def all_claims() -> dict[str, Claim]:
    """Every claim by id."""
    claims = [claim for chapter in CHAPTERS for claim in claims_of(chapter)]
    claims.sort(key=lambda claim: (claim.id[0] != "N", claim.id))
    return {claim.id: claim for claim in claims}


def evaluate(claim: Claim, tables: Tables, preset: str) -> Record:
    """Apply a claim's rule to the tables of a preset."""
    if PRESETS.index(preset) < PRESETS.index(claim.smallest_preset):
        reason = f"needs the {claim.smallest_preset} preset; {preset} is too small to decide"
        return Record(claim, "not run", [], reason)
    for table in claim.tables:
        for column, wanted in claim.settings.items():
            found = sorted(set(tables[table][column]))
            if found != [wanted]:
                shown = ", ".join(f"{value:g}" for value in found)
                reason = f"its rule asks for {column} = {wanted:g}; {table} has {shown}"
                return Record(claim, "not run", [], reason)
    try:
        checked = list(claim.check(tables))
    except ValueError as error:
        # Settings of the user's own may leave out a case that the rule reads.
        return Record(claim, "not run", [], f"the tables lack what the rule reads ({error})")
    reason = "" if checked else "no case of the tables meets the rule's condition"
    return Record(claim, together(checked), checked, reason)


def load_tables(names: Iterable[str], data: str) -> dict[str, pd.DataFrame]:
    """Simulation and theory of each table as one frame; UserError when one cannot be read."""
    return {
        name: pd.concat(
            [read_table(f"{data}/{part}.parquet") for part in parts(name)], ignore_index=True
        )
        for name in names
    }


def command(
    ids: list[str],
    *,
    evaluate: bool,
    data: str,
    preset: str,
    output: str | None,
    strict: bool,
    brief: bool = False,
    explain: bool = False,
) -> None:
    """What `sigprop claims` does: list rules, or evaluate and print, write or explain verdicts.

    Args:
        brief: one line a claim.
        explain: also how far each number is from another verdict.
        strict: evaluates too; a claim that is not reproduced is an error, after all is written.

    Raises:
        UserError: unknown claim or preset, missing table, or, with `strict`, a claim that was
            not reproduced.
    """
    known = all_claims()
    for name in ids:
        if name not in known:
            raise UserError(f"claim: {name!r} is not known{nearest(name, known)}")
    if preset not in PRESETS:
        raise UserError(
            f"preset: {preset!r} is not allowed; use {', '.join(PRESETS)}{nearest(preset, PRESETS)}"
        )
    claims = [known[name] for name in ids or known]
    if not (evaluate or explain or strict or output):
        _print(("\n" if brief else "\n\n").join(map(_line if brief else _rule_text, claims)))
        return
    names = sorted({table for claim in claims for table in claim.tables})
    tables = load_tables(names, data)
    records = [_evaluate(claim, tables, preset) for claim in claims]
    if output is not None:
        made_from = {part: _input(f"{data}/{part}.parquet") for n in names for part in parts(n)}
        write_text(Path(output).with_suffix(".md"), markdown(records, preset) + "\n")
        write_json(output, [_as_json(record, preset, made_from) for record in records])
    elif explain:
        _print("\n\n".join(_explained(record, preset) for record in records))
    elif brief:
        _print("\n".join(f"{_line(record.claim)}: {record.verdict}" for record in records))
    else:
        _print(markdown(records, preset))
    failed = [record.claim.id for record in records if record.verdict == "not reproduced"]
    if strict and failed:
        raise UserError(f"claims not reproduced: {', '.join(failed)}")


_evaluate = evaluate  # `command` has an option of the same name


def _print(text: str) -> None:
    import sys

    sys.stdout.write(text + "\n")


def _line(claim: Claim) -> str:
    return f"{claim.id}  {', '.join(claim.figures):14}  {claim.statement}"


def _rule_text(claim: Claim) -> str:
    return (
        f"{claim.id}  {claim.statement}\n"
        f"     where:     {claim.place}; {', '.join(claim.figures)}\n"
        f"     statistic: {claim.statistic}\n"
        f"     rule:      {claim.rule}\n"
        f"     because:   {claim.why}\n"
        f"     needs:     {claim.smallest_preset} preset or above; tables {', '.join(claim.tables)}"
    )


def _explained(record: Record, preset: str) -> str:
    """A claim, its verdict, and for each number what would have to change for another one."""
    claim = record.claim
    lines = [_rule_text(claim), "", f"{preset} preset: {record.verdict}"]
    if record.reason:
        lines.append(f"     {record.reason}")
    for part in record.parts:
        shown = f"{part.value:.4g}"
        if part.low != part.high:
            shown += f" ({part.low:.4g} to {part.high:.4g})"
        asked = "" if part.verdict == "reported" else f"; asked {part.asked}"
        lines += [f"  {part.what}", f"     {shown}, n = {part.n}{asked}: {part.verdict}"]
        if words := distance(part):
            lines.append(f"     {words}")
    if explanation(record):
        lines.append(f"known about it: {explanation(record)}")
    lines += [
        "One number that is not reproduced decides the claim, one that is inconclusive leaves it "
        "open.",
        f"To try other settings: `experiments: {claim.tables[0]}:` in a file of your own, then "
        "`snakemake claims --configfile` with it.",
    ]
    return "\n".join(lines)


def explanation(record: Record) -> str:
    """What is known about a claim that is not reproduced or undecided; empty for others."""
    open_or_not = record.verdict in ("not reproduced", "inconclusive")
    return record.claim.if_not if open_or_not else ""


def _input(path: str) -> dict[str, Any]:
    """Digest of a table and the root seed that its sidecar names; null when it names none."""
    return {"sha256": sha256(path), "seed": read_sidecar(path).get("seed")}


def _as_json(
    record: Record, preset: str, made_from: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    claim = asdict(record.claim)
    del claim["check"], claim["if_not"]
    checked = [{key: _plain(value) for key, value in asdict(p).items()} for p in record.parts]
    inputs = {p: made_from[p] for name in record.claim.tables for p in parts(name)}
    return claim | {
        "paper": record.claim.paper,
        "figures": record.claim.figures,
        "preset": preset,
        "verdict": record.verdict,
        "reason": record.reason,
        "explanation": explanation(record),
        "parts": checked,
        "inputs": {part: made["sha256"] for part, made in inputs.items()},
        "seeds": sorted({made["seed"] for made in inputs.values() if made["seed"] is not None}),
    }


def _plain(value: Any) -> Any:
    """`value` as JSON knows it: no numpy scalars, null for what is not a number."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def markdown(records: list[Record], preset: str) -> str:
    """The ledger as a readable page."""
    counts = ", ".join(
        f"{sum(record.verdict == verdict for record in records)} {verdict}"
        for verdict in ("reproduced", "not reproduced", "inconclusive", "not run")
    )
    lines = [
        f"# Claims, {preset} preset",
        "",
        f"{counts}. Intervals are 95 %. Every rule was fixed before results were looked at.",
    ]
    for record in records:
        claim = record.claim
        lines += [
            "",
            f"## {claim.id}: {record.verdict}",
            "",
            f"{claim.statement} ({claim.place}; {', '.join(claim.figures)})",
            "",
            f"Statistic: {claim.statistic}.",
            "",
            f"Rule: {claim.rule}",
            "",
            f"Because: {claim.why}",
            "",
        ]
        if explanation(record):
            lines += [f"Known about it: {explanation(record)}", ""]
        if record.reason:
            lines += [f"Not run: {record.reason}."]
        else:
            heads = ["what", "value", "95 % interval", "asked", "n", "verdict"]
            rows = [
                (p.what, f"{p.value:.4g}", f"{p.low:.4g} to {p.high:.4g}", p.asked, p.n, p.verdict)
                for p in record.parts
            ]
            lines.append(markdown_table(pd.DataFrame(rows, columns=heads)))
    return "\n".join(lines)


def read_verdicts(path: str | Path) -> list[dict[str, Any]]:
    """The records of a written claims.json; UserError when absent or damaged."""
    try:
        records: list[dict[str, Any]] = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: unreadable; rebuild it with `snakemake claims`") from error
    return records

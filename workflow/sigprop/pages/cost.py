"""Time and memory of a target before it is run, from what was measured at other sizes.

A job that was measured at the same settings keeps its measurement. Otherwise it is scaled from the
largest measured run of the same rule: above the start-up, processor time grows with the number of
operations and memory with the numbers held, as `work` counts them from the settings. Where nothing
was measured, or nothing says how the work grows, the answer is `unknown`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sigprop.artifacts.errors import UserError, nearest
from sigprop.claims.ledger import all_claims
from sigprop.experiments.config import Config, defaults, kind_of, settings_of
from sigprop.experiments.index import Figure
from sigprop.pages.results import Results, table_of, table_rules
from sigprop.pages.work import METHOD, Work, work

__all__ = ["METHOD", "Estimate", "Predictor", "Total", "Work", "jobs_of", "total", "work"]


@dataclass(frozen=True)
class Estimate:
    """Seconds (from, to) and MiB of one job, and where they come from; None where unknown."""

    rule: str
    low: float | None
    high: float | None
    memory_mib: float | None
    basis: str


@dataclass(frozen=True)
class Check:
    """How the scaling did where a rule was measured at two presets: larger over smaller factor."""

    compared: int
    median: float | None
    worst: float | None


@dataclass(frozen=True)
class _Run:
    """One measured run: preset, settings of its tables, seconds of wall and processor, memory."""

    preset: str
    settings: dict[str, Any]
    wall: float
    cpu: float
    memory: float | None


class Predictor:
    """Predictions from the measured runs of the presets at hand."""

    def __init__(self, measured: Iterable[Results], figures: Iterable[Figure]) -> None:
        self._figures = {figure.id: figure for figure in figures}
        self._runs: dict[str, list[_Run]] = {}
        for results in measured:
            for rule, seen in results.benchmarks().items():
                self._remember(results, rule, seen.seconds, seen.memory_mib)
        self.check = self._check()

    def _remember(self, results: Results, rule: str, wall: float, memory: float | None) -> None:
        settings: dict[str, Any] = {}
        for table in self._tables(rule):
            block = results.table_sidecar(table).get("settings")
            if block is None:
                return
            settings[table] = _parsed(table, block)
        cpu = wall
        made = table_of(rule)
        if made is not None:
            part = made if rule.startswith("simulate_") else f"{made}_theory"
            record = results.table_sidecar(part)
            if record.get("device", "cpu") == "cpu":
                cpu = min(wall, record.get("provenance", {}).get("cpu_s", wall))
        self._runs.setdefault(rule, []).append(_Run(results.preset, settings, wall, cpu, memory))

    def _tables(self, rule: str) -> list[str]:
        """Tables whose size decides what a rule takes."""
        table = table_of(rule)
        if table is not None:
            return [table]
        if rule in self._figures:
            return self._figures[rule].tables
        if rule == "claims":
            return sorted({t for claim in all_claims().values() for t in claim.tables})
        return []

    def estimate(self, rule: str, config: Config) -> Estimate:
        """What the job of `rule` takes with the settings of `config`."""
        wanted = {t: config.experiments[t] for t in self._tables(rule)}
        runs = self._readable(rule)
        same = [run for run in runs if run.settings == wanted]
        if same:
            run = max(same, key=lambda run: run.preset == config.preset)
            return Estimate(rule, run.wall, run.wall, run.memory, f"measured, {run.preset}")
        size, source = _size(rule, wanted), rule
        found = self._largest(rule)
        if found is None:
            # A method that was left out where the others were measured: one of those will do.
            others = {name: self._largest(name) for name in self._alike(rule)}
            source, found = max(
                ((name, other) for name, other in others.items() if other is not None),
                key=lambda pair: pair[1][0].operations,
                default=(rule, None),
            )
        if found is None and not runs:
            return Estimate(rule, None, None, None, "unknown: no measurement")
        if size is None or found is None:
            return Estimate(rule, None, None, None, "unknown: nothing says how its work grows")
        reference, run = found
        seconds = self._scaled(rule, run, size, reference)
        load = run.wall / run.cpu
        # That of the same experiment where it was checked, else of all.
        factor = self._worst.get(_experiment(rule), self.check.worst or 1.0)
        low, high = seconds / factor, seconds * load * factor
        if table_of(rule) is None:
            # Drawing is mostly the same at every size; proportional to rows is the other extreme.
            low, high = sorted((run.wall, seconds))
        memory = None
        if run.memory is not None:
            base = min(run.memory, self._floor(rule, "memory"))
            memory = base + (run.memory - base) * max(1.0, size.numbers / reference.numbers)
        ratio = size.operations / reference.operations
        unit = "operations" if rule.startswith("simulate_") else "rows"
        whose = "its" if source == rule else f"{source}'s"
        basis = f"scaled from {run.preset}: {ratio:.3g} times {whose} {unit}"
        if table_of(rule) is None:
            basis = f"between that of {run.preset} and {ratio:.3g} times its rows"
        return Estimate(rule, low, high, memory, basis)

    def _readable(self, rule: str) -> list[_Run]:
        """Measured runs whose settings this version can read."""
        return [run for run in self._runs.get(rule, []) if None not in run.settings.values()]

    def _largest(self, rule: str) -> tuple[Work, _Run] | None:
        """The measured run of a rule with the most operations, if any did something."""
        sized = [(s, run) for run in self._readable(rule) if (s := _size(rule, run.settings))]
        sized = [pair for pair in sized if pair[0].operations > 0]
        return max(sized, key=lambda pair: pair[0].operations, default=None)

    def _alike(self, rule: str) -> list[str]:
        """Other measured rules that run the same experiment."""
        table = table_of(rule)
        if table is None:
            return []
        kind = rule.removesuffix(table)
        return [
            name
            for name in self._runs
            if (other := table_of(name)) is not None
            and name == kind + other
            and kind_of(other) is kind_of(table)
        ]

    def _scaled(self, rule: str, run: _Run, size: Work, reference: Work) -> float:
        start = min(run.cpu, self._floor(rule, "cpu"))
        return start + (run.cpu - start) * size.operations / reference.operations

    def _floor(self, rule: str, what: str) -> float:
        """The least that any measured job of the same kind took: its start-up."""
        kind = rule.split("_")[0] if table_of(rule) else "figure"
        values = [
            getattr(run, what)
            for name, runs in self._runs.items()
            if (name.split("_")[0] if table_of(name) else "figure") == kind
            for run in runs
            if getattr(run, what) is not None
        ]
        return float(min(values, default=0.0))

    def _check(self) -> Check:
        """Scale each simulation between two measured presets and compare with its measurement."""
        factors: list[float] = []
        self._worst: dict[str, float] = {}  # by experiment
        for rule, runs in self._runs.items():
            if not rule.startswith("simulate_"):
                continue
            sized = [(s, run) for run in runs if (s := _size(rule, run.settings))]
            sized.sort(key=lambda pair: pair[0].operations)
            for (small, from_run), (large, to_run) in pairwise(sized):
                if 0 < small.operations < large.operations:
                    # Downwards, as the larger run says more about the cost of an operation.
                    got = self._scaled(rule, to_run, small, large)
                    factor = max(got / from_run.cpu, from_run.cpu / got)
                    factors.append(factor)
                    experiment = _experiment(rule)
                    self._worst[experiment] = max(factor, self._worst.get(experiment, 1.0))
        factors.sort()
        if not factors:
            return Check(0, None, None)
        return Check(len(factors), factors[len(factors) // 2], factors[-1])


def _experiment(rule: str) -> str:
    """Name of the experiment that makes the table of a rule; empty for other rules."""
    table = table_of(rule)
    return kind_of(table).__name__ if table else ""


def _parsed(table: str, block: dict[str, Any]) -> Any:
    """Settings as a sidecar holds them; None where they no longer fit."""
    try:
        return settings_of(table, block)
    except UserError:
        return None


def _size(rule: str, settings: dict[str, Any]) -> Work | None:
    """Work of the tables of a rule together; theory, drawing and claims go by rows."""
    if not settings:
        return Work(1.0, 1.0, 1.0)
    sizes = [work(block) for block in settings.values()]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    rows = sum(size.rows for size in known)
    operations = sum(size.operations for size in known) if rule.startswith("simulate_") else rows
    return Work(operations, sum(size.numbers for size in known), rows)


def jobs_of(target: str, figures: Iterable[Figure]) -> list[str]:
    """Rules that a target runs in a folder where nothing was built; UserError for no target."""
    by_id = {figure.id: figure for figure in figures}
    alias = {figure.alias: figure.id for figure in by_id.values() if figure.alias}
    target = alias.get(target, target)
    if target in by_id:
        return [*table_rules(by_id[target].tables), target]
    groups = {paper: [f for f in by_id.values() if f.paper == paper] for paper in _PAPERS}
    groups |= {"figures": list(by_id.values()), "all": list(by_id.values())}
    if target in groups:
        tables = list(dict.fromkeys(t for figure in groups[target] for t in figure.tables))
        rules = [*table_rules(tables), *(figure.id for figure in groups[target])]
        if target != "all":
            return rules
        return list(dict.fromkeys([*rules, *jobs_of("claims", by_id.values()), "pages"]))
    if target == "claims":
        tables = sorted({t for claim in all_claims().values() for t in claim.tables})
        return [*table_rules(tables), "claims"]
    if target == "pages":
        return jobs_of("all", by_id.values())
    made, tables = table_of(target) or target, defaults()["experiments"]
    if made in tables:
        return table_rules([made])[: 1 if target.startswith("simulate_") else None]
    known = [*by_id, *alias, *groups, "claims", "pages", *tables]
    raise UserError(
        f"target: {target!r} is not known{nearest(target, known)}; use a figure, a table, claims, "
        f"{', '.join(groups)}"
    )


_PAPERS = ("noci2022", "cowsik2024", "extensions")


@dataclass(frozen=True)
class Total:
    """A target's jobs one after another: seconds (from, to), largest memory, rules unknown."""

    low: float
    high: float
    memory_mib: float | None
    unknown: list[str]


def total(estimates: Iterable[Estimate]) -> Total:
    """Sum of times and largest memory of what is known, with the names of what is not."""
    known = [e for e in estimates if e.low is not None and e.high is not None]
    memory = [e.memory_mib for e in known if e.memory_mib is not None]
    return Total(
        sum(e.low or 0.0 for e in known),
        sum(e.high or 0.0 for e in known),
        max(memory, default=None),
        [e.rule for e in estimates if e.low is None],
    )


def seconds(value: float) -> str:
    """`0.4 s`, `52 s`, `3 min`, `2.1 h`, `3.5 d`: no more digits than a cost deserves."""
    unit = next(
        (u for u, limit in (("s", 90), ("min", 90), ("h", 48)) if value < _UNITS[u] * limit), "d"
    )
    return f"{_digits(value / _UNITS[unit])} {unit}"


_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def _digits(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def span(low: float | None, high: float | None) -> str:
    """`12 s`, or `2 to 9 min`, or `unknown`."""
    if low is None or high is None:
        return "unknown"
    first, last = seconds(low), seconds(high)
    if first == last:
        return first
    unit = last.split()[1]
    if first.split()[1] == unit or low >= _UNITS[unit]:
        first = _digits(low / _UNITS[unit])  # one unit for both, where both fill it
    return f"{first} to {last}"


def mebibytes(value: float | None) -> str:
    """`480 MiB`, `2.1 GiB`, or `unknown`."""
    if value is None:
        return "unknown"
    return f"{value:.0f} MiB" if value < 1000 else f"{value / 1024:.1f} GiB"


def reliability(check: Check) -> str:
    """One sentence on how far the scaling may be off."""
    if check.worst is None or check.median is None:
        return "No table was measured at two presets, so the scaling is unchecked."
    return (
        f"Where a simulation was measured at two presets ({check.compared}), scaling the larger "
        f"run down to the smaller was off by a factor of {check.median:.2g} (median) and "
        f"{check.worst:.2g} at worst. Ranges span the worst factor of the same experiment and how "
        "busy the machine was when it was measured. Scaling up is less sure than scaling down."
    )

"""Time and memory of a target before it is run, from what was measured at other sizes.

A job that was measured at the same settings keeps its measurement. Otherwise it is scaled from the
largest measured run of the same rule: above the start-up, processor time grows with the number of
operations and memory with the numbers held, as `work` counts them from the settings. Where nothing
was measured, or nothing says how the work grows, the answer is `unknown`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import median_high
from typing import Any

from sigprop.artifacts.errors import UserError, nearest
from sigprop.claims.ledger import all_claims
from sigprop.experiments.config import Config, defaults, kind_of, settings_of
from sigprop.experiments.index import Figure
from sigprop.pages.papers import PAPERS
from sigprop.pages.results import Measured, Results, table_of, table_rules
from sigprop.pages.work import Work, work


@dataclass(frozen=True)
class Estimate:
    """Seconds (from, to) and MiB of one job, and where they come from; None where unknown."""

    rule: str
    low: float | None
    high: float | None
    memory_mib: float | None
    basis: str


@dataclass(frozen=True)
class _Run:
    """One measured run: preset, settings of its tables, seconds of wall and processor, memory."""

    preset: str
    settings: dict[str, Any]
    wall: float
    cpu: float
    memory: float | None


class Predictor:
    """Predictions from the measured runs of the presets at hand.

    Attributes:
        factors: experiment -> how far, larger over smaller, scaling between two presets at which
            one of its simulations was measured was off.
    """

    def __init__(self, measured: Iterable[Results], figures: Iterable[Figure]) -> None:
        self._tables = {figure.id: figure.tables for figure in figures} | {"claims": _claimed()}
        self._runs: dict[str, list[_Run]] = {}
        for results in measured:
            for rule, seen in results.benchmarks().items():
                self._remember(results, rule, seen)
        self.factors: dict[str, list[float]] = {}
        self._check()

    def _remember(self, results: Results, rule: str, seen: Measured) -> None:
        blocks = {t: results.table_sidecar(t).get("settings") for t in self._tables_of(rule)}
        if None in blocks.values():
            return
        settings = {table: _parsed(table, block) for table, block in blocks.items()}
        cpu = seen.seconds
        made = table_of(rule)
        if made is not None:
            record = results.table_sidecar(made if _simulates(rule) else f"{made}_theory")
            if record.get("device", "cpu") == "cpu":
                cpu = min(cpu, record.get("provenance", {}).get("cpu_s", cpu))
        run = _Run(results.preset, settings, seen.seconds, cpu, seen.memory_mib)
        self._runs.setdefault(rule, []).append(run)

    def _tables_of(self, rule: str) -> list[str]:
        """Tables whose size decides what a rule takes."""
        table = table_of(rule)
        return self._tables.get(rule, []) if table is None else [table]

    def estimate(self, rule: str, config: Config) -> Estimate:
        """What the job of `rule` takes with the settings of `config`."""
        wanted = {t: config.experiments[t] for t in self._tables_of(rule)}
        runs = self._readable(rule)
        same = [run for run in runs if run.settings == wanted]
        if same:
            run = max(same, key=lambda run: run.preset == config.preset)
            return Estimate(rule, run.wall, run.wall, run.memory, f"measured, {run.preset}")
        # Where a method was left out and others were measured, one of those will do.
        largest = {name: self._largest(name) for name in (rule, *self._alike(rule))}
        found = {name: sized for name, sized in largest.items() if sized is not None}
        if not found and not runs:
            return Estimate(rule, None, None, None, "unknown: no measurement")
        size = _size(rule, wanted)
        if size is None or not found:
            return Estimate(rule, None, None, None, "unknown: nothing says how its work grows")
        source = rule if rule in found else max(found, key=lambda n: found[n][0].operations)
        reference, run = found[source]
        seconds = self._scaled(rule, run, size, reference)
        ratio = size.operations / reference.operations
        if table_of(rule) is None:
            # Drawing is mostly the same at every size; proportional to rows is the other extreme.
            low, high = sorted((run.wall, seconds))
            basis = f"between that of {run.preset} and {ratio:.3g} times its rows"
        else:
            factor = max(self.factors.get(_experiment(rule), self._all_factors()), default=1.0)
            low, high = seconds / factor, seconds * run.wall / run.cpu * factor
            whose = "its" if source == rule else f"{source}'s"
            unit = "operations" if _simulates(rule) else "rows"
            basis = f"scaled from {run.preset}: {ratio:.3g} times {whose} {unit}"
        memory = None
        if run.memory is not None:
            base = min(run.memory, self._floor(rule, "memory"))
            memory = base + (run.memory - base) * max(1.0, size.numbers / reference.numbers)
        return Estimate(rule, low, high, memory, basis)

    def _readable(self, rule: str) -> list[_Run]:
        """Measured runs whose settings this version can read."""
        return [run for run in self._runs.get(rule, []) if None not in run.settings.values()]

    def _sized(self, rule: str) -> list[tuple[Work, _Run]]:
        """The measured runs of a rule that did something, by operations."""
        sized = [(size, run) for run in self._readable(rule) if (size := _size(rule, run.settings))]
        sized = [pair for pair in sized if pair[0].operations > 0]
        return sorted(sized, key=lambda pair: pair[0].operations)

    def _largest(self, rule: str) -> tuple[Work, _Run] | None:
        return next(reversed(self._sized(rule)), None)

    def _alike(self, rule: str) -> list[str]:
        """Other measured rules that run the same experiment."""
        made, kind = table_of(rule), _kind(rule)
        if made is None:
            return []
        return [
            name
            for name in self._runs
            if (table := table_of(name)) and _kind(name) == kind and kind_of(table) is kind_of(made)
        ]

    def _scaled(self, rule: str, run: _Run, size: Work, reference: Work) -> float:
        start = min(run.cpu, self._floor(rule, "cpu"))
        return start + (run.cpu - start) * size.operations / reference.operations

    def _floor(self, rule: str, what: str) -> float:
        """The least that any measured job of the same kind took: its start-up."""
        runs = chain(*(runs for name, runs in self._runs.items() if _kind(name) == _kind(rule)))
        values = (getattr(run, what) for run in runs)
        return min((value for value in values if value is not None), default=0.0)

    def _check(self) -> None:
        """Scale each simulation between two measured presets and compare with its measurement."""
        for rule in filter(_simulates, self._runs):
            for (small, from_run), (large, to_run) in pairwise(self._sized(rule)):
                if small.operations < large.operations:
                    # Downwards, as the larger run says more about the cost of an operation.
                    ratio = self._scaled(rule, to_run, small, large) / from_run.cpu
                    self.factors.setdefault(_experiment(rule), []).append(max(ratio, 1 / ratio))

    def _all_factors(self) -> list[float]:
        return [*chain(*self.factors.values())]

    def reliability(self) -> str:
        """One sentence on how far the scaling may be off."""
        factors = self._all_factors()
        if not factors:
            return "No table was measured at two presets, so the scaling is unchecked."
        return (
            f"Where a simulation was measured at two presets ({len(factors)}), scaling the larger "
            f"run down to the smaller was off by a factor of {median_high(factors):.2g} (median) "
            f"and {max(factors):.2g} at worst. Ranges span the worst factor of the same experiment "
            "and how busy the machine was when it was measured. Scaling up is less sure than "
            "scaling down."
        )


def _simulates(rule: str) -> bool:
    return rule.startswith("simulate_")


def _kind(rule: str) -> str:
    return rule.partition("_")[0] if table_of(rule) else "figure"


def _experiment(rule: str) -> str:
    """Name of the experiment that makes the table of a rule; empty for other rules."""
    table = table_of(rule)
    return str(defaults()["experiments"][table]["experiment"]) if table else ""


def _parsed(table: str, block: Any) -> Any:
    """Settings as a sidecar holds them; None where they no longer fit."""
    try:
        return settings_of(table, block)
    except UserError:
        return None


def _size(rule: str, settings: Mapping[str, Any]) -> Work | None:
    """Work of the tables of a rule together; theory, drawing and claims go by rows."""
    if not settings:
        return Work(1.0, 1.0, 1.0)
    sizes = [size for block in settings.values() if (size := work(block)) is not None]
    if len(sizes) < len(settings):
        return None
    operations, numbers, rows = map(sum, zip(*sizes, strict=True))
    return Work(operations if _simulates(rule) else rows, numbers, rows)


def _claimed() -> list[str]:
    """Tables that claims read."""
    return sorted({table for claim in all_claims().values() for table in claim.tables})


def jobs_of(target: str, figures: Iterable[Figure]) -> list[str]:
    """Rules that a target runs in a folder where nothing was built; UserError for no target."""
    every = list(figures)
    drawn = {paper: [figure for figure in every if figure.paper == paper] for paper in PAPERS}
    drawn |= {"figures": every, "all": every}
    groups = ", ".join(drawn)
    drawn |= {"pages": every} | {figure.id: [figure] for figure in every}
    if target in drawn:
        tables = dict.fromkeys(table for figure in drawn[target] for table in figure.tables)
        rules = [*table_rules(tables), *(figure.id for figure in drawn[target])]
        if target in ("all", "pages"):
            rules += [*jobs_of("claims", every), "pages"]
        return list(dict.fromkeys(rules))
    if target == "claims":
        return [*table_rules(_claimed()), "claims"]
    made, tables = table_of(target) or target, defaults()["experiments"]
    if made in tables:
        return table_rules([made])[: 1 if _simulates(target) else None]
    hint = nearest(target, [*drawn, "claims", *tables])
    raise UserError(
        f"target: {target!r} is not known{hint}; use a figure, a table, claims, {groups}"
    )


@dataclass(frozen=True)
class Total:
    """A target's jobs one after another: seconds (from, to), largest memory, rules unknown."""

    low: float | None
    high: float | None
    memory_mib: float | None
    unknown: list[str]


def total(estimates: Iterable[Estimate]) -> Total:
    """Sum of times and largest memory of what is known, with the names of what is not."""
    every = list(estimates)
    known = [e for e in every if e.low is not None]
    memory = max((e.memory_mib for e in known if e.memory_mib is not None), default=None)
    low, high = (sum(getattr(e, end) for e in known) if known else None for end in ("low", "high"))
    return Total(low, high, memory, [e.rule for e in every if e.low is None])


_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def seconds(value: float) -> str:
    """`0.4 s`, `52 s`, `3 min`, `2.1 h`, `3.5 d`: no more digits than a cost deserves."""
    limits = {"s": 90, "min": 90, "h": 48}
    unit = next((u for u, limit in limits.items() if value < _UNITS[u] * limit), "d")
    return f"{_digits(value / _UNITS[unit])} {unit}"


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

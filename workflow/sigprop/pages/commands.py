"""`sigprop pages`, `sigprop cost` and `sigprop readme`."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sigprop.artifacts.errors import UserError

if TYPE_CHECKING:
    from sigprop.pages.results import Results


def add_commands(commands: Any) -> None:
    """Add the three to argparse's sub-commands. Heavy imports wait until one is called."""
    pages = commands.add_parser(
        "pages",
        help="write the pages over a results folder",
        description="Write index.html and pages/: gallery, figures, claims, rules, cost.",
    )
    pages.add_argument("-o", "--output", metavar="DIR", help="default: the results folder")
    pages.add_argument("--rules", metavar="JSON", help="rule -> rules it needs, for the graph")
    pages.set_defaults(command=_pages)

    cost = commands.add_parser(
        "cost",
        help="predict time and memory of a target",
        description="Time and memory of a target's jobs, measured or scaled from measurements.",
    )
    cost.add_argument("target", help="a figure, a table, claims, noci2022, all ...")
    cost.set_defaults(command=_cost)

    readme = commands.add_parser(
        "readme",
        help="renew the summary of verdicts in README.md",
        description="Renew README.md's table of verdicts and pictures, and docs/verdicts.json.",
    )
    readme.set_defaults(command=_readme)
    for parser, folder in (
        (pages, "results/PRESET"),
        (cost, "results"),
        (readme, "results/PRESET"),
    ):
        parser.add_argument("--preset", default="laptop", help="smoke, laptop (default) or paper")
        parser.add_argument("--results", metavar="DIR", help=f"default: {folder}")


def _results(arguments: argparse.Namespace) -> "Results":
    from sigprop.experiments.config import check_preset
    from sigprop.pages.results import Results

    preset = check_preset(arguments.preset)
    return Results(Path(arguments.results or f"results/{preset}"), preset)


def _pages(arguments: argparse.Namespace) -> None:
    from sigprop.pages.site import build

    results = _results(arguments)
    if not results.root.is_dir():
        raise UserError(f"{results.root}: no such folder; build something with `snakemake` first")
    output = Path(arguments.output) if arguments.output else results.root
    rules = None if arguments.rules is None else _rules(arguments.rules)
    missing = build(results, output, rules=rules)
    sys.stdout.write(f"{output / 'index.html'}\n")
    if missing:
        names = " ".join(figure.id for figure in missing)
        sys.stdout.write(f"not built: {names}; `snakemake {names}` builds them\n")


def _rules(given: str) -> dict[str, list[str]]:
    try:
        rules = json.loads(given)
        return {str(name): [str(need) for need in needs] for name, needs in rules.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise UserError(f"--rules: must be JSON like {{'a': ['b']}} ({error})") from error


def _cost(arguments: argparse.Namespace) -> None:
    from sigprop.experiments.config import load
    from sigprop.experiments.index import figures
    from sigprop.experiments.settings import PRESETS
    from sigprop.pages import cost
    from sigprop.pages.results import Results

    config = load(arguments.preset)
    index = figures()
    measured = [Results(Path(arguments.results or "results") / name, name) for name in PRESETS]
    predictor = cost.Predictor(measured, index)
    jobs = cost.jobs_of(arguments.target, index)
    estimates = [predictor.estimate(rule, config) for rule in jobs]
    wide = max(map(len, jobs))
    for estimate in estimates:
        sys.stdout.write(
            f"{estimate.rule:{wide}}  {cost.span(estimate.low, estimate.high):>16}  "
            f"{cost.mebibytes(estimate.memory_mib):>8}  {estimate.basis}\n"
        )
    whole = cost.total(estimates)
    sys.stdout.write(
        f"\n{arguments.target}, {arguments.preset} preset: {cost.span(whole.low, whole.high)} one "
        f"job after another, largest job {cost.mebibytes(whole.memory_mib)}\n"
    )
    if whole.unknown:
        sys.stdout.write(f"not counted, unknown: {', '.join(whole.unknown)}\n")
    sys.stdout.write(f"{predictor.reliability()}\n")


def _readme(arguments: argparse.Namespace) -> None:
    from sigprop.artifacts.provenance import code_root
    from sigprop.pages.readme import refresh

    refresh(_results(arguments), code_root())

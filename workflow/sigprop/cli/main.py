"""The command line. Heavy imports happen inside the commands, so `--help` stays instant."""

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sigprop import __version__
from sigprop.artifacts.errors import UserError, nearest
from sigprop.artifacts.files import check_writable, write_json
from sigprop.cli import exponents, probe, translate
from sigprop.pages.commands import add_commands

if TYPE_CHECKING:
    from sigprop.models.schemes import Scheme

_PRESET_HELP = "smoke, laptop (default) or paper"


def main(argv: list[str] | None = None) -> None:
    """Run one command. Bad input prints one line and exits with 1."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.command(arguments)
    except BrokenPipeError:
        # `sigprop list | head`: the reader has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (UserError, FloatingPointError) as error:
        if os.environ.get("SIGPROP_TRACEBACK"):
            raise
        sys.exit(f"sigprop: {error}")
    except KeyboardInterrupt:
        sys.exit("sigprop: interrupted; no table or figure was written")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sigprop",
        description="Signal propagation in transformers: run an experiment, read a claim.",
        epilog="The whole pipeline runs with `snakemake --cores all`. "
        "SIGPROP_TRACEBACK=1 shows the traceback behind an error line.",
    )
    parser.add_argument("--version", action="version", version=f"sigprop {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    run = commands.add_parser(
        "run",
        help="make one table",
        description="Run one experiment and write its table (parquet) and sidecar (json).",
    )
    run.add_argument("table", help="name of a block under `experiments` in config/config.yaml")
    run.add_argument("-o", "--output", required=True, metavar="FILE", help="the .parquet to write")
    run.add_argument(
        "--kind",
        choices=("simulation", "theory"),
        default="simulation",
        help="simulate (default), or compute the theory to lay next to it",
    )
    run.add_argument("--preset", default="laptop", help=_PRESET_HELP)
    run.add_argument("--settings", metavar="JSON", help="the block itself, instead of the config's")
    run.add_argument(
        "--simulation", nargs="?", metavar="FILE", help="simulated table, where theory reads it"
    )
    run.add_argument(
        "--checkpoints",
        metavar="DIR",
        help="where an experiment that trains saves its state, to go on after a kill",
    )
    half = run.add_mutually_exclusive_group()
    half.add_argument(
        "--part", metavar="I/N", help="of a table that trains: make part I of N, from 0"
    )
    half.add_argument(
        "--join", nargs="+", metavar="FILE", help="put all parts together, in their order"
    )
    run.add_argument("--seed", type=int, help="root seed, instead of the config's")
    run.add_argument("--device", help="auto, cpu or cuda, instead of the config's")
    run.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    run.set_defaults(command=_run)

    draw = commands.add_parser(
        "draw",
        help="execute one figure's notebook",
        description="Execute a parameterized notebook and publish figure, notebook and HTML.",
    )
    draw.add_argument("notebook")
    draw.add_argument("--parameters", required=True, metavar="JSON")
    draw.add_argument("--log", required=True, help="where it runs; kept when a cell fails")
    draw.add_argument("--executed", required=True, help="executed copy (.ipynb)")
    draw.add_argument("--html", required=True, help="executed copy (.html)")
    draw.add_argument("--sidecar", required=True, help="provenance (.json)")
    draw.add_argument("--tables", nargs="*", default=[], help="tables it reads")
    draw.add_argument("--figures", nargs="*", default=[], help="files it must write")
    draw.set_defaults(command=_draw)

    listing = commands.add_parser("list", help="list figures, tables, schemes or presets")
    listing.add_argument(
        "what",
        nargs="?",
        default="figures",
        choices=("figures", "tables", "schemes", "presets"),
        help="default: figures",
    )
    listing.add_argument("-o", "--output", metavar="FILE", help="schemes only: write them as JSON")
    listing.set_defaults(command=_list)

    claims = commands.add_parser(
        "claims",
        help="read or evaluate the papers' claims",
        description="Without arguments: every claim with its rule. With --evaluate: verdicts.",
    )
    claims.add_argument("claim", nargs="*", help="claim ids, e.g. N12; default: all")
    claims.add_argument("--list", action="store_true", help="one line a claim")
    claims.add_argument("--evaluate", action="store_true", help="compute verdicts from tables")
    claims.add_argument(
        "--explain", action="store_true", help="verdicts, and what would change each of them"
    )
    claims.add_argument("--preset", default="laptop", help=_PRESET_HELP)
    claims.add_argument("--data", metavar="DIR", help="default: results/PRESET/data")
    claims.add_argument("-o", "--output", metavar="FILE", help="write .json, and .md next to it")
    claims.add_argument(
        "--strict", action="store_true", help="evaluate; exit 1 on `not reproduced`"
    )
    claims.set_defaults(command=_claims)

    exponents.add_command(commands)
    translate.add_command(commands)
    probe.add_command(commands)

    schema = commands.add_parser("schema", help="print the schema of the config (YAML)")
    schema.set_defaults(command=_schema)
    add_commands(commands)
    return parser


def _run(arguments: argparse.Namespace) -> None:
    from sigprop.artifacts.provenance import Clock
    from sigprop.artifacts.tables import write_table
    from sigprop.experiments.config import load, settings_of
    from sigprop.experiments.context import Context, chosen, joined
    from sigprop.experiments.frames import schema

    clock = Clock()
    config = load(arguments.preset)
    tables = config.experiments
    if arguments.table not in tables and arguments.settings is None:
        hint = nearest(arguments.table, tables)
        raise UserError(
            f"table: {arguments.table!r} is not allowed; use one of {', '.join(tables)}{hint}"
        )
    if not arguments.output.endswith(".parquet"):
        raise UserError(f"--output: {arguments.output!r} must end in .parquet")
    check_writable(arguments.output)
    if arguments.settings is None:
        settings = tables[arguments.table]
    else:
        record = _json("--settings", arguments.settings)
        settings = settings_of(arguments.table, record)
    name = settings.simulation if arguments.kind == "simulation" else settings.theory
    if name is None:
        raise UserError(f"--kind: {arguments.table!r} has no theory; use simulation")
    seed = config.seed if arguments.seed is None else arguments.seed
    if not 0 <= seed < 2**63:
        raise UserError(f"seed: {seed} is not allowed; use 0 to 2**63 - 1")
    device = "cpu"
    if arguments.kind == "simulation":
        device = _device(arguments.device or config.device, arguments.threads)
    sidecar: dict[str, Any] = {
        "table": arguments.table,
        "kind": arguments.kind,
        "preset": arguments.preset,
        "experiment": name.removeprefix("sigprop.experiments."),
        "settings": settings.model_dump(mode="json"),
        "seed": seed,
        "device": device,
        "threads": arguments.threads,
    }
    if arguments.join:
        table, sidecar = joined(arguments.join, sidecar)
    else:
        part = _part(arguments.part, settings, arguments.table)
        context = Context(
            arguments.table,
            seed,
            device,
            arguments.simulation,
            arguments.checkpoints,
            part,
            chosen(settings) if arguments.kind == "simulation" else None,
        )
        table = importlib.import_module(name).run(settings, context)
        sidecar |= {"part": list(part)} if arguments.part else {}
    sidecar["provenance"] = clock.record()
    write_table(table, arguments.output, schema(type(settings)), sidecar)


def _part(text: str | None, settings: Any, table: str) -> tuple[int, int]:
    """What `--part` says, for a table that has as many runs."""
    from sigprop.experiments.context import parse_part

    if text is None:
        return 0, 1
    part, runs = parse_part(text), settings.n_runs
    if part[1] > runs:
        raise UserError(f"--part: {text!r}: {table} has {runs} runs; use at most as many parts")
    return part


def _json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{option}: not valid JSON ({error})") from error


def _device(name: str, threads: int) -> str:
    import torch

    if threads < 1:
        raise UserError(f"--threads: {threads} is not allowed; use at least 1")
    torch.set_num_threads(threads)
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"device: {name!r} is not allowed; use auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device: 'cuda' is not available here; use auto or cpu")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


def _draw(arguments: argparse.Namespace) -> None:
    from sigprop.artifacts.notebooks import execute

    if not Path(arguments.notebook).is_file():
        raise UserError(f"notebook: {arguments.notebook!r} does not exist")
    execute(
        arguments.notebook,
        _json("--parameters", arguments.parameters),
        log=arguments.log,
        executed=arguments.executed,
        html=arguments.html,
        sidecar=arguments.sidecar,
        tables=arguments.tables,
        figures=arguments.figures,
    )


def _list(arguments: argparse.Namespace) -> None:
    if arguments.what == "figures":
        from sigprop.experiments.index import figures

        for figure in figures():
            print(f"{figure.id:8} {figure.item:22} {figure.title}")
    elif arguments.what == "tables":
        from sigprop.experiments.config import defaults

        print("\n".join(defaults()["experiments"]))
    elif arguments.what == "schemes":
        from sigprop.models.schemes import SCHEMES, plain

        try:
            len(SCHEMES)  # reads the file
        except ValueError as error:
            raise UserError(str(error)) from error
        if arguments.output:
            write_json(arguments.output, [_scheme_record(each) for each in SCHEMES.values()])
            return
        for scheme in SCHEMES.values():
            name, rule = plain(scheme.called(scheme.rule)), plain(scheme.rule)
            print(f"{scheme.name:17} {name:42} alpha = {rule:11} {scheme.source}")
    else:
        from sigprop.experiments.settings import PRESETS

        print("\n".join(PRESETS))


def _scheme_record(scheme: "Scheme") -> dict[str, Any]:
    """The scheme as JSON: what it is called, and the sub-layers that a block executes."""
    from sigprop.models.attention import ATTENTION_VARIANTS

    strengths = "" if scheme.title or scheme.rule == "1" else f", ${scheme.rule}$"
    return {
        "name": scheme.name,
        "title": (scheme.title or scheme.placement) + strengths,
        "tau": scheme.tau,
        "attention": ATTENTION_VARIANTS[scheme.attention].title,
        "sublayers": [
            {
                "branch": sub.branch,
                "strength": sub.strength.label,
                "norm_before": sub.norm_before,
                "norm_after": sub.norm_after,
                "skip": sub.skip,
            }
            for sub in scheme.sublayers
        ],
    }


def _claims(arguments: argparse.Namespace) -> None:
    from sigprop.claims.ledger import command

    command(
        arguments.claim,
        evaluate=arguments.evaluate,
        data=arguments.data or f"results/{arguments.preset}/data",
        preset=arguments.preset,
        output=arguments.output,
        strict=arguments.strict,
        brief=arguments.list,
        explain=arguments.explain,
    )


def _schema(arguments: argparse.Namespace) -> None:
    from sigprop.experiments.config import schema_yaml

    print(schema_yaml(), end="")

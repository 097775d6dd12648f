"""What all rules share: the checked config, the index, and the digest of the code that a rule runs."""

import json
import os
import shutil
import sys
from pathlib import Path

# This checkout's code, whatever is installed.
sys.path.insert(0, f"{workflow.basedir}/workflow")

from sigprop.artifacts.errors import UserError, nearest
from sigprop.artifacts.sources import code_digest, imported, use_checkout
from sigprop.experiments.config import parts as _parts
from sigprop.experiments.config import scaled_down
from sigprop.experiments.config import check_preset as _check_preset
from sigprop.experiments.config import shards as _shards
from sigprop.experiments.config import validate as _validate
from sigprop.experiments.index import figures as _figures
from sigprop.cli.translate import requested
from sigprop.models.schemes import SCHEMES

use_checkout()


def one_line(function, *arguments):
    """Call; on bad input leave with its one line instead of a traceback."""
    try:
        return function(*arguments)
    except UserError as error:
        raise SystemExit(f"sigprop: {error}") from None


def check_preset(name):
    return one_line(_check_preset, name)


def check_config(record):
    """The checked config; also says how to go on after a kill, and when results/ is read-only."""
    checked = one_line(_validate, record)
    folder = Path("results") / checked.preset
    nearest_folder = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest_folder.is_dir() or not os.access(nearest_folder, os.W_OK):
        raise SystemExit(
            f"sigprop: {nearest_folder}: no write permission; results go there"
        )
    if any(Path(".snakemake/locks").glob("*")) and "--unlock" not in sys.argv:
        print(
            "sigprop: this folder is locked by another run, or by one that was killed; "
            "if none is running, clear it with `snakemake --unlock` and run again",
            file=sys.stderr,
        )
    return checked


FIGURES = one_line(_figures)


def code_of(*sources):
    """Param that changes when the code of modules does something else, or what a notebook imports.

    A function, so that only the code of jobs that are planned is read.
    """

    def digest(wildcards):
        names = []
        for source in filter(None, sources):
            names += imported(source) if source.endswith(".ipynb") else [source]
        return f"{sources[0]}: code {code_digest(*names)[:16]}"

    return digest


def settings(table):
    """The settings block of a table, as the JSON that `sigprop run` takes."""
    block = CONFIG.experiments[table]
    return json.dumps(block.model_dump(mode="json"), sort_keys=True)


def schemes_of(*tables):
    """Param: what figures and verdicts call the schemes of tables, as far as records say it."""
    named = {
        name
        for table in tables
        for name in getattr(CONFIG.experiments[table], "records", ())
    }
    return {name: SCHEMES[name].title for name in sorted(named)}


def parts(table):
    """Names of the files of a table: the simulation and, if any, theory."""
    return _parts(table, CONFIG)


def parts_of(table):
    """The files that the jobs of a table leave, in their order; none where one job makes it."""
    n = _shards(CONFIG, table)
    return [
        f"{RESULTS}/data/parts/{table}/{i}-of-{n}.parquet" for i in range(n) if n > 1
    ]


def on_gpu():
    """Whether experiments take a graphics card; asks without importing torch."""
    auto = CONFIG.device == "auto" and shutil.which("nvidia-smi") is not None
    return auto or CONFIG.device == "cuda"


def tables_of(figure):
    """Simulation and theory of each table the figure reads, by parameter name."""
    pairs = {
        part: f"{RESULTS}/data/{part}.parquet"
        for name in figure.tables
        for part in parts(name)
    }
    return pairs | {name: f"{RESULTS}/data/{name}.json" for name in figure.extra_inputs}


def figure_outputs(figures):
    """Everything that drawing the figures leaves behind."""
    return [
        path
        for figure in figures
        for path in (
            f"{RESULTS}/figures/{figure.id}.pdf",
            f"{RESULTS}/figures/{figure.id}.png",
            f"{RESULTS}/figures/{figure.id}.json",
            f"{RESULTS}/notebooks/{figure.id}.ipynb",
            f"{RESULTS}/notebooks/{figure.id}.html",
            *(f"{RESULTS}/figures/{figure.id}.{suffix}" for suffix in figure.also),
        )
    ]


def to_translate(wildcards):
    """The table, trained if need be, and the sentences; bad ones are refused before any training."""
    table, sentences = one_line(requested, CONFIG)
    # Absolute, because a bare name might be taken for a misspelt target.
    return {
        "model": f"{RESULTS}/data/{table}.parquet",
        "sentences": str(sentences.absolute()),
    }


def suggest(wildcards):
    """Input function of the rule for names that no other rule knows."""
    known = [rule.name for rule in workflow.rules if rule.name != "unknown_target"]
    raise SystemExit(
        f"sigprop: {wildcards.unknown!r} is not a target{nearest(wildcards.unknown, known)}; "
        "`snakemake --list` shows all"
    )

"""`sigprop translate`: a user's sentences, decoded with the best weights of a training run.

Behind it `snakemake translate`, which trains the table that is asked for when it is not there.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sigprop.artifacts.errors import UserError, nearest
from sigprop.artifacts.files import check_writable, write_text

if TYPE_CHECKING:
    from sigprop.experiments.config import Config
    from sigprop.experiments.translation.data import TranslationData
    from sigprop.experiments.translation.settings import TranslationCase, TranslationSettings
    from sigprop.models.decoding import Search
    from sigprop.models.seq2seq import Seq2Seq

_ABOUT = """
Translate sentences, one a line, with the weights that a translation run kept, those with the least
validation loss (results/PRESET/checkpoints/TABLE/*.best.pt). Given a table
(results/PRESET/data/TABLE.parquet) it takes the run of that table with the least validation loss.
Translations go to standard output, one a line, as plain text.
"""


def add_command(commands: Any) -> None:
    """Add `translate` to the command line."""
    parser = commands.add_parser(
        "translate", help="translate sentences with a trained model", description=_ABOUT
    )
    parser.add_argument(
        "model", help="a .best.pt of a translation run, or the .parquet of its table"
    )
    parser.add_argument(
        "sentences", nargs="?", default="-", help="UTF-8 text, one a line; -: standard input"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write there, not to standard output"
    )
    parser.add_argument(
        "--checkpoints",
        metavar="DIR",
        help="of the table; default: results/PRESET/checkpoints/TABLE, as it lies to the table",
    )
    parser.add_argument("--beam", type=int, help="hypotheses kept; default: as the run was scored")
    parser.add_argument("--length-penalty", type=float, metavar="X", help="power of the length")
    parser.add_argument(
        "--corpora", metavar="DIR", help="folder of prepared text; default: that of the run"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> None:
    import torch

    if arguments.threads < 1:
        raise UserError(f"--threads: {arguments.threads} is not allowed; use at least 1")
    torch.set_num_threads(arguments.threads)
    if arguments.output is not None:
        check_writable(arguments.output)
    checkpoint = Path(arguments.model)
    if checkpoint.suffix == ".parquet":
        checkpoint = best_of(checkpoint, arguments.checkpoints)
    lines = translated(
        checkpoint,
        read_sentences(arguments.sentences),
        beam=arguments.beam,
        length_penalty=arguments.length_penalty,
        corpora=arguments.corpora,
    )
    text = "".join(line + "\n" for line in lines)
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        write_text(arguments.output, text)


def requested(config: "Config") -> tuple[str, Path]:
    """The table and the file of sentences that `snakemake translate` was given, looked at first.

    Raises UserError: no file named, or one that cannot be read, holds no sentence, an empty one or
    bytes that are not UTF-8; a table that is none of translation runs, or that the preset leaves
    out.
    """

    if config.sentences is None:
        raise UserError(
            "sentences: missing; name a file with one sentence a line: "
            "`snakemake translate --config sentences=my.de`"
        )
    path = Path(config.sentences).expanduser()
    if {"{", "}"} & {*str(path)}:
        raise UserError(
            f"sentences: {config.sentences!r} has braces, which Snakemake takes for a wildcard; "
            "rename the file"
        )
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise UserError(f"sentences: {config.sentences!r}: {what}; give one sentence a line")
    read_sentences(str(path))
    tables = [name for name, each in config.experiments.items() if each.experiment == "translation"]
    if config.table not in tables:
        raise UserError(
            f"table: {config.table!r} is not a table of translation runs; use one of "
            f"{', '.join(tables)}{nearest(config.table, tables)}"
        )
    if config.experiments[config.table].n_runs == 0:
        raise UserError(
            f"table: the {config.preset} preset leaves {config.table} out "
            f"(experiments.{config.table}.n_seeds is 0); take another, or set n_seeds"
        )
    return config.table, path


def best_of(table: Path, checkpoints: str | Path | None = None) -> Path:
    """The weights of the run in a translation table whose validation loss was least of all.

    Args:
        table: `results/PRESET/data/TABLE.parquet`, with its sidecar.
        checkpoints: where its runs left their weights, if not `results/PRESET/checkpoints/TABLE`.

    Raises UserError: no such table, or one of another kind; no run in it; its weights are gone.
    """
    import numpy as np

    from sigprop.artifacts.tables import read_sidecar, read_table
    from sigprop.experiments.frames import schema
    from sigprop.experiments.translation.settings import TranslationSettings

    rows = read_table(table, schema(TranslationSettings))
    settings = read_sidecar(table)
    rows = rows[rows["quantity"] == "valid_loss"]
    if rows.empty:
        raise UserError(f"{table}: holds no run; its method was left out (n_seeds is 0)")
    least = rows.iloc[[int(np.argmin(rows["value"]))]]  # the first of equal ones, as in training
    best = {str(key): value for key, value in least.to_dict("records")[0].items()}
    folder = Path(checkpoints or table.parent.parent / "checkpoints" / table.stem)
    found = [
        path
        for path in folder.glob(f"*-seed{best['seed']}-*.best.pt")
        if _is_run(_record(path), settings, best)
    ]
    if not found:
        raise UserError(
            f"{folder}: the weights of this table's best run (L={best['depth']}, seed "
            f"{best['seed']}) are not there; train again with `snakemake simulate_{table.stem} "
            "--force`, or give the folder with --checkpoints"
        )
    # Several: a later training, with other code, was stopped half-way. The older one is complete.
    return min(found, key=lambda path: path.stat().st_mtime)


def _is_run(record: Mapping[str, Any], sidecar: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
    """Whether a checkpoint is of the table with this sidecar, and of its run in the row `best`."""
    own = record["settings"]
    shared = all(own.get(key) == value for key, value in sidecar["settings"].items())
    if not shared or own["seed"] != sidecar["seed"] or own["own_seed"] != best["seed"]:
        return False
    factors = _case(own).factors()
    return record["step"] == best["step"] and all(factors[key] == best[key] for key in factors)


def read_sentences(path: str) -> list[str]:
    """Lines of a file or of standard input (`-`), without byte-order mark and carriage returns.

    Raises UserError: cannot be read, not UTF-8 (names the line), no line, or an empty one.
    """
    where = "standard input" if path == "-" else path
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{where}: cannot be read ({error.strerror})") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UserError(f"{where}, line {line}: not UTF-8; save it as UTF-8") from error
    sentences = [line.removesuffix("\r") for line in text.split("\n")]
    if sentences[-1] == "":
        sentences.pop()
    if not sentences:
        raise UserError(f"{where}: holds no sentence; write one a line")
    for number, sentence in enumerate(sentences, 1):
        if not sentence.strip():
            raise UserError(f"{where}, line {number}: is empty; leave it out")
    return sentences


def translated(
    checkpoint: str | Path,
    sentences: list[str],
    *,
    beam: int | None = None,
    length_penalty: float | None = None,
    corpora: str | Path | None = None,
) -> list[str]:
    """The best translation of each raw sentence, as plain text.

    Raises UserError: no such checkpoint or prepared text, a sentence that is empty or too long, or
    a beam or length penalty out of range.
    """
    from sigprop.models.decoding import translate

    model, data, settings, tau = _load(Path(checkpoint), corpora)
    search = _search(
        settings.beam if beam is None else beam,
        settings.length_penalty if length_penalty is None else length_penalty,
    )
    numbers = data.encode(sentences)
    for i, length in enumerate(numbers.lengths.tolist(), 1):
        if length > model.config.max_tokens:
            raise UserError(
                f"sentence {i}: has {length} subwords, the model takes {model.config.max_tokens}; "
                "split it"
            )
    rows = [numbers[i].tolist() for i in range(len(numbers))]
    found = translate(model, rows, search, tau=tau)
    return data.text(data.tokens(hypothesis.tokens for hypothesis in found))


def _search(beam: int, length_penalty: float) -> "Search":
    from sigprop.experiments.translation.model import search_of

    if not 1 <= beam <= 1000:
        raise UserError(f"--beam: {beam} is not allowed; use 1 to 1000")
    if not 0 <= length_penalty <= 10:
        raise UserError(f"--length-penalty: {length_penalty:g} is not allowed; use 0 to 10")
    return search_of(beam, length_penalty)


def _load(
    path: Path, corpora: str | Path | None
) -> "tuple[Seq2Seq, TranslationData, TranslationSettings, float | None]":
    """Network, text, settings and the inverse temperature at the step of the weights."""
    from sigprop.experiments.translation import data as translation_data
    from sigprop.experiments.translation.model import build
    from sigprop.experiments.translation.simulation import corpora_of
    from sigprop.training.schedules import temperature

    record = _record(path)
    settings = _settings(record["settings"])
    folder = Path(corpora or settings.cache or corpora_of(path.parent)) / record["settings"]["text"]
    if not folder.is_dir():
        raise UserError(
            f"{folder}: the text of this run is not there; give its parent with --corpora, "
            "or train again"
        )
    data = translation_data.load(folder)
    model = build(settings, data, _case(record["settings"]))
    try:
        model.load_state_dict(record["state"]["model"])
    except RuntimeError as error:
        raise UserError(
            f"{path}: its weights do not fit this version's model; train again"
        ) from error
    tau = temperature(settings.training.train_settings())(record["step"])
    return model, data, settings, tau


def _settings(own: Mapping[str, Any]) -> "TranslationSettings":
    """The settings among what a checkpoint holds of its run."""
    from sigprop.experiments.settings import parse
    from sigprop.experiments.translation.settings import TranslationSettings

    kept = {key: value for key, value in own.items() if key in TranslationSettings.model_fields}
    settings: TranslationSettings = parse(TranslationSettings, kept, root="checkpoint")
    return settings


def _case(own: Mapping[str, Any]) -> "TranslationCase":
    return next(case for case in _settings(own).cases() if case.key == own["own_case"])


def _record(path: Path) -> dict[str, Any]:
    """What a training run wrote with its best weights."""
    import pickle

    import torch

    if not path.is_file():
        raise UserError(
            f"{path}: no such checkpoint; translation runs leave theirs in "
            "results/PRESET/checkpoints/TABLE/*.best.pt"
        )
    try:
        record = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise UserError(f"{path}: truncated, or not a checkpoint") from error
    known = isinstance(record, dict) and isinstance(record.get("settings"), dict)
    if not known or not {"text", "own_case", "scheme"} <= record["settings"].keys():
        raise UserError(f"{path}: not the checkpoint of a translation run")
    if "model" not in record["state"] or "optimizer" in record["state"]:
        raise UserError(f"{path}: a checkpoint to resume from; give the .best.pt next to it")
    return record

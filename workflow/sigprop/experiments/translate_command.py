"""`sigprop translate`: a user's sentences, decoded with the best weights of a training run."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sigprop.artifacts.errors import UserError

if TYPE_CHECKING:
    from sigprop.experiments.translation_data import TranslationData
    from sigprop.experiments.translation_settings import TranslationSettings
    from sigprop.models.decoding import Search
    from sigprop.models.seq2seq import Seq2Seq

_ABOUT = """
Translate sentences, one a line, with the weights that a translation run kept, those with the least
validation loss (results/PRESET/checkpoints/TABLE/*.best.pt). Translations go to standard output,
one a line, as plain text.
"""


def add_command(commands: Any) -> None:
    """Add `translate` to the command line."""
    parser = commands.add_parser(
        "translate", help="translate sentences with a trained model", description=_ABOUT
    )
    parser.add_argument("checkpoint", help="a .best.pt of a translation run")
    parser.add_argument(
        "sentences", nargs="?", default="-", help="UTF-8 text, one a line; -: standard input"
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
    sentences = _read(arguments.sentences)
    for line in translated(
        arguments.checkpoint,
        sentences,
        beam=arguments.beam,
        length_penalty=arguments.length_penalty,
        corpora=arguments.corpora,
    ):
        sys.stdout.write(line + "\n")


def _read(path: str) -> list[str]:
    """Lines of a file or of standard input, without byte-order mark and carriage returns."""
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
    from sigprop.experiments.translation_model import search_of

    if not 1 <= beam <= 1000:
        raise UserError(f"--beam: {beam} is not allowed; use 1 to 1000")
    if not 0 <= length_penalty <= 10:
        raise UserError(f"--length-penalty: {length_penalty:g} is not allowed; use 0 to 10")
    return search_of(beam, length_penalty)


def _load(
    path: Path, corpora: str | Path | None
) -> "tuple[Seq2Seq, TranslationData, TranslationSettings, float | None]":
    """Network, text, settings and the inverse temperature at the step of the weights."""
    from sigprop.experiments import translation_data
    from sigprop.experiments.settings import parse
    from sigprop.experiments.translation import corpora_of
    from sigprop.experiments.translation_model import build, unwrapped
    from sigprop.experiments.translation_settings import TranslationSettings
    from sigprop.training.schedules import temperature

    record = _record(path)
    own = {
        key: v for key, v in record["settings"].items() if key in TranslationSettings.model_fields
    }
    settings: TranslationSettings = parse(TranslationSettings, own, root=str(path))
    folder = Path(corpora or settings.cache or corpora_of(path.parent)) / record["settings"]["text"]
    if not folder.is_dir():
        raise UserError(
            f"{folder}: the text of this run is not there; give its parent with --corpora, "
            "or train again"
        )
    data = translation_data.load(folder)
    case = next(c for c in settings.cases() if c.key == record["settings"]["own_case"])
    model = build(settings, data, case)
    try:
        model.load_state_dict(unwrapped(record["state"]["model"]))
    except RuntimeError as error:
        raise UserError(
            f"{path}: its weights do not fit this version's model; train again"
        ) from error
    tau = temperature(settings.training.train_settings())(record["step"])
    return model, data, settings, tau


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
        raise UserError(f"{path}: a checkpoint to resume from; give the .best.pt beside it")
    return record

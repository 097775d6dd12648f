"""`sigprop probe`: the instruments pointed at a model of the user's own."""

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sigprop.artifacts.errors import UserError, nearest
from sigprop.cli.probe_report import report, table

if TYPE_CHECKING:
    import pandas as pd

    from sigprop.instruments.probe import Probe

_ABOUT = """
Measure a model of your own, block by block: correlation, norm and rank of its tokens and, on
request, gradients of a random linear readout of the last block (or of your loss).

FILE.py is executed. FUNCTION() returns

    model, inputs             inputs: a tensor, or a tuple of what the model takes
    model, inputs, options    options: a dict with any of kwargs, loss, mask, batch_first, training,
                              as in sigprop.instruments.probe
"""
_SUFFIXES = (".parquet", ".csv")


def add_command(commands: Any) -> None:
    """Add `probe` to the command line."""
    parser = commands.add_parser(
        "probe",
        help="measure a model of your own",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="FILE.py:FUNCTION", help="what makes model and inputs")
    parser.add_argument(
        "--blocks",
        metavar="PATTERN",
        help="names of the blocks, e.g. 'h.*'; default: the longest list of modules of one type",
    )
    parser.add_argument("--gradients", action="store_true", help="one backward pass too")
    parser.add_argument(
        "--attention",
        action="store_true",
        help="entropy and exact Jacobian norms of nn.MultiheadAttention too",
    )
    parser.add_argument("--seed", type=int, default=0, help="of FUNCTION and readout (default 0)")
    parser.add_argument("-o", "--output", metavar="FILE", help="every number: .parquet or .csv")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> None:
    from sigprop.artifacts.files import check_writable

    output = arguments.output
    if output is not None:
        if not output.endswith(_SUFFIXES):
            raise UserError(f"--output: {output!r} must end in {' or '.join(_SUFFIXES)}")
        check_writable(output)
    if arguments.threads < 1:
        raise UserError(f"--threads: {arguments.threads} is not allowed; use at least 1")
    if not 0 <= arguments.seed < 2**63:
        raise UserError(f"--seed: {arguments.seed} is not allowed; use 0 to 2**63 - 1")
    make = load_function(arguments.model)

    import torch

    torch.set_num_threads(arguments.threads)
    found = measured(
        make,
        blocks=arguments.blocks,
        gradients=arguments.gradients,
        attention=arguments.attention,
        seed=arguments.seed,
    )
    if output is not None:
        _write(table(found), Path(output))
    sys.stdout.write(report(found) + "\n")


def load_function(where: str) -> Callable[[], Any]:
    """FUNCTION of "FILE.py:FUNCTION". The file is executed; its folder joins `sys.path`, as with
    `python FILE.py`.

    Raises UserError: no such file or function, or the file raises.
    """
    file, colon, name = where.rpartition(":")
    path = Path(file)
    if not colon or path.suffix != ".py" or not name.isidentifier():
        raise UserError(f"model: {where!r} is not FILE.py:FUNCTION, e.g. mine.py:build")
    if not path.is_file():
        raise UserError(f"model: {file!r} does not exist")
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert spec is not None and spec.loader is not None  # the suffix is .py
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickle look it up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UserError(f"model: {file} raises {_named(error)}") from error
    found = getattr(module, name, None)
    if not callable(found):
        functions = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        raise UserError(f"model: {file} has no function {name!r}{nearest(name, functions)}")
    function: Callable[[], Any] = found
    return function


def _named(error: BaseException) -> str:
    """Type and first line."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


def measured(
    make: Callable[[], Any],
    *,
    blocks: str | None = None,
    gradients: bool = False,
    attention: bool = False,
    seed: int = 0,
) -> "Probe":
    """Call `make` under a seed and probe the model that it returns.

    Raises UserError, one line, for anything that the model, its inputs or options do wrong, and
    FloatingPointError for a stream or gradient that is not finite.
    """
    import torch

    from sigprop.artifacts import seeds
    from sigprop.instruments.probe import probe

    def seeded(name: str) -> int:
        return seeds.torch_seed(seeds.seed_stream(seed, "probe", name))

    torch.manual_seed(seeded("model"))
    try:
        made = make()
    except (Exception, SystemExit) as error:
        raise UserError(f"FUNCTION raises {_named(error)}") from error
    model, inputs, options = _checked(made)
    wants_readout = gradients and "loss" not in options
    readout = torch.Generator().manual_seed(seeded("readout")) if wants_readout else None
    try:
        return probe(model, *inputs, blocks=blocks, readout=readout, attention=attention, **options)
    except FloatingPointError:
        raise
    except ValueError as error:
        raise UserError(_named(error).removeprefix("ValueError: ")) from error
    except Exception as error:
        raise UserError(f"the model raises {_named(error)}") from error


def _checked(made: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Model, inputs and options of what FUNCTION returned."""
    import torch

    if not isinstance(made, tuple) or len(made) not in (2, 3):
        size = f" of {len(made)}" if isinstance(made, tuple) else ""
        raise UserError(
            f"FUNCTION returns a {type(made).__name__}{size}; it must return model, inputs or "
            "model, inputs, options"
        )
    model, inputs, options = (*made, {})[:3]
    if not isinstance(model, torch.nn.Module):
        raise UserError(f"FUNCTION returns a {type(model).__name__} first; give a torch.nn.Module")
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, tuple):
        raise UserError(
            f"FUNCTION returns a {type(inputs).__name__} second; give a tensor, or a tuple of what "
            "the model takes"
        )
    if not isinstance(options, dict):
        raise UserError(f"FUNCTION returns a {type(options).__name__} third; give a dict")
    kinds: dict[str, Any] = {"kwargs": dict, "loss": Callable, "mask": torch.Tensor}
    kinds |= {"batch_first": bool, "training": bool}
    for key, value in options.items():
        if key not in kinds:
            hint = nearest(str(key), kinds)
            raise UserError(f"options: {key!r} is not one of {', '.join(kinds)}{hint}")
        if not isinstance(value, kinds[key]):
            kind = kinds[key].__name__
            raise UserError(f"options: {key!r} is a {type(value).__name__}; give a {kind}")
    return model, inputs, options


def _write(made: "pd.DataFrame", path: Path) -> None:
    from sigprop.artifacts.files import atomic_path

    with atomic_path(path) as temporary:
        if path.suffix == ".csv":
            made.to_csv(temporary, index=False)
        else:
            made.to_parquet(temporary, engine="pyarrow", compression="zstd", index=False)

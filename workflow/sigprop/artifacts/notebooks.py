"""Run one parameterized notebook: executed copy and HTML on success, a readable log on failure."""

import atexit
import importlib.util
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from sigprop.artifacts.errors import UserError
from sigprop.artifacts.files import sha256, write_json, write_text
from sigprop.artifacts.provenance import Clock
from sigprop.artifacts.sidecars import read_sidecar

# Cell and notebook metadata that change from run to run and say nothing about the result.
_VOLATILE = ("papermill", "execution", "widgets")


def execute(
    notebook: str,
    parameters: dict[str, Any],
    *,
    log: str,
    executed: str,
    html: str,
    sidecar: str,
    tables: list[str],
    figures: list[str],
) -> None:
    """Execute `notebook` with papermill and publish its results.

    The notebook runs into `log`, which survives a failure with its traceback. `executed`, `html`
    and `sidecar` appear only on success; on failure the notebook's `figures` are removed as well,
    so that nothing is half-written.

    Raises:
        UserError: a cell failed; the message names the cell, the error and the kept log.
    """
    _isolate()
    import papermill
    import zmq
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    # Nobody else on the machine can read what goes to and from the kernel.
    encryption = "auto" if zmq.has("curve") else "disabled"
    clock = Clock()
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    try:
        papermill.execute_notebook(
            notebook,
            log,
            parameters=parameters,
            kernel_name="python3",
            language="python",
            start_timeout=300,  # seconds; a busy machine starts kernels slowly
            cwd=".",
            progress_bar=False,
            log_output=False,
            config=Config(KernelManager={"transport_encryption": encryption}),
        )
        missing = [figure for figure in figures if not Path(figure).is_file()]
        if missing:
            raise UserError(f"{notebook}: finished without writing {', '.join(missing)}")
    except PapermillExecutionError as error:
        _discard(figures)
        where = f"cell In [{error.exec_count}]"  # as the kept run numbers it
        raise UserError(
            f"{notebook}: {where} raised {error.ename}: {error.evalue}; "
            f"the run with its traceback is kept in {log}"
        ) from error
    except BaseException:
        _discard(figures)
        raise
    clean = _without_timing(json.loads(Path(log).read_text(encoding="utf-8")))
    text = json.dumps(clean, indent=1, ensure_ascii=False) + "\n"
    write_text(executed, text)
    write_text(html, _to_html(text))
    write_json(
        sidecar,
        {
            "notebook": notebook,
            "parameters": parameters,
            "tables": {table: read_sidecar(table) for table in tables},
            "figures": {figure: sha256(figure) for figure in figures},
            "provenance": clock.record(),
        },
    )


def _isolate() -> None:
    """Keep the user's own settings out of the kernel: a figure depends on the repository alone."""
    # An environment's own kernel, not one of the same name in the user's home.
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    # No profile and no startup files of IPython.
    home = tempfile.TemporaryDirectory(prefix="sigprop-")
    atexit.register(home.cleanup)
    os.environ["IPYTHONDIR"] = home.name
    # Matplotlib's own defaults; `figures.style.use` sets the rest.
    found = importlib.util.find_spec("matplotlib")
    if found and found.origin:
        os.environ["MATPLOTLIBRC"] = str(Path(found.origin).parent / "mpl-data" / "matplotlibrc")
    os.environ.pop("MPLBACKEND", None)


def _discard(paths: list[str]) -> None:
    for path in paths:
        Path(path).unlink(missing_ok=True)


def _without_timing(notebook: dict[str, Any]) -> dict[str, Any]:
    for record in (notebook, *notebook["cells"]):
        for key in _VOLATILE:
            record.get("metadata", {}).pop(key, None)
    return notebook


def _to_html(notebook: str) -> str:
    import nbformat
    from nbconvert import HTMLExporter

    # No script from the network: the page must open offline.
    exporter = HTMLExporter(mathjax_url="", require_js_url="", mermaid_js_url="")
    body, _ = exporter.from_notebook_node(nbformat.reads(notebook, as_version=4))
    return str(body)

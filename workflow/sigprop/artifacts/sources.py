"""Which source files a module depends on, so that a rule reruns when one of them changes."""

import ast
import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from sigprop.artifacts.provenance import code_root


@cache
def _graph() -> Any:
    import grimp

    return grimp.build_graph("sigprop", cache_dir=None)


def sources(*modules: str) -> list[str]:
    """Files of `modules` and of all they import inside the package, relative to the checkout.

    Imports inside functions count. Raises ValueError for a module that does not exist.
    """
    graph = _graph()
    closure: set[str] = set()
    for module in modules:
        if module not in graph.modules:
            raise ValueError(f"{module} is no module of sigprop")
        closure |= {module, *graph.find_upstream_modules(module)}
    return sorted({_file(module) for module in closure})


def _file(module: str) -> str:
    base = code_root() / "workflow" / Path(*module.split("."))
    file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    return os.path.relpath(file, code_root())


def notebook_sources(notebook: str) -> list[str]:
    """Files of the package that the code cells of `notebook` import, directly or not."""
    cells = json.loads((code_root() / notebook).read_text(encoding="utf-8"))["cells"]
    known = _graph().modules
    modules: set[str] = set()
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        for node in ast.walk(ast.parse("".join(cell["source"]))):
            if isinstance(node, ast.ImportFrom) and node.module:
                inside = {f"{node.module}.{alias.name}" for alias in node.names}
                modules |= inside | {node.module}
            elif isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
    return sources(*sorted(modules & known - {"sigprop"}))


def use_checkout() -> None:
    """Make child processes run this checkout's code with this environment's Python.

    So rules work whether or not the environment is activated, and the sources that a rule
    declares are the sources that it runs.
    """
    os.environ["PYTHONPATH"] = str(code_root() / "workflow")
    os.environ["PATH"] = os.pathsep.join([f"{sys.prefix}/bin", os.environ.get("PATH", "")])

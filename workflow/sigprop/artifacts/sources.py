"""What the code that a rule runs does, as a digest: blind to words and layout, not to numbers.

A module is read as its syntax tree, so comments and formatting are never seen. Left out besides are
docstrings, `__all__`, `if TYPE_CHECKING:`, annotations that nothing reads at run time, and words
for people: strings inside `raise` and `say(...)`, descriptions of settings, help of options.
"""

import ast
import hashlib
import json
import os
import sys
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from sigprop.artifacts.provenance import code_root

_DESCRIBED = {"Field", "add_argument", "add_parser"}  # calls with a description or a help
_LOOKED_AT = {
    *(ast.AnnAssign, ast.Assign, ast.AsyncFunctionDef, ast.Call, ast.ClassDef, ast.Constant),
    *(ast.Expr, ast.FunctionDef, ast.If, ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Raise),
    ast.arg,
}


def code_digest(*modules: str) -> str:
    """sha256 of what `modules` and all they import inside the package do, imports in functions too.

    Raises ValueError for a module that does not exist.
    """
    lines = (f"{name} {_read(name)[0]}\n" for name in closure(*modules))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def closure(*modules: str) -> list[str]:
    """`modules` and all they import inside the package, sorted; ValueError for an unknown one."""
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _read(name)[1]
    return sorted(found)


def imported(notebook: str) -> list[str]:
    """Modules of the package that the code cells of `notebook` import themselves."""
    cells = json.loads((code_root() / notebook).read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return read("\n".join(code))[1]


def read(source: str, package: str = "") -> tuple[str, list[str]]:
    """sha256 of what `source`, a module of `package`, does, and the modules of ours it imports."""
    code = _Code(package)
    code.add(ast.parse(source))
    known = _files()
    named = {f"{m}.{name}" if f"{m}.{name}" in known else m for m, name in code.imports}
    return (
        hashlib.sha256("\n".join(code.tokens).encode()).hexdigest(),
        sorted(named & known.keys()),
    )


def use_checkout() -> None:
    """Make child processes run this checkout's code with this environment's Python.

    So rules work whether or not the environment is activated, and the code whose digest a rule
    holds is the code that it runs.
    """
    os.environ["PYTHONPATH"] = str(code_root() / "workflow")
    os.environ["PATH"] = os.pathsep.join([f"{sys.prefix}/bin", os.environ.get("PATH", "")])


@cache
def _files() -> dict[str, Path]:
    """File of every module."""
    top = code_root() / "workflow"
    names = {f: f.relative_to(top).with_suffix("").parts for f in top.glob("sigprop/**/*.py")}
    return {".".join(name).removesuffix(".__init__"): file for file, name in names.items()}


@cache
def _read(module: str) -> tuple[str, list[str]]:
    """Digest of a module, and the modules that it imports."""
    if module not in _files():
        raise ValueError(f"{module} is not a module of sigprop")
    file = _files()[module]
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return read(file.read_text(encoding="utf-8"), package)


class _Code:
    """Syntax trees as `tokens` that change when what the code does changes, and their `imports`.

    A field that holds nothing leaves no token, so other versions of Python give the same ones.
    """

    def __init__(self, package: str) -> None:
        self.package = package
        self.tokens: list[str] = []
        self.imports: set[tuple[str, str]] = set()

    def add(self, node: Any, words: bool = True, annotations: bool = False) -> None:
        """Read a node, a list of them or a plain value; say whether strings, annotations count."""
        if isinstance(node, list):
            self.tokens.append("[")
            for item in node:
                self.add(item, words, annotations)
            self.tokens.append("]")
            return
        if not isinstance(node, ast.AST):
            self.tokens.append(repr(node))
            return
        left_out: tuple[str, ...] = ("ctx", "kind")  # said by a name's place; u before a string
        if type(node) in _LOOKED_AT:
            match node:
                case (
                    ast.Expr(value=ast.Constant())  # a docstring
                    | ast.Assign(targets=[ast.Name(id="__all__")])
                ):
                    return
                case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                    for item in node.orelse:
                        self.add(item, words, annotations)
                    return
                case ast.Constant(value=str()) | ast.JoinedStr() if not words:
                    self.tokens.append("words")
                    return
                case ast.AnnAssign(value=ast.expr() as start) if not annotations:
                    node = ast.Assign(targets=[node.target], value=start)
                case ast.AnnAssign() | ast.arg() if not annotations:
                    left_out += ("annotation",)
                case ast.ClassDef():
                    annotations = True  # fields
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    annotations = bool(node.decorator_list)  # which may read them
                    if not annotations:
                        left_out += ("returns",)
                case ast.Raise() | ast.Call(func=ast.Name(id="say")):
                    words = False
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if (
                    name in _DESCRIBED
                ):
                    kept = [word for word in node.keywords if not _is_description(word)]
                    node = ast.Call(func=node.func, args=node.args, keywords=kept)
                case ast.Import():
                    self.imports |= {(alias.name, "") for alias in node.names}
                case ast.ImportFrom():
                    module = resolve_name("." * node.level + (node.module or ""), self.package)
                    self.imports |= {(module, alias.name) for alias in node.names}
        self.tokens.append(type(node).__name__)
        for field in node._fields:
            value = getattr(node, field, None)
            if value is not None and value != [] and field not in left_out:
                self.tokens.append(field)
                self.add(value, words, annotations)
        self.tokens.append(")")


def _is_description(word: ast.keyword) -> bool:
    written = isinstance(word.value, ast.Constant | ast.JoinedStr)
    return word.arg in {"description", "help"} and written

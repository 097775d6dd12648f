"""The digest of what code does: blind to words and layout, awake to everything else."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from sigprop.artifacts import sources
from sigprop.artifacts.sources import closure, code_digest, imported, read

MODULE = '''"""A module."""
from typing import TYPE_CHECKING
from dataclasses import dataclass, field
from pydantic import Field

if TYPE_CHECKING:
    import torch
    from sigprop.models import block

__all__ = ["Case", "mean"]
LIMIT: float = 0.5  # of rho


@dataclass(frozen=True)
class Case:
    """A case."""

    depth: int
    rho: float = Field(default=0.1, description="token correlation")


def mean(values: list[float], *, power: int = 1) -> float:
    """Mean of powers."""
    if not values:
        raise ValueError(f"values: {values} is empty; give {1} at least" " please")
    total = 0.0
    for value in values:
        total += value**power
    say(f"{total} in all")
    name = "sum"
    return total / len(values) if name == "sum" else -total


@cached
def key(case: Case) -> str:
    return f"{case.depth} {case.rho:.2f}"
'''


def changed(old: str, new: str) -> bool:
    """Whether the digest is another one after the edit."""
    assert old in MODULE
    return read(MODULE)[0] != read(MODULE.replace(old, new, 1))[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A module."""\n', '"""Another\n\ntext."""\n'),
        ('    """A case."""\n', ""),
        ('    """Mean of powers."""', '    """Means."""  # ours'),
        ("  # of rho", ""),
        ("    total = 0.0\n", "\n    total = (\n        0.0\n    )\n"),
        ('"sum"', "'sum'"),
        ("    from sigprop.models import block\n", ""),
        ('["Case", "mean"]', '["mean"]'),
        ("values: list[float], *", "values: Sequence[float], *"),
        ("1) -> float", "1)"),
        ("LIMIT: float", "LIMIT"),
        ("is empty; give {1} at least", "holds nothing"),
        ('f"values: {values} is empty; give {1} at least" " please"', '"nothing"'),
        ('"token correlation"', '"rho"'),
        (', description="token correlation"', ""),
        ("{total} in all", "total {total:.3f}"),
    ],
)
def test_words_and_layout_do_not_count(old: str, new: str) -> None:
    assert not changed(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("value**power", "value*power"),
        ("LIMIT: float = 0.5", "LIMIT: float = 0.25"),
        ("power: int = 1", "power: int = 2"),
        ("power: int = 1", "power: int = True"),
        ("power: int", "exponent: int"),
        ("*, power", "power"),
        ("total = 0.0", "total = 0"),
        ('name = "sum"', 'name = "mean"'),
        ("-total", "+total"),
        ("not values", "values"),
        ("raise ValueError(", "raise KeyError("),
        ("raise ValueError(", "print("),
        ("    total = 0.0\n    for", "    for"),
        ('    say(f"{total} in all")\n    name = "sum"', '    name = "sum"\n    say(f"{total}")'),
        ("    say(", "    tell("),
        ("frozen=True", "frozen=False"),
        ("frozen=True", "order=True"),
        ("@cached\n", ""),
        ("@cached\n", "@cache\n"),
        ("case: Case", "case: str"),  # a decorator may read it
        ("    depth: int\n", "    depth: float\n"),  # a field: pydantic reads it
        ("default=0.1", "default=0.2"),
        ("{case.rho:.2f}", "{case.rho:.3f}"),
        ("{case.rho:.2f}", "{case.rho!r:.2}"),
        ("import dataclass, field", "import dataclass"),
        ("    import torch\n", "    import torch\nelse:\n    torch = None\n"),
    ],
)
def test_what_can_change_a_number_counts(old: str, new: str) -> None:
    assert changed(old, new)


def test_every_number_and_operator_counts(checkout: Path) -> None:
    source = (checkout / "workflow/sigprop/theory/chebyshev.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            node.exc = ast.Name("Error")  # numbers inside a message are words
    seen = [read(ast.unparse(tree))[0]]
    for node in [*ast.walk(tree)]:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            node.value, kept = 7.5, node.value
            seen.append(read(ast.unparse(tree))[0])
            node.value = kept
        elif isinstance(node, ast.BinOp | ast.UnaryOp):
            node.op, kept = ast.Mod() if isinstance(node, ast.BinOp) else ast.Invert(), node.op
            seen.append(read(ast.unparse(tree))[0])
            node.op = kept
    assert len({*seen}) == len(seen) > 50
    assert read(source)[0] == read(ast.unparse(ast.parse(source)))[0]  # another layout


# ---------------------------------------------------------------- what is imported


def test_a_closure_holds_all_that_a_simulation_imports_and_no_theory() -> None:
    declared = set(closure("sigprop.experiments.propagation.simulation"))
    code = (
        "import sys, sigprop.experiments.propagation.simulation as p\n"
        "from sigprop.experiments.context import Context\n"
        "s = p.PropagationSettings.model_validate(dict(scheme='no_ln', activation='relu', "
        "attention='softmax', n_tokens=2, d_model=4, depth=1, sigma_x=1, rho=0, n_networks=2, "
        "quantities=['cos_mean']))\n"
        "p.run(s, Context('t', 0))\n"
        "print(*(n for n, m in sys.modules.items() if n.startswith('sigprop.')"
        " and not hasattr(m, '__path__')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "sigprop.models.block" in done.stdout.split()
    assert {*done.stdout.split()} <= declared
    assert not any(".theory." in module or ".figures." in module for module in declared)


def test_a_closure_of_theory_holds_no_simulation() -> None:
    declared = closure("sigprop.experiments.propagation.theory")
    assert "sigprop.theory.noci2022" in declared
    assert not any(".instruments." in m or m.endswith((".block", ".samplers")) for m in declared)


def test_a_notebook_imports_what_its_cells_name() -> None:
    declared = closure(*imported("notebooks/noci2022/fig09.ipynb"))
    assert {"sigprop.figures.style", "sigprop.analysis.data"} <= {*declared}
    assert "sigprop.analysis.scaling" not in declared
    assert not any(".claims." in module or ".experiments." in module for module in declared)


def test_imports_are_found_as_grimp_finds_them() -> None:
    graph = grimp.build_graph("sigprop", cache_dir=None, exclude_type_checking_imports=True)
    for module in graph.modules:
        assert closure(module) == sorted({module, *graph.find_upstream_modules(module)})


@pytest.fixture
def other_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty checkout in place of this one."""
    monkeypatch.setattr(sources, "code_root", lambda: tmp_path)
    yield tmp_path
    forget()


def forget() -> None:
    sources._files.cache_clear()
    sources._read.cache_clear()


def test_a_digest_covers_the_closure(other_root: Path) -> None:
    """Of the module itself, of what it imports in whatever way, and of nothing else."""
    package = other_root / "workflow/sigprop"
    texts = {
        "__init__": "",
        "top": "from sigprop.a import x\ndef f():\n    from . import b\n",
        "a/__init__": "from .c import x",
        "a/c": "x = 1",
        "b": "x = 1",
        "apart": "x = 1",
    }

    def digest(**edits: str) -> str:
        for name, text in (texts | edits).items():
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            (package / f"{name}.py").write_text(text)
        forget()
        return code_digest("sigprop.top")

    before = digest()
    assert before == digest() == digest(apart="x = 2") == digest(b="x = 1  # one")
    assert all(before != digest(**{name: "x = 2"}) for name in ("top", "a/__init__", "a/c", "b"))


def test_an_unknown_module_has_no_digest() -> None:
    with pytest.raises(ValueError, match=r"sigprop\.nothing is not a module"):
        code_digest("sigprop.nothing")

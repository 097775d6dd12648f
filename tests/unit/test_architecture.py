"""Promises of the layout: what imports without torch, and what notebooks hold."""

import ast
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import sigprop
import sigprop.analysis
import sigprop.claims
import sigprop.figures

ROOT = Path(sigprop.__file__).parents[2]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*/*.ipynb"))


def modules_of(package: Any) -> list[str]:
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return [module.name for module in found]


def loaded(statement: str) -> set[str]:
    """Top-level modules in memory after a statement, in a new process."""
    code = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


# ---------------------------------------------------------------- imports


@pytest.mark.parametrize(
    "modules",
    [
        modules_of(sigprop.figures),
        modules_of(sigprop.claims),
        modules_of(sigprop.analysis),
        ["sigprop.experiments.config", "sigprop.experiments.index"],
        ["sigprop.artifacts.notebooks", "sigprop.artifacts.sources"],
        ["sigprop.experiments.propagation.simulation", "sigprop.experiments.propagation.theory"],
    ],
    ids=lambda modules: modules[0],
)
def test_only_a_simulation_that_runs_needs_torch(modules: list[str]) -> None:
    assert "torch" not in loaded(f"import {', '.join(modules)}")


def imported_by(room: str) -> set[str]:
    """Other rooms that the modules of a room import, also inside functions."""
    names: set[str] = set()
    for file in (Path(sigprop.__file__).parent / room).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
            names |= {each.name for each in node.names} if isinstance(node, ast.Import) else set()
    return {name.split(".")[1] for name in names if name.startswith("sigprop.")} - {room}


SAYS = re.compile(r"This room imports (nothing|`\w+`(?:, `\w+`)*(?: and `\w+`)?)")


@pytest.mark.parametrize(
    "room",
    [
        *("artifacts", "theory", "models", "instruments", "tasks", "training", "experiments"),
        *("figures", "claims", "pages"),
    ],
)
def test_a_rooms_page_says_what_it_imports(room: str) -> None:
    (said,) = SAYS.findall((ROOT / "docs" / f"{room}.md").read_text(encoding="utf-8"))
    assert set(re.findall(r"`(\w+)`", said)) == imported_by(room)


def test_the_order_of_rooms_is_that_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = contracts["tool"]["importlinter"]["contracts"][0]["layers"]
    text = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    said = text.split("never from above: ")[1].split(". ")[0].split("; ")
    rooms = [re.findall(r"sigprop\.(\w+)", layer) for layer in layers]
    assert [re.findall(r"`(\w+)`", each) for each in said] == rooms


def test_the_rules_are_parsed_without_tables() -> None:
    """Every call of Snakemake reads the config and the index; pandas would double its start."""
    parse = "import sigprop.experiments.index, sigprop.artifacts.sources, sigprop.claims.tables"
    assert not {"torch", "pandas", "numpy", "scipy"} & loaded(parse)


def test_help_needs_neither_torch_nor_tables() -> None:
    show = "from sigprop.cli import main as cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass"
    assert not {"torch", "pandas", "numpy", "matplotlib"} & loaded(show)


def test_lists_and_rules_of_claims_need_no_torch() -> None:
    for command in ("list schemes", "list figures", "claims"):
        assert "torch" not in loaded(
            f"from sigprop.cli import main as cli\ncli.main({command.split()})"
        )


def test_rooms_hold_a_docstring_and_nothing_else() -> None:
    for file in Path(sigprop.__file__).parent.glob("*/__init__.py"):
        (only,) = ast.parse(file.read_text(encoding="utf-8")).body
        assert isinstance(only, ast.Expr) and isinstance(only.value, ast.Constant), file


# ---------------------------------------------------------------- notebooks


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> dict[str, Any]:
    return json.loads(request.param.read_text(encoding="utf-8"))


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


def test_a_notebook_opens_with_words_then_its_parameters(notebook: dict[str, Any]) -> None:
    first = notebook["cells"][0]
    assert first["cell_type"] == "markdown" and first["source"][0].startswith("# ")
    tagged = [c for c in notebook["cells"] if "parameters" in c["metadata"].get("tags", [])]
    assert tagged == code_cells(notebook)[:1]
    names = {node.targets[0].id for node in ast.parse("".join(tagged[0]["source"])).body}
    assert names == {"tables", "output", "preset", "scaled_down"}


def test_a_notebook_is_stored_without_results_or_local_names(notebook: dict[str, Any]) -> None:
    for cell in code_cells(notebook):
        assert not cell["outputs"] and cell["execution_count"] is None
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert set(notebook["metadata"]["language_info"]) == {"name"}
    assert not re.search(r'["\s](/home|/root|/tmp|/Users)/', json.dumps(notebook))


def test_a_notebook_holds_no_logic(notebook: dict[str, Any]) -> None:
    """Figures are told, not programmed: no functions, no long cells, no simulation."""
    for cell in code_cells(notebook):
        source = "".join(cell["source"])
        nodes = list(ast.walk(ast.parse(source)))
        assert not [
            n for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
        ]
        assert sum(bool(line.strip()) for line in source.splitlines()) <= 40
        imported = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
        imported |= {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
        rooms = {".".join(name.split(".")[:2]) for name in imported}
        ours = {room for room in rooms if room.startswith("sigprop")}
        assert ours <= {"sigprop.analysis", "sigprop.figures"}
        assert "torch" not in {room.split(".")[0] for room in rooms}


def test_every_notebook_saves_through_the_shared_look(notebook: dict[str, Any]) -> None:
    source = "\n".join("".join(cell["source"]) for cell in code_cells(notebook))
    assert re.search(r"style\.save\(.*\bpreset=preset, scaled_down=scaled_down\)", source)

"""After one run of the smoke preset: every output is there, and is what it claims to be."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sigprop.artifacts.files import sha256
from sigprop.artifacts.tables import read_table
from sigprop.claims.ledger import all_claims, read_verdicts
from sigprop.experiments.config import load, parts
from sigprop.experiments.index import figures
from sigprop.experiments.settings import PRESETS

TABLES = load("smoke").experiments

pytestmark = pytest.mark.slow

FIGURES = figures()
IDS = [figure.id for figure in FIGURES]
PARTS = [part for table in TABLES for part in parts(table)]


@pytest.fixture(scope="module")
def results(built) -> Path:
    return built.root / "results/smoke"


def record(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def assert_provenance(built, provenance: dict[str, Any]) -> None:
    head = built.call(["git", "rev-parse", "HEAD"]).stdout.strip()
    assert provenance["git_commit"] == head and provenance["git_dirty"] is False
    assert {"python", "numpy", "pandas", "matplotlib"} <= set(provenance["versions"])
    assert provenance["wall_s"] > 0 and provenance["peak_memory_mib"] > 0


def test_every_declared_output_exists_and_nothing_else(results: Path) -> None:
    made = {
        str(path.relative_to(results))
        for folder in ("data", "figures", "notebooks", "claims")
        for path in (results / folder).rglob("*")
        if path.is_file()
    }
    expected = {f"data/{part}{suffix}" for part in PARTS for suffix in (".parquet", ".json")}
    expected |= {f"figures/{name}{suffix}" for name in IDS for suffix in (".pdf", ".png", ".json")}
    expected |= {f"figures/{figure.id}.{suffix}" for figure in FIGURES for suffix in figure.also}
    expected |= {f"notebooks/{name}{suffix}" for name in IDS for suffix in (".ipynb", ".html")}
    assert made == expected | {"data/schemes.json", "claims/claims.json", "claims/claims.md"}


def test_nothing_outside_results_was_written(built) -> None:
    assert built.call(["git", "status", "--porcelain"]).stdout == ""


def test_every_job_has_a_log_and_a_cost(results: Path) -> None:
    jobs = {f"simulate_{table}" for table in TABLES} | {*IDS, "claims", "pages"}
    assert jobs <= {path.stem for path in (results / "logs").glob("*.log")}
    for job in jobs:
        header, values = (results / f"benchmarks/{job}.tsv").read_text().splitlines()[:2]
        assert float(dict(zip(header.split("\t"), values.split("\t"), strict=True))["s"]) > 0


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("part", PARTS)
def test_the_sidecar_of_a_table_tells_how_to_make_it_again(built, results: Path, part: str) -> None:
    path = results / f"data/{part}.parquet"
    sidecar = record(path.with_suffix(".json"))
    table = part.removesuffix("_theory")
    config = load("smoke")
    assert sidecar["sha256"] == sha256(path) and sidecar["rows"] == len(read_table(path)) > 0
    assert (sidecar["table"], sidecar["preset"]) == (table, "smoke")
    assert sidecar["kind"] == ("theory" if part != table else "simulation")
    assert sidecar["seed"] == config.seed
    assert sidecar["settings"] == config.experiments[table].model_dump(mode="json")
    assert_provenance(built, sidecar["provenance"])
    source = set(read_table(path)["source"])
    assert source == {"theory" if TABLES[table].CLOSED_FORM else sidecar["kind"]}


# ---------------------------------------------------------------- figures


@pytest.mark.parametrize("name", IDS)
def test_a_picture_shows_something(results: Path, name: str) -> None:
    with Image.open(results / f"figures/{name}.png") as image:
        assert image.width > 500 and image.height > 300
        pixels = np.asarray(image.convert("RGB").reduce(3))
    height, width, _ = pixels.shape
    ink = (pixels != 255).any(-1)
    assert 0.01 < ink.mean() < 0.9
    assert len(np.unique(pixels @ [1, 256, 65536])) > 50
    # Drawn in all four quarters, so that no panel is empty.
    top, left = height // 2, width // 2
    for quarter in (ink[:top, :left], ink[:top, left:], ink[top:, :left], ink[top:, left:]):
        assert quarter.mean() > 0.001
    assert (results / f"figures/{name}.pdf").read_bytes()[:4] == b"%PDF"


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.id)
def test_the_sidecar_of_a_figure_tells_what_it_was_drawn_from(built, results, figure) -> None:
    sidecar = record(results / f"figures/{figure.id}.json")
    assert sidecar["notebook"] == figure.notebook
    for suffix in ("pdf", "png", *figure.also):
        path = f"results/smoke/figures/{figure.id}.{suffix}"
        assert sidecar["figures"][path] == sha256(built.root / path)
    names = [part for table in figure.tables for part in parts(table)]
    tables = {f"results/smoke/data/{name}.parquet" for name in names}
    assert set(sidecar["tables"]) == tables
    for path, embedded in sidecar["tables"].items():
        assert embedded["sha256"] == sha256(built.root / path)
    assert_provenance(built, sidecar["provenance"])


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.id)
def test_a_smaller_run_is_told_to_the_notebook(results: Path, figure) -> None:
    """style.save writes `Scaled down` under the figure when this is not empty."""
    parameters = record(results / f"figures/{figure.id}.json")["parameters"]
    assert parameters["preset"] == "smoke"
    assert bool(parameters["scaled_down"]) == bool(figure.tables)
    injected = [
        "".join(cell["source"])
        for cell in record(results / f"notebooks/{figure.id}.ipynb")["cells"]
        if "injected-parameters" in cell["metadata"].get("tags", [])
    ]
    executed: dict[str, Any] = {}
    exec(injected[0], executed)
    assert len(injected) == 1 and {key: executed[key] for key in parameters} == parameters


# ---------------------------------------------------------------- notebooks


def _texts(cell: dict[str, Any]) -> str:
    """Everything in a cell but pictures."""
    outputs = json.loads(json.dumps(cell.get("outputs", [])))
    for output in outputs:
        for kind in [kind for kind in output.get("data", {}) if kind.startswith("image/")]:
            del output["data"][kind]
    return json.dumps([cell["source"], cell["metadata"], outputs])


@pytest.mark.parametrize("name", IDS)
def test_an_executed_notebook_ran_through_and_names_no_machine(built, results, name: str) -> None:
    notebook = record(results / f"notebooks/{name}.ipynb")
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] in ("error", "stream")]
    text = json.dumps(notebook["metadata"]) + "".join(map(_texts, notebook["cells"]))
    for place in (str(built.root), sys.prefix, str(Path.home())):
        assert place not in text
    assert not re.search(r"(?<![\w.:/-])/(home|root|tmp|usr|opt|var|Users|mnt)/", text)


@pytest.mark.parametrize("name", IDS)
def test_a_page_needs_no_network_and_names_no_machine(built, results: Path, name: str) -> None:
    page = (results / f"notebooks/{name}.html").read_text(encoding="utf-8")
    assert len(page) > 10_000
    tags = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page)
    loads = [tag for tag in tags if re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", tag)]
    assert not loads
    assert not re.search(r"""(?:@import\s+|url\()\s*["']?https?://""", page)
    assert str(built.root) not in page


# ---------------------------------------------------------------- claims


def test_every_claim_has_a_verdict_and_a_reason_when_it_was_not_run(results: Path) -> None:
    verdicts = {entry["id"]: entry for entry in read_verdicts(results / "claims/claims.json")}
    assert list(verdicts) == list(all_claims())
    for name, claim in all_claims().items():
        entry = verdicts[name]
        if PRESETS.index(claim.smallest_preset) > PRESETS.index("smoke"):
            assert entry["verdict"] == "not run" and not entry["parts"]
            assert entry["reason"] == (
                f"needs the {claim.smallest_preset} preset; smoke is too small to decide"
            )
        else:
            assert entry["verdict"] == "reproduced", entry["parts"]
        for table, digest in entry["inputs"].items():
            assert digest == sha256(results / f"data/{table}.parquet")
    page = (results / "claims/claims.md").read_text(encoding="utf-8")
    assert all(f"## {name}: " in page for name in verdicts)

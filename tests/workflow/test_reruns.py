"""What reruns after a change, and what is left after a failure, a kill or damage."""

import ctypes
import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import nbformat
import pytest

from sigprop.artifacts.files import sha256
from sigprop.artifacts.sources import closure, imported
from sigprop.experiments.config import load
from sigprop.experiments.index import figures
from sigprop.experiments.settings import Experiment
from sigprop.models.schemes import SCHEMES

TABLES = load("smoke").experiments

pytestmark = pytest.mark.slow

FIGURES = figures()
DATA = Path("results/smoke/data")


def drawn_from(tables: set[str]) -> set[str]:
    return {figure.id for figure in FIGURES if tables & {*figure.tables}}


def modules(made: Experiment, kind: str) -> list[str]:
    """Modules that make the simulation or the theory of a table."""
    names = (made.simulation, made.design) if kind == "simulation" else (made.theory,)
    return [name for name in names if name]


def running(module: str) -> set[str]:
    """Jobs that run code of `module`, and all that follow from them."""

    def tables(kind: str) -> set[str]:
        made_by = {t: modules(made, kind) for t, made in TABLES.items()}
        return {t for t, own in made_by.items() if own and module in closure(*own)}

    simulated = tables("simulation")
    theory = tables("theory") | {t for t in simulated if TABLES[t].THEORY_READS_SIMULATION}
    made = {f"simulate_{table}" for table in simulated} | {f"theory_{table}" for table in theory}
    drawn = {figure.id for figure in FIGURES if module in closure(*imported(figure.notebook))}
    decided = {"claims"} if made or module in closure("sigprop.claims.ledger") else set()
    return made | drawn | drawn_from(simulated | theory) | decided | {"pages"}


def using(*schemes: str) -> set[str]:
    """Tables whose settings hold the record of a scheme."""
    return {t for t, made in TABLES.items() if {*schemes} & {*getattr(made, "records", ())}}


def made_by(scheme: str) -> set[str]:
    """Jobs that make the tables of a scheme, and the figures drawn from them."""
    tables = using(scheme)
    theory = {f"theory_{t}" for t in tables if TABLES[t].THEORY}
    return {f"simulate_{t}" for t in tables} | theory | drawn_from(tables)


DIAGRAM = {"schemes", "fig02", "geo01", "pages"}  # of all records


def leftovers(folder: Path) -> list[Path]:
    """Temporary files of writers that were stopped."""
    return [path for path in folder.rglob(".*") if path.name != ".gitignore"]


# ---------------------------------------------------------------- what reruns


WORDS = [  # a comment, a docstring, a message, a layout, a description
    ("config/schemes.yaml", "# Other attentions.", "# More attentions."),
    ("workflow/sigprop/models/schemes.py", "\nNORMS", "\n# In order.\nNORMS"),
    ("workflow/sigprop/theory/noci2022.py", '"""', '"""Edited. '),
    ("workflow/sigprop/experiments/settings.py", "missing; it has", "absent; it has"),
    ("workflow/sigprop/artifacts/tables.py", "SOURCES = (", "SOURCES = (\n    "),
    ("workflow/sigprop/experiments/schemes.py", "alpha at depth 1", "at depth 1"),
]
CONSTANT = ("workflow/sigprop/theory/noci2022.py", "(d_in + d_out) / 2.0", "(d_in + d_out) / 2.5")
OPERATOR = ("workflow/sigprop/models/block.py", "else x + alpha * y", "else x - alpha * y")
COLOUR = ("workflow/sigprop/figures/style.py", '"viridis_r"', '"magma_r"')
NOTEBOOK = ("notebooks/noci2022/fig09.ipynb", "# Figure 9", "# Figure nine")
SETTING = ("config/presets/smoke.yaml", "50], n_networks: 8", "50], n_networks: 9")
RECORDS = "config/schemes.yaml"
RECORD = (RECORDS, "pre_ln: {norm: pre,", "pre_ln: {norm: pre, tau: 2,")
NEW_RECORD = (RECORDS, "# Other attentions.", "mine: {norm: post, tau: 2}\n\n# Other attentions.")
TITLE = (RECORDS, "title: T-Fixup", "title: TFixup")
SCHEME_COLOUR = (RECORDS, "{norm: post, colour: 3", "{norm: post, colour: 4")
OF_DEEP = {"simulate_deep", "theory_deep", "claims", "pages"} | drawn_from({"deep"})


@pytest.fixture(scope="module")
def edited(built, tmp_path_factory: pytest.TempPathFactory):
    """A copy of the built tree for dry runs, with files put back after each."""
    return built.copy(tmp_path_factory.mktemp("edited") / "tree")


@pytest.mark.parametrize(
    ("edits", "jobs", "among", "not_among"),
    [
        (WORDS, set(), set(), set()),
        ([CONSTANT], "theory.noci2022", {"theory_deep", "fig09", "claims"}, {"simulate_deep"}),
        ([OPERATOR], "models.block", {"simulate_deep", "fig09", "claims"}, {"theory_moments"}),
        ([COLOUR], "figures.style", {*drawn_from({*TABLES})}, {"simulate_deep", "theory_deep"}),
        ([NOTEBOOK], {"fig09", "pages"}, set(), set()),
        ([SETTING], OF_DEEP, set(), set()),
        ([RECORD], made_by("pre_ln") | DIAGRAM | {"claims"}, set(), set()),
        ([NEW_RECORD], DIAGRAM, set(), set()),
        ([TITLE], drawn_from(using("t_fixup")) | DIAGRAM, set(), set()),
        ([SCHEME_COLOUR], drawn_from(using(*SCHEMES)) | DIAGRAM, set(), {"claims"}),
    ],
    ids=[
        *("words and dates", "a constant", "an operator", "a colour", "a notebook", "a setting"),
        *("a scheme", "a new scheme", "a scheme's title", "a scheme's colour"),
    ],
)
def test_what_an_edit_reruns(
    edited, edits: list[tuple[str, str, str]], jobs: str | set[str], among: set, not_among: set
) -> None:
    kept = {file: (edited.root / file).read_text(encoding="utf-8") for file, _, _ in edits}
    for folder in ("config", "workflow", "notebooks", "profiles"):
        for file in (edited.root / folder).rglob("*"):
            os.utime(file)
    for edit in edits:
        edited.edit(*edit)
    try:
        found = edited.jobs()
    finally:
        for file, text in kept.items():
            (edited.root / file).write_text(text, encoding="utf-8")
    assert found == (running(f"sigprop.{jobs}") if isinstance(jobs, str) else jobs)
    assert among <= found and not not_among & found


# ---------------------------------------------------------------- failure and damage


def test_a_failing_notebook_leaves_its_run_and_no_output(tree) -> None:
    path = tree.root / "notebooks/noci2022/fig02.ipynb"
    notebook = nbformat.read(path, as_version=4)
    bad = "open(output + '.png', 'w').write('half a figure')\n1 / 0"
    notebook.cells.insert(2, nbformat.v4.new_code_cell(bad))  # after the parameters
    nbformat.write(notebook, path)

    done = tree.snakemake("fig02")
    said = done.stdout + done.stderr
    assert done.returncode == 1
    log = tree.root / "results/smoke/logs/fig02.ipynb"
    code = [cell for cell in nbformat.read(log, as_version=4).cells if cell.cell_type == "code"]
    (failed,) = [cell for cell in code if any(out.output_type == "error" for out in cell.outputs)]
    assert failed.source == bad and "ZeroDivisionError" in "".join(failed.outputs[-1].traceback)
    assert (
        f"sigprop: notebooks/noci2022/fig02.ipynb: cell In [{failed.execution_count}] raised "
        "ZeroDivisionError: division by zero; the run with its traceback is kept in "
        "results/smoke/logs/fig02.ipynb\n"
    ) in said
    for folder in ("figures", "notebooks"):
        assert not list((tree.root / "results/smoke" / folder).glob("fig02*"))


@pytest.fixture
def damaged(tree):
    """A built tree in which one table lost its end."""
    table = tree.root / DATA / "deep.parquet"
    table.write_bytes(table.read_bytes()[:-100])
    return tree


def remedy(done) -> list[str]:
    """The one line names the file and a command: its arguments."""
    # Jupyter's kernel remarks on its own transport.
    said = [line for line in done.stderr.splitlines() if not line.startswith("[IPKernelApp]")]
    assert done.returncode == 1 and len(said) == 1
    assert f"{DATA}/deep.parquet: unreadable or truncated parquet; rebuild it with" in said[0]
    command, *arguments = shlex.split(said[0].split("`")[1])
    assert command == "snakemake"
    return arguments


def test_claims_from_a_truncated_table_name_the_command_that_rebuilds_it(damaged) -> None:
    arguments = ["--evaluate", "--preset", "smoke", "--data", str(DATA)]
    assert damaged.jobs(*remedy(damaged.sigprop("claims", *arguments))) == {"simulate_deep"}


def test_a_figure_from_a_truncated_table_names_the_command_and_writes_nothing(
    damaged, tmp_path: Path
) -> None:
    parameters = json.loads((damaged.root / "results/smoke/figures/fig09.json").read_text())
    names = ("log", "executed", "html", "sidecar")
    options = [word for name in names for word in (f"--{name}", str(tmp_path / f"{name}.ipynb"))]
    given = json.dumps(parameters["parameters"])
    notebook = "notebooks/noci2022/fig09.ipynb"
    done = damaged.sigprop("draw", notebook, "--parameters", given, *options)
    assert remedy(done)[0] == str(DATA / "deep.parquet")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["log.ipynb"]


# ---------------------------------------------------------------- kill


def start(tree, rule: str) -> subprocess.Popen[str]:
    """A forced run of `rule`, once its job has begun."""
    log = tree.root / f"results/smoke/logs/{rule}.log"
    log.unlink()
    process = subprocess.Popen(
        tree.command("-f", rule),
        cwd=tree.root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # A shell's background jobs are born deaf to Ctrl-C, and would pass that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 600
    while not log.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    return process


def test_after_a_kill_the_lock_is_explained_and_the_rerun_is_whole(tree) -> None:
    table = tree.root / DATA / "moments.parquet"
    before = sha256(table)
    process = start(tree, "simulate_moments")
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    (table.parent / ".moments.parquet.half.parquet").write_bytes(b"PAR1")  # as if while writing
    assert not table.exists()

    locked = tree.snakemake("simulate_moments")
    assert locked.returncode == 1
    assert "clear it with `snakemake --unlock` and run again" in locked.stderr
    unlocked = tree.snakemake("--unlock")
    assert unlocked.returncode == 0 and "sigprop:" not in unlocked.stderr

    again = tree.snakemake("simulate_moments")
    assert again.returncode == 0 and "sigprop:" not in again.stderr
    assert sha256(table) == before
    assert not leftovers(table.parent)


@pytest.mark.parametrize("who", ["the batch system", "the keyboard"])
def test_after_a_polite_stop_there_is_no_lock_and_no_half_file(tree, who: str) -> None:
    process = start(tree, "simulate_moments")
    if who == "the keyboard":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=600) == 1
    assert not list((tree.root / ".snakemake/locks").glob("*"))
    assert not leftovers(tree.root / DATA)
    # SIGTERM lets the job that runs come to its end; Ctrl-C reaches the job as well.
    whole = [(tree.root / DATA / f"moments{suffix}").exists() for suffix in (".parquet", ".json")]
    assert whole == ([False, False] if who == "the keyboard" else [True, True])


# ---------------------------------------------------------------- read-only


def obey_permissions() -> None:
    """Root may write anywhere: give that up (Linux: CAP_DAC_OVERRIDE) before the program starts."""
    if os.getuid() == 0:
        assert ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE) == 0


_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE = 24, 1


def test_read_only_results_are_one_line(clean, tmp_path: Path) -> None:
    tree = clean.copy(tmp_path / "tree")
    folder = tree.root / "results/smoke"
    folder.mkdir(parents=True)
    folder.chmod(0o555)
    done = tree.snakemake("-n", preexec_fn=obey_permissions)
    folder.chmod(0o755)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == "sigprop: results/smoke: no write permission; results go there"
    assert "Traceback" not in done.stdout + done.stderr

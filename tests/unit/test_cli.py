"""`sigprop`: what each command does, and the one line and exit code 1 of what it cannot do."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from sigprop import __version__
from sigprop.artifacts.files import sha256
from sigprop.claims.ledger import all_claims
from sigprop.cli import main as cli
from sigprop.experiments.config import load
from sigprop.experiments.frames import schema
from sigprop.experiments.index import figures
from sigprop.experiments.propagation.settings import PropagationSettings
from sigprop.models.schemes import SCHEMES

SCHEMA = schema(PropagationSettings)

TABLES = load("smoke").experiments

TINY = {
    "scheme": ["no_ln"],
    "activation": ["relu"],
    "attention": ["softmax"],
    "n_tokens": 3,
    "d_model": [8],
    "depth": [2],
    "sigma_x": [1.0],
    "rho": 0.1,
    "n_networks": 4,
    "quantities": ["cos_mean"],
}
DRAW = ["--parameters", "{}", "--log", "l", "--executed", "e", "--html", "h", "--sidecar", "s"]


def refusal(*arguments: str) -> str:
    """The one line that the command leaves with; the exit code of a text is 1."""
    with pytest.raises(SystemExit) as leaving:
        cli.main([*arguments])
    line = leaving.value.code
    assert isinstance(line, str) and "\n" not in line and line.startswith("sigprop: ")
    return line


def run(output: Path, *arguments: str, **changes: object) -> None:
    settings = json.dumps(TINY | changes)
    cli.main(["run", "deep", "--settings", settings, "-o", str(output), *arguments])


# ---------------------------------------------------------------- help and lists


@pytest.mark.parametrize(
    "command", [(), ("run",), ("draw",), ("list",), ("claims",), ("probe",), ("schema",)]
)
def test_help(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        cli.main([*command, "--help"])
    assert leaving.value.code == 0
    assert "usage: sigprop" in capsys.readouterr().out


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        cli.main([])
    assert leaving.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"sigprop {__version__}\n"


@pytest.mark.parametrize(
    ("what", "first_words"),
    [
        ("figures", [figure.id for figure in figures()]),
        ("tables", [*TABLES]),
        ("schemes", [*SCHEMES]),
        ("presets", ["smoke", "laptop", "paper"]),
    ],
)
def test_lists(what: str, first_words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["list", what])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == first_words


def test_scheme_records_say_what_a_block_executes(tmp_path: Path) -> None:
    cli.main(["list", "schemes", "--output", str(tmp_path / "schemes.json")])
    records = {r["name"]: r for r in json.loads((tmp_path / "schemes.json").read_text())}
    assert set(records) == set(SCHEMES)
    assert records["cowsik_conv"]["sublayers"][0]["skip"] == "variance_preserving"
    assert records["cowsik_renorm"]["sublayers"][1]["norm_after"]
    first, second = records["pre_ln_scaled"]["sublayers"]
    assert (first["branch"], second["branch"]) == ("attention", "feed_forward")
    assert first["norm_before"] and not first["norm_after"]
    assert first["strength"] == r"1/\sqrt{L}"


def test_the_reader_of_a_list_may_stop_early() -> None:
    command = f"{sys.executable} -m sigprop claims | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == "" and done.stdout.count("\n") == 1


# ---------------------------------------------------------------- run


def test_run_writes_a_table_and_says_how(tmp_path: Path) -> None:
    output = tmp_path / "deep.parquet"
    run(output, "--seed", "7", "--device", "cpu", "--preset", "smoke")
    table = SCHEMA.validate(pd.read_parquet(output))
    assert set(table["source"]) == {"simulation"}
    sidecar = json.loads((tmp_path / "deep.json").read_text())
    assert sidecar["seed"] == 7 and sidecar["preset"] == "smoke" and sidecar["device"] == "cpu"
    assert sidecar["settings"]["depth"] == [2] and sidecar["rows"] == len(table)
    assert sidecar["sha256"] == sha256(output)


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: pytest.fail(f"ran {name}"))
    (tmp_path / "file").write_text("in the way")
    assert "cannot write there" in refusal(
        "run", "deep", "-o", str(tmp_path / "file" / "x.parquet")
    )


def test_run_without_settings_takes_the_presets(tmp_path: Path) -> None:
    output = tmp_path / "theory.parquet"
    cli.main(["run", "deep", "--kind", "theory", "--preset", "smoke", "-o", str(output)])
    table = SCHEMA.validate(pd.read_parquet(output))
    assert set(table["source"]) == {"theory"} and set(table["depth"]) == {12, 50}


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        run(tmp_path / f"{name}.parquet", "--seed", seed)
    a, b, c = (sha256(tmp_path / f"{name}.parquet") for name in "abc")
    assert a == b != c


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "depp", "-o", "x.parquet"], "table: 'depp' is not allowed; use one of moments, "),
        (["run", "depp", "-o", "x.parquet"], "did you mean 'deep'?"),
        (["run", "deep", "-o", "x.csv"], "--output: 'x.csv' must end in .parquet"),
        (["run", "deep", "-o", "x.parquet", "--preset", "smok"], "did you mean 'smoke'?"),
        (["run", "deep", "-o", "x.parquet", "--settings", "{"], "--settings: not valid JSON"),
        (["run", "deep", "-o", "x.parquet", "--settings", "[]"], "experiments.deep: [] is not"),
        (["run", "deep", "-o", "x.parquet", "--settings", '{"rh": 1}'], "deep.rh: unknown key"),
        (["run", "deep", "-o", "x.parquet", "--device", "tpu"], "device: 'tpu' is not allowed"),
        (["run", "deep", "-o", "x.parquet", "--threads", "0"], "--threads: 0 is not allowed"),
        (["run", "deep", "-o", "x.parquet", "--seed", "-1"], "seed: -1 is not allowed"),
        (["claims", "N99"], "claim: 'N99' is not known"),
        (["claims", "n12"], "did you mean 'N12'?"),
        (["claims", "--preset", "papers"], "did you mean 'paper'?"),
        (["claims", "--evaluate", "--data", "nowhere"], ".parquet: no such table; build it with"),
        (["draw", "no.ipynb", *DRAW], "notebook: 'no.ipynb' does not exist"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], says: str) -> None:
    assert says in refusal(*arguments)


def test_cuda_where_there_is_none_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    line = refusal("run", "deep", "-o", str(tmp_path / "x.parquet"), "--device", "cuda")
    assert "device: 'cuda'" in line and "use auto or cpu" in line


def test_overflow_is_one_line_that_says_where_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as leaving:
        run(tmp_path / "deep.parquet", depth=[300], d_model=[4], attention=["uniform"])
    assert re.search(r"not finite at layer \d+ of 300 in float32: use float64", leaving.value.code)
    assert not list(tmp_path.iterdir())


def test_a_traceback_may_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGPROP_TRACEBACK", "1")
    with pytest.raises(ValueError, match="depp"):
        cli.main(["run", "depp", "-o", "x.parquet"])


def test_the_exit_code_of_bad_input_is_one() -> None:
    command = [sys.executable, "-m", "sigprop", "claims", "N99"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("sigprop: claim: 'N99'") and done.stderr.count("\n") == 1


# ---------------------------------------------------------------- claims and schema


def test_claims_lists_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["claims"])
    out = capsys.readouterr().out
    for claim in all_claims().values():
        assert f"{claim.id}  {claim.statement}" in out and claim.rule in out


def test_claims_lists_the_one_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["claims", "N14"])
    assert capsys.readouterr().out.startswith("N14  ")


def test_schema_prints_the_file(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["schema"])
    assert capsys.readouterr().out == (checkout / "config/schema.yaml").read_text(encoding="utf-8")


def test_commands_work_from_any_folder(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(checkout / "workflow"))
    command = [sys.executable, "-m", "sigprop", "list", "figures"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "fig09" in done.stdout

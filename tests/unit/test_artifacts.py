"""Files, seeds, provenance and tables."""

import json
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sigprop.artifacts import provenance
from sigprop.artifacts.errors import UserError, nearest
from sigprop.artifacts.files import atomic_path, sha256, write_json, write_text
from sigprop.artifacts.progress import progress
from sigprop.artifacts.provenance import Clock
from sigprop.artifacts.seeds import seed_stream, torch_seed
from sigprop.artifacts.tables import read_sidecar, read_table, tidy_schema, write_table

SCHEMA = tidy_schema({"depth": "int64"}, {"cos_mean": "1"}, name="toy")


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def toy_table(**changes: object) -> pd.DataFrame:
    columns = {
        "depth": [3, 3],
        "seed": pd.array([0, pd.NA], dtype="Int64"),
        "quantity": "cos_mean",
        "value": [0.25, 0.5],
        "source": ["simulation", "theory"],
    }
    return pd.DataFrame(columns | changes)


# ---------------------------------------------------------------- files


def test_a_written_file_is_whole_and_has_ordinary_permissions(tmp_path: Path) -> None:
    write_text(tmp_path / "new" / "a.txt", "ρ\n")
    plain = tmp_path / "plain"
    plain.touch()
    assert (tmp_path / "new" / "a.txt").read_text(encoding="utf-8") == "ρ\n"
    assert stat.S_IMODE((tmp_path / "new" / "a.txt").stat().st_mode) == plain.stat().st_mode & 0o777


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("half", encoding="utf-8")
        raise RuntimeError
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.txt", "old")]


def test_a_killed_write_keeps_the_old_file_and_the_next_one_tidies_up(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")
    code = (
        "import os, signal, sys; from sigprop.artifacts.files import atomic_path\n"
        "with atomic_path(sys.argv[1]) as p:\n"
        "    p.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.txt")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "a.txt").read_text() == "old"
    (tmp_path / ".a.txt.mine").touch()  # no temporary file of ours
    write_text(tmp_path / "a.txt", "new")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".a.txt.mine", "a.txt"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as error:
        write_text(tmp_path / "file" / "a.txt", "text")
    assert "file/a.txt: cannot write there" in one_line(error)


def test_a_folder_in_the_way_is_one_line_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(UserError) as error:
        write_text(tmp_path / "a.txt", "text")
    assert "a.txt: cannot be written" in one_line(error)
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_json_is_sorted_and_refuses_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": 1, "a": 2})
    assert (tmp_path / "a.json").read_text() == '{\n  "a": 2,\n  "b": 1\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"a": float("nan")})


def test_sha256_of_a_known_text(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")  # the example of FIPS 180-2, appendix B.1
    assert sha256(tmp_path / "abc") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


# ---------------------------------------------------------------- seeds


def test_streams_are_named_and_independent() -> None:
    names = [("a",), ("b",), ("a", "b"), ("ab",)]
    seeds = {torch_seed(seed_stream(1, *name)) for name in names} | {
        torch_seed(seed_stream(2, "a"))
    }
    assert len(seeds) == 5
    assert torch_seed(seed_stream(1, "a")) == torch_seed(seed_stream(1, "a"))
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_streams_stay_the_same_from_release_to_release() -> None:
    assert torch_seed(seed_stream(20220607, "moments", "case")) == 9042428992710686752


def test_streams_are_uncorrelated() -> None:
    draws = [
        np.random.default_rng(seed_stream(7, f"case {k}")).standard_normal(4096) for k in range(20)
    ]
    correlation = np.corrcoef(draws)[np.triu_indices(20, 1)]
    # 190 pairs with standard error 1/64 each: 4.5 of them has probability 0.001.
    assert np.abs(correlation).max() < 4.5 / 64


# ---------------------------------------------------------------- provenance


def test_provenance_outside_git_is_null(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(provenance, "code_root", lambda: tmp_path)
    record = Clock().record()
    assert record["git_commit"] is None and record["git_dirty"] is None


def test_provenance_tells_the_commit_and_whether_files_differ(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(provenance, "code_root", lambda: tmp_path)
    (tmp_path / "a").write_text("1")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    for command in (["init", "-q"], ["add", "a"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    record = Clock().record()
    assert re.fullmatch(r"[0-9a-f]{40}", record["git_commit"]) and record["git_dirty"] is False
    (tmp_path / "untracked").touch()
    assert Clock().record()["git_dirty"] is False
    (tmp_path / "a").write_text("2")
    assert Clock().record()["git_dirty"] is True


def test_provenance_measures_and_is_plain_json() -> None:
    clock = Clock()
    sum(range(10**6))
    record = json.loads(json.dumps(clock.record()))
    assert record["wall_s"] > 0 and record["cpu_s"] > 0 and record["peak_memory_mib"] > 10
    assert record["versions"]["numpy"] == np.__version__
    assert record["versions"]["python"] == sys.version.split()[0]


def test_progress_is_silent_for_short_work(capfd: pytest.CaptureFixture[str]) -> None:
    with progress(2, "moments", "layer") as bar:
        bar.update(2)
    assert capfd.readouterr().err == ""


# ---------------------------------------------------------------- tables


def test_a_table_comes_back_as_written_with_its_sidecar(tmp_path: Path) -> None:
    path = tmp_path / "toy.parquet"
    write_table(toy_table(), path, SCHEMA, {"seed": 3})
    pd.testing.assert_frame_equal(read_table(path, SCHEMA), toy_table(), check_dtype=False)
    sidecar = read_sidecar(path)
    assert sidecar == {"seed": 3, "sha256": sha256(path), "rows": 2, "units": {"cos_mean": "1"}}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["toy.json", "toy.parquet"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"value": [0.25, np.inf]}, "value"),
        ({"value": [0.25, np.nan]}, "value"),
        ({"value": [1, 2]}, "value"),
        ({"quantity": "cosmean"}, "quantity"),
        ({"source": "guess"}, "source"),
        ({"depth": [3.5, 3.5]}, "depth"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_wrong_table_is_not_written(tmp_path: Path, changes: dict, says: str) -> None:
    with pytest.raises(UserError) as error:
        write_table(toy_table(**changes), tmp_path / "toy.parquet", SCHEMA, {})
    assert "not a valid toy table" in one_line(error) and says in one_line(error)
    assert not list(tmp_path.iterdir())


def test_the_line_about_a_wrong_table_is_short_however_many_values_are_wrong(
    tmp_path: Path,
) -> None:
    table = pd.concat([toy_table(value=[np.inf, np.inf])] * 500)
    with pytest.raises(UserError) as error:
        write_table(table, tmp_path / "toy.parquet", SCHEMA, {})
    assert len(one_line(error)) < 500


def test_a_missing_column_and_another_order_are_wrong(tmp_path: Path) -> None:
    table = toy_table()
    for wrong, says in (
        (table.drop(columns="seed"), "'seed' not in dataframe"),
        (table[table.columns[::-1]], "out-of-order"),
    ):
        with pytest.raises(UserError) as error:
            write_table(wrong, tmp_path / "toy.parquet", SCHEMA, {})
        assert says in one_line(error)


def test_a_table_of_another_schema_is_refused_on_reading(tmp_path: Path) -> None:
    write_table(toy_table(), tmp_path / "toy.parquet", SCHEMA, {})
    other = tidy_schema({"width": "int64"}, {"cos_mean": "1"}, name="other")
    with pytest.raises(UserError) as error:
        read_table(tmp_path / "toy.parquet", other)
    assert "not a valid other table" in one_line(error)


def test_an_absent_table_names_the_command_that_builds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        read_table("results/smoke/data/deep.parquet")
    assert one_line(error).endswith(
        "no such table; build it with "
        "`snakemake results/smoke/data/deep.parquet --cores all --config preset=smoke`"
    )


@pytest.mark.parametrize("kept", [0, 0.1, 0.5, 0.99])
def test_a_truncated_table_is_one_line(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "toy.parquet"
    write_table(toy_table(), path, SCHEMA, {})
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(UserError) as error:
        read_table(path)
    assert f"{path}: unreadable or truncated parquet; rebuild it with" in one_line(error)


def test_a_damaged_sidecar_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "toy.json").write_text('{"seed": ')
    with pytest.raises(UserError) as error:
        read_sidecar(tmp_path / "toy.parquet")
    assert "toy.json: unreadable sidecar; rebuild it with" in one_line(error)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("fig9", "; did you mean 'fig09'?"),
        ("fig1", "; did you mean 'fig01'?"),
        ("fig111", "; did you mean 'fig11'?"),
        ("xyzzy", ""),
        ("", ""),
    ],
)
def test_nearest(word: str, hint: str) -> None:
    assert nearest(word, ["fig01", "fig09", "fig11", "all"]) == hint

"""The environment set-up script, with venv and pip played by a stand-in."""

import ast
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest
import yaml

ENVS = Path(__file__).resolve().parents[2] / "envs"
HERE = f"python{sys.version_info[0]}.{sys.version_info[1]}"
CPU = "https://index.example/cpu"
UPDATE = ["envs/requirements.txt", "envs/torch.txt", "-e"]
ALL = ["venv", *UPDATE, "download"]

spec = importlib.util.spec_from_file_location("bootstrap", ENVS / "bootstrap.py")
assert spec is not None and spec.loader is not None
bootstrap = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bootstrap)


class World:
    """A checkout, its environment, and the commands and surroundings of its last set-up."""

    def __init__(self, root: Path) -> None:
        self.root, self.venv = root, root / "venv"
        self.ran: list[tuple[list[str], dict[str, str]]] = []
        self.torch: Callable[[IO[bytes]], int] = lambda log: 0  # what installing torch does
        (root / "envs").mkdir()
        for name in ("envs/requirements.txt", "envs/torch.txt", "pyproject.toml"):
            shutil.copy(ENVS.parent / name, root / name)
        digest = hashlib.sha256(b"a wheel").hexdigest()
        (root / "envs/data.txt").write_text(f"# comment\nwords==1.0 --hash=sha256:{digest}\n")

    def call(
        self, command: list[object], stdout: IO[bytes], env: dict[str, str], **_: object
    ) -> int:
        """Stands in for subprocess.call."""
        words = [str(word) for word in command]
        self.ran.append((words, env))
        if words[-2] == "venv":
            (self.venv / "bin").mkdir()
            (self.venv / "bin/python").symlink_to(sys.executable)
            (self.venv / "lib" / HERE).mkdir(parents=True)
        if "download" in words:
            folder = Path(words[-1])
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "words.whl").write_bytes(b"a wheel")
        return self.torch(stdout) if "envs/torch.txt" in words else 0

    def set_up(self, *options: str) -> list[str]:
        """Run the script; the steps that it took, by a word each."""
        self.ran.clear()
        bootstrap.main(["--venv", str(self.venv), *options])
        names = {*ALL, "uninstall"}
        return [next(word for word in words if word in names) for words, _ in self.ran]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(tmp_path)
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(subprocess, "call", world.call)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield world
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_old_pythons_can_read_the_script_or_stop_at_the_line_that_names_the_remedy() -> None:
    text = (ENVS / "bootstrap.py").read_text()
    tree = ast.parse(text, feature_version=(3, 6))
    newer = (ast.AnnAssign, ast.JoinedStr)
    first = min(node.lineno for node in ast.walk(tree) if isinstance(node, newer))
    assert re.search(r"needs Python >= 3\.11: make PYTHON=", text.splitlines()[first - 1])


@pytest.mark.parametrize(
    ("version", "module", "says"),
    [
        ((3, 9, 2), "venv", r"Python 3\.9\.2 \(.*\) is too old, sigprop needs Python >= 3\.11"),
        ((3, 12, 1), "nopip", r"lacks nopip \(on Debian or Ubuntu: apt install python3\.12-venv\)"),
    ],
)
def test_an_unfit_python_gives_way_to_another_or_ends_with_one_line(
    version: tuple[int, ...], module: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def become(path: str, argv: list[str]) -> None:
        raise InterruptedError(path)

    found: dict[str, str] = {}
    monkeypatch.setattr(bootstrap, "MODULES", (module,))
    monkeypatch.setattr(shutil, "which", found.get)
    monkeypatch.setattr(os, "execv", become)
    with pytest.raises(SystemExit, match=f"^setup: .*{says}; .*make PYTHON=/path/.*$") as stop:
        bootstrap.ensure_python(version, [])
    assert "\n" not in str(stop.value)
    found |= {"python3.13": "/bin/false", "python3.12": "/bin/true"}  # a stale shim, a good one
    with pytest.raises(InterruptedError, match="/bin/true"):
        bootstrap.ensure_python(version, [])


def test_a_fresh_setup_takes_each_step_once_and_the_next_is_silent(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("PYTHONPATH", "PIP_TARGET", "PIP_USER", "PIP_REQUIRE_HASHES", "PIP_CONSTRAINT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PIP_RETRIES", "7")
    assert world.set_up() == ALL
    _, (lock, locked_env), (_, torch_env), _, (data, _) = world.ran
    assert "--require-hashes" in lock
    assert {"--no-deps", "--require-hashes", "--only-binary=:all:"} <= set(data)
    assert not {"PYTHONPATH", "PIP_TARGET"} & locked_env.keys()
    assert (torch_env["PIP_USER"], torch_env["PIP_REQUIRE_HASHES"]) == ("0", "0")
    assert (locked_env["PIP_CONSTRAINT"], torch_env["PIP_CONSTRAINT"]) == (os.devnull, "1")
    assert torch_env["PIP_RETRIES"] == "7"  # the user's
    capsys.readouterr()
    assert world.set_up() == world.set_up("--same-python") == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        (lambda w: (w.root / "envs/requirements.txt").write_text("six==1.17.0\n"), UPDATE),
        (lambda w: (w.root / "envs/torch.txt").write_text("torch==9.0\n"), UPDATE),
        (lambda w: (w.root / "pyproject.toml").write_text("[project]\n"), UPDATE),
        (lambda w: (w.venv / "share/sigprop/words.whl").unlink(), [*UPDATE, "download"]),
        (lambda w: (w.venv / "share/sigprop/words.whl").write_text("ha"), [*UPDATE, "download"]),
        (lambda w: (w.venv / "setup-stamp.json").write_text("{ cut o"), ALL),
        (lambda w: (w.venv / "bin/python").unlink(), ALL),
        (lambda w: setattr(w, "venv", w.venv.rename(w.root / "moved")), ALL),
    ],
)
def test_a_change_is_noticed_once(
    change: Callable[[World], object], steps: list[str], world: World
) -> None:
    world.set_up()
    change(world)
    assert world.set_up() == steps
    assert world.set_up() == []


def test_another_python_rebuilds_only_when_it_is_asked_for(world: World) -> None:
    world.set_up()
    (world.venv / "lib" / HERE).rename(world.venv / "lib/python3.10")
    assert world.set_up() == []
    assert world.set_up("--same-python") == ALL


def test_only_a_new_torch_index_replaces_torch_and_it_is_remembered(world: World) -> None:
    world.set_up()
    assert world.set_up("--torch-index", CPU) == [UPDATE[0], "uninstall", *UPDATE[1:]]
    assert world.set_up() == world.set_up("--torch-index", CPU) == []
    (world.venv / "bin/python").unlink()
    world.torch = lambda log: 1
    with pytest.raises(SystemExit):
        world.set_up("--torch-index", f"{CPU}2")
    world.torch = lambda log: 0
    assert world.set_up() == ALL[1:]  # the rebuilt environment had no torch to remove
    assert world.ran[1][0][-2:] == ["--index-url", f"{CPU}2"]


def test_rebuilding_spares_what_is_not_the_environment(world: World) -> None:
    world.set_up()
    (world.venv / "lib64").symlink_to(world.root / "envs")
    (world.venv / "bin/python").unlink()
    world.set_up()
    assert not (world.venv / "lib64").exists()
    world.venv = world.root / "envs"
    with pytest.raises(SystemExit, match="is not a virtual environment; move it away"):
        world.set_up()
    assert (world.root / "envs/torch.txt").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("said", [b"Installing collected packages: x", b"Collecting x"])
def test_an_interrupted_setup_is_one_line_and_continued_or_made_anew(
    said: bytes, number: signal.Signals, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.torch = lambda log: (log.write(said), signal.raise_signal(number))[0]
    with pytest.raises(SystemExit) as stop:
        world.set_up()
    assert stop.value.code == 130
    assert capsys.readouterr().err == "setup: interrupted; run it again to continue\n"
    world.torch = lambda log: 0
    assert world.set_up() == (ALL[1:] if said == b"Collecting x" else ALL)


NOT_FOUND = "ERROR: No matching distribution found for numpy==2.4.6"
RETRY = "WARNING: Retrying after connection broken by 'ProxyError(...)': /simple/numpy/\n"


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (NOT_FOUND, f"no connection to a package index, or it lacks a file .*: {NOT_FOUND} "),
        (RETRY + NOT_FOUND, "no connection to a package index"),
        ("urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(x)", "no connection"),
        ("ERROR: HTTP error 503 while getting https://x/numpy.whl", "no connection"),
        ("OSError: [Errno 28] No space left on device: '/x'\n", "disk full: 3 GB"),
        (RETRY + "x\n" * 30 + "no gcc", "this step ended with code 1.* are\n(x\n){9}no gcc\n "),
    ],
)
def test_a_failed_step_gives_the_reason_and_the_log(said: str, says: str, world: World) -> None:
    world.set_up()
    pin = world.root / "envs/torch.txt"
    pin.write_text(f"{pin.read_text()}# another release\n")
    world.torch = lambda log: min(log.write(said.encode()), 1)
    with pytest.raises(SystemExit, match=rf"^setup: {says}.*\(log: {world.venv}/setup\.log\)$"):
        world.set_up()
    world.torch = lambda log: 0
    shutil.copy(ENVS / "torch.txt", pin)  # taken back, but pip had begun
    assert world.set_up() == UPDATE


def test_a_full_disk_is_said_before_anything_is_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2.5e9))
    with pytest.raises(SystemExit, match="setup: disk full: 3 GB are needed"):
        world.set_up()
    assert world.ran == []


def test_a_second_setup_waits_for_the_first_and_for_its_pip(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with bootstrap.open_log(world.venv) as log:
        pip = subprocess.Popen(["sleep", "0.5"], stdout=log)
    bootstrap.open_log(world.venv).close()
    assert pip.wait(timeout=0.3) == 0
    assert capsys.readouterr().out == "another setup is running here; waiting for it\n"


def test_the_lists_name_the_same_releases_and_no_host() -> None:
    lock = (ENVS / "requirements.txt").read_text()
    assert "://" not in lock
    torch = (ENVS / "torch.txt").read_text()
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)", f"{lock}\n{torch}", re.MULTILINE))
    project = tomllib.loads((ENVS.parent / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[<>=]", line)[0] for line in project["dependencies"]}
    assert wanted <= set(pinned)
    conda = yaml.safe_load((ENVS / "sigprop.yaml").read_text())["dependencies"]
    pins = dict(pin.split("=") for pin in conda)
    assert pins.pop("python") == "3.11"
    pins = {re.sub("^py(?=torch)|-(base|core|pandas)$", "", name): pins[name] for name in pins}
    assert wanted - set(pins) == {"snakemake"}  # it runs the jobs, which do not import it
    for name, release in pins.items():
        assert f"{pinned[name]}.".startswith(f"{release}."), f"{name}: conda {release}"

"""The set-up's last step: a wheel that is downloaded, checked and never installed."""

import hashlib
import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ENVS = Path(__file__).resolve().parents[2] / "envs"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap_data", ENVS / "bootstrap.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bootstrap = _load()
NAME, CONTENT = "words-1.0-py3-none-any.whl", b"a wheel"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout whose list names one small wheel."""
    (tmp_path / "envs").mkdir()
    for name in ("envs/requirements.txt", "envs/torch.txt", "pyproject.toml"):
        shutil.copy(ENVS.parent / name, tmp_path / name)
    digest = hashlib.sha256(CONTENT).hexdigest()
    (tmp_path / "envs/data.txt").write_text(f"# comment\nwords==1.0 --hash=sha256:{digest}\n")
    return tmp_path


@pytest.fixture
def venv(root: Path) -> Path:
    """A finished environment with its wheel."""
    venv = root / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "share" / "sigprop").mkdir(parents=True)
    (venv / "share" / "sigprop" / NAME).write_bytes(CONTENT)
    (venv / "bin" / "python").symlink_to(sys.executable)
    (venv / "pyvenv.cfg").write_text("version = 3.11.7\n")
    bootstrap.Setup(str(root), str(venv), -1).write_stamp("")
    return venv


def commands(monkeypatch: pytest.MonkeyPatch, root: Path, venv: Path) -> list[list[str]]:
    """What `fetch_data` would run."""
    ran: list[list[str]] = []
    monkeypatch.setattr(
        bootstrap.Setup, "run", lambda self, text, command, locked: ran.append(command)
    )
    bootstrap.Setup(str(root), str(venv), -1).fetch_data()
    return ran


def test_the_list_is_read() -> None:
    (entry,) = bootstrap.data_wheels(str(ENVS.parent)).items()
    name, digest = entry
    assert name.startswith("homeassistant-")
    assert len(digest) == 64


def test_a_wheel_that_is_there_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, root: Path, venv: Path
) -> None:
    assert bootstrap.up_to_date(str(root), str(venv))
    assert commands(monkeypatch, root, venv) == []


def test_an_absent_wheel_is_downloaded_and_not_installed(
    monkeypatch: pytest.MonkeyPatch, root: Path, venv: Path
) -> None:
    (venv / "share" / "sigprop" / NAME).unlink()
    assert not bootstrap.up_to_date(str(root), str(venv))
    (command,) = commands(monkeypatch, root, venv)
    assert command[1:4] == ["-m", "pip", "download"]
    assert {"--no-deps", "--require-hashes", "--only-binary=:all:"} <= set(command)
    assert command[-1] == str(venv / "share" / "sigprop")


def test_a_damaged_wheel_is_replaced(
    monkeypatch: pytest.MonkeyPatch, root: Path, venv: Path
) -> None:
    (venv / "share" / "sigprop" / NAME).write_bytes(b"half a")
    assert len(commands(monkeypatch, root, venv)) == 1
    assert not (venv / "share" / "sigprop" / NAME).exists()  # pip would keep it


def test_another_pin_is_a_change(root: Path, venv: Path) -> None:
    with (root / "envs/data.txt").open("a") as stream:
        stream.write(f"more==2.0 --hash=sha256:{'0' * 64}\n")
    assert not bootstrap.up_to_date(str(root), str(venv))


def test_a_wrong_file_names_the_list_that_pins_it(tmp_path: Path) -> None:
    (name,) = bootstrap.data_wheels(str(ENVS.parent))
    requirement = "==".join(name.split("-")[:2])
    log = (
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. [...]\n"
        f"    {requirement} from https://index.example/{name}:\n"
    )
    assert "envs/data.txt" in bootstrap.explain(log, str(tmp_path), "3.11")
    other = log.replace(requirement, "numpy==2.4.6")
    assert "envs/requirements.txt" in bootstrap.explain(other, str(tmp_path), "3.11")

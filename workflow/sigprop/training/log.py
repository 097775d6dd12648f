"""What a run tells: to a program, one JSON object a line; to a person, one line on stderr."""

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm


def say(line: str) -> None:
    """One line to a person, on stderr, next to a progress bar if there is one."""
    tqdm.write(f"sigprop: {line}", file=sys.stderr)


class Log:
    """Appends to `path`; with None it does nothing.

    A checkpoint keeps the log's position, and a resumed run rewinds to it, so that the log shows
    each step once, however often the run was killed.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line. Numbers that JSON does not know become null."""
        if self.path is None:
            return
        known = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
        }
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(known, allow_nan=False) + "\n")

    def position(self) -> int:
        """Bytes written."""
        return self.path.stat().st_size if self.path is not None and self.path.exists() else 0

    def rewind(self, position: int) -> None:
        """Drop everything after `position`."""
        if self.path is not None and self.path.exists():
            with self.path.open("r+b") as stream:
                stream.truncate(min(position, self.path.stat().st_size))

"""A progress bar that appears only when the work takes more than a moment."""

from typing import Any

from tqdm import tqdm


def progress(total: int, description: str, unit: str) -> "tqdm[Any]":
    """A bar on stderr that shows itself after 5 s; use as a context manager and `.update(k)`."""
    return tqdm(total=total, desc=description, unit=unit, delay=5, mininterval=1, smoothing=0.05)

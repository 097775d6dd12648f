"""SIGTERM, as sent by a cluster that wants its machine back."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Termination:
    """Within the block SIGTERM only sets `asked`; the loop then saves and leaves.

    Outside the main thread, where Python allows no handlers, it does nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> "Termination":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

"""Ctrl-C during training: a request to stop after a checkpoint.

It raises no exception inside a step.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Is set by the first ctrl-c, or by the caller's own event."""

    def __init__(self, event: threading.Event | None) -> None:
        self._event = event
        self._is_interrupted = False

    def is_set(self) -> bool:
        """Whether training is to stop. The trainer asks before each step."""
        return self._is_interrupted or (self._event is not None and self._event.is_set())

    def handle_signal(self, signum: int, frame: FrameType | None) -> None:
        """Handler of SIGINT: a second ctrl-c raises KeyboardInterrupt at once."""
        if self._is_interrupted:
            signal.default_int_handler(signum, frame)
        self._is_interrupted = True


@contextmanager
def stop_at_ctrl_c(event: threading.Event | None) -> Iterator[StopRequest]:
    """Yields a stop request that ctrl-c sets.

    A SIGINT handler that is not Python's own stays in place.
    """
    request = StopRequest(event)
    can_replace_handler = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if can_replace_handler:
        signal.signal(signal.SIGINT, request.handle_signal)
    try:
        yield request
    finally:
        if can_replace_handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)

"""Ctrl-C while a run trains: a wish to stop after a checkpoint, not an exception in the middle of a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Set by the first ctrl-c, or when the caller's own event is."""

    def __init__(self, event: threading.Event | None) -> None:
        self._event = event
        self._interrupted = False

    def is_set(self) -> bool:
        """The trainer asks before each step."""
        return self._interrupted or (self._event is not None and self._event.is_set())

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
        """As a signal's handler: who repeats it does not want to wait."""
        if self._interrupted:
            signal.default_int_handler(signum, frame)
        self._interrupted = True


@contextmanager
def stopping_at_ctrl_c(event: threading.Event | None) -> Iterator[Stop]:
    """Gives what says whether to stop. A handler for ctrl-c that is not Python's own stays as it is."""
    stop = Stop(event)
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, stop.interrupt)
    try:
        yield stop
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

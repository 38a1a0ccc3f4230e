"""Sides of a comparison that are all started at once and take turns of a few seconds, stopped in between.

What slows a shared machine for a minute would fall on one of them if they ran one after the other.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

from benches import runner
from benches.runner import ROOT, BenchError

POLL_S = 0.01


@dataclass
class Side:
    """A command that takes steps, and how many it has taken so far."""

    name: str
    arguments: Sequence[str]
    taken: Callable[[], int]
    # Seconds in which it ran until the end of each step.
    ends: list[float] = field(default_factory=list)
    peak_mib: float = 0.0
    # What it wrote to its standard error.
    said: str = ""


def take_turns(sides: Sequence[Side], steps: int, turn_s: float, limit_s: float = 1800) -> None:
    """Runs the sides until each has taken so many steps; fills in what they took for them.

    Each begins by itself, until its first step, which may take one of them minutes; then they take turns.
    """
    running: dict[str, _Running] = {}
    deadline = time.monotonic() + limit_s
    try:
        for side in sides:
            running[side.name] = _Running(side)
        for side in sides:
            running[side.name].turn(1, limit_s)
        waiting = list(sides)
        while waiting:
            if time.monotonic() > deadline:
                raise BenchError(f"{waiting[0].name} has not taken {steps} steps within {limit_s} s")
            turn = min(turn_s, deadline - time.monotonic())
            waiting = [side for side in waiting if not running[side.name].turn(steps, turn)]
    finally:
        for one in running.values():
            one.end()


class _Running:
    """A side's process, stopped unless it has its turn."""

    def __init__(self, side: Side) -> None:
        self.side, self.seconds = side, 0.0
        self.errors = TemporaryFile("w+")  # noqa: SIM115  # closed in `end`
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            side.arguments,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            start_new_session=True,
        )
        self.signal(signal.SIGSTOP)

    def turn(self, steps: int, turn_s: float) -> bool:
        """Lets it run for so long; whether it has taken all its steps."""
        self.signal(signal.SIGCONT)
        start = last = time.perf_counter()
        while last - start < turn_s and len(self.side.ends) < steps:
            time.sleep(POLL_S)
            now = time.perf_counter()
            self.seconds += now - last
            last = now
            self.look(steps)
        self.signal(signal.SIGSTOP)
        return len(self.side.ends) >= steps

    def look(self, steps: int) -> None:
        ended = self.process.poll() is not None
        ends = self.side.ends
        ends += [self.seconds] * (self.side.taken() - len(ends))
        self.side.peak_mib = max(self.side.peak_mib, runner.high_water_kib(self.process.pid) / 1024)
        if ended and len(ends) < steps:
            self.errors.seek(0)
            raise BenchError(
                f"{self.side.name} ended with {self.process.returncode}:\n{self.errors.read()[-4000:]}"
            )

    def signal(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.errors.seek(0)
        self.side.said = self.errors.read()
        self.errors.close()


def lines_of(path: Path) -> Callable[[], int]:
    """Counts the lines of a file that is written, a line for each step."""

    def count() -> int:
        return path.read_bytes().count(b"\n") if path.exists() else 0

    return count

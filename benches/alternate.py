"""Measures commands alternately.

All are started at once; each in turn runs for a few seconds and is then stopped. If they ran one
after the other, a minute in which a shared machine is slow would affect only one of them.
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
    """A command of a comparison, and what was measured of it."""

    name: str
    arguments: Sequence[str]
    # Counts the steps that the command has taken so far.
    count_steps: Callable[[], int]
    # Running time in seconds at the end of each step; stopped time does not count.
    step_ends: list[float] = field(default_factory=list)
    peak_mib: float = 0.0
    # What the command wrote to its standard error.
    stderr: str = ""


def measure_alternately(sides: Sequence[Side], steps: int, turn_s: float, limit_s: float = 1800) -> None:
    """Runs the sides until each has taken `steps` steps, and fills in their measurements.

    First each runs alone until its first step, which may take minutes. Then they alternate every
    `turn_s` seconds. Raises `BenchError` if a side fails, or if `limit_s` seconds are over.
    """
    processes: dict[str, _SideProcess] = {}
    deadline = time.monotonic() + limit_s
    try:
        for side in sides:
            processes[side.name] = _SideProcess(side)
        for side in sides:
            processes[side.name].run_turn(1, limit_s)
        unfinished = list(sides)
        while unfinished:
            if time.monotonic() > deadline:
                raise BenchError(f"{unfinished[0].name} has not taken {steps} steps within {limit_s} s")
            turn = min(turn_s, deadline - time.monotonic())
            unfinished = [side for side in unfinished if not processes[side.name].run_turn(steps, turn)]
    finally:
        for process in processes.values():
            process.close()


class _SideProcess:
    """The process of a side, which is stopped except during its turns."""

    def __init__(self, side: Side) -> None:
        self.side, self.running_s = side, 0.0
        self.errors = TemporaryFile("w+")  # noqa: SIM115  # closed in `close`
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            side.arguments,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            start_new_session=True,
        )
        self.send_signal(signal.SIGSTOP)

    def run_turn(self, steps: int, turn_s: float) -> bool:
        """Lets the process run for `turn_s` seconds; returns whether it has taken all its steps."""
        self.send_signal(signal.SIGCONT)
        start = last = time.perf_counter()
        while last - start < turn_s and len(self.side.step_ends) < steps:
            time.sleep(POLL_S)
            now = time.perf_counter()
            self.running_s += now - last
            last = now
            self.update(steps)
        self.send_signal(signal.SIGSTOP)
        return len(self.side.step_ends) >= steps

    def update(self, steps: int) -> None:
        """Records new steps and the peak memory; raises if the process ended too early."""
        has_ended = self.process.poll() is not None
        ends = self.side.step_ends
        ends += [self.running_s] * (self.side.count_steps() - len(ends))
        self.side.peak_mib = max(self.side.peak_mib, runner.peak_rss_kib(self.process.pid) / 1024)
        if has_ended and len(ends) < steps:
            self.errors.seek(0)
            raise BenchError(
                f"{self.side.name} ended with {self.process.returncode}:\n{self.errors.read()[-4000:]}"
            )

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process group, if the process is alive."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        """Ends the process and keeps what it wrote to its standard error."""
        self.send_signal(signal.SIGKILL)
        self.process.wait()
        self.errors.seek(0)
        self.side.stderr = self.errors.read()
        self.errors.close()


def line_counter(path: Path) -> Callable[[], int]:
    """Counts the lines of a file that gets one line for each step."""

    def count() -> int:
        return path.read_bytes().count(b"\n") if path.exists() else 0

    return count

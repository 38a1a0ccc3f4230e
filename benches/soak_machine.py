"""How fast the machine is during `make soak`.

Other programs share the machine, so the rate of a run changes with what they do. From time to time the
process is stopped, and convolutions like those of its encoder are counted.
"""

import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch

# The process works for so long between two measurements, which take so long.
WORK_S, MEASURE_S = 3.0, 0.25


@dataclass(frozen=True)
class Pause:
    """A time for which the process was stopped, and the convolutions per second meanwhile."""

    start: float
    end: float
    speed: float


@dataclass
class Machine:
    """Measures the machine's speed while a process is stopped."""

    pauses: list[Pause] = field(default_factory=list)

    def measure(self, process: subprocess.Popen) -> None:
        """Does nothing until the process has worked for a while since the last measurement."""
        start = time.time()
        if process.poll() is not None or (self.pauses and start < self.pauses[-1].end + WORK_S):
            return
        process.send_signal(signal.SIGSTOP)
        try:
            speed = measure_speed()
        finally:
            process.send_signal(signal.SIGCONT)
        self.pauses.append(Pause(start, time.time(), speed))

    def between(self, start: float, end: float) -> "Work":
        """What the machine can do between two times while the process is not stopped."""
        return measure_work(self.pauses, start, end)


@dataclass(frozen=True)
class Work:
    """A time without pauses, and the convolutions that the machine can do in it."""

    seconds: float = 0
    convolutions: float = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.seconds + other.seconds, self.convolutions + other.convolutions)


def measure_work(pauses: Sequence[Pause], start: float, end: float) -> Work:
    """The work between two times, with the speed of the pause that is nearest to each of their moments."""
    middles = np.array([(pause.start + pause.end) / 2 for pause in pauses])
    # A pause's speed holds half of the way to its neighbours.
    edges = np.concatenate([[-np.inf], (middles[1:] + middles[:-1]) / 2, [np.inf]])
    work = Work()
    for pause, left, right in zip(pauses, edges[:-1], edges[1:], strict=True):
        seconds = max(0.0, min(end, right) - max(start, left))
        paused = max(0.0, min(end, right, pause.end) - max(start, left, pause.start))
        work += Work(seconds - paused, (seconds - paused) * pause.speed)
    return work


def measure_speed() -> float:
    """Convolutions per second, as an encoder calculates them."""
    image, kernel = make_operands()
    count, start = 0, time.monotonic()
    while (elapsed := time.monotonic() - start) < MEASURE_S:
        torch.conv2d(image, kernel, padding=1)
        count += 1
    return count / elapsed


@cache
def make_operands() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(8, 64, 32, 32), torch.rand(64, 64, 3, 3)

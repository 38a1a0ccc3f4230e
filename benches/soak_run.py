"""A command that is started again after each interruption until it succeeds, and watched meanwhile."""

import json
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benches.runner import BenchError
from benches.soak_interruptions import Interruption
from benches.soak_machine import Machine

POLL_S = 0.05
# Time for the last process, and for a process to notice that it cannot continue.
RUN_LIMIT_S, STOP_LIMIT_S = 4 * 3600, 300


@dataclass(frozen=True)
class Sample:
    """Memory and progress of a process at one time."""

    process: int
    rss_mib: float
    # Committed units.
    units: int


@dataclass(frozen=True)
class Commit:
    """A committed unit."""

    at: float
    process: int
    rows: int


@dataclass
class Soak:
    """A command that works on until it has succeeded, whatever stops it."""

    command: Sequence[str]
    output: Path
    log: Path
    samples: list[Sample] = field(default_factory=list)
    # When each interruption began, in committed units, and its name.
    interruptions: list[tuple[int, str]] = field(default_factory=list)
    commits: dict[str, Commit] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)

    def run(self, planned: Iterable[tuple[int, Interruption]]) -> dict:
        """Runs to the end, with an interruption whenever so many units are committed; returns the result."""
        for number, (units, interruption) in enumerate(planned):
            with self.start() as process:
                self.run_until(process, number, units, interruption)
        with self.start() as process:
            code, result = self.finish(process, len(self.interruptions), RUN_LIMIT_S)
        if code != 0:
            raise BenchError(f"the last process ended with {code}:\n{self.read_log()}")
        return result

    @contextmanager
    def start(self) -> Iterator[subprocess.Popen]:
        """A process of the command, which ends with the block."""
        with self.log.open("w") as log, self.log.with_suffix(".out").open("w") as out:
            process = subprocess.Popen(self.command, stdout=out, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def run_until(
        self, process: subprocess.Popen, number: int, units: int, interruption: Interruption
    ) -> None:
        """Waits until so many units are committed, then lets the interruption end the process."""
        while self.watch(process, number) < units:
            time.sleep(POLL_S)
            if process.poll() is not None:
                what = f"process {number} ended before it was {interruption.name}"
                raise BenchError(f"{what}:\n{self.read_log()}")
        self.interruptions.append((len(self.commits), interruption.name))
        print(f"  {interruption.name} after {len(self.commits)} units", flush=True)
        interruption.begin(process)
        try:
            code, result = self.finish(process, number, STOP_LIMIT_S)
        finally:
            interruption.end()
        wanted = -signal.SIGKILL if interruption.message is None else 1
        message = result.get("error", {}).get("message", "")
        if code != wanted or (interruption.message or "") not in message:
            what = f"{interruption.name}: the process ended with {code}: {message}"
            raise BenchError(f"{what}\n{self.read_log()}")

    def finish(self, process: subprocess.Popen, number: int, limit_s: float) -> tuple[int, dict]:
        """Waits for a process; returns its exit code and result."""
        deadline = time.monotonic() + limit_s
        while process.poll() is None:
            self.watch(process, number)
            if time.monotonic() > deadline:
                raise BenchError(f"process {number} took longer than {limit_s} s:\n{self.read_log()}")
            time.sleep(POLL_S)
        self.watch(process, number)
        lines = self.log.with_suffix(".out").read_text().splitlines()
        return process.returncode, json.loads(lines[-1]) if lines else {}

    def read_log(self) -> str:
        return self.log.read_text()[-4000:]

    def watch(self, process: subprocess.Popen, number: int) -> int:
        """Notes what is new; returns the number of committed units."""
        for path in (self.output / "dataset" / "commits").glob("*.json"):
            if path.name not in self.commits:
                rows = json.loads(path.read_text())["counts"]["read"]
                self.commits[path.name] = Commit(path.stat().st_mtime, number, rows)
        rss = resident_mib(process.pid)
        if rss is not None:
            self.samples.append(Sample(number, rss, len(self.commits)))
        self.machine.measure(process)
        return len(self.commits)


def resident_mib(pid: int) -> float | None:
    """Resident memory of a process; None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    found = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return next((int(line.split()[1]) / 1024 for line in found), None)

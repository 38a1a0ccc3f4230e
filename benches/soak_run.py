"""A command that is started again after each trouble until it succeeds, and watched meanwhile."""

import json
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benches.runner import BenchError
from benches.soak_troubles import Trouble

POLL_S = 0.05
# Time for the last process, and for a process to notice that it cannot continue.
RUN_LIMIT_S, STOP_LIMIT_S = 4 * 3600, 300


@dataclass(frozen=True)
class Sample:
    """A process at one time."""

    at: float
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
    # When each trouble began, in committed units, and its name.
    troubles: list[tuple[int, str]] = field(default_factory=list)
    commits: dict[str, Commit] = field(default_factory=dict)

    def run(self, planned: Iterable[tuple[int, Trouble]]) -> dict:
        """Runs to the end, with a trouble whenever so many units are committed; returns the result."""
        for number, (units, trouble) in enumerate(planned):
            with self.start() as process:
                self.run_until(process, number, units, trouble)
        with self.start() as process:
            code, result = self.finish(process, len(self.troubles), RUN_LIMIT_S)
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

    def run_until(self, process: subprocess.Popen, number: int, units: int, trouble: Trouble) -> None:
        """Waits until so many units are committed, then lets the trouble end the process."""
        while self.watch(process, number) < units:
            time.sleep(POLL_S)
            if process.poll() is not None:
                raise BenchError(f"process {number} ended before it was {trouble.name}:\n{self.read_log()}")
        self.troubles.append((len(self.commits), trouble.name))
        print(f"  {trouble.name} after {len(self.commits)} units", flush=True)
        trouble.begin(process)
        try:
            code, result = self.finish(process, number, STOP_LIMIT_S)
        finally:
            trouble.end()
        wanted = -signal.SIGKILL if trouble.message is None else 1
        message = result.get("error", {}).get("message", "")
        if code != wanted or (trouble.message or "") not in message:
            raise BenchError(f"{trouble.name}: the process ended with {code}: {message}\n{self.read_log()}")

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
            self.samples.append(Sample(time.time(), number, rss, len(self.commits)))
        return len(self.commits)


def resident_mib(pid: int) -> float | None:
    """Resident memory of a process; None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    found = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return next((int(line.split()[1]) / 1024 for line in found), None)

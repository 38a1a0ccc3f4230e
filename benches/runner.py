"""Runs the sides of a comparison alternately, each time in a fresh process, on an otherwise idle
machine.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIDEMILL = ROOT / "target" / "release" / "tidemill"
RESULTS = ROOT / "target" / "bench"

# Share of all cores that others may use while we measure, and how long to wait for that.
QUIET = 0.05
QUIET_WITHIN_S = 300
LIMIT_S = 600


class BenchError(Exception):
    """A benchmark that cannot go on, with the reason."""


def main(name: str, bench: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser) -> None:
    """Measures on an idle machine: what every `make bench-...` does.

    `parser` has the options of this one.
    """
    parser.add_argument("--force", action="store_true", help="measure beside other work, too")
    args = parser.parse_args()
    # What was started is ended, too, when the bench is asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if not args.force:
            wait_until_quiet()
        bench(args)
    except BenchError as error:
        sys.exit(f"{name}: {error}")


@dataclass(frozen=True)
class Command:
    """One side of a comparison: a command whose last line of output is a JSON object with its
    figure.

    The object gets `wall_s`, too: the seconds from the command's start to its end.
    """

    arguments: Sequence[str]
    figure: str
    # Folders that the command writes; removed before it starts.
    writes: Sequence[Path] = field(default_factory=tuple)
    # Further environment variables.
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    result: Mapping
    peak_mib: float


def peer(
    module: str,
    *arguments: str | Path,
    figure: str = "rows_per_second",
    writes: Sequence[Path] = (),
    environment: Mapping[str, str] | None = None,
) -> Command:
    """A module of benches.peers, run by this Python."""
    command = [sys.executable, "-m", f"benches.peers.{module}", *map(str, arguments)]
    return Command(command, figure, writes, environment or {})


def ours(*arguments: str | Path, figure: str = "rows_per_second", writes: Sequence[Path] = ()) -> Command:
    """A verb of Tidemill's."""
    return Command([str(TIDEMILL), *map(str, arguments), "--json", "--quiet"], figure, writes)


def overrides(settings: Mapping[str, object]) -> list[str]:
    """`--set` for settings that are text already.

    `tidemill.run_file` has the same for values of Python, but its import sets variables that peers
    inherit.
    """
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


def alternate(
    ours: Command, peers: Mapping[str, Command], rounds: int, check_load: bool
) -> dict[str, list[Outcome]]:
    """Ours, first peer, ours, second peer, ...

    so many rounds; gives the outcomes by side, ours as "ours".
    """
    outcomes = {name: [] for name in ("ours", *peers)}
    for number in range(rounds):
        for name, command in peers.items():
            for side, one in (("ours", ours), (name, command)):
                if check_load:
                    wait_until_quiet()
                outcome = run(one)
                outcomes[side].append(outcome)
                print(f"  round {number + 1}: {side} {outcome.result[one.figure]:,.1f}", flush=True)
    return outcomes


def run(command: Command, limit_s: float = LIMIT_S) -> Outcome:
    """Runs a command to its end, within a limit.

    Gives its last line's JSON object and its peak memory.
    """
    for folder in command.writes:
        shutil.rmtree(folder, ignore_errors=True)
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    environment |= command.environment
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command.arguments, cwd=ROOT, stdout=output, stderr=errors, env=environment, start_new_session=True
        )
        start = time.monotonic()
        peak_kib, deadline = 0, start + limit_s
        while process.poll() is None:
            peak_kib = max(peak_kib, peak_rss_kib(process.pid))
            if time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise BenchError(f"{' '.join(command.arguments)} took longer than {limit_s} s")
            time.sleep(0.02)
        wall_s = time.monotonic() - start
        output.seek(0)
        errors.seek(0)
        lines = output.read().splitlines()
        if process.returncode != 0 or not lines:
            raise BenchError(
                f"{' '.join(command.arguments)} ended with {process.returncode}:\n{errors.read()[-4000:]}"
            )
        return Outcome(json.loads(lines[-1]) | {"wall_s": wall_s}, peak_kib / 1024)


def peak_rss_kib(pid: int) -> int:
    """Most resident memory that a process has had so far (VmHWM); 0 once it has none."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)


def wait_until_quiet() -> None:
    """Returns when the cores are idle; a figure taken beside other work means nothing."""
    deadline = time.monotonic() + QUIET_WITHIN_S
    while (busy := busy_share(0.5)) > QUIET:
        if time.monotonic() > deadline:
            raise BenchError(
                f"other processes use {busy:.0%} of the cores (load {os.getloadavg()[0]:.1f}); "
                "end them, or measure all the same with --force"
            )
        time.sleep(1)


def busy_share(seconds: float) -> float:
    """Share of all cores' time that was not idle, over the next so many seconds."""

    def times() -> tuple[int, int]:
        fields = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        # user, nice, system, idle, iowait, ...; guest time is counted in user already.
        return sum(fields[:8]), fields[3] + fields[4]

    all_before, idle_before = times()
    time.sleep(seconds)
    all_after, idle_after = times()
    return 1 - (idle_after - idle_before) / max(1, all_after - all_before)


def machine() -> dict[str, str | int]:
    """What the figures were measured on."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "unknown")
    return {"cpu": model, "cores": cores(), "system": platform.platform()}


def cores() -> int:
    """Cores that this process may use; every side gets all of them."""
    return len(os.sched_getaffinity(0))


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python packages, and which Tidemill this is."""
    command = ["git", "describe", "--always", "--tags", "--dirty"]
    describe = ""
    # Where there is no git, it is not known.
    if shutil.which("git"):
        describe = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    ours = {"tidemill": describe.strip() or "unknown", "python": platform.python_version()}
    return ours | {package: metadata.version(package) for package in packages}

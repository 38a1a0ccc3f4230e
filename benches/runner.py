"""Runs the sides of a comparison alternately, each run in a fresh process, on an idle machine."""

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

# The share of all cores that other processes may use during a measurement, and how long to wait for
# it.
MAX_LOAD = 0.05
MAX_LOAD_WAIT_S = 300
# Time limit of one run of a side.
LIMIT_S = 600


class BenchError(Exception):
    """A benchmark cannot continue, for the reason in the message."""


def run_program(*command: str) -> str:
    """Runs a program of the system, and returns what it prints.

    Raises `BenchError` if it fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def main(
    name: str,
    bench: Callable[[argparse.Namespace], None],
    parser: argparse.ArgumentParser,
    quick: Mapping[str, object],
) -> None:
    """Parses the options and runs a bench on an idle machine; every `make bench-...` calls it.

    `parser` has the bench's own options. `quick` has their values for `--quick`, which checks in a
    short time that the bench works, beside any load, and prints its report instead of recording it.
    """
    parser.add_argument("--force", action="store_true", help="measure even if the machine is not idle")
    parser.add_argument(
        "--quick", action="store_true", help="smallest useful run, beside any load; records nothing"
    )
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(**quick, force=True)
    args = parser.parse_args()
    # An exception, so that the processes that the bench has started end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if not args.force:
            wait_until_idle()
        bench(args)
    except BenchError as error:
        sys.exit(f"{name}: {error}")


@dataclass(frozen=True)
class Command:
    """A side of a comparison: a command whose last line of output is a JSON object with its figure.

    `wall_s`, the seconds from the command's start to its end, is added to that object.
    """

    arguments: Sequence[str]
    figure: str
    # Folders that the command writes; they are removed before it starts.
    writes: Sequence[Path] = field(default_factory=tuple)
    # Additional environment variables.
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The JSON object of a finished command, and its peak resident memory."""

    result: Mapping
    peak_mib: float


def peer(
    module: str,
    *arguments: str | Path,
    figure: str = "rows_per_second",
    writes: Sequence[Path] = (),
    environment: Mapping[str, str] | None = None,
) -> Command:
    """The command that runs a module of benches.peers in this Python."""
    command = [sys.executable, "-m", f"benches.peers.{module}", *map(str, arguments)]
    return Command(command, figure, writes, environment or {})


def ours(*arguments: str | Path, figure: str = "rows_per_second", writes: Sequence[Path] = ()) -> Command:
    """The command that runs a verb of Tidemill."""
    return Command([str(TIDEMILL), *map(str, arguments), "--json", "--quiet"], figure, writes)


def overrides(settings: Mapping[str, object]) -> list[str]:
    """`--set` arguments for settings that are TOML text already.

    `tidemill.run_file` converts Python values, but importing it sets variables that peers would
    inherit.
    """
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


def alternate(
    ours: Command, peers: Mapping[str, Command], rounds: int, check_load: bool, limit_s: float = LIMIT_S
) -> dict[str, list[Outcome]]:
    """Runs ours, first peer, ours, second peer, ... for some rounds.

    Returns the outcomes by side; Tidemill's side is "ours".
    """
    outcomes = {name: [] for name in ("ours", *peers)}
    for number in range(rounds):
        for name, command in peers.items():
            for side, one in (("ours", ours), (name, command)):
                if check_load:
                    wait_until_idle()
                outcome = run(one, limit_s)
                outcomes[side].append(outcome)
                print(f"  round {number + 1}: {side} {outcome.result[one.figure]:,.1f}", flush=True)
    return outcomes


def run(command: Command, limit_s: float = LIMIT_S) -> Outcome:
    """Runs a command to its end.

    Raises `BenchError` if it fails, prints nothing, or takes longer than `limit_s`.
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
    """Peak resident memory of a process so far (VmHWM); 0 if the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)


def wait_until_idle() -> None:
    """Waits until the cores are idle, because other load falsifies a measurement."""
    deadline = time.monotonic() + MAX_LOAD_WAIT_S
    while (load := measure_load(0.5)) > MAX_LOAD:
        if time.monotonic() > deadline:
            raise BenchError(
                f"other processes use {load:.0%} of the cores (load {os.getloadavg()[0]:.1f}); "
                "end them, or measure anyway with --force"
            )
        time.sleep(1)


def measure_load(seconds: float) -> float:
    """The share of all cores' time that is not idle over the next `seconds`."""

    def read_times() -> tuple[int, int]:
        fields = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        # user, nice, system, idle, iowait, ...; guest time is part of user already.
        return sum(fields[:8]), fields[3] + fields[4]

    all_before, idle_before = read_times()
    time.sleep(seconds)
    all_after, idle_after = read_times()
    return 1 - (idle_after - idle_before) / max(1, all_after - all_before)


def machine() -> dict[str, str | int]:
    """The machine of the measurement: CPU, cores and system."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "unknown")
    return {"cpu": model, "cores": cores(), "system": platform.platform()}


def cores() -> int:
    """The number of cores that this process may use; every side gets all of them."""
    return len(os.sched_getaffinity(0))


def versions(*packages: str) -> dict[str, str]:
    """The versions of Tidemill (by git), Python and some Python packages."""
    command = ["git", "describe", "--always", "--tags", "--dirty"]
    describe = ""
    if shutil.which("git"):
        describe = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    ours = {"tidemill": describe.strip() or "unknown", "python": platform.python_version()}
    return ours | {package: metadata.version(package) for package in packages}

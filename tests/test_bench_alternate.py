"""Alternating measurement: only one side runs at a time, and no process is left behind."""

import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from benches.alternate import Side, line_counter, measure_alternately
from benches.runner import BenchError

# Writes the time while it runs, a line every 10 ms.
STEPS = """
import sys, time
with open(sys.argv[1], "w", buffering=1) as file:
    while True:
        print(time.monotonic(), file=file)
        time.sleep(0.01)
"""


def side(folder, name, script=STEPS):
    path = folder / name
    return Side(name, [sys.executable, "-c", script, str(path)], line_counter(path)), path


def list_processes(folder):
    """The processes whose command line names a folder."""
    return subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True).stdout.split()


def test_only_one_side_runs_at_a_time(tmp_path):
    sides, paths = zip(*(side(tmp_path, name) for name in "abc"), strict=True)
    start = time.monotonic()
    measure_alternately(sides, steps=60, turn_s=0.3, limit_s=60)
    wall = time.monotonic() - start
    assert all(len(one.step_ends) >= 60 and one.peak_mib > 1 for one in sides)
    # Together the sides ran no longer than the comparison took.
    assert sum(one.step_ends[-1] for one in sides) <= wall
    times = sorted((float(line), path.name) for path in paths for line in path.read_text().split("\n")[:-1])
    changes = sum(a[1] != b[1] for a, b in pairwise(times))
    assert 5 <= changes <= 40, f"{changes} changes among {len(times)} steps"
    assert not list_processes(tmp_path)


def test_failing_side_is_named_and_others_are_killed(tmp_path):
    broken, _ = side(tmp_path, "broken", "raise SystemExit('no such model')")
    with pytest.raises(BenchError, match=r"broken ended with 1:\n*no such model"):
        measure_alternately([side(tmp_path, "a")[0], broken], steps=10**6, turn_s=0.2, limit_s=60)
    assert not list_processes(tmp_path)


BENCH = """
import argparse, sys
from pathlib import Path
from benches import runner
from benches.alternate import Side, line_counter, measure_alternately

def bench(args):
    def side(name):
        path = Path(args.folder, name)
        return Side(name, [sys.executable, "-c", args.script, str(path)], line_counter(path))

    measure_alternately([side("a"), side("b")], steps=10**6, turn_s=0.2)

parser = argparse.ArgumentParser()
parser.add_argument("script")
parser.add_argument("folder")
runner.main("bench", bench, parser, quick={})
"""


def test_terminated_bench_kills_its_sides(tmp_path):
    bench = subprocess.Popen(
        [sys.executable, "-c", BENCH, STEPS, str(tmp_path), "--force"], cwd=Path(__file__).parent.parent
    )
    deadline = time.monotonic() + 30
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(list_processes(tmp_path)) == 3
    bench.terminate()
    assert bench.wait(timeout=30) == 143
    assert not list_processes(tmp_path)


def test_hanging_side_ends_comparison(tmp_path):
    with pytest.raises(BenchError, match="stuck has not taken 5 steps within 1 s"):
        measure_alternately(
            [side(tmp_path, "stuck", "import time; time.sleep(60)")[0]], steps=5, turn_s=0.2, limit_s=1
        )
    assert not list_processes(tmp_path)

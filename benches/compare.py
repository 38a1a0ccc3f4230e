"""`make bench-compare`: raters who judge a study at once, and how long each request takes.

The server and the raters share this machine. Redraws its part of docs/benchmarks.md.
"""

import argparse
import json
import subprocess
import tempfile

from benches import report, runner
from benches.runner import BenchError

PAGE = runner.ROOT / "docs" / "benchmarks.md"
PROGRAM = runner.ROOT / "target" / "release" / "examples" / "study_load"
GOAL_MS = 100.0
KINDS = {"judge": "a judgement is stored", "next": "the next comparison", "picture": "a picture of 512 px"}


def measure(args: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        command = [str(PROGRAM), folder, str(args.raters), str(args.seconds), str(args.pause)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=args.seconds + 120, check=False
        )
    if done.returncode != 0:
        raise BenchError(done.stderr)
    return json.loads(done.stdout)


def bench(args: argparse.Namespace) -> None:
    found = measure(args)
    machine = runner.machine()
    head = report.measured_on(machine, {"tidemill": runner.versions()["tidemill"]})
    rate = found["judge"]["requests"] / args.seconds
    raters = f"{args.raters} raters for {args.seconds:g} s"
    about = f"{raters}, an answer of each every {args.pause:g} s: {rate:.0f} a second."
    heads = ["", "requests", "median, ms", "p99, ms", "longest, ms", "goal of p99"]
    rows = []
    for kind, title in {**KINDS, "all": "all"}.items():
        times = found[kind]
        goal = f"{GOAL_MS:.0f} ms" + (", missed" if times["p99_ms"] > GOAL_MS else "")
        shown = [f"{times[name]:.1f}" for name in ("p50_ms", "p99_ms", "max_ms")]
        rows.append([title, str(times["requests"]), *shown, goal if kind == "all" else ""])
    if not args.quick:
        report.write_json(runner.RESULTS / "compare.json", [found | {"machine": machine}])
    report.publish(PAGE, "bench-compare", f"{head} {about}\n\n{report.table(heads, rows)}", args.quick)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raters", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two answers of a rater")
    runner.main("bench-compare", bench, parser, quick={"raters": 20, "seconds": 3, "pause": 0.2})

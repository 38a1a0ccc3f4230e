"""`make bench-dedup`: similar images among millions of embeddings: time, memory, and what is missed.

The embeddings are drawn, so no images are needed. A sample of the rows is compared with all others.
Redraws its part of docs/benchmarks.md.
"""

import argparse
import json
import subprocess

from benches import report, runner
from benches.runner import BenchError

PAGE = runner.ROOT / "docs" / "benchmarks.md"
PROGRAM = runner.ROOT / "target" / "release" / "examples" / "similar_images"


def measure(args: argparse.Namespace, rows: int) -> dict:
    values = [rows, args.width, args.cosine, args.queries, args.seed]
    command = [str(PROGRAM), *map(str, values)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout, check=False)
    if done.returncode != 0:
        raise BenchError(done.stderr)
    return {"rows": rows, **json.loads(done.stdout)}


def table_row(found: dict) -> list[str]:
    return [
        f"{found['rows']:,}",
        f"{found['duplicates']:,}",
        f"{found['seconds']:,.0f}",
        f"{found['peak_mib']:,}",
        f"{found['removed']:,} of {found['similar']:,} ({found['removed'] / max(found['similar'], 1):.4f})",
        str(found["wrong"]),
    ]


def bench(args: argparse.Namespace) -> None:
    results = [measure(args, rows) for rows in args.rows]
    machine = runner.machine()
    head = report.measured_on(machine, {"tidemill": runner.versions()["tidemill"]})
    about = f"Embeddings of {args.width} numbers, cosine {args.cosine}, seed {args.seed}."
    heads = [
        "rows",
        "removed",
        "seconds",
        "peak memory, MiB",
        "found by comparison with all, removed (recall)",
        "removed, not found",
    ]
    text = f"{head} {about}\n\n{report.table(heads, [table_row(found) for found in results])}"
    if not args.quick:
        report.write_json(runner.RESULTS / "dedup.json", [found | {"machine": machine} for found in results])
    report.publish(PAGE, "bench-dedup", text, args.quick)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--width", type=int, default=128, help="numbers in an embedding; CLIP-L has 768")
    parser.add_argument("--cosine", type=float, default=0.95)
    parser.add_argument("--queries", type=int, default=2000, help="rows that are compared with all others")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=7200, help="seconds for each number of rows")
    runner.main("bench-dedup", bench, parser, quick={"rows": [20_000], "queries": 500})

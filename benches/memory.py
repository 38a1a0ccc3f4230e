"""`make bench-memory`: what `tidemill plan` says of a GPU's memory, beside what the trainer's tensors take.

SD2's U-Net in bf16 on the GPU that computes nothing (benches/null_gpu): its memory is counted by libtorch's
own allocator. Redraws its part of docs/plan.md.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

from benches import gpu, report, runner
from benches.null_gpu import NullGpu
from benches.runner import BenchError
from benches.train import make_models

PAGE = runner.ROOT / "docs" / "plan.md"
GOAL = 0.03
NODE = {
    "plan.trainers": {"node": "box", "nodes": 1},
    "plan.encoders": {"node": "box"},
    "plan.nodes.box": {"gpu": "A", "gpus": 1, "cpus": 8, "gpu_memory": 141, "on_demand": 1},
}


def run_verb(verb: list[str], settings: dict, env: dict) -> dict:
    command = [*gpu.TIDEMILL, *verb, *gpu.settings("memory", **settings), "--json", "--quiet"]
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode != 0:
        raise BenchError(done.stderr)
    return json.loads(done.stdout)


def measure(folder: Path, env: dict, pixels: int, checkpointing: bool, batch: int) -> dict:
    setting = gpu.Setting(folder, folder / "model", pixels, batch, 1, "cuda:0")
    settings = {
        **gpu.preprocessing(setting),
        "output": str(folder / "out"),
        "train.precision": "bf16",
        "train.gradient_checkpointing": checkpointing,
        "train.cuda_graph": False,
        "train.not_finite": "skip",
        "train.phase": [{"resolution": pixels, "steps": 1}],
        "train.micro_batch": batch,
        "train.global_batch": batch,
    }
    counted = run_verb(["bench", "train", "--steps", "1", "--warmup", "1"], settings, env)
    # A plan wants rates; memory does not depend on them.
    rates = {"plan.rates.A": {kind: {str(pixels): 1} for kind in ("train", "encode")}}
    step = run_verb(["plan"], settings | NODE | rates, {})["steps"][0]
    planned = step["memory"]["peak_bytes"] / 2**20
    return {
        "pixels": pixels,
        "checkpointing": checkpointing,
        "batch": batch,
        "counted_mib": counted["gpu_memory_mib"],
        "planned_mib": planned,
    }


def cell(found: dict) -> str:
    error = found["planned_mib"] / found["counted_mib"] - 1
    missed = ", missed" if abs(error) > GOAL else ""
    return f"{found['counted_mib'] / 1024:.2f} ({100 * error:+.1f} %{missed})"


def bench(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        null_gpu = NullGpu(folder / "lib")
        env = null_gpu.environment(folder / "report.jsonl") | {"NULL_GPU_MEMORY_MIB": str(141 * 1024)}
        make_models(folder / "model", *args.model)
        columns = [(pixels, checkpointing) for pixels in args.pixels for checkpointing in (False, True)]
        rows, results = [], []
        for batch in args.batches:
            found = [measure(folder, env, *column, batch) for column in columns]
            results += found
            rows.append([str(batch), *map(cell, found)])
    heads = ["micro-batch", *(f"{p} px{', checkpointing' if c else ''}, GiB" for p, c in columns)]
    head = report.measured_on(runner.machine(), runner.versions("torch"), "Counted")
    about = f"In brackets how far the plan is off; the goal is {100 * GOAL:.0f} %."
    if not args.quick:
        report.write_json(runner.RESULTS / "memory.json", results)
    report.publish(PAGE, "bench-memory", f"{head} {about}\n\n{report.table(heads, rows)}", args.quick)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--pixels", type=int, nargs="+", default=[256, 512])
    parser.add_argument(
        "--model", type=int, nargs=3, default=[320, 1024, 64], help="channels, text width, size of latents"
    )
    quick = {"batches": [2], "pixels": [64], "model": [64, 64, 8]}
    runner.main("bench-memory", bench, parser, quick=quick)

"""`make bench-memory`: what `tidemill plan` says of a GPU's memory, beside what the trainer's tensors take.

The U-Nets of Stable Diffusion 2 and SDXL, and the transformers of Stable Diffusion 3 and 3.5, in bf16 on the
GPU that computes nothing (benches/null_gpu): its memory is counted by libtorch's own allocator. Redraws its
part of docs/plan.md.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

from benches import gpu, report, runner
from benches.null_gpu import NullGpu
from benches.published_models import TITLES, make_published_model
from benches.runner import BenchError
from benches.train import make_models

PAGE = runner.ROOT / "docs" / "plan.md"
GOAL = 0.03
# More than any GPU has: SD3.5 with 64 images takes 170.
GIB = 256
# What a table's head says of `train.gradient_checkpointing`.
MODES = {False: "", "selective": ", selective checkpointing", True: ", checkpointing"}
NODE = {
    "plan.trainers": {"node": "box", "nodes": 1},
    "plan.encoders": {"node": "box"},
    "plan.nodes.box": {"gpu": "A", "gpus": 1, "cpus": 8, "gpu_memory": GIB, "on_demand": 1},
}


def run_verb(verb: list[str], settings: dict, env: dict) -> dict:
    command = [*gpu.TIDEMILL, *verb, *gpu.settings("memory", **settings), "--json", "--quiet"]
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode != 0:
        raise BenchError(done.stderr)
    return json.loads(done.stdout)


def measure(folder: Path, model: Path, env: dict, pixels: int, checkpointing: bool | str, batch: int) -> dict:
    setting = gpu.Setting(folder, model, pixels, batch, 1, "cuda:0")
    settings = {
        **gpu.preprocessing(setting),
        "output": str(folder / "out"),
        "train.precision": "bf16",
        # For transformers, as the default is.
        "encode.max_sequence_length": 256,
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
        "model": model.name,
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
        env = null_gpu.environment(folder / "report.jsonl") | {"NULL_GPU_MEMORY_MIB": str(GIB * 1024)}
        tables, results = [], []
        for model in args.models:
            if model == "sd2":
                make_models(folder / model, *args.model)
            else:
                make_published_model(model, folder / model)
            columns = [(pixels, checkpointing) for pixels in args.pixels for checkpointing in MODES]
            rows = []
            for batch in args.batches:
                found = [measure(folder, folder / model, env, *column, batch) for column in columns]
                results += found
                rows.append([str(batch), *map(cell, found)])
            heads = ["micro-batch", *(f"{p} px{MODES[c]}, GiB" for p, c in columns)]
            tables.append(f"{TITLES.get(model, 'Stable Diffusion 2')}:\n\n{report.table(heads, rows)}")
    head = report.measured_on(runner.machine(), runner.versions("torch"), "Counted")
    about = f"In brackets how far the plan is off; the goal is {100 * GOAL:.0f} %."
    if not args.quick:
        report.write_json(runner.RESULTS / "memory.json", results)
    text = "\n\n".join([f"{head} {about}", *tables])
    report.publish(PAGE, "bench-memory", text, args.quick)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--pixels", type=int, nargs="+", default=[256, 512])
    models = ["sd2", *TITLES]
    parser.add_argument("--models", nargs="+", choices=models, default=models)
    parser.add_argument(
        "--model",
        type=int,
        nargs=3,
        default=[320, 1024, 64],
        help="of Stable Diffusion 2: channels, text width, size of latents",
    )
    quick = {"batches": [2], "pixels": [64], "model": [64, 64, 8], "models": models[:1]}
    runner.main("bench-memory", bench, parser, quick=quick)

"""`make bench-memory`: what `tidemill plan` says of a GPU's memory, beside what the trainer's tensors take.

SD2's U-Net and the transformers of Stable Diffusion 3 and 3.5 (medium) in bf16 on the GPU that computes nothing
(benches/null_gpu): its memory is counted by libtorch's own allocator. Redraws its part of docs/plan.md.
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from diffusers import FlowMatchEulerDiscreteScheduler
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

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
# As published; the text encoders have their widths, and one layer.
TRANSFORMER = {
    "sample_size": 128,
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "num_layers": 24,
    "attention_head_dim": 64,
    "num_attention_heads": 24,
    "caption_projection_dim": 1536,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 2048,
    "pos_embed_max_size": 192,
}
DUAL = {"pos_embed_max_size": 384, "qk_norm": "rms_norm", "dual_attention_layers": list(range(13))}
TRANSFORMERS = {"Stable Diffusion 3": TRANSFORMER, "Stable Diffusion 3.5": TRANSFORMER | DUAL}
ENCODERS = {"text_encoder": 768, "text_encoder_2": 1280}


def make_transformer(folder: Path, config: dict) -> None:
    """Makes a model folder of Stable Diffusion 3's form without the transformer's weights."""
    shutil.copytree(runner.ROOT / "assets", folder)
    shutil.copytree(folder / "tokenizer", folder / "tokenizer_2")
    shutil.rmtree(folder / "unet")
    text = CLIPTextConfig.from_pretrained(folder / "text_encoder")
    for encoder, width in ENCODERS.items():
        text.hidden_size, text.projection_dim, text.num_hidden_layers = width, width, 1
        text.num_attention_heads = width // 64
        shutil.rmtree(folder / encoder, ignore_errors=True)
        CLIPTextModelWithProjection(text).half().save_pretrained(folder / encoder)
    (folder / "transformer").mkdir()
    (folder / "transformer/config.json").write_text(json.dumps(config))
    vae = folder / "vae/config.json"
    channels = {"latent_channels": config["in_channels"]}
    vae.write_text(json.dumps(json.loads(vae.read_text()) | channels))
    FlowMatchEulerDiscreteScheduler().save_pretrained(folder / "scheduler")


def run_verb(verb: list[str], settings: dict, env: dict) -> dict:
    command = [*gpu.TIDEMILL, *verb, *gpu.settings("memory", **settings), "--json", "--quiet"]
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode != 0:
        raise BenchError(done.stderr)
    return json.loads(done.stdout)


def measure(folder: Path, model: Path, env: dict, pixels: int, checkpointing: bool, batch: int) -> dict:
    setting = gpu.Setting(folder, model, pixels, batch, 1, "cuda:0")
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
        env = null_gpu.environment(folder / "report.jsonl") | {"NULL_GPU_MEMORY_MIB": str(141 * 1024)}
        make_models(folder / "Stable Diffusion 2", *args.model)
        for model, config in TRANSFORMERS.items():
            make_transformer(folder / model, config)
        tables, results = [], []
        for model in args.models:
            columns = [(pixels, checkpointing) for pixels in args.pixels for checkpointing in (False, True)]
            rows = []
            for batch in args.batches:
                found = [measure(folder, folder / model, env, *column, batch) for column in columns]
                results += found
                rows.append([str(batch), *map(cell, found)])
            heads = ["micro-batch", *(f"{p} px{', checkpointing' if c else ''}, GiB" for p, c in columns)]
            tables.append(f"{model}:\n\n{report.table(heads, rows)}")
    head = report.measured_on(runner.machine(), runner.versions("torch"), "Counted")
    about = f"In brackets how far the plan is off; the goal is {100 * GOAL:.0f} %."
    if not args.quick:
        report.write_json(runner.RESULTS / "memory.json", results)
    text = "\n\n".join([f"{head} {about}", *tables])
    report.publish(PAGE, "bench-memory", text, args.quick)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--pixels", type=int, nargs="+", default=[256, 512])
    models = ["Stable Diffusion 2", *TRANSFORMERS]
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

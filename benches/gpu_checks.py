"""`bash benches/gpu.sh target/wheels --checks`: what docs/gpu.md says of a GPU, in under eight minutes.

Kernels of a step and their limits, the time to the first step, recorded steps of a small network, encoders,
the largest batch, resume bit for bit, and process groups; in a call of its own (`--only quality`) what the
quickstart's model is worth. What matters most comes first. Prints a table after each check, and writes all
of them to checks.md in the bench's folder. A check that fails costs only itself.
"""

import argparse
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from diffusers import AutoencoderKL, UNet2DConditionModel
from tidemill.run_file import to_command_line
from transformers import CLIPTextConfig, CLIPTextModel

from benches import gpu, gpu_kernels, gpu_quality, gpu_training, report, runner
from benches.alternate import Side, line_counter, measure_alternately
from benches.gpu_training import quickstart, tidemill
from benches.runner import BenchError

PROFILE_AFTER, PROFILE_STEPS = 6, 2


@dataclass(frozen=True)
class Context:
    """Where and what to measure."""

    folder: Path
    setting: gpu.Setting
    # Sizes of the encoders: batches by pixels, and rows of the pairs.
    encoder_batches: Mapping[int, int]
    encoder_rows: int
    # The quickstart's training steps, and seeds to run it with.
    quickstart_steps: int
    seeds: int
    # Whether the VAE and text encoder have SD2's real size.
    are_encoders_real: bool


def check_kernels(context: Context, limit_s: float) -> str:
    """Kernels of a steady step, and the share of what the GPU can do."""
    setting = context.setting
    gpu.prepare(setting, setting.pixels)
    profile = {"after": PROFILE_AFTER, "steps": PROFILE_STEPS}
    arguments, log = gpu.tidemill(setting, **{"train.profile": profile})
    side = Side("profile", arguments, line_counter(log))
    # The profile is written after its last step; the step after it has seen that.
    measure_alternately([side], PROFILE_AFTER + PROFILE_STEPS + 3, turn_s=limit_s, limit_s=limit_s)
    (trace,) = (log.parent / "profile").glob("*.json*")
    times = gpu_kernels.times_by_kind(gpu_kernels.read_events(trace), PROFILE_STEPS)
    if not times:
        raise BenchError("the trace has no kernels")
    config = UNet2DConditionModel.load_config(setting.model / "unet")
    work = gpu_kernels.count_work(config, setting.batch, setting.pixels // 8)
    limits = gpu_kernels.measure_limits(setting.device)
    head = (
        f"{setting.pixels} px, batch {setting.batch}; limits: {limits.flops_per_s / 1e12:.0f} TFLOP/s, "
        f"{limits.bytes_per_s / 1e12:.2f} TB/s."
    )
    return f"{head}\n\n{gpu_kernels.table(times, work, limits)}"


def check_first_step(context: Context, limit_s: float) -> str:
    """The time to the first step, with and without what earlier starts have kept."""
    cache = context.folder / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    os.environ["XDG_CACHE_HOME"] = str(cache)
    gpu.prepare(context.setting, context.setting.pixels)
    cases = {
        "nothing kept": {},
        "kernels kept": {},
        "the same, `cudnn_benchmark_limit = 3`": {"train.cudnn_benchmark_limit": 3},
        "the same, `deterministic`": {"train.deterministic": True},
    }
    rows = []
    for name, more in cases.items():
        arguments, log = gpu.tidemill(context.setting, **more)
        figures = gpu.measure_side(context.setting, Side(name, arguments, line_counter(log)), limit_s)
        rows.append([name, f"{figures['first_step_s']:.1f}", f"{figures['images_per_second']:.1f}"])
    return report.table(["start with", "first step after, s", "img/s"], rows)


def check_recorded_steps(context: Context, limit_s: float) -> str:
    """Whether `train.cuda_graph = "auto"` is as fast as the faster of its choices."""
    rows = []
    device = {"engine.device": context.setting.device}
    for mode in (False, True, "auto"):
        arguments = quickstart({**device, "train.cuda_graph": mode, "train.precision": "bf16"})
        result = tidemill(["bench", "train", *arguments, "--steps", "200"], limit_s)
        (rate,) = result["rates"]["train"].values()
        rows.append([f"`{json.dumps(mode)}`", f"{rate:.0f}"])
    return report.table(["`train.cuda_graph`, quickstart's network", "img/s"], rows)


def make_encoders(context: Context) -> Path:
    """A model folder with encoders of SD2's sizes and random weights."""

    def make(folder: Path) -> None:
        shutil.copytree(context.setting.model, folder)
        if not context.are_encoders_real:
            return
        for name in ("vae", "text_encoder"):
            shutil.rmtree(folder / name)
        AutoencoderKL(
            down_block_types=["DownEncoderBlock2D"] * 4,
            up_block_types=["UpDecoderBlock2D"] * 4,
            block_out_channels=[128, 256, 512, 512],
            layers_per_block=2,
            sample_size=512,
            latent_channels=4,
        ).save_pretrained(folder / "vae")
        text = CLIPTextConfig.from_pretrained(context.setting.model / "text_encoder")
        text.update(
            {
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "num_hidden_layers": 23,
                "num_attention_heads": 16,
                "hidden_act": "gelu",
            }
        )
        CLIPTextModel(text).save_pretrained(folder / "text_encoder")

    gpu.make_once(context.folder / "encoders", make)
    return context.folder / "encoders"


def check_encoders(context: Context, limit_s: float) -> str:
    """From JPEGs to latents, beside the encoders alone in plain PyTorch."""
    models, rows = make_encoders(context), []
    for pixels, batch in context.encoder_batches.items():
        pairs = context.folder / f"encoder-pairs-{pixels}"

        def draw(folder: Path, pixels: int = pixels) -> None:
            sides = ["--min-side", str(pixels), "--max-side", str(pixels + 44)]
            gpu.run_verb("synth", str(folder), "--rows", str(context.encoder_rows), "--files", "12", *sides)

        gpu.make_once(pairs, draw)
        sizes = ["--pixels", pixels, "--batch", batch, "--device", context.setting.device]
        peer = runner.peer("torch_encoders", models, *map(str, sizes))
        done = subprocess.run(peer.arguments, capture_output=True, text=True, timeout=limit_s)
        if done.returncode != 0:
            raise BenchError(gpu.summarize_error(done.stderr))
        plain = json.loads(done.stdout.splitlines()[-1])["rows_per_second"]
        for workers in (1, 2):
            output = context.folder / "encoded"
            shutil.rmtree(output, ignore_errors=True)
            settings = {
                "source.uri": f"{pairs}/*.parquet",
                "source.columns": {"image": "jpg", "caption": "caption", "key": "key"},
                "prepare.resolutions": [pixels],
                "models.path": str(models),
                "engine.device": context.setting.device,
                "engine.encode.workers": workers,
                "encode.dtype": "bf16",
                "encode.batch_size": batch,
                "output": str(output),
            }
            result = tidemill(["preprocess", *to_command_line(settings)], limit_s)
            rate = result["this_run"]["rows_per_second"]
            rows.append([str(pixels), str(workers), f"{rate:.0f}", f"{plain:.0f}", f"{rate / plain:.2f}x"])
    return report.table(
        ["pixels", "`engine.encode.workers`", "rows/s", "PyTorch, encoders only", "ratio"], rows
    )


def check_largest_batch(context: Context, limit_s: float) -> str:
    """The largest micro-batch that fits, and the memory of smaller ones."""
    run = {
        **gpu.preprocessing(context.setting),
        "output": str(context.folder / "fit"),
        "train.precision": "bf16",
        "train.phase": [{"resolution": context.setting.pixels, "steps": 1}],
    }
    result = tidemill(["bench", "train", *gpu.settings("gpu", **run), "--fit"], limit_s)
    (found,) = result["largest_micro_batch"].values()
    tries = [[str(batch), str(mib)] for batch, mib in found["tries"]]
    total = f"{result['total_memory_mib']:,} MiB"
    head = f"{context.setting.pixels} px: the largest in {total} is {found['micro_batch']}."
    return f"{head}\n\n{report.table(['micro-batch', 'peak, MiB'], tries)}"


def check_resume(context: Context, limit_s: float) -> str:
    """Whether a run with `train.deterministic` that is killed equals one that is not, bit for bit."""
    return gpu_training.check_resume(context.folder, context.setting.device, limit_s)


def check_ranks(context: Context, limit_s: float) -> str:
    """Whether training is the same with a process group."""
    return gpu_training.check_ranks(context.folder, context.setting.device, limit_s)


def check_quality(context: Context, limit_s: float) -> str:
    """Whether the quickstart's model is as good as that of a CPU, over seeds."""
    device = context.setting.device
    return gpu_quality.check_quality(context.folder, device, context.quickstart_steps, context.seeds, limit_s)


# The checks, what matters most first, with the seconds that each may take.
CHECKS: dict[str, tuple[Callable[[Context, float], str], float]] = {
    "kernels": (check_kernels, 100),
    "first step": (check_first_step, 150),
    "recorded steps": (check_recorded_steps, 60),
    "encoders": (check_encoders, 120),
    "largest batch": (check_largest_batch, 120),
    "resume": (check_resume, 100),
    "ranks": (check_ranks, 60),
    "quality": (check_quality, 440),
}
# It takes all the time there is.
ALONE = "quality"


def run_checks(context: Context, names: list[str], deadline: float) -> list[str]:
    """Runs the checks that can start before the deadline; returns those that failed."""
    context.folder.mkdir(parents=True, exist_ok=True)
    failed, parts = [], []
    for name in names:
        check, limit_s = CHECKS[name]
        remaining_s = deadline - time.monotonic()
        started = time.monotonic()
        if remaining_s <= 0:
            parts.append(f"### {name}\n\nLeft out: the time was over.")
            continue
        try:
            result = check(context, min(limit_s, remaining_s))
        except (BenchError, subprocess.SubprocessError, OSError, LookupError, ValueError) as error:
            failed.append(name)
            result = f"Failed: {type(error).__name__}: {error}"
        parts.append(f"### {name}\n\n{result}")
        print(f"{parts[-1]}\n\n({time.monotonic() - started:.0f} s)\n", flush=True)
        # Results stay if the bench is killed.
        (context.folder / "checks.md").write_text("\n\n".join(parts) + "\n")
    return failed


def bench(args: argparse.Namespace) -> None:
    deadline = time.monotonic() + args.limit_s - (time.time() - args.started)
    folder = args.folder.absolute()
    gpu.make_once(folder / "model", lambda made: gpu.make_models(made, args.channels, args.text, gpu.SIZE))
    setting = gpu.Setting(folder, folder / "model", args.pixels, args.batch, args.steps, args.device)
    batches = dict(zip(args.encoder_pixels, args.encoder_batch, strict=True))
    sizes = (batches, args.encoder_rows, args.quickstart_steps, args.seeds)
    context = Context(folder, setting, *sizes, are_encoders_real=not args.quick)
    failed = run_checks(context, args.only, deadline)
    if failed:
        raise BenchError(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=runner.RESULTS / "gpu-checks")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument(
        "--only", nargs="+", choices=CHECKS, default=[name for name in CHECKS if name != ALONE]
    )
    parser.add_argument("--pixels", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--channels", type=int, default=320, help="of the first block; SD2 has 320")
    parser.add_argument("--text", type=int, default=1024, help="width of the text embeddings; SD2 has 1024")
    parser.add_argument("--encoder-pixels", nargs="+", type=int, default=[256, 512])
    parser.add_argument("--encoder-batch", nargs="+", type=int, default=[64, 32])
    parser.add_argument("--encoder-rows", type=int, default=6144)
    parser.add_argument("--seeds", type=int, default=3, help="of the quickstart")
    parser.add_argument("--quickstart-steps", type=int, default=1600)
    parser.add_argument("--limit-s", type=float, default=460, help="no check starts later than this")
    parser.add_argument("--started", type=float, default=time.time(), help="when these seconds began")
    quick = {
        "folder": runner.RESULTS / "gpu-checks-quick",
        "pixels": 64,
        "batch": 4,
        "steps": gpu.WARM + 3,
        "channels": 64,
        "text": 64,
        "encoder_pixels": [64],
        "encoder_batch": [16],
        "encoder_rows": 64,
        "seeds": 2,
        "quickstart_steps": 20,
    }
    runner.main("gpu-checks", bench, parser, quick)

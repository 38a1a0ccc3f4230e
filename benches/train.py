"""`make bench-train`: steps of the U-Net in Tidemill and in diffusers on PyTorch, on all cores.

Makes two models in the shape of Stable Diffusion 2's and a latent dataset of synthetic scenes, then
takes some steps with each side, alternating every few seconds; redraws its part of
docs/benchmarks.md.
"""

import argparse
import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from diffusers import UNet2DConditionModel
from tidemill.run_file import to_command_line
from transformers import CLIPTextConfig, CLIPTextModel

from benches import report, runner
from benches.alternate import Side, line_counter, measure_alternately
from benches.runner import ROOT, TIDEMILL

FOLDER = runner.RESULTS / "train"
PAGE = ROOT / "docs" / "benchmarks.md"
# Channels of the first block; the other blocks have two, four and four times as many.
CHANNELS = {"small": 64, "large": 128}
BATCH, SIZE, TEXT = 8, 32, 256
# Steps before the measurement; the first ones do additional work.
WARM = 3
TURN_S = 2.0
PRECISIONS = ("bf16", "f32")
FORMATS = {"contiguous": (), "channels-last": ("--channels-last",)}
GOALS = {"bf16": 1.10, "f32": 1.05}
MEMORY_GOAL = 0.9
COMPILED = "torch.compile"
FIRST_STEP_GOAL = 0.05


@dataclass(frozen=True)
class Figures:
    """Medians of the runs of a side."""

    images_per_second: float
    first_step_s: float
    peak_mib: float


def make_models(folder: Path, channels: int, text_width: int, size: int) -> float:
    """Makes a model folder without U-Net weights, which are then random.

    Returns the number of parameters in millions.
    """
    shutil.copytree(ROOT / "assets", folder)
    config = json.loads((folder / "unet" / "config.json").read_text())
    config |= {
        "block_out_channels": [channels * n for n in (1, 2, 4, 4)],
        "attention_head_dim": [channels * n // 64 for n in (1, 2, 4, 4)],
        "down_block_types": ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"],
        "up_block_types": ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3,
        "cross_attention_dim": text_width,
        "layers_per_block": 2,
        "sample_size": size,
        "use_linear_projection": True,
    }
    (folder / "unet" / "config.json").write_text(json.dumps(config, indent=2))
    text = CLIPTextConfig.from_pretrained(folder / "text_encoder")
    text.hidden_size, text.num_attention_heads, text.num_hidden_layers = text_width, text_width // 64, 1
    shutil.rmtree(folder / "text_encoder")
    CLIPTextModel(text).half().save_pretrained(folder / "text_encoder")
    with torch.device("meta"):
        unet = UNet2DConditionModel.from_config(config)
    return sum(parameter.numel() for parameter in unet.parameters()) / 1e6


def run_settings(name: str, **more: object) -> dict[str, object]:
    """The content of a run file."""
    return {
        "source.uri": f"{FOLDER}/pairs/*.parquet",
        "source.columns": {"image": "jpg", "caption": "caption", "key": "key"},
        "prepare.resolutions": [8 * SIZE],
        "models.path": str(FOLDER / name),
        "engine.device": "cpu",
        # As many tokens of text for a transformer as for a U-Net.
        "encode.max_sequence_length": 0,
        "output": str(FOLDER / f"{name}-run"),
        **more,
    }


def settings(name: str, **more: object) -> list[str]:
    """The settings of a run as arguments of the command line."""
    return to_command_line(run_settings(name, **more))


def prepare(name: str, rows: int = 128, files: int = 2) -> None:
    """Makes the latent dataset of a model, and its pairs unless they exist."""
    pairs = FOLDER / "pairs"
    if not pairs.exists():
        sides = ["--min-side", str(8 * SIZE), "--max-side", str(9 * SIZE)]
        subprocess.run(
            [TIDEMILL, "synth", pairs, "--rows", str(rows), "--files", str(files), *sides, "-q"], check=True
        )
    subprocess.run([TIDEMILL, "preprocess", *settings(name), "-q"], check=True)


def make_tidemill_side(
    name: str, precision: str, steps: int, title: str = "Tidemill", *denoiser: str
) -> Side:
    """`tidemill train`; with options of the peer `own_denoiser` that module."""
    output = FOLDER / f"{name}-{len(denoiser)}-run"
    more = {
        "output": str(output),
        "train.precision": precision,
        "train.global_batch": BATCH,
        "train.micro_batch": BATCH,
        "train.log_every": 1,
        "train.phase": [{"resolution": 8 * SIZE, "steps": steps}],
        # No checkpoint during the measured steps.
        "checkpoint.every": 10 * steps,
    }
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    (output / "dataset").symlink_to(FOLDER / f"{name}-run" / "dataset")
    if denoiser:
        arguments = runner.peer("own_denoiser", json.dumps(run_settings(name, **more)), *denoiser).arguments
    else:
        arguments = [str(TIDEMILL), "train", *settings(name, **more), "--json", "--quiet"]
    return Side(f"{title}, {precision}", arguments, line_counter(output / "metrics.jsonl"))


def make_diffusers_side(name: str, title: str, steps: int, *flags: str) -> Side:
    """diffusers' U-Net in PyTorch."""
    log = FOLDER / f"{title}.jsonl"
    log.unlink(missing_ok=True)
    shape = ["--batch", str(BATCH), "--size", str(SIZE), "--steps", str(steps), "--log", str(log)]
    return Side(
        title, runner.peer("diffusers_train", FOLDER / name, *shape, *flags).arguments, line_counter(log)
    )


def make_sides(name: str, precision: str, args: argparse.Namespace) -> list[Side]:
    """The sides of a comparison, Tidemill first."""
    flags = ["--bf16"] if precision == "bf16" else []
    made = [make_tidemill_side(name, precision, args.steps)]
    # A transformer has one convolution, so its memory format does not matter.
    has_transformer = (FOLDER / name / "transformer").exists()
    formats = {"contiguous": ()} if args.quick or has_transformer else FORMATS
    for form, more in formats.items():
        made.append(
            make_diffusers_side(name, f"diffusers, eager, {precision}, {form}", args.steps, *flags, *more)
        )
    if args.compile:
        made.append(
            make_tidemill_side(name, precision, args.steps, "Tidemill with diffusers' U-Net", "--eager")
        )
        # Compiling takes minutes, so a quick run does it only for Tidemill.
        if not args.quick:
            title = f"diffusers, {COMPILED}, {precision}"
            made.append(make_diffusers_side(name, title, args.steps, *flags, "--compile"))
        title = f"Tidemill with diffusers' U-Net, {COMPILED}"
        made.append(make_tidemill_side(name, precision, args.steps, title, "--compile", str(FOLDER)))
    return made


def measure(name: str, args: argparse.Namespace) -> dict[str, dict[str, Figures]]:
    """The figures by precision and side."""
    results: dict[str, dict[str, Figures]] = {}
    for precision in args.precisions:
        runs: dict[str, list[Side]] = {}
        for number in range(args.rounds):
            if not args.force:
                runner.wait_until_idle()
            alternating = make_sides(name, precision, args)
            measure_alternately(alternating, args.steps, TURN_S)
            for side in alternating:
                runs.setdefault(side.name, []).append(side)
                print(
                    f"  {name}, round {number + 1}: {side.name} {images_per_second(side):.2f} img/s",
                    flush=True,
                )
        results[precision] = {title: median_figures(runs_of_side) for title, runs_of_side in runs.items()}
    return results


def images_per_second(side: Side) -> float:
    """Images per second by the median step."""
    return BATCH / median(end - start for start, end in pairwise(side.step_ends[WARM - 1 :]))


def median_figures(runs: Sequence[Side]) -> Figures:
    return Figures(
        median(map(images_per_second, runs)),
        median(run.step_ends[0] for run in runs),
        median(run.peak_mib for run in runs),
    )


def format_table(results: Mapping[str, Mapping[str, Figures]]) -> str:
    rows = []
    for precision, figures in results.items():
        (mine, ours), *peers = figures.items()
        eager = [side for name, side in peers if "eager" in name]
        best = max(side.images_per_second for side in eager)
        for name, side in figures.items():
            numbers = [f"{side.images_per_second:.2f}", f"{side.first_step_s:.1f}", f"{side.peak_mib:,.0f}"]
            rows.append([name, *numbers])
        ratio = ours.images_per_second / best
        least = min(side.peak_mib for side in eager)
        memory = ours.peak_mib / least
        slow, large = (
            ", missed" if miss else "" for miss in (ratio < GOALS[precision], memory > MEMORY_GOAL)
        )
        goals = f"goals {GOALS[precision]}{slow}; memory at most {MEMORY_GOAL}{large}"
        rows.append([f"{mine} over the better eager one ({goals})", f"{ratio:.2f}", "", f"{memory:.2f}"])
        compiled = [side for name, side in peers if name.startswith(f"diffusers, {COMPILED}")]
        for side in compiled:
            share = ours.first_step_s / side.first_step_s
            missed = ", missed" if share > FIRST_STEP_GOAL else ""
            goal = f"goal for the first step: at most {FIRST_STEP_GOAL}{missed}"
            speed = f"{ours.images_per_second / side.images_per_second:.2f}"
            rows.append([f"{mine} over {COMPILED} ({goal})", speed, f"{share:.3f}", ""])
    return report.table(["", "img/s", "first step after, s", "peak memory, MiB"], rows)


def bench(args: argparse.Namespace) -> None:
    def make(name: str) -> tuple[float, str]:
        millions = make_models(FOLDER / name, CHANNELS[name], TEXT, SIZE)
        return millions, f"{millions:.0f} million parameters"

    bench_models(args, make, "compile" if args.compile else "train")


def bench_models(
    args: argparse.Namespace, make: Callable[[str], tuple[float, str]], results_name: str
) -> None:
    """Measures `args.models`. `make` makes one and returns its millions of parameters and its title."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    parts, written = [], []
    for name in args.models:
        millions, title = make(name)
        prepare(name, 16 if args.quick else 128)
        results = measure(name, args)
        parts += [f"### {title}", format_table(results)]
        sides = {side: vars(medians) for figures in results.values() for side, medians in figures.items()}
        written.append({"name": name, "parameters": millions * 1e6, "sides": sides})
    versions, machine = runner.versions("torch", "diffusers"), runner.machine()
    if not args.quick:
        report.write_json(
            runner.RESULTS / f"{results_name}.json",
            [{**one, "machine": machine, "versions": versions} for one in written],
        )
    head = (
        f"{report.measured_on(machine, versions)} Batches "
        f"of {BATCH} latents of {SIZE} x {SIZE}; medians of {args.steps - WARM} steps after {WARM}, and of "
        f"{args.rounds} rounds, in turns of {TURN_S:.0f} s."
    )
    report.publish(PAGE, f"bench-{results_name}", "\n\n".join([head, *parts]), args.quick)


def make_parser(description: str | None, models: Sequence[str]) -> argparse.ArgumentParser:
    """The options of a bench of these models."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=3, help="times that each side runs; medians count")
    parser.add_argument("--steps", type=int, default=12, help="of a run")
    parser.add_argument("--models", nargs="+", choices=models, default=list(models))
    parser.add_argument(
        "--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="f32 where a CPU has no bf16"
    )
    return parser


def main() -> None:
    parser = make_parser(__doc__, list(CHANNELS))
    parser.add_argument(
        "--compile", action="store_true", help="beside torch.compile, and with diffusers' U-Net in Tidemill"
    )
    quick = {"rounds": 1, "steps": WARM + 2, "models": ["small"], "precisions": ["f32"]}
    runner.main("bench-train", bench, parser, quick)


if __name__ == "__main__":
    main()

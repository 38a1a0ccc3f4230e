"""`make bench-train`: steps of the U-Net in Tidemill and in diffusers on PyTorch, on all cores.

Makes two models in the shape of Stable Diffusion 2's and a latent dataset of synthetic scenes, then takes
some steps with each side alternately, each time in a fresh process; redraws its part of docs/benchmarks.md.
"""

import argparse
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from statistics import median

import torch
from diffusers import UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel

from benches import report, runner
from benches.runner import ROOT, TIDEMILL, Command, Outcome

FOLDER = runner.RESULTS / "train"
PAGE = ROOT / "docs" / "benchmarks.md"
# Of the first block; the others have two, four and four times as many.
CHANNELS = {"small": 64, "large": 128}
BATCH, SIZE, TEXT = 8, 32, 256
# Before these a step is not what it will be.
WARM = 3
PRECISIONS = ("bf16", "f32")
FORMATS = {"contiguous": (), "channels-last": ("--channels-last",)}
GOALS = {"bf16": 1.10, "f32": 1.05}


@dataclass(frozen=True)
class Side:
    """Medians of some runs."""

    images_per_second: float
    first_step_s: float
    peak_mib: float


def make_models(name: str) -> float:
    """A model folder whose U-Net has random weights; gives millions of parameters."""
    folder = FOLDER / name
    shutil.copytree(ROOT / "assets", folder)
    config = json.loads((folder / "unet" / "config.json").read_text())
    config |= {
        "block_out_channels": [CHANNELS[name] * n for n in (1, 2, 4, 4)],
        "attention_head_dim": [CHANNELS[name] * n // 64 for n in (1, 2, 4, 4)],
        "down_block_types": ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"],
        "up_block_types": ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3,
        "cross_attention_dim": TEXT,
        "layers_per_block": 2,
        "sample_size": SIZE,
        "use_linear_projection": True,
    }
    (folder / "unet" / "config.json").write_text(json.dumps(config, indent=2))
    text = CLIPTextConfig.from_pretrained(folder / "text_encoder")
    text.hidden_size, text.num_attention_heads, text.num_hidden_layers = TEXT, TEXT // 64, 1
    shutil.rmtree(folder / "text_encoder")
    CLIPTextModel(text).half().save_pretrained(folder / "text_encoder")
    with torch.device("meta"):
        unet = UNet2DConditionModel.from_config(config)
    return sum(parameter.numel() for parameter in unet.parameters()) / 1e6


def settings(name: str, **more: object) -> list[str]:
    values = {
        "source.uri": f"{FOLDER}/pairs/*.parquet",
        "source.columns": '{ image = "jpg", caption = "caption", key = "key" }',
        "prepare.resolutions": [8 * SIZE],
        "models.path": str(FOLDER / name),
        "engine.device": "cpu",
        "output": str(FOLDER / f"{name}-run"),
        **more,
    }
    texts = (
        (key, value if isinstance(value, str) and value[0] in "[{" else json.dumps(value))
        for key, value in values.items()
    )
    return [part for key, value in texts for part in ("--set", f"{key}={value}")]


def prepare(name: str) -> None:
    pairs = FOLDER / "pairs"
    if not pairs.exists():
        sides = ["--min-side", str(8 * SIZE), "--max-side", str(9 * SIZE)]
        subprocess.run([TIDEMILL, "synth", pairs, "--rows", "128", "--files", "2", *sides, "-q"], check=True)
    subprocess.run([TIDEMILL, "preprocess", "/dev/null", *settings(name), "-q"], check=True)


def ours(name: str, precision: str, steps: int) -> Outcome:
    """`tidemill train`; its rates are in its metrics."""
    output = FOLDER / f"{name}-run"
    more = {
        "train.precision": precision,
        "train.global_batch": BATCH,
        "train.micro_batch": BATCH,
        "train.log_every": 1,
        "train.phase": f"[{{ resolution = {8 * SIZE}, steps = {steps} }}]",
        # The last step's checkpoint is none of the steps.
        "checkpoint.every": 10 * steps,
    }
    (output / "metrics.jsonl").unlink(missing_ok=True)
    arguments = [str(TIDEMILL), "train", "/dev/null", *settings(name, **more), "--json", "--quiet"]
    outcome = runner.run(Command(arguments, "", [output / "checkpoints"]))
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    rates = [line["images_per_second"] for line in lines]
    return Outcome({"images_per_second": rates, "first_step_s": BATCH / rates[0]}, outcome.peak_mib)


def peer(name: str, steps: int, *flags: str) -> Outcome:
    shape = ["--batch", str(BATCH), "--size", str(SIZE), "--steps", str(steps)]
    return runner.run(runner.peer("diffusers_train", FOLDER / name, *shape, *flags), limit_s=1200)


def sides(name: str, precision: str, compiled: bool) -> dict[str, list[str] | None]:
    """The flags of each peer; none for ours."""
    flags = ["--bf16"] if precision == "bf16" else []
    found: dict[str, list[str] | None] = {f"Tidemill, {precision}": None}
    for form, more in FORMATS.items():
        found[f"diffusers, eager, {precision}, {form}"] = [*flags, *more]
    if compiled:
        found[f"diffusers, torch.compile, {precision}"] = [*flags, "--compile"]
    return found


def measure(name: str, args: argparse.Namespace) -> dict[str, dict[str, Side]]:
    """By precision and side."""
    found: dict[str, dict[str, Side]] = {}
    for precision in PRECISIONS:
        outcomes: dict[str, list[Outcome]] = {}
        for number in range(args.rounds):
            for side, flags in sides(name, precision, args.compile).items():
                if not args.force:
                    runner.wait_until_quiet()
                run = ours(name, precision, args.steps) if flags is None else peer(name, args.steps, *flags)
                outcomes.setdefault(side, []).append(run)
                print(f"  {name}, round {number + 1}: {side} {rate(run):.2f} img/s", flush=True)
        found[precision] = {side: medians(some) for side, some in outcomes.items()}
    return found


def rate(outcome: Outcome) -> float:
    return median(outcome.result["images_per_second"][WARM:])


def medians(outcomes: Sequence[Outcome]) -> Side:
    return Side(
        median(map(rate, outcomes)),
        median(outcome.result["first_step_s"] for outcome in outcomes),
        median(outcome.peak_mib for outcome in outcomes),
    )


def table(found: Mapping[str, Mapping[str, Side]]) -> str:
    rows = []
    for precision, some in found.items():
        (mine, ours), *peers = some.items()
        best = max(side.images_per_second for name, side in peers if "eager" in name)
        for name, side in some.items():
            numbers = [f"{side.images_per_second:.2f}", f"{side.first_step_s:.1f}", f"{side.peak_mib:,.0f}"]
            rows.append([name, *numbers])
        ratio = ours.images_per_second / best
        missed = "" if ratio >= GOALS[precision] else ", missed"
        rows.append(
            [f"{mine} over the better eager one (goal {GOALS[precision]}{missed})", f"{ratio:.2f}", "", ""]
        )
    return report.table(["", "img/s", "first step, s", "peak memory, MiB"], rows)


def bench(args: argparse.Namespace) -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    parts, written = [], []
    for name in args.models:
        millions = make_models(name)
        prepare(name)
        found = measure(name, args)
        parts += [f"### {millions:.0f} million parameters", table(found)]
        sides = {side: vars(medians) for some in found.values() for side, medians in some.items()}
        written.append({"name": name, "parameters": millions * 1e6, "sides": sides})
    versions, machine = runner.versions("torch", "diffusers"), runner.machine()
    report.write_json(
        runner.RESULTS / "train.json", [{**one, "machine": machine, "versions": versions} for one in written]
    )
    named = ", ".join(f"{package} {version}" for package, version in versions.items())
    head = (
        f"Measured on {date.today()} on {machine['cores']} cores of {machine['cpu']} with {named}. Batches "
        f"of {BATCH} latents of {SIZE} x {SIZE}; medians of {args.steps - WARM} steps after {WARM}, and of "
        f"{args.rounds} rounds."
    )
    report.redraw(PAGE, "bench-train", "\n\n".join([head, *parts]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="times that each side runs; medians count")
    parser.add_argument("--steps", type=int, default=12, help="of a run")
    parser.add_argument("--models", nargs="+", choices=CHANNELS, default=list(CHANNELS))
    parser.add_argument("--compile", action="store_true", help="with torch.compile, too, which takes minutes")
    runner.main("bench-train", bench, parser)


if __name__ == "__main__":
    main()

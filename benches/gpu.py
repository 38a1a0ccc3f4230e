"""`bash benches/gpu.sh`: steps of Stable Diffusion 2's U-Net on one GPU, in Tidemill and in diffusers.

The real configuration with random weights, bf16, latents of 256 and 512 pixels; one side after the other.
Prints a table, and writes it and the figures into a folder. With `--device cpu` and a smaller network it
runs on any machine.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benches import report, runner
from benches.train import make_models, run_of, settings
from benches.turns import Side, lines_of, take_turns

TIDEMILL = [sys.executable, "-m", "tidemill"]
PAIRS = 128
# Before these a step is not what it will be.
WARM = 5
# MLPerf's best published figure of one H200 at 512 pixels.
GOAL = {512: 151.0}


@dataclass(frozen=True)
class Setting:
    """What all sides have in common."""

    folder: Path
    model: Path
    pixels: int
    batch: int
    steps: int
    device: str


def tidemill(setting: Setting, *denoiser: str, recorded: bool = False) -> tuple[list[str], Path]:
    """`tidemill train`, or with options of `own_denoiser` what that does; and where its steps are."""
    output = setting.folder / "run"
    run = {
        **preprocessing(setting),
        "output": str(output),
        "train.precision": "bf16",
        "train.global_batch": setting.batch,
        "train.micro_batch": setting.batch,
        "train.log_every": 1,
        "train.cuda_graph": recorded,
        # It is ended before its last step, and so before a checkpoint.
        "train.phase": [{"resolution": setting.pixels, "steps": 10 * setting.steps}],
    }
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    (output / "dataset").symlink_to(setting.folder / f"data-{setting.pixels}" / "dataset")
    if denoiser:
        arguments = runner.peer("own_denoiser", json.dumps(run_of("gpu", **run)), *denoiser).arguments
    else:
        arguments = [*TIDEMILL, "train", "/dev/null", *settings("gpu", **run), "--json", "--quiet"]
    return arguments, output / "metrics.jsonl"


def diffusers(setting: Setting, *flags: str) -> tuple[list[str], Path]:
    """diffusers' U-Net in PyTorch, and where its steps are."""
    log = setting.folder / "diffusers.jsonl"
    log.unlink(missing_ok=True)
    # Latents are an eighth of the pixels.
    shape = ["--batch", setting.batch, "--size", setting.pixels // 8, "--steps", setting.steps, "--log", log]
    where = ["--device", setting.device, "--bf16"]
    return runner.peer("diffusers_train", setting.model, *map(str, shape), *where, *flags).arguments, log


SIDES: dict[str, Callable[[Setting], tuple[list[str], Path]]] = {
    "Tidemill": tidemill,
    "Tidemill, recorded": lambda setting: tidemill(setting, recorded=True),
    "diffusers, eager": diffusers,
    "diffusers, eager, channels-last": lambda setting: diffusers(setting, "--channels-last"),
    "diffusers, torch.compile": lambda setting: diffusers(setting, "--channels-last", "--compile"),
    "Tidemill with diffusers' U-Net": lambda setting: tidemill(setting, "--eager"),
    "Tidemill with diffusers' U-Net, recorded": lambda setting: tidemill(setting, "--eager", recorded=True),
}


def preprocessing(setting: Setting) -> dict[str, object]:
    """What the run file says of it, beside what those of all benches of training do."""
    return {
        "source.uri": f"{setting.folder}/pairs/*.parquet",
        "prepare.resolutions": [setting.pixels],
        "models.path": str(setting.model),
        "engine.device": setting.device,
        "output": str(setting.folder / f"data-{setting.pixels}"),
    }


def prepare(setting: Setting, most: int) -> None:
    if not (setting.folder / "pairs").exists():
        sides = ["--min-side", str(most), "--max-side", str(most + 64), "-q"]
        command = [*TIDEMILL, "synth", setting.folder / "pairs", "--rows", str(PAIRS), "--files", "2", *sides]
        subprocess.run(command, check=True)
    subprocess.run(
        [*TIDEMILL, "preprocess", "/dev/null", *settings("gpu", **preprocessing(setting)), "-q"], check=True
    )


def measure(setting: Setting, name: str) -> tuple[float, float]:
    """Images per second after the first steps, and seconds to the first one."""
    arguments, log = SIDES[name](setting)
    side = Side(name, arguments, lines_of(log))
    take_turns([side], setting.steps, turn_s=runner.LIMIT_S, limit_s=runner.LIMIT_S)
    for line in side.said.splitlines():
        # Such as that a kernel of ours cannot be used.
        if "WARN" in line:
            print(f"  {name}: {line.strip()}", flush=True)
    rate = setting.batch * (setting.steps - WARM) / (side.ends[-1] - side.ends[WARM - 1])
    return rate, side.ends[0]


def bench(args: argparse.Namespace) -> None:
    shutil.rmtree(args.folder, ignore_errors=True)
    args.folder.mkdir(parents=True)
    model = args.folder / "model"
    most = max(args.pixels)
    millions = make_models(model, args.channels, args.text, most // 8)
    device = torch.cuda.get_device_name() if args.device != "cpu" else runner.machine()["cpu"]
    rows, written = [], []
    for pixels, batch in zip(args.pixels, args.batch, strict=True):
        setting = Setting(args.folder, model, pixels, batch, args.steps, args.device)
        prepare(setting, most)
        for name in args.sides:
            rate, first = measure(setting, name)
            print(f"  {pixels} pixels: {name} {rate:.2f} img/s, first step after {first:.1f} s", flush=True)
            shown = [f"{rate:.2f}", f"{first:.1f}", goal(pixels, name, rate)]
            rows.append([str(pixels), str(batch), name, *shown])
            found = {"images_per_second": rate, "first_step_s": first}
            written.append({"pixels": pixels, "batch": batch, "side": name, **found})
    versions = runner.versions("torch", "diffusers")
    named = ", ".join(f"{package} {version}" for package, version in versions.items())
    size = f"{millions:.0f} million parameters"
    head = f"On {device} with {named}: {size}, {args.steps - WARM} steps after {WARM}."
    table = report.table(["pixels", "batch", "", "img/s", "first step after, s", "goal"], rows)
    (args.folder / "gpu.md").write_text(f"{head}\n\n{table}\n")
    report.write_json(args.folder / "gpu.json", [{"device": device, "versions": versions, "sides": written}])
    print(f"\n{head}\n\n{table}")


def goal(pixels: int, name: str, rate: float) -> str:
    if name not in ("Tidemill", "Tidemill, recorded") or pixels not in GOAL:
        return ""
    return f"{GOAL[pixels]:.0f}" + (", missed" if rate <= GOAL[pixels] else "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=runner.RESULTS / "gpu", help="where everything goes")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES)[:5])
    parser.add_argument("--pixels", nargs="+", type=int, default=[256, 512])
    parser.add_argument("--batch", nargs="+", type=int, default=[128, 32], help="for each size")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--channels", type=int, default=320, help="of the first block; SD2 has 320")
    parser.add_argument("--text", type=int, default=1024, help="width of the text embeddings; SD2 has 1024")
    runner.main("gpu", bench, parser)

"""`make bench-sampling`: images drawn from prompts in Tidemill and in diffusers' pipeline, on all cores.

Both have the same weights, noise, sampler and batch, and must draw the same images. Writes
target/bench/sampling.json and redraws its part of docs/benchmarks.md.
"""

import argparse
import json
import random
import shutil

import numpy as np
import torch
from diffusers import UNet2DConditionModel
from PIL import Image

from benches import report, runner, train
from benches.runner import ours, overrides, peer

FOLDER = runner.RESULTS / "sampling"
PAGE = runner.ROOT / "docs" / "benchmarks.md"
PACKAGES = ("torch", "diffusers", "transformers")
DIFFUSERS = "diffusers"
SIDE, GUIDANCE = 256, 5.0
METHODS = ("ddim", "dpm++2m")
GOAL = 1.0
# Images of the two sides may differ by rounding, up to a level in most pixels.
MEAN_DIFFERENCE = 0.5
WORDS = ("small", "large", "red", "green", "blue", "circle", "square", "star", "left", "right", "center")


def make_models(seed: int) -> float:
    """A model folder whose U-Net has random weights; returns its parameters in millions."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    millions = train.make_models(FOLDER / "models", train.CHANNELS["small"], train.TEXT, SIDE // 8)
    torch.manual_seed(seed)
    config = UNet2DConditionModel.load_config(FOLDER / "models" / "unet")
    UNet2DConditionModel.from_config(config).save_pretrained(FOLDER / "models" / "unet")
    return millions


def measure(method: str, prompts: list[str], args: argparse.Namespace) -> report.Case:
    mine, theirs = FOLDER / f"ours-{method}", FOLDER / f"peer-{method}"
    settings = {
        "models.path": json.dumps(str(FOLDER / "models")),
        "prepare.resolutions": f"[{SIDE}]",
        "engine.device": '"cpu"',
        "sample.prompts": json.dumps(prompts),
        "sample.method": json.dumps(method),
        "sample.steps": args.steps,
        "sample.guidance": GUIDANCE,
        "sample.batch_size": len(prompts),
    }
    run_file = FOLDER / "run.toml"
    run_file.write_text('name = "bench"\n')
    flags = ("--untrained", "--save-noise", "--to", mine)
    command = ours("sample", run_file, *overrides(settings), *flags, figure="images_per_second")
    arguments = (
        FOLDER / "models",
        mine / "noise.safetensors",
        theirs,
        json.dumps(prompts),
        method,
        args.steps,
    )
    other = peer("diffusers_sample", *arguments, GUIDANCE, figure="images_per_second")
    outcomes = runner.alternate(command, {DIFFUSERS: other}, args.rounds, not args.force)
    for index in range(len(prompts)):
        images = [np.asarray(Image.open(folder / f"{index:04}.png"), float) for folder in (mine, theirs)]
        difference = np.abs(images[0] - images[1]).mean()
        if difference > MEAN_DIFFERENCE:
            raise runner.BenchError(f"{method}: image {index} differs by {difference:.2f} levels")
    rates = {side: [run.result["images_per_second"] for run in runs] for side, runs in outcomes.items()}
    title = f"{method}, {args.steps} steps, {len(prompts)} images of {SIDE} px"
    return report.Case(title, "img/s", rates.pop("ours"), rates, {DIFFUSERS: GOAL})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=8, help="images in a batch")
    parser.add_argument("--steps", type=int, default=10, help="sampler steps")
    parser.add_argument("--rounds", type=int, default=5, help="times that both sides run; medians count")
    parser.add_argument(
        "--seed", type=int, help="seed of weights and prompts; drawn and printed if not given"
    )
    runner.main("bench-sampling", bench, parser, quick={"images": 2, "steps": 2, "rounds": 1})


def bench(args: argparse.Namespace) -> None:
    seed = random.SystemRandom().randrange(2**31) if args.seed is None else args.seed
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    prompts = [" ".join(rng.choices(WORDS, k=6)) for _ in range(args.images)]
    millions = make_models(seed)
    cases = [measure(method, prompts, args) for method in METHODS]
    about = {"versions": runner.versions(*PACKAGES), "machine": runner.machine(), "seed": seed}
    head = report.measured_on(about["machine"], about["versions"])
    sizes = f"A U-Net of {millions:.0f} million parameters with guidance, f32."
    body = "\n\n".join(
        [f"{head} Medians of {args.rounds} rounds, seed {seed}. {sizes}", report.comparison(cases)]
    )
    if not args.quick:
        report.write_json(runner.RESULTS / "sampling.json", [case.to_json() | about for case in cases])
    report.publish(PAGE, "bench-sampling", body, args.quick)


if __name__ == "__main__":
    main()

"""`make sd2-smoke`: two steps of Stable Diffusion 2's U-Net in its real size, on a CPU.

Random weights, latents of 512 pixels, micro-batch 1, bf16, no EMA. The run is ended after the two
steps, before its last checkpoint. Redraws its part of docs/performance.md. `--quick` takes a small
network.
"""

import argparse
import shutil
import subprocess
from itertools import pairwise

from benches import report, runner
from benches.alternate import Side, line_counter, measure_alternately
from benches.runner import TIDEMILL
from benches.train import make_models, settings

FOLDER = runner.RESULTS / "sd2"
PAGE = runner.ROOT / "docs" / "performance.md"
# As stabilityai/stable-diffusion-2-base: channels of the first block, the width of the text,
# latents' size.
CHANNELS, TEXT, SIZE = 320, 1024, 64
PIXELS = 8 * SIZE
STEPS = 2
LIMIT_GIB = 22
OUTPUT = FOLDER / "run"
OURS = {
    "source.uri": f"{FOLDER}/pairs/*.parquet",
    "prepare.resolutions": [PIXELS],
    "models.path": str(FOLDER / "model"),
    "output": str(OUTPUT),
    "train.precision": "bf16",
    "train.global_batch": 1,
    "train.micro_batch": 1,
    "train.log_every": 1,
    "train.phase": [{"resolution": PIXELS, "steps": 10 * STEPS}],
}


def bench(args: argparse.Namespace) -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    millions = make_models(FOLDER / "model", args.channels, args.text, SIZE)
    sides = ["--min-side", str(PIXELS), "--max-side", str(PIXELS + 64)]
    pairs = ["--rows", "16", "--files", "1", *sides, "-q"]
    subprocess.run([TIDEMILL, "synth", FOLDER / "pairs", *pairs], check=True)
    subprocess.run([TIDEMILL, "preprocess", *settings("sd2", **OURS), "-q"], check=True)
    cases = {
        "default": [],
        "gradient checkpointing": ["--set", "train.gradient_checkpointing=true"],
        "moments in bf16": ["--set", "train.moment_precision=bf16"],
    }
    if args.quick:
        cases = {"default": []}
    rows = [measure_row(title, millions, more) for title, more in cases.items()]
    head = (
        f"{report.measured_on(runner.machine(), runner.versions('torch'))[:-1]}: "
        f"{millions:.0f} million parameters, one latent of {SIZE} x {SIZE} per step."
    )
    titles = ["", "first step after, s", "second step, s", f"peak memory, GiB (goal: {LIMIT_GIB})"]
    report.publish(PAGE, "sd2-smoke", "\n\n".join([head, report.table(titles, rows)]), args.quick)


def measure_row(title: str, millions: float, more: list[str]) -> list[str]:
    metrics = OUTPUT / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    arguments = [str(TIDEMILL), "train", *settings("sd2", **OURS), *more, "--json", "--quiet"]
    side = Side(title, arguments, line_counter(metrics))
    measure_alternately([side], STEPS, turn_s=600)
    (second,) = (end - start for start, end in pairwise(side.step_ends))
    peak = side.peak_mib / 1024
    if peak > LIMIT_GIB:
        raise runner.BenchError(
            f"{millions:.0f} million parameters took {peak:.1f} GiB, more than {LIMIT_GIB}"
        )
    return [title, f"{side.step_ends[0]:.1f}", f"{second:.1f}", f"{peak:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, default=CHANNELS, help="of the first block")
    parser.add_argument("--text", type=int, default=TEXT, help="width of the text embeddings")
    runner.main("sd2-smoke", bench, parser, quick={"channels": 64, "text": 64})


if __name__ == "__main__":
    main()

"""`make bench-ablation`: one change at a time, from a co-located baseline on diffusers' U-Net.

Trains the U-Net of 35 million parameters at 256 pixels some steps with each set of changes, each in a
fresh process, in turns. Writes target/bench/ablation.json and redraws its part of docs/benchmarks.md,
with the published ladders of 32 A100 beside it.
"""

import argparse
import json
import shutil
import subprocess
from dataclasses import dataclass
from statistics import median

from benches import plots, report, runner, train
from benches.runner import ROOT, TIDEMILL

PAGE = ROOT / "docs" / "benchmarks.md"
CHART = PAGE.parent / "benchmarks-ablation"
MODEL = "small"
BATCH = 8
# Anyscale's images/s on 32 A100-80G at 256 and 512 pixels.
PUBLISHED = {
    256: {"DDP over TCP": 1573, "+ EFA": 4068, "+ FSDP": 5014, "+ torch.compile": 5908},
    512: {"DDP over TCP": 389, "+ EFA": 1029, "+ FSDP": 1168, "+ torch.compile": 1349},
}


@dataclass(frozen=True)
class Rung:
    """A set of changes, and how it differs from the one before."""

    name: str
    mode: str = "offline"
    precision: str = "f32"
    # diffusers' U-Net in Tidemill's trainer, or Tidemill's own.
    is_diffusers: bool = False
    is_recorded: bool = False
    workers: int = 1


def rungs(device: str, precision: str) -> list[Rung]:
    # Two ranks cannot share a GPU.
    on_cpu, on_gpu = (device == "cpu", device != "cpu")
    bf16 = [Rung("+ bf16 weights", precision="bf16")] if precision == "bf16" else []
    recorded = [Rung("+ recorded step", precision=precision, is_recorded=True)] if on_gpu else []
    sharded = [Rung("+ sharded over 2 ranks", precision=precision, workers=2)] if on_cpu else []
    return [
        Rung("co-located, diffusers' U-Net, f32", "colocated", is_diffusers=True),
        Rung("+ latents precomputed", is_diffusers=True),
        Rung("+ Tidemill's U-Net and kernels"),
        *bf16,
        *recorded,
        *sharded,
        Rung("online, one rank, one encoder", "online", precision),
    ]


def measure_rung(rung: Rung, steps: int, device: str) -> float:
    """Images/s by the median step of the second half."""
    output = train.FOLDER / "ablation"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    (output / "dataset").symlink_to(train.FOLDER / f"{MODEL}-run" / "dataset")
    more = {
        "output": str(output),
        "engine.device": device,
        "train.precision": rung.precision,
        "train.cuda_graph": rung.is_recorded,
        # The ranks share the cores, so each has half of the batch.
        "train.global_batch": BATCH,
        "train.micro_batch": BATCH // rung.workers,
        "train.log_every": 1,
        "train.phase": [{"resolution": 8 * train.SIZE, "steps": steps}],
        "checkpoint.every": 10 * steps,
        # A window is a file and a batch, so that encoders keep pace with steps. Larger windows would all
        # be encoded before the steps that are measured.
        "online.window": 1,
    }
    if rung.is_diffusers:
        run = json.dumps(train.run_settings(MODEL, **more))
        arguments = runner.peer("own_denoiser", run, "--eager", "--mode", rung.mode).arguments
    else:
        workers = ["--workers", str(rung.workers)] if rung.workers > 1 else []
        settings = train.settings(MODEL, **more)
        arguments = [str(TIDEMILL), "train", *settings, "--mode", rung.mode, *workers, "--json", "--quiet"]
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return median(line["images_per_second"] for line in lines[len(lines) // 2 :])


def measure(args: argparse.Namespace) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {}
    for number in range(args.rounds):
        for rung in rungs(args.device, args.precision):
            if not args.force:
                runner.wait_until_idle()
            rates.setdefault(rung.name, []).append(measure_rung(rung, args.steps, args.device))
            print(f"  round {number + 1}: {rung.name} {rates[rung.name][-1]:.2f} img/s", flush=True)
    return rates


def ladder_rows(ladder: dict[str, float], price: float | None) -> list[list[str]]:
    """Name, images/s, factor to the first, and the cost of a million images at a price per hour."""
    first = next(iter(ladder.values()))
    rows = []
    for name, rate in ladder.items():
        cost = [] if price is None else [f"{price / 3600 / rate * 1e6:,.2f}"]
        rows.append([name, report.number(rate), f"{rate / first:.2f}x", *cost])
    return rows


def page(rates: dict[str, list[float]], price: float, head: str) -> str:
    ladder = {name: median(figures) for name, figures in rates.items()}
    ranges = [f"{min(figures):.2f} to {max(figures):.2f}" for figures in rates.values()]
    rows = [[*row, figures] for row, figures in zip(ladder_rows(ladder, price), ranges, strict=True)]
    columns = ["", "img/s", "of the first", f"$ per million at ${price:g} an hour", "all rounds, img/s"]
    parts = [
        head,
        report.table(columns, rows),
        "A step of the ladder counts only where its rounds do not overlap with those of the step before.",
        f"![Each set of changes, beside the published ladders]({CHART.name}.svg)",
        "Published for 32 A100-80G (Anyscale, 2024), at $163.84 an hour:",
    ]
    for resolution, published in PUBLISHED.items():
        columns = [f"{resolution} pixels", "img/s", "of the first", "$ per million"]
        parts.append(report.table(columns, ladder_rows(published, 163.84)))
    return "\n\n".join(parts)


def bench(args: argparse.Namespace) -> None:
    shutil.rmtree(train.FOLDER, ignore_errors=True)
    train.FOLDER.mkdir(parents=True)
    millions = train.make_models(train.FOLDER / MODEL, train.CHANNELS[MODEL], train.TEXT, train.SIZE)
    rows = 32 if args.quick else 256
    train.prepare(MODEL, rows, files=rows // BATCH)
    rates = measure(args)
    ladder = {name: median(figures) for name, figures in rates.items()}
    versions, machine = runner.versions("torch", "diffusers"), runner.machine()
    head = (
        f"{report.measured_on(machine, versions)} {millions:.0f} million parameters, "
        f"{8 * train.SIZE} pixels, batches of {BATCH}; medians of {args.rounds} rounds of {args.steps} "
        "steps, without the first half."
    )
    if args.quick:
        print(page(rates, args.price, head))
        return
    plots.draw_ladders(CHART, {"Tidemill, img/s": ladder, **published_panels()})
    about = {"versions": versions, "machine": machine, "published": PUBLISHED}
    cases = [as_entry(name, rates, ladder) for name in ladder]
    report.write_json(runner.RESULTS / "ablation.json", [{**case, **about} for case in cases])
    report.redraw(PAGE, "bench-ablation", page(rates, args.price, head))


def as_entry(name: str, rates: dict[str, list[float]], ladder: dict[str, float]) -> dict:
    """A set of changes beside the first one."""
    first = next(iter(ladder))
    case = report.Case(name, "img/s", rates[name], {first: rates[first]})
    return case.to_json()


def published_panels() -> dict[str, dict[str, float]]:
    return {f"published, 32 A100, {size} px": dict(ladder) for size, ladder in PUBLISHED.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="times that each set runs; medians count")
    parser.add_argument("--steps", type=int, default=12, help="of a run")
    parser.add_argument("--device", default="cpu", help="engine.device; on a GPU with a recorded step, too")
    parser.add_argument(
        "--precision", choices=("bf16", "f32"), default="bf16", help="f32 where a CPU has no bf16"
    )
    parser.add_argument("--price", type=float, default=1.0, help="dollars an hour of this machine")
    runner.main("bench-ablation", bench, parser, quick={"rounds": 1, "steps": 2})


if __name__ == "__main__":
    main()

"""`make bench-modes`: the quickstart's U-Net trained offline, online and co-located.

Draws scenes and trains some steps in each mode on all cores of this machine, alternately, each in a
fresh process, and measures the time of an image in each stage. In each round, `tidemill plan` predicts
the rates from those of the stages by themselves. Writes target/bench/modes.json and
redraws its part of docs/benchmarks.md.
"""

import argparse
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

from tidemill.run_file import to_command_line

from benches import report, runner
from benches.runner import ROOT, TIDEMILL

FOLDER = runner.RESULTS / "modes"
PAGE = ROOT / "docs" / "benchmarks.md"
CHART = ROOT / "docs" / "benchmarks-modes.svg"
MODES = ("offline", "online", "colocated")
LOG_EVERY = 2
# The fields of `Times`.
PARTS = ("prepare", "encode", "step")


@dataclass(frozen=True)
class Times:
    """Milliseconds per image in each part.

    Waiting for a core counts, waiting for a batch does not.
    """

    # Decoding, cropping, token ids; the VAE and the text encoder. Offline in `preprocess`, by
    # themselves.
    prepare: float
    encode: float
    step: float


@dataclass(frozen=True)
class Run:
    """Figures of a training run, after its start."""

    images_per_second: float
    # The share of time in which the trainer waited for its batch; co-located, in which it made it.
    data_wait: float
    # Seconds from opening the data, after loading models, to the end of the first steps.
    first_steps_s: float
    times: Times


def run_settings(output: Path, steps: int) -> dict[str, object]:
    """The content of the run file."""
    return {
        "source.uri": f"{FOLDER}/pairs/*.parquet",
        "source.columns": {"image": "jpg", "caption": "caption", "key": "key"},
        "source.rows_per_unit": 256,
        "prepare.resolutions": [64],
        "prepare.crop": "random",
        "models.path": str(ROOT / "assets"),
        "engine.device": "cpu",
        "train.global_batch": 64,
        "train.micro_batch": 32,
        "train.log_every": LOG_EVERY,
        "train.phase": [{"resolution": 64, "steps": steps}],
        "output": str(output),
    }


def run_verb(verb: str, output: Path, steps: int, *more: str) -> dict:
    run = to_command_line(run_settings(output, steps))
    command = [str(TIDEMILL), verb, *run, *more, "--json", "--quiet"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def train(mode: str, steps: int, preprocessed: Sequence[Mapping]) -> Run:
    """Trains in a mode; offline the stages' times are those of `preprocess`."""
    output = FOLDER / mode
    for old in ("checkpoints", "metrics.jsonl", "quarantine.jsonl"):
        path = output / old
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    result = run_verb("train", output, steps, "--mode", mode)
    assert result["finished"]
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    # At the start nothing is prefetched yet.
    steady = [line for line in lines if line["step"] > steps // 4]
    rates = [line["images_per_second"] for line in steady]
    first = lines[LOG_EVERY - 1]["samples"] / lines[LOG_EVERY - 1]["images_per_second"]
    stages = preprocessed if mode == "offline" else result["stages"]
    step = 1000 * fmean((1 - line["data_wait"]) / line["images_per_second"] for line in steady)
    return Run(
        len(rates) / sum(1 / rate for rate in rates),
        fmean(line["data_wait"] for line in steady),
        first,
        Times(milliseconds(stages, "prepare"), milliseconds(stages, "encode"), step),
    )


def milliseconds(stages: Sequence[Mapping], name: str) -> float:
    """Milliseconds per row in a stage."""
    (stage,) = [stage for stage in stages if stage["stage"] == name]
    return 1000 * stage["busy_seconds"] / stage["rows"]


def preprocess() -> tuple[float, Sequence[Mapping]]:
    """Rows/s of the encoders without a trainer beside them, and the stages' times."""
    shutil.rmtree(FOLDER / "offline", ignore_errors=True)
    done = run_verb("preprocess", FOLDER / "offline", 1)["this_run"]
    return done["rows_per_second"], done["stages"]


def predict() -> dict[str, float]:
    """Images/s of each mode, and rows/s of `preprocess`, as `tidemill plan` predicts them.

    From short measurements of the trainer and the encoders by themselves.
    """
    output = FOLDER / "plan"
    run = to_command_line(run_settings(output, 1))
    rates = FOLDER / "rates.toml"

    def call(*verb: str, options: Sequence[str]) -> dict:
        command = [str(TIDEMILL), *verb, *run, *options, "--json", "--quiet"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    into = ["--gpu", "cpu", "--output", str(rates)]
    call("bench", "train", options=[*into, "--steps", "40"])
    call("bench", "encode", options=[*into, "--repeat", "2"])
    machine = f'plan.nodes.this={{ gpu = "cpu", cpus = {runner.machine()["cores"]}, on_demand = 1 }}'
    plan = call("plan", options=["--rates", str(rates), "--set", machine, "--set", "plan.trainers.node=this"])
    predicted = {mode: plan["modes"][mode]["images_per_second"] for mode in MODES}
    return {**predicted, "preprocess": plan["modes"]["offline"]["preprocess"]["rows_per_second"]}


def draw_pairs(rows: int) -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    draw = [TIDEMILL, "synth", FOLDER / "pairs", "--rows", rows, "--files", 8, "-q"]
    subprocess.run([*map(str, draw)], check=True)


@dataclass(frozen=True)
class Measured:
    """Figures of all rounds."""

    runs: Mapping[str, Sequence[Run]]
    # Rows/s of `preprocess`, and the plan: medians.
    preprocess: float
    planned: Mapping[str, float]


def measure(steps: int, rounds: int, check_load: bool) -> Measured:
    runs: dict[str, list[Run]] = {mode: [] for mode in MODES}
    plans, alone = [], []
    for number in range(rounds):
        # In each round, because a machine may become slower.
        plans.append(predict())
        rate, stages = preprocess()
        alone.append(rate)
        print(f"  round {number + 1}: planned {plans[-1]}, preprocess {rate:.1f} rows/s", flush=True)
        for mode in MODES:
            if check_load:
                runner.wait_until_idle()
            runs[mode].append(train(mode, steps, stages))
            print(f"  round {number + 1}: {mode} {runs[mode][-1]}", flush=True)
    planned = {key: median(plan[key] for plan in plans) for key in plans[0]}
    return Measured(runs, median(alone), planned)


def median_times(runs: Sequence[Run]) -> Times:
    """The median of each part."""
    return Times(*(median(getattr(run.times, part) for run in runs) for part in PARTS))


def page(measured: Measured, head: str) -> str:
    planned, alone = measured.planned, measured.preprocess
    rows = []
    for mode, some in measured.runs.items():
        rate, wait = median(run.images_per_second for run in some), median(run.data_wait for run in some)
        first = median(run.first_steps_s for run in some)
        spent = [f"{of_image:.1f}" for of_image in asdict(median_times(some)).values()]
        beside = f"{report.number(planned[mode])} ({planned[mode] / rate - 1:+.0%})"
        rows.append([mode, report.number(rate), beside, f"{wait:.0%}", f"{first:.1f}", *spent])
    columns = ["", "img/s", "planned", "waiting for the batch", f"seconds for the first {LOG_EVERY} steps"]
    columns += [f"{part}, ms" for part in PARTS]
    note = (
        f"Encoders by themselves (`preprocess`): {report.number(alone)} rows/s; planned "
        f"{report.number(planned['preprocess'])} ({planned['preprocess'] / alone - 1:+.0%}). *Planned* "
        "is what `tidemill plan` computes from `tidemill bench train` and `bench encode`. Milliseconds are "
        "those that a stage's threads, or the trainer in its steps, spend with an image. Where they share "
        "cores, each waits for the others, too: online these times overlap, and are longer than alone."
    )
    return "\n\n".join([head, report.table(columns, rows), f"![Medians]({CHART.name})", note])


def bench(args: argparse.Namespace) -> None:
    draw_pairs(args.rows)
    measured = measure(args.steps, args.rounds, not args.force)
    runs = measured.runs
    if args.quick:
        print(page(measured, ""))
        return
    versions, machine = runner.versions("torch"), runner.machine()
    rates = {mode: [run.images_per_second for run in some] for mode, some in runs.items()}
    case = report.Case("the quickstart's U-Net, 64 pixels", "img/s", rates.pop("online"), rates)
    spent = {mode: asdict(median_times(some)) for mode, some in runs.items()}
    about = {"versions": versions, "machine": machine, "encoders_alone": measured.preprocess}
    about |= {"milliseconds": spent, "planned": measured.planned}
    report.write_json(runner.RESULTS / "modes.json", [case.to_json() | about])
    head = (
        f"{report.measured_on(machine, versions)} "
        f"Medians of {args.rounds} rounds of {args.steps} steps of 64 images, without the first quarter."
    )
    CHART.write_text(report.bar_chart("Images per second", [case], ours="online"), encoding="utf-8")
    report.redraw(PAGE, "bench-modes", page(measured, head))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=3, help="times that each mode runs; medians count")
    quick = {"rows": 256, "steps": 4, "rounds": 1}
    runner.main("bench-modes", bench, parser, quick)


if __name__ == "__main__":
    main()

"""The quickstart's quality on a GPU beside that on the CPU of the same machine, over seeds."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from benches import gpu, report
from benches.gpu_training import quickstart
from benches.runner import BenchError

# Rows of the quickstart's data.
ROWS = 10_000
# Cores that the GPU's host process has for itself.
HOST_CORES = 4
# Whether steps are recorded, by row of the table.
MODES = {"GPU": False, "GPU, recorded": True}
# By how much two means may differ: standard errors (three seeds know little of them), and at least this.
LARGEST_DEVIATION = 4.0
LEAST = {"validation_loss": 0.003, "score": 0.02}


@dataclass(frozen=True)
class Quality:
    """What the quickstart's model is worth."""

    validation_loss: float
    # Share of scenes that show what their prompt says.
    score: float


def check_quality(folder: Path, device: str, steps: int, seeds: int, limit_s: float) -> str:
    """Means and standard deviations over seeds.

    The CPU trains with all seeds at the same time, and the GPU with one after the other meanwhile.
    """
    rows = ["--rows", str(ROWS), "--files", "4"]
    gpu.make_once(folder / "scenes", lambda made: gpu.run_verb("synth", str(made), *rows))
    deadline, results = time.monotonic() + limit_s, {}
    threads = max(1, (len(os.sched_getaffinity(0)) - HOST_CORES) // seeds)
    phase = {"train.phase": [{"resolution": 64, "steps": steps}], "train.validation.every": steps}
    cpu = {"engine.device": "cpu", **phase}
    with running([start(folder, f"cpu-{seed}", seed, cpu, threads) for seed in range(seeds)]) as on_cpu:
        for name, recorded in MODES.items():
            settings = {"engine.device": device, "train.cuda_graph": recorded, **phase}
            settings["train.precision"] = "bf16"
            outputs = []
            for seed in range(seeds):
                one = start(folder, f"gpu-{recorded}-{seed}", seed, settings, HOST_CORES)
                with running([one]) as processes:
                    outputs += wait(processes, deadline)
            results[name] = [read_quality(output) for output in outputs]
        try:
            results["CPU"] = [read_quality(output) for output in wait(on_cpu, deadline)]
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"the CPU has not ended; on the GPU: {results}") from error
    return describe(results)


def start(folder: Path, name: str, seed: int, settings: Mapping[str, object], threads: int) -> "Run":
    """Starts the quickstart with a seed."""
    output = folder / "quality" / name
    shutil.rmtree(output, ignore_errors=True)
    settings = {"source.uri": f"{folder}/scenes/*.parquet", "output": str(output), "seed": seed, **settings}
    command = [*gpu.TIDEMILL, "run", *quickstart(settings), "--json", "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return Run(output, subprocess.Popen(command, env=environment, **pipes))


@dataclass(frozen=True)
class Run:
    """A quickstart that runs."""

    output: Path
    process: subprocess.Popen


@contextmanager
def running(runs: list[Run]) -> Iterator[list[Run]]:
    """Kills what still runs after the block."""
    try:
        yield runs
    finally:
        for run in runs:
            run.process.kill()
            run.process.wait()


def wait(runs: list[Run], deadline: float) -> list[Path]:
    """Waits until all have ended; returns their outputs."""
    for run in runs:
        _, log = run.process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
        if run.process.returncode != 0:
            raise BenchError(gpu.summarize_error(log))
    return [run.output for run in runs]


def read_quality(output: Path) -> Quality:
    summary = json.loads((output / "summary.json").read_text())
    loss = summary["evaluations"][-1]["metrics"]["validation_loss"]
    return Quality(validation_loss=loss, score=summary["score"])


def describe(results: Mapping[str, list[Quality]]) -> str:
    """A table; fails if a mean on the GPU is further from the CPU's than seeds explain."""
    rows, failed = [], []
    for name, runs in results.items():
        cells = [name, str(len(runs))]
        for figure in ("validation_loss", "score"):
            values, of_cpu = ([getattr(run, figure) for run in some] for some in (runs, results["CPU"]))
            cells.append(f"{mean(values):.4f} ± {stdev(values):.4f}")
            error = sum(stdev(some) ** 2 / len(some) for some in (values, of_cpu)) ** 0.5
            if abs(mean(values) - mean(of_cpu)) > max(LARGEST_DEVIATION * error, LEAST[figure]):
                failed.append(f"{figure} of {name}")
        rows.append(cells)
    table = report.table(["quickstart on", "seeds", "validation loss", "scenes right"], rows)
    if failed:
        raise BenchError(f"further from the CPU's than seeds explain: {', '.join(failed)}\n\n{table}")
    return table

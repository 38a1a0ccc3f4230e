"""Training on a fake GPU that computes nothing, but counts what is asked of it."""

import os
import subprocess
import sys

from benches.null_gpu import Report
from helpers import training

GPU = {
    "engine.device": "cuda:0",
    "train.precision": "bf16",
    "train.global_batch": 10,
    "train.micro_batch": 10,
    "train.cuda_graph": True,
    # Every result is 1 here, and some steps are skipped.
    "train.not_finite": "skip",
    "checkpoint.every": 1000,
}
# Steps of each kind before one is captured.
STEPS_BEFORE_CAPTURE = 3
# Replays that compare a graph with the step.
CHECKS = 1
# Averaging from the first step on.
EMA = {"decay": 0.9, "start_step": 0}


def run_command(gpu, folder, *command, **options):
    """Runs a command on the fake GPU; returns the report of the GPU and the completed process."""
    report = folder / "report.json"
    environment = {**os.environ, **gpu.environment(report)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, **options)
    return (Report.read(report)[-1] if report.exists() else None), ended


def train(gpu, output, dataset, **settings):
    return train_with_log(gpu, output, dataset, **settings)[0]


def train_with_log(gpu, output, dataset, **settings):
    """The report of the GPU, and the log."""
    training.link_dataset(output, dataset)
    command = [sys.executable, *training.train_arguments(output, {**GPU, **settings}), "--quiet", "--json"]
    report, ended = run_command(gpu, output, *command)
    assert ended.returncode == 0, ended.stderr
    return report, ended.stderr


def phases(*steps, **more):
    return [{"resolution": 64, "steps": count, **more} for count in steps]

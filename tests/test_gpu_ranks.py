"""Ranks that train with NCCL, each on a fake GPU that computes nothing and exchanges nothing."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from helpers import run_output, training
from helpers.gpu import CHECKS, EMA, GPU, STEPS_BEFORE_CAPTURE, phases

from benches.null_gpu import Report

RANKS, STEPS = 2, 4


@pytest.mark.parametrize("sharding", ["full_shard", "shard_grad_op"])
def test_ranks_reduce_and_gather_each_bucket(sharding, gpu, dataset, tmp_path):
    settings = {"train.sharding": sharding, "train.phase": phases(STEPS), "train.ema": EMA}
    [report, _], log = train_ranks(gpu, tmp_path, dataset, **settings)
    assert len(run_output.read_metrics(tmp_path)) == STEPS, log
    buckets = int(re.search(r"per step, in (\d+) buckets", log).group(1))
    assert report.kernels["ncclReduceScatter, high priority"] == STEPS * buckets
    # Blocks are gathered for both passes, except the last one; the first bucket has what is in no block.
    gathers = 2 * buckets - 2 if sharding == "full_shard" else buckets
    assert report.kernels["ncclAllGather, high priority"] == STEPS * gathers
    assert report.violations == 0


def test_ranks_record_and_replay_the_same_steps(gpu, dataset, tmp_path):
    """Some steps have fewer rows on one rank, which has no recording of those; neither may replay them."""
    damaged = tmp_path / "damaged"
    shutil.copytree(dataset, damaged)
    damage_shard(damaged)
    settings = {
        "train.cuda_graph": True,
        "train.phase": phases(24),
        "train.ema": EMA,
        "train.stream": {"unreadable": "skip"},
        "train.validation": {"every": 10, "rows": 8, "dataset": str(dataset)},
    }
    reports, log = train_ranks(gpu, tmp_path / "out", damaged, **settings)
    incomplete = set(re.findall(r"step (\d+) goes without", log))
    assert incomplete, log
    whole = 24 - len(incomplete)
    first, second = reports
    assert (first.captures, first.replays) == (second.captures, second.replays)
    assert first.captures == 1
    assert first.replays == whole - STEPS_BEFORE_CAPTURE + CHECKS
    for report in reports:
        assert (report.violations, report.escaped) == (0, 0), log
        assert report.replayed == report.captured * report.replays


def damage_shard(dataset):
    """Changes a byte in the middle of the largest file."""
    path = max((path for path in dataset.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def train_ranks(gpu, output, dataset, **settings):
    """The reports of the ranks' GPUs, and the log of all ranks."""
    training.link_dataset(output, dataset)
    settings = {**GPU, "engine.device": "cuda", "train.cuda_graph": False, **settings}
    command = [*training.train_arguments(output, settings), "--json"]
    reports, ranks = [], []
    for number, (arguments, variables) in enumerate(training.launch_ranks(command, RANKS)):
        reports.append(output / f"report-{number}.json")
        variables = {name: str(value) for name, value in variables.items()}
        environment = {
            **os.environ,
            **gpu.environment(reports[-1]),
            **variables,
            "NULL_GPU_DEVICES": str(RANKS),
        }
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        ranks.append(subprocess.Popen([sys.executable, *arguments], env=environment, **pipes))
    try:
        log = "".join(rank.communicate(timeout=120)[0] for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * RANKS, log
    return [Report.read(report)[-1] for report in reports], log

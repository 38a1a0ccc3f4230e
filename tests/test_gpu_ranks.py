"""Ranks that train with NCCL, each on a fake GPU that computes nothing and exchanges nothing."""

import os
import re
import subprocess
import sys

import pytest
from helpers import run_output, training
from helpers.gpu import EMA, GPU, phases

from benches.null_gpu import Report

RANKS, STEPS = 2, 4


@pytest.mark.parametrize("sharding", ["full_shard", "shard_grad_op"])
def test_ranks_reduce_and_gather_each_bucket(sharding, gpu, dataset, tmp_path):
    settings = {"train.sharding": sharding, "train.phase": phases(STEPS), "train.ema": EMA}
    report, log = train_ranks(gpu, tmp_path, dataset, **settings)
    assert len(run_output.read_metrics(tmp_path)) == STEPS, log
    buckets = int(re.search(r"per step, in (\d+) buckets", log).group(1))
    assert report.kernels["ncclReduceScatter, high priority"] == STEPS * buckets
    # Blocks are gathered for both passes, except the last one; the first bucket has what is in no block.
    gathers = 2 * buckets - 2 if sharding == "full_shard" else buckets
    assert report.kernels["ncclAllGather, high priority"] == STEPS * gathers
    assert report.violations == 0


def train_ranks(gpu, output, dataset, **settings):
    """The report of the first rank's GPU, and the log of all ranks."""
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
    return Report.read(reports[0])[-1], log

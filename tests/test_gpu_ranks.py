"""Ranks that train with NCCL, each on a fake GPU that computes nothing and exchanges nothing."""

import os
import re
import shutil
import subprocess
import sys

from helpers import run_output, training
from helpers.gpu import CHECKS, EMA, GPU, STEPS_BEFORE_CAPTURE, phases

from benches.null_gpu import Report

RANKS, STEPS = 2, 4


def test_ranks_gather_the_weights_of_a_block_where_they_are_used(gpu, dataset, tmp_path):
    settings = {"train.sharding": "full_shard", "train.phase": phases(STEPS), "train.ema": EMA}
    [report, _], log = train_ranks(gpu, tmp_path, dataset, **settings)
    assert len(run_output.read_metrics(tmp_path)) == STEPS, log
    buckets = count_buckets(log)
    assert report.kernels["ncclReduceScatter, high priority"] == STEPS * buckets
    # Blocks are gathered for both passes, except the last one; the first bucket has what is in no block.
    assert report.kernels["ncclAllGather, high priority"] == STEPS * (2 * buckets - 2)
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
    # Each bucket once: in a step that is not replayed, in that of the check, and in the recording.
    launched = len(incomplete) + STEPS_BEFORE_CAPTURE + CHECKS + first.captures
    for collective in ("ncclReduceScatter", "ncclAllGather"):
        # Others gather during a validation.
        counted = first.kernels[f"{collective}, high priority"] - (
            collective == "ncclAllGather"
        ) * 2 * count_buckets(log)
        assert counted == launched * count_buckets(log)
    for report in reports:
        assert (report.violations, report.escaped) == (0, 0), log
        assert report.replayed == report.captured * report.replays


def test_every_kind_of_step_is_recorded_on_all_ranks(gpu, dataset, tmp_path):
    settings = {
        "train.cuda_graph": True,
        "train.sharding": "none",
        "train.phase": [*phases(11), *phases(5, global_batch=6, micro_batch=3)],
        "train.micro_batch": 3,
        "train.ema": {"decay": 0.9, "start_step": 5},
    }
    reports, log = train_ranks(gpu, tmp_path, dataset, **settings)
    # Steps 1 to 5 are not averaged, the other six of the phase are; then come five of another shape.
    replays = sum(steps - STEPS_BEFORE_CAPTURE + CHECKS for steps in (5, 6, 5))
    for report in reports:
        assert (report.captures, report.replays, report.violations, report.escaped) == (3, replays, 0, 0), log


def count_buckets(log):
    return int(re.search(r"per step, in (\d+) buckets", log).group(1))


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

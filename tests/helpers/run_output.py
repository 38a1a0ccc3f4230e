"""Reads what a training run has written: metrics, checkpoints and TensorBoard's events."""

import itertools
import json
from pathlib import Path

import numpy as np
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader


def read_state(output, step):
    """A checkpoint's buffers, assembled from its shards as docs/checkpoints.md describes."""
    root = Path(output) / "checkpoints"
    commit = json.loads((root / f"step-{step:08}" / "commit.json").read_text())
    total = sum(int(np.prod(parameter["shape"])) for parameter in commit["parameters"])
    buffers = {}
    for shard in commit["shards"]:
        for name, tensor in load_file(root / shard["file"]).items():
            values = tensor.float().numpy()
            whole, at = buffers.setdefault(name, np.full(total, np.nan, np.float32)), 0
            for elements in shard["ranges"]:
                length = elements["end"] - elements["start"]
                whole[elements["start"] : elements["end"]] = values[at : at + length]
                at += length
            assert at == len(values)
    assert not any(np.isnan(whole).any() for whole in buffers.values())
    return buffers


def assert_same_state(a, b, step):
    """Two runs have the same state at a step."""
    ours, theirs = read_state(a, step), read_state(b, step)
    for name, values in ours.items():
        assert np.array_equal(values, theirs[name]), name


def assert_checkpoint(output, step):
    """There is a committed checkpoint of a step."""
    assert (output / f"checkpoints/step-{step:08}/commit.json").exists()


def count_steps(output):
    """Steps for which a running training has written metrics; an incomplete line does not count."""
    path = output / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def read_metrics(output):
    """The metrics of each step; every step must be there once and in order."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return lines


def read_losses(output):
    """The loss of each step."""
    return [line["loss"] for line in read_metrics(output)]


def assert_faults_are_events(output, faults):
    """The supervisor's faults are in events.jsonl, and each is followed by a resume or another fault."""
    events = [json.loads(line) for line in (Path(output) / "events.jsonl").read_text().splitlines()]
    found = [event for event in events if event["kind"] == "fault"]
    assert [event["message"] for event in found] == [fault["fault"] for fault in faults]
    assert [event["steps_lost"] for event in found] == [fault["steps_lost"] for fault in faults]
    assert {event["kind"] for event in events} == {"fault", "resume"}
    assert events[-1]["kind"] == "resume"
    assert events[-1]["seconds_lost"] > 0


def print_longest_pause(fault, output):
    """Prints the longest time without a new step, by the times of TensorBoard's events."""
    reached = {}
    for path in Path(output).rglob("events.out.tfevents.*"):
        for event in EventFileLoader(str(path)).Load():
            if event.step:
                reached[event.step] = min(event.wall_time, reached.get(event.step, event.wall_time))
    times = [reached[step] for step in sorted(reached)]
    pause = max(after - before for before, after in itertools.pairwise(times))
    print(f"{fault}: {pause:.1f} s without a new step")

"""What the tests of several ranks share: a small dataset, runs on it, and what their checkpoints
hold.
"""

import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import ray
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tidemill.run_file import to_command_line

SETTINGS = {
    "output": None,
    "models.path": str(Path(__file__).resolve().parent.parent / "assets"),
    "source": {"columns": {"image": "jpg", "caption": "caption", "key": "key"}},
    "prepare.resolutions": [64],
    "engine.device": "cpu",
    "train.phase": [{"resolution": 64, "steps": 10}],
    "train.precision": "f32",
    "train.learning_rate": 1e-3,
    "train.warmup_steps": 1,
    "train.eps": 1e-4,
    "train.ema": {"decay": 0.9, "start_step": 3},
    "train.log_every": 1,
    "checkpoint.every": 5,
}


def arguments(output, settings):
    """`tidemill train` with these settings, after `python`."""
    return ["-m", "tidemill", "train", *to_command_line({**SETTINGS, **settings}, output=str(output))]


def environment():
    """One thread per worker: these networks are too small to share."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "TIDEMILL_PYTHON": sys.executable}


def train(output, dataset, ranks=1, nodes=1, flags=(), **settings):
    """Trains to the end and returns the output of all ranks, on what they take for several nodes.

    `nodes` is how many, or a list of how many ranks each has.
    """
    link(output, dataset)
    command = [*arguments(output, settings), *flags]
    if ranks == 1:
        launches = [command]
    elif nodes == 1:
        launches = [[*TORCHRUN, "--standalone", f"--nproc-per-node={ranks}", *command]]
    else:
        per_node = nodes if isinstance(nodes, list) else [ranks // nodes] * nodes
        place = [f"--nnodes={len(per_node)}", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
        launches = [
            [*TORCHRUN, *place, f"--node-rank={node}", f"--nproc-per-node={count}", *command]
            for node, count in enumerate(per_node)
        ]
    return together(launches)


TORCHRUN = ["-m", "torch.distributed.run"]


def together(launches):
    """Runs Pythons at the same time; the worst of their exit codes, and all that they wrote."""
    with tempfile.TemporaryFile("w+") as said:
        options = {"env": environment(), "stdout": said, "stderr": subprocess.STDOUT}
        started = [subprocess.Popen([sys.executable, *launch], **options) for launch in launches]
        try:
            codes = [process.wait(timeout=300) for process in started]
        finally:
            for process in started:
                process.kill()
        said.seek(0)
        return max(codes), said.read()


def free_port():
    """A port that nobody has just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def ray_of(cpus):
    """Ray on this machine, with so many CPUs as it is told; gives its address."""
    context = ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        yield context.address_info["gcs_address"]
    finally:
        ray.shutdown()


class Running:
    """A verb in a process of its own."""

    def __init__(self, verb, run, *flags, **overrides):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidemill", verb, *to_command_line(run, **overrides), *flags, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def commits(self, output, least):
        """Waits until so many units are committed."""
        while len(list(output.glob("dataset/commits/*"))) < least:
            assert self.process.poll() is None, self.process.stderr.read()
            time.sleep(0.02)

    def end(self, seconds=280):
        """The exit code, the result and what was said."""
        out, err = self.process.communicate(timeout=seconds)
        assert out, err
        return self.process.returncode, json.loads(out.splitlines()[-1]), err


class Supervised:
    """`tidemill train` with workers; `said` is what it has written so far."""

    def __init__(self, output, workers, settings, flags=(), variables=None):
        output.mkdir(exist_ok=True)
        self.output = output
        self.process = subprocess.Popen(
            [sys.executable, *arguments(output, settings), "--workers", workers, "--json", *flags],
            env={**environment(), **(variables or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # As from a terminal: a process group of its own, which the workers are in, too.
            start_new_session=True,
        )
        self.said = []
        self.listener = threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True)
        self.listener.start()

    def workers(self):
        """The living workers' process ids, by rank."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as file:
                    parent = file.read().rsplit(")", 1)[1].split()[1]
                if int(parent) == self.process.pid:
                    with open(f"/proc/{pid}/environ") as file:
                        variables = dict(v.split("=", 1) for v in file.read().split("\0") if "=" in v)
                    found[int(variables["RANK"])] = int(pid)
            except (OSError, KeyError, IndexError):
                pass
        return found

    def reaches(self, step):
        """Waits for the metrics of a step."""
        wait_for(self.output, step, self.process, self.said)

    def end(self, seconds=300):
        """The exit code and the result."""
        self.process.wait(timeout=seconds)
        out = self.process.stdout.read()
        self.listener.join(timeout=10)
        return self.process.returncode, json.loads(out.splitlines()[-1])


def link(output, dataset):
    """Makes `dataset` the run's own."""
    output.mkdir(exist_ok=True)
    if not (output / "dataset").exists():
        (output / "dataset").symlink_to(dataset)


def state(output, step):
    """A checkpoint's buffers, put together from the shards as docs/checkpoints.md says."""
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


def assert_same(a, b, step):
    """Two runs have the same state at a step."""
    ours, theirs = state(a, step), state(b, step)
    for name, values in ours.items():
        assert np.array_equal(values, theirs[name]), name


def wait_for(output, step, process, said=(), seconds=120):
    """Waits until a process has written the metrics of a step."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        if steps_so_far(output) >= step:
            return
        time.sleep(0.02)
    raise AssertionError("".join(said))


@contextmanager
def at_step(output, step, act):
    """Does something from a thread once there are metrics of a step.

    It must have been done in the end.
    """
    over, failed = threading.Event(), []

    def wait():
        try:
            while steps_so_far(output) < step:
                if over.wait(0.02):
                    return failed.append(f"step {step} did not come")
            act()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert not failed


def steps_so_far(output):
    """Steps that a run has metrics of while it goes on: a line that is not whole yet does not
    count.
    """
    path = output / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def losses(output):
    """The loss of each step."""
    return [line["loss"] for line in metrics(output)]


def metrics(output):
    """The metrics of each step, which must all be there once and in order."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return lines


def tell_pause(fault, output):
    """Prints the most seconds from the furthest step so far to the next one, by what TensorBoard
    gets.
    """
    reached = {}
    for path in Path(output).rglob("events.out.tfevents.*"):
        for event in EventFileLoader(str(path)).Load():
            if event.step:
                reached[event.step] = min(event.wall_time, reached.get(event.step, event.wall_time))
    times = [reached[step] for step in sorted(reached)]
    pause = max(after - before for before, after in itertools.pairwise(times))
    print(f"{fault}: {pause:.1f} s without a new step")


def ray_processes(name):
    """Ids of processes that Ray has named so."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            title = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
        if title.startswith("ray::") and name in title:
            found.append(int(pid))
    return found


def child(pid, named, seconds=120):
    """The id of a process that another has started, once it has."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/stat") as stat, open(f"/proc/{entry}/cmdline") as command:
                    if int(stat.read().rsplit(")", 1)[1].split()[1]) == pid and named in command.read():
                        return int(entry)
            except OSError:
                pass
        time.sleep(0.02)
    raise AssertionError(f"no {named} was started")


def put_before_libc(folder, source):
    """Variables under which calls of the system's functions go to those of this C code."""
    source = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdlib.h>\n#include <string.h>\n" + source
    library = folder / "before_libc.so"
    compiler = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library, "-ldl"]
    subprocess.run(compiler, input=source, text=True, check=True)
    return {"LD_PRELOAD": str(library)}

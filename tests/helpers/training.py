"""Training runs on a small dataset: settings, command lines, and runs of several ranks."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tidemill.run_file import to_command_line

from helpers.ports import find_free_port

ASSETS = Path(__file__).resolve().parent.parent.parent / "assets"


def phase(steps, **more):
    """The setting for a single phase with this number of steps."""
    return {"train.phase": [{"resolution": 64, "steps": steps, **more}]}


SETTINGS = {
    "output": None,
    "models.path": str(ASSETS),
    "source": {"columns": {"image": "jpg", "caption": "caption", "key": "key"}},
    "prepare.resolutions": [64],
    "engine.device": "cpu",
    **phase(10),
    "train.precision": "f32",
    "train.learning_rate": 1e-3,
    "train.warmup_steps": 1,
    "train.eps": 1e-4,
    "train.ema": {"decay": 0.9, "start_step": 3},
    "train.log_every": 1,
    "checkpoint.every": 5,
}
# Neither 3 nor 4 ranks divide the batch, nor do micro-batches divide a rank's share.
UNEVEN_BATCH = {"train.global_batch": 14, "train.micro_batch": 5}
TORCHRUN = ["-m", "torch.distributed.run"]


def link_dataset(output, dataset):
    """Makes `dataset` the run's own."""
    output.mkdir(exist_ok=True)
    if not (output / "dataset").exists():
        (output / "dataset").symlink_to(dataset)


def train_arguments(output, settings):
    """`tidemill train` with these settings, as arguments of Python."""
    return ["-m", "tidemill", "train", *to_command_line({**SETTINGS, **settings}, output=str(output))]


def environment():
    """Environment variables with one thread per worker: these networks are too small for several."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "TIDEMILL_PYTHON": sys.executable}


def train(output, dataset, ranks=1, nodes=1, flags=(), **settings):
    """Trains to the end; returns the worst exit code and the log of all ranks.

    `nodes` is how many nodes the ranks take themselves to be on, or a list of the ranks on each.
    """
    link_dataset(output, dataset)
    command = [*train_arguments(output, settings), *flags]
    if ranks == 1:
        launches = [command]
    elif nodes == 1:
        launches = [[*TORCHRUN, "--standalone", f"--nproc-per-node={ranks}", *command]]
    else:
        per_node = nodes if isinstance(nodes, list) else [ranks // nodes] * nodes
        rendezvous = ["--master-addr=127.0.0.1", f"--master-port={find_free_port()}"]
        launches = [
            [
                *TORCHRUN,
                f"--nnodes={len(per_node)}",
                *rendezvous,
                f"--node-rank={node}",
                f"--nproc-per-node={count}",
                *command,
            ]
            for node, count in enumerate(per_node)
        ]
    return run_together(launches)


def train_to_end(output, dataset, ranks=1, nodes=1, flags=(), **settings):
    """Trains like `train`, which must succeed; returns the log."""
    code, log = train(output, dataset, ranks, nodes, flags, **settings)
    assert code == 0, log
    return log


def run_together(launches):
    """Runs Python processes at the same time.

    Returns the worst exit code, and the output of all.
    """
    with tempfile.TemporaryFile("w+") as log:
        options = {"env": environment(), "stdout": log, "stderr": subprocess.STDOUT}
        started = [subprocess.Popen([sys.executable, *launch], **options) for launch in launches]
        try:
            codes = [process.wait(timeout=300) for process in started]
        finally:
            for process in started:
                process.kill()
        log.seek(0)
        return max(codes), log.read()

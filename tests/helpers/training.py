"""Training runs on a small dataset: settings, command lines, and runs of several ranks."""

import multiprocessing
import os
import runpy
import sys
import tempfile
import time
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
    # These networks are too small for several threads.
    "engine.encode.threads": 1,
    **phase(10),
    "train.precision": "f32",
    "train.learning_rate": 1e-3,
    "train.warmup_steps": 1,
    "train.eps": 1e-4,
    "train.ema": {"decay": 0.9, "start_step": 3},
    "train.log_every": 1,
    "checkpoint.every": 5,
}
# Ranks do not divide the batch, nor do micro-batches divide the share of every rank.
UNEVEN_BATCH = {"train.global_batch": 7, "train.micro_batch": 3}
TORCHRUN = ["-m", "torch.distributed.run"]
# Each rank would import these for two seconds. A forked process has them already.
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["torch", "tidemill"])


def link_dataset(output, dataset):
    """Makes `dataset` the run's own."""
    output.mkdir(exist_ok=True)
    if not (output / "dataset").exists():
        (output / "dataset").symlink_to(dataset)


def train_arguments(output, settings):
    """`tidemill train` with these settings, as arguments of Python."""
    return ["-m", "tidemill", "train", *to_command_line({**SETTINGS, **settings}, output=str(output))]


def environment():
    """Environment variables of processes that train: PyTorch uses one thread, too."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "TIDEMILL_PYTHON": sys.executable}


def launch_ranks(command, ranks, ranks_per_node=None):
    """The launches of ranks: arguments of Python, and each rank's environment variables.

    Any launcher may set torchrun's variables. torchrun itself needs seconds to start.
    """
    local = ranks_per_node or ranks
    world = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": local}
    world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": find_free_port()}
    return [(command, {**world, "RANK": rank, "LOCAL_RANK": rank % local}) for rank in range(ranks)]


def launch_nodes(command, nodes):
    """The launches of torchrun on nodes, which are all this machine, with the number of ranks on each."""
    rendezvous = ["--master-addr=127.0.0.1", f"--master-port={find_free_port()}", f"--nnodes={len(nodes)}"]
    return [
        ([*TORCHRUN, *rendezvous, f"--node-rank={node}", f"--nproc-per-node={ranks}", *command], {})
        for node, ranks in enumerate(nodes)
    ]


def train(output, dataset, ranks=1, nodes=None, flags=(), **settings):
    """Trains to the end; returns the worst exit code and the log of all ranks.

    `nodes` are the numbers of ranks on the nodes that torchrun starts, in place of `ranks`; or one number, of
    ranks on each node, without torchrun.
    """
    link_dataset(output, dataset)
    command = [*train_arguments(output, settings), *flags]
    by_torchrun = isinstance(nodes, list)
    return run_together(launch_nodes(command, nodes) if by_torchrun else launch_ranks(command, ranks, nodes))


def train_to_end(output, dataset, ranks=1, nodes=None, flags=(), **settings):
    """Trains like `train`, which must succeed; returns the log."""
    code, log = train(output, dataset, ranks, nodes, flags, **settings)
    assert code == 0, log
    return log


def run_together(launches):
    """Runs Python processes at the same time, each with its environment variables.

    Returns the worst exit code, and the output of all.
    """
    with tempfile.NamedTemporaryFile("r") as log:
        started = []
        try:
            for arguments, variables in launches:
                process = FORKSERVER.Process(target=_run_python, args=(arguments, variables, log.name))
                process.start()
                started.append(process)
            deadline = time.monotonic() + 300
            for process in started:
                process.join(deadline - time.monotonic())
            codes = [process.exitcode for process in started]
            assert None not in codes, log.read()
        finally:
            for process in started:
                process.kill()
        return max(codes, key=abs), log.read()


def _run_python(arguments, variables, log):
    """Continues in this process like `python ARGUMENTS`."""
    with open(log, "a") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.update({**environment(), **{name: str(value) for name, value in variables.items()}})
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        runpy.run_path(arguments[0], run_name="__main__")

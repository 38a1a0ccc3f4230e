"""Ray clusters on this machine, one for each test module, and the processes of Ray."""

import os
from contextlib import contextmanager
from pathlib import Path

import ray

from helpers.processes import list_processes

# Engine settings for clusters of few CPUs.
SMALL_ENGINE = {
    "engine.kind": "ray",
    "engine.encode.workers": "1..2",
    "engine.encode.cpus": 0.5,
    "engine.prepare.cpus": 0.5,
    "checkpoint.every": 8,
}


@contextmanager
def start_cluster(cpus):
    """A cluster of one node with this nominal number of CPUs; yields its address."""
    context = ray.init(
        # A cluster of its own, even if another one runs on this machine.
        address="local",
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        yield context.address_info["gcs_address"]
    finally:
        ray.shutdown()


def find_ray_processes(name):
    """The ids of this test process's Ray workers whose title contains a name.

    Other test processes may have clusters with workers of the same name.
    """
    parents, found = list_processes(), []
    for pid in parents:
        try:
            title = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
        if title.startswith("ray::") and name in title and _is_descendant(pid, parents):
            found.append(pid)
    return found


def _is_descendant(pid, parents):
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = parents.get(pid, 0)
    return False

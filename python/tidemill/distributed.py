"""The process group that the trainer's ranks communicate over."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist


@contextmanager
def process_group() -> Iterator[list[str]]:
    """Makes the process group of the ranks that torchrun, or whoever sets its variables, has started.

    Yields the arguments that tell `train` its place among them. A group that is
    there already, as in a worker of Ray Train, is used as it is, beside one of Gloo for the hosts.
    """
    made = not dist.is_initialized()
    if made:
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            # Alone, but not in any place: where others are left out, this may be the second GPU.
            yield [f"--local-rank={_local_rank()}"]
            return
        if torch.cuda.is_available():
            torch.cuda.set_device(_local_rank() % torch.cuda.device_count())
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    # For what ranks ask each other on the host: communication of the other waits for devices and its turn.
    # Who waits in it waits for others' data, or pictures; of ranks that die the connections end.
    host = dist.new_group(backend="gloo", timeout=timedelta(days=1))
    # Machines may have different numbers of ranks: then these are taken for several, alike on all.
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    on_each = [0] * dist.get_world_size()
    dist.all_gather_object(on_each, here, group=host)
    place = [
        f"--process-group={dist.group.WORLD.group_name}",
        f"--host-group={host.group_name}",
        f"--rank={dist.get_rank()}",
        f"--world-size={dist.get_world_size()}",
        f"--local-rank={_local_rank()}",
        f"--local-world-size={here}",
        f"--ranks-per-node={math.gcd(*on_each)}",
    ]
    try:
        yield place
    finally:
        if not made:
            dist.destroy_process_group(host)
    # After an exception the others may be gone, and there is nobody to take leave of.
    if made:
        dist.destroy_process_group()


def end(code: int) -> None:
    """Ends this process if it is one of several ranks on GPUs that has failed.

    The others may be in the middle of a collective. NCCL would have this one wait for them when it gives up
    its communicators, and they see that it is gone by its connections, which end with the process.
    """
    if code != 0 and torch.cuda.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        # They may still be reading what it has told them.
        time.sleep(2)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))

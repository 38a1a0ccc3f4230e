"""The process group over which the training ranks communicate.

A single rank has none. It does not import PyTorch, which takes more than a second.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any


@contextmanager
def process_group() -> Iterator[list[str]]:
    """Makes the process group of the ranks that torchrun has started.

    Any launcher that sets torchrun's environment variables will do. Yields the arguments that tell
    the verb `train` its rank. An existing group, as in a worker of Ray Train, is used; in both
    cases a second group with the backend Gloo is made for communication between hosts' CPUs.
    """
    is_own_group = not _is_initialized()
    if is_own_group and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        # A single rank still has a local rank: it may be meant for the second GPU of the machine.
        yield [f"--local-rank={_local_rank()}"]
        return
    import torch
    import torch.distributed as dist

    if is_own_group:
        if torch.cuda.is_available():
            torch.cuda.set_device(_local_rank() % torch.cuda.device_count())
            # Otherwise collectives that overlap with computation wait behind kernels that are in the queue.
            os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    # For questions between ranks on the host: collectives of the other group wait for devices, in
    # their order. A rank may wait in it for another one's rows or previews, so the timeout is long;
    # if a rank dies, its connections close and the others notice.
    host_group = dist.new_group(backend="gloo", timeout=timedelta(days=1))
    # Machines may have different numbers of ranks. Then each is treated as several nodes of equal
    # size.
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    local_world_sizes = [0] * dist.get_world_size()
    dist.all_gather_object(local_world_sizes, local_world_size, group=host_group)
    ranks_per_node = math.gcd(*local_world_sizes)
    node_groups = _make_node_groups(ranks_per_node)
    rank_arguments = [
        f"--process-group={dist.group.WORLD.group_name}",
        f"--host-group={host_group.group_name}",
        f"--rank={dist.get_rank()}",
        f"--world-size={dist.get_world_size()}",
        f"--local-rank={_local_rank()}",
        f"--local-world-size={local_world_size}",
        f"--ranks-per-node={ranks_per_node}",
        *(f"--{name}={group.group_name}" for name, group in node_groups.items()),
    ]
    try:
        yield rank_arguments
    finally:
        if not is_own_group:
            for group in [host_group, *node_groups.values()]:
                dist.destroy_process_group(group)
    # Not after an exception: the other ranks may be gone, and destroying the group would wait for
    # them.
    if is_own_group:
        dist.destroy_process_group()


def _make_node_groups(ranks_per_node: int) -> dict[str, Any]:
    """Groups of the ranks of this node, and of the ranks with this rank's place on every node.

    None unless there are several nodes of several ranks.
    """
    import torch.distributed as dist

    ranks, rank = range(dist.get_world_size()), dist.get_rank()
    if ranks_per_node in (1, len(ranks)):
        return {}
    first, place = rank - rank % ranks_per_node, rank % ranks_per_node
    members = {
        "node-group": ranks[first : first + ranks_per_node],
        "replica-group": ranks[place::ranks_per_node],
    }
    # Only its members make a group: a cluster has many, and a rank is in two.
    return {
        name: dist.new_group(list(group), use_local_synchronization=True) for name, group in members.items()
    }


def exit_failed_rank(code: int) -> None:
    """Ends this process at once if it is one of several ranks on GPUs and has failed.

    The others may be inside a collective. NCCL would make this process wait for them while it
    destroys its communicators; they notice its end by the connections that close with the process.
    """
    if code == 0 or not _is_initialized():
        return
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available() and dist.get_world_size() > 1:
        # The other ranks may still be reading this rank's last message.
        time.sleep(2)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _is_initialized() -> bool:
    """Whether this process has a process group."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_initialized()


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))

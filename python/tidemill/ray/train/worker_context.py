"""The rank and the node of the current process on Ray."""

from __future__ import annotations

import ray
import ray.train
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


def is_first_rank() -> bool:
    """Whether this worker of Ray Train has rank 0."""
    return ray.train.get_context().get_world_rank() == 0


def on_this_node() -> NodeAffinitySchedulingStrategy:
    """Places an actor on this process's node, so that it is lost only together with this node."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)

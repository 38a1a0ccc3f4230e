"""Drives `tidemill eval` with `[engine.eval]`: `python -m tidemill.ray.evaluate.driver`.

Evaluators find their work and commit it by themselves. So this process only starts them, and waits until
one of them says that nothing is left.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import ray

import tidemill
from tidemill.ray.driver_protocol import InputLines, run_driver
from tidemill.ray.failure_causes import find_root_cause
from tidemill.ray.resource_wait import WorkerResources, demand_actors, log_resource_waits
from tidemill.run_file import ResolvedRun

# Restarts of one evaluator. What it had not committed is drawn again, by it or by another one.
MAX_RESTARTS = 5

# Seconds that the other evaluators get to end once nothing is left to draw.
FINISH_S = 20.0

log = logging.getLogger("tidemill.ray")


@ray.remote(max_restarts=MAX_RESTARTS, max_task_retries=MAX_RESTARTS)
class Evaluator:
    """An evaluator with the networks that draw and judge."""

    def evaluate(self, run: ResolvedRun, flags: list[str]) -> dict[str, Any]:
        """Works until nothing is left; returns the result of `tidemill.evaluate`."""
        return tidemill.evaluate(run, *flags, "--worker")


def evaluate(plan: dict[str, Any], _lines: InputLines) -> Iterator[dict[str, Any]]:
    """Evaluates to the end; yields the result of the first evaluator that finds nothing left to do.

    Evaluators that fail are logged. The evaluation fails only if none is left.
    """
    run, pool = ResolvedRun(json.dumps(plan["run"])), plan["eval"]
    options = {"num_cpus": pool["cpus"], "num_gpus": pool["gpus"], "accelerator_type": pool["accelerator"]}
    evaluators = [Evaluator.options(**options).remote() for _ in range(pool["most"])]
    resources = WorkerResources(pool["cpus"], pool["gpus"], pool["accelerator"])
    with log_resource_waits(demand_actors("evaluator", resources, pool["fewest"], "Evaluator")):
        working = [evaluator.evaluate.remote(run, plan["flags"]) for evaluator in evaluators]
        result = None
        while working and result is None:
            (first, *_), working = ray.wait(working, num_returns=1)
            try:
                result = ray.get(first)
            except (ray.exceptions.RayError, tidemill.TidemillError) as error:
                cause = find_root_cause(error)
                if not working or isinstance(cause, tidemill.InputError):
                    raise
                log.warning("an evaluator failed, %d are left: %s", len(working), cause)
        if working:
            # Nothing is left to draw. The others write and remove files; those without room never start.
            ray.wait(working, num_returns=len(working), timeout=FINISH_S)
        yield result


if __name__ == "__main__":
    run_driver(evaluate)

"""Drives `tidemill eval` with `[engine.eval]`: `python -m tidemill.ray.evaluate.driver`.

Evaluators find their work and commit it by themselves. So this process only starts them, and waits until
one of them says that nothing is left.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import ray

import tidemill
from tidemill.ray.driver_protocol import InputLines, run_driver
from tidemill.ray.resource_wait import WorkerResources, demand_actors, log_resource_waits
from tidemill.run_file import ResolvedRun

# Restarts of one evaluator. What it had not committed is drawn again, by it or by another one.
MAX_RESTARTS = 5


@ray.remote(max_restarts=MAX_RESTARTS, max_task_retries=MAX_RESTARTS)
class Evaluator:
    """An evaluator with the networks that draw and judge."""

    def evaluate(self, run: ResolvedRun, flags: list[str]) -> dict[str, Any]:
        """Works until nothing is left; returns the result of `tidemill.evaluate`."""
        return tidemill.evaluate(run, *flags, "--worker")


def evaluate(plan: dict[str, Any], _lines: InputLines) -> Iterator[dict[str, Any]]:
    """Evaluates to the end; yields the result of the first evaluator that finds nothing left to do."""
    run, pool = ResolvedRun(json.dumps(plan["run"])), plan["eval"]
    options = {"num_cpus": pool["cpus"], "num_gpus": pool["gpus"], "accelerator_type": pool["accelerator"]}
    evaluators = [Evaluator.options(**options).remote() for _ in range(pool["most"])]
    resources = WorkerResources(pool["cpus"], pool["gpus"], pool["accelerator"])
    with log_resource_waits(demand_actors("evaluator", resources, pool["fewest"], "Evaluator")):
        results = [evaluator.evaluate.remote(run, plan["flags"]) for evaluator in evaluators]
        # Evaluators that found no room need not start any more. The others end by themselves.
        (first, *_), _ = ray.wait(results, num_returns=1)
        yield ray.get(first)


if __name__ == "__main__":
    run_driver(evaluate)

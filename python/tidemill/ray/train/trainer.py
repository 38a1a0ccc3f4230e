"""The trainer on Ray Train."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import ray
import torch
from ray.train import ControllerError, FailureConfig, Result, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import tidemill
from tidemill import Mode
from tidemill.ray.cluster import add_env_vars, connect
from tidemill.ray.online.encoder_pool import list_pool_demands
from tidemill.ray.resource_wait import (
    CHECK_INTERVAL_S,
    ResourceDemand,
    WorkerResources,
    log_resource_waits,
)
from tidemill.ray.train.checkpoint_reports import checkpoint_in_storage, checkpoints_uri
from tidemill.ray.train.failure_policy import FailurePolicy
from tidemill.ray.train.graceful_stop import StopSignal, WorkerLossCallback
from tidemill.ray.train.train_worker import run_worker
from tidemill.ray.train.worker_context import on_this_node
from tidemill.run_file import RunFile, resolve


class Trainer:
    """Trains a run on workers of Ray Train.

    The workers are those of `scaling_config`, whose `num_workers` may be a range (min, max).
    Workers that die are replaced, and training resumes from the run's last checkpoint with the
    workers that are available. Training ends if it fails three times in the same way without a
    checkpoint in between.

    Without `run_config` Ray uses the run's output as its storage folder, so that checkpoints are
    not copied. All nodes must be able to reach it.

    In the mode "online" actors of `engine.encode` encode the pairs while the workers train; in the
    mode "colocated" the workers encode them. Both need no dataset. `denoiser` is called in each
    worker and makes the module that `tidemill.train` takes as its denoiser.
    """

    def __init__(
        self,
        run: RunFile,
        *,
        mode: Mode = "offline",
        denoiser: Callable[[], torch.nn.Module] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        **overrides: Any,
    ) -> None:
        resolved = resolve(run, **overrides)
        output = PurePosixPath(resolved["output"])
        run_config = run_config or RunConfig(
            name=output.name,
            storage_path=str(output.parent),
            failure_config=FailureConfig(max_failures=-1),
        )
        self._run, self._mode = resolved, mode
        self._stop_name = f"tidemill-stop-{uuid.uuid4().hex}"
        callbacks = [FailurePolicy(), WorkerLossCallback(self._stop_name)]
        self._trainer = TorchTrainer(
            run_worker,
            train_loop_config={"run": resolved, "mode": mode, "denoiser": denoiser, "stop": self._stop_name},
            scaling_config=scaling_config or ScalingConfig(),
            run_config=replace(
                run_config,
                callbacks=[*(run_config.callbacks or []), *callbacks],
                # Actors that workers start, such as encoders, inherit it.
                worker_runtime_env=add_env_vars(resolved, run_config.worker_runtime_env),
            ),
        )

    def fit(self) -> Result:
        """Trains to the end, or until `stop`.

        `metrics` of the result are those of the last step, with `checkpoint_uri`; `return_value` is
        the result of `tidemill.train`.
        """
        connect(self._run)
        self._delete_ray_checkpoint_list()
        stop_signal = self._get_stop_signal()
        try:
            with log_resource_waits(*self._list_demands(stop_signal)):
                result = self._trainer.fit()
        except ControllerError as error:
            failure = error.controller_failure
            is_own = isinstance(failure, (tidemill.InputError, tidemill.TidemillError))
            raise failure if is_own else error from None
        finally:
            ray.kill(stop_signal)
        return result

    def stop(self) -> bool:
        """Asks the workers of a `fit` in another thread to save their state and end.

        The result of `fit` then has `"finished"` False. Returns whether there are workers: `fit`
        may be waiting for resources, and would continue to wait.
        """
        return ray.get(self._get_stop_signal().request.remote())

    def _delete_ray_checkpoint_list(self) -> None:
        """Deletes Ray Train's own list of the run's checkpoints.

        Ray Train refuses to start if a listed checkpoint is gone, and the run deletes all but the
        last few. Training resumes from the run's own checkpoints, so the list is not needed.
        """
        storage = self._trainer.run_config.storage_context
        if checkpoint_in_storage(checkpoints_uri(self._run), storage) is not None:
            with suppress(FileNotFoundError):
                storage.storage_filesystem.delete_file(storage.checkpoint_manager_snapshot_path)

    def _list_demands(self, stop_signal: Any) -> list[ResourceDemand]:
        scaling, engine = self._trainer.scaling_config, self._run["engine"]
        resources = WorkerResources(
            scaling.num_cpus_per_worker, scaling.num_gpus_per_worker, scaling.accelerator_type
        )

        def count_waiting() -> int:
            has_workers = ray.get(stop_signal.has_workers.remote(), timeout=CHECK_INTERVAL_S)
            return 0 if has_workers else scaling.min_workers

        pool_demands = list_pool_demands(engine) if self._mode == "online" else []
        return [ResourceDemand("worker", resources, count_waiting), *pool_demands]

    def _get_stop_signal(self) -> Any:
        """The actor for the stop signal, which is started on first use."""
        options = {"name": self._stop_name, "get_if_exists": True, "max_concurrency": 10_000}
        return StopSignal.options(**options, scheduling_strategy=on_this_node()).remote()

"""The trainer on Ray Train: each worker calls the Rust trainer, over the process group that Ray made."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import ray
import ray.train
import torch
from ray.train import (
    Checkpoint,
    CheckpointUploadMode,
    ControllerError,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
)
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import TorchTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import tidemill
from tidemill import Mode
from tidemill.ray.cluster import connect, with_env
from tidemill.ray.faults import Hopeless, ToldToStop
from tidemill.ray.feeder import Encoders, Feeder, wants
from tidemill.ray.stop import Losses, Stop, heard
from tidemill.ray.waits import LOOK_S, Room, Want, told
from tidemill.run_file import ResolvedRun, RunFile, resolve


class Trainer:
    """Trains a run on the workers that `scaling_config` asks for; `num_workers` may be (fewest, most).

    Workers that die are replaced, and training goes on from the run's own last checkpoint, with however many
    workers there are; what fails three times in the same way, with no checkpoint in between, ends it.
    Without `run_config` the run's output is Ray's folder for it, too, so that checkpoints stay in place.
    All nodes must reach it. In the mode "online" rows are encoded by actors of `engine.encode` while the
    workers train, in the mode "colocated" by the workers; both need no dataset. `denoiser` makes, in each
    worker, what `tidemill.train` takes for a denoiser.
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
        self._name = f"tidemill-stop-{uuid.uuid4().hex}"
        self._trainer = TorchTrainer(
            _train,
            train_loop_config={"run": resolved, "mode": mode, "denoiser": denoiser, "stop": self._name},
            scaling_config=scaling_config or ScalingConfig(),
            run_config=replace(
                run_config,
                callbacks=[*(run_config.callbacks or []), Hopeless(), Losses(self._name)],
                # Actors that workers start, such as encoders, have it from them.
                worker_runtime_env=with_env(resolved, run_config.worker_runtime_env),
            ),
        )

    def fit(self) -> Result:
        """Trains to the end, or until `stop`. The metrics are those of the last step, and `checkpoint_uri`.

        `return_value` is what `tidemill.train` gives.
        """
        connect(self._run)
        self._forget()
        stop = self._stop()
        try:
            with told(*self._wants(stop)):
                result = self._trainer.fit()
        except ControllerError as error:
            ours = isinstance(error.controller_failure, (tidemill.InputError, tidemill.TidemillError))
            raise error.controller_failure if ours else error from None
        finally:
            ray.kill(stop)
        return result

    def stop(self) -> bool:
        """Has the workers of a `fit` in another thread save their state and end, with `"finished"` False.

        Says whether there are any: `fit` may be waiting for room for them, and would go on waiting.
        """
        return ray.get(self._stop().ask.remote())

    def _forget(self) -> None:
        """Deletes Ray's own list of the run's checkpoints.

        Ray refuses to start where one of them is gone, as all but the last few are after a while; and the run
        goes on from what is there, whatever Ray knows of it.
        """
        storage = self._trainer.run_config.storage_context
        if _where_it_is(_checkpoints(self._run), storage) is not None:
            with suppress(FileNotFoundError):
                storage.storage_filesystem.delete_file(storage.checkpoint_manager_snapshot_path)

    def _wants(self, stop: Any) -> list[Want]:
        scaling, engine = self._trainer.scaling_config, self._run["engine"]
        room = Room(scaling.num_cpus_per_worker, scaling.num_gpus_per_worker, scaling.accelerator_type)

        def missing() -> int:
            return 0 if ray.get(stop.workers.remote(), timeout=LOOK_S) else scaling.min_workers

        return [Want("worker", room, missing), *(wants(engine) if self._mode == "online" else [])]

    def _stop(self) -> Any:
        how = {"name": self._name, "get_if_exists": True, "max_concurrency": 10_000}
        return Stop.options(**how, scheduling_strategy=_here()).remote()


def _train(config: dict[str, Any]) -> dict[str, Any]:
    run, mode, denoiser = config["run"], config["mode"], config["denoiser"]
    reports, stop = _Reports(run), ray.get_actor(config["stop"])
    ray.get(stop.began.remote())
    # The first rank has it, on its own node, and all ask it.
    feeder = _feeder(run) if mode == "online" and _is_first() else None
    encoders = None
    try:
        if mode == "online":
            encoders = Encoders(broadcast_from_rank_zero(feeder))
        module = None if denoiser is None else denoiser()
        with heard(stop) as event:
            result = tidemill.train(
                run, listener=reports.hear, mode=mode, encoders=encoders, denoiser=module, stop=event
            )
    except tidemill.TidemillError as error:
        if encoders is not None and encoders.gone:
            # With its node or the first worker, as often as it happens.
            raise tidemill.LostPeersError(str(error)) from error
        raise
    finally:
        if feeder is not None:
            ray.kill(feeder)
    # The first rank speaks for all, and all must do the same: one that reports waits for the others to.
    said = (result, ray.get(stop.asked.remote())) if _is_first() else None
    result, asked = broadcast_from_rank_zero(said)
    if not result["finished"] and not asked:
        # The system takes this node back. Ray must not take the run for done, and starts workers again.
        raise ToldToStop(f"told to stop after step {result['steps']}, which a checkpoint holds")
    reports.tell(result["steps"])
    return result


def _feeder(run: ResolvedRun) -> Any:
    return Feeder.options(scheduling_strategy=_here()).remote(run)


def _here() -> NodeAffinitySchedulingStrategy:
    """Is lost with this process's node, and with no other."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


class _Reports:
    """Tells Ray of metrics and checkpoints whenever a checkpoint is due, and at the end.

    Not more often, for all ranks wait until Ray has heard all of them, which takes it seconds.
    """

    def __init__(self, run: ResolvedRun) -> None:
        self._every = max(1, run["checkpoint"]["every"])
        self._checkpoints = _checkpoints(run)
        self._metrics: dict[str, Any] = {}
        self._told = 0

    def hear(self, metrics: dict[str, Any]) -> None:
        """A line of metrics, which all ranks get alike."""
        due = metrics["step"] // self._every > self._metrics.get("step", 0) // self._every
        self._metrics = metrics
        if due:
            self.tell(metrics["checkpoint"])

    def tell(self, step: int) -> None:
        """Tells of the checkpoint of `step`, if it is news, which it is on the first rank only."""
        checkpoint, metrics = None, self._metrics
        if _is_first() and step > self._told:
            self._told = step
            uri = f"{self._checkpoints}/step-{step:08}"
            checkpoint = _where_it_is(uri, ray.train.get_context().get_storage())
            metrics = {**metrics, "checkpoint_uri": uri}
        ray.train.report(metrics, checkpoint, checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD)


def _is_first() -> bool:
    return ray.train.get_context().get_world_rank() == 0


def _checkpoints(run: ResolvedRun) -> str:
    return run["checkpoint"].get("uri") or f"{run['output']}/checkpoints"


def _where_it_is(uri: str, storage: Any) -> Checkpoint | None:
    """Ray keeps only what is in its own folder without a copy."""
    checkpoint = Checkpoint(uri)
    inside = PurePosixPath(checkpoint.path).is_relative_to(storage.experiment_fs_path)
    return (
        checkpoint
        if inside and checkpoint.filesystem.type_name == storage.storage_filesystem.type_name
        else None
    )

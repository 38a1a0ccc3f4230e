"""The function that each worker of Ray Train runs: it calls the Rust trainer."""

from __future__ import annotations

from typing import Any

import ray
from ray.train.collective import broadcast_from_rank_zero

import tidemill
from tidemill.ray.online.encoder_pool import EncoderPool
from tidemill.ray.online.encoder_pool_client import EncoderPoolClient
from tidemill.ray.train.checkpoint_reports import CheckpointReporter
from tidemill.ray.train.failure_policy import WorkerStoppedError
from tidemill.ray.train.graceful_stop import watch_stop_signal
from tidemill.ray.train.worker_context import is_first_rank, on_this_node
from tidemill.run_file import ResolvedRun


def run_worker(config: dict[str, Any]) -> dict[str, Any]:
    """Trains in this worker; returns the result of `tidemill.train`.

    The worker uses the process group that Ray Train has made. `config` has the keys run, mode,
    denoiser (a function that makes it, or None) and stop (an actor's name).
    """
    run, mode, make_denoiser = config["run"], config["mode"], config["denoiser"]
    reporter, stop_signal = CheckpointReporter(run), ray.get_actor(config["stop"])
    ray.get(stop_signal.worker_started.remote())
    # The first rank starts the pool on its own node; all ranks send their requests to it.
    pool = _start_encoder_pool(run) if mode == "online" and is_first_rank() else None
    encoders = None
    try:
        if mode == "online":
            encoders = EncoderPoolClient(broadcast_from_rank_zero(pool))
        denoiser = None if make_denoiser is None else make_denoiser()
        with watch_stop_signal(stop_signal) as stop_event:
            result = tidemill.train(
                run,
                listener=reporter.on_metrics,
                mode=mode,
                encoders=encoders,
                denoiser=denoiser,
                stop=stop_event,
            )
    except tidemill.TidemillError as error:
        if encoders is not None and encoders.is_pool_lost:
            # The pool was lost with its node or the first worker: this may happen any number of
            # times.
            raise tidemill.LostPeersError(str(error)) from error
        raise
    finally:
        if pool is not None:
            ray.kill(pool)
    # All ranks must act alike, because a rank that reports waits for the others. So the first rank
    # decides.
    decision = (result, ray.get(stop_signal.is_requested.remote())) if is_first_rank() else None
    result, is_stop_requested = broadcast_from_rank_zero(decision)
    if not result["finished"] and not is_stop_requested:
        # The node is being taken back. An exception keeps Ray Train from treating the run as
        # complete; it starts workers again.
        raise WorkerStoppedError(f"stopped after step {result['steps']}; a checkpoint holds its state")
    reporter.report(result["steps"])
    return result


def _start_encoder_pool(run: ResolvedRun) -> Any:
    return EncoderPool.options(scheduling_strategy=on_this_node()).remote(run)

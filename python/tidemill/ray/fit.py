"""The driver of training with `[engine.train]`: `python -m tidemill.ray.fit`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from threading import Thread
from typing import Any

from ray.train import ScalingConfig

import tidemill.ray
from tidemill.ray.driver import Lines, drive
from tidemill.run_file import ResolvedRun


def train(plan: dict[str, Any], _lines: Lines) -> Iterator[Any]:
    """Trains to the end, or until SIGTERM; gives what `tidemill.train` gives."""
    run = ResolvedRun(json.dumps(plan["run"]))
    trainer = tidemill.ray.Trainer(run, mode=plan["mode"], scaling_config=_scaling(plan["train"]))
    # In a thread of its own, for a handler may come in the midst of a call of Ray's.
    signal.signal(signal.SIGTERM, lambda *_: Thread(target=_stop, args=(trainer,), daemon=True).start())
    yield trainer.fit().return_value


def _stop(trainer: tidemill.ray.Trainer) -> None:
    if not trainer.stop():
        # Nobody trains, so there is nothing to be saved, but `fit` would wait for room for workers. The verb
        # has asked for an end and takes this for it; Ray ends what a driver has started when it is gone.
        os._exit(1)


def _scaling(pool: dict[str, Any]) -> ScalingConfig:
    fewest, most, gpus = pool["fewest"], pool["most"], pool["gpus"]
    return ScalingConfig(
        num_workers=fewest if fewest == most else (fewest, most),
        use_gpu=gpus > 0,
        resources_per_worker={"CPU": pool["cpus"]} | ({"GPU": gpus} if gpus > 0 else {}),
        accelerator_type=pool["accelerator"],
    )


if __name__ == "__main__":
    drive(train)

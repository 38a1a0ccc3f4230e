"""Drives training with `[engine.train]`: `python -m tidemill.ray.train.driver`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from threading import Thread
from typing import Any

from ray.train import ScalingConfig

from tidemill.ray.driver_protocol import InputLines, run_driver
from tidemill.ray.train.trainer import Trainer
from tidemill.run_file import ResolvedRun


def train(plan: dict[str, Any], _lines: InputLines) -> Iterator[Any]:
    """Trains to the end, or until SIGTERM; yields the result of `tidemill.train`."""
    run = ResolvedRun(json.dumps(plan["run"]))
    trainer = Trainer(run, mode=plan["mode"], scaling_config=_scaling_config(plan["train"]))
    # In a thread of its own, because the signal may interrupt a call of Ray.
    signal.signal(signal.SIGTERM, lambda *_: Thread(target=_stop, args=(trainer,), daemon=True).start())
    yield trainer.fit().return_value


def _stop(trainer: Trainer) -> None:
    if not trainer.stop():
        # Without workers there is nothing to save, but `fit` would wait for resources. The verb
        # that sent the signal expects the exit; Ray ends everything that a driver has started when
        # the driver is gone.
        os._exit(1)


def _scaling_config(pool: dict[str, Any]) -> ScalingConfig:
    fewest, most, gpus = pool["fewest"], pool["most"], pool["gpus"]
    return ScalingConfig(
        num_workers=fewest if fewest == most else (fewest, most),
        use_gpu=gpus > 0,
        resources_per_worker={"CPU": pool["cpus"]} | ({"GPU": gpus} if gpus > 0 else {}),
        accelerator_type=pool["accelerator"],
    )


if __name__ == "__main__":
    run_driver(train)

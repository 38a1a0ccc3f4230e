"""Reports a run's metrics and checkpoints to Ray Train, without copying the checkpoints."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import ray.train
from ray.train import Checkpoint, CheckpointUploadMode

from tidemill.ray.train.worker_context import is_first_rank
from tidemill.run_file import ResolvedRun


class CheckpointReporter:
    """Reports metrics and the newest checkpoint to Ray Train when a checkpoint is due.

    It also reports at the end. It does not report more often: all ranks wait until Ray Train has
    received the report of each, which takes about two seconds.
    """

    def __init__(self, run: ResolvedRun) -> None:
        self._interval = max(1, run["checkpoint"]["every"])
        self._checkpoints_uri = checkpoints_uri(run)
        self._metrics: dict[str, Any] = {}
        self._reported_step = 0

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Receives a line of metrics.

        It is the same on all ranks, so all of them report together.
        """
        previous_step = self._metrics.get("step", 0)
        is_due = metrics["step"] // self._interval > previous_step // self._interval
        self._metrics = metrics
        if is_due:
            self.report(metrics["checkpoint"])

    def report(self, step: int) -> None:
        """Reports the metrics, and on the first rank a new checkpoint of `step`."""
        checkpoint, metrics = None, self._metrics
        if is_first_rank() and step > self._reported_step:
            self._reported_step = step
            uri = f"{self._checkpoints_uri}/step-{step:08}"
            checkpoint = checkpoint_in_storage(uri, ray.train.get_context().get_storage())
            metrics = {**metrics, "checkpoint_uri": uri}
        ray.train.report(metrics, checkpoint, checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD)


def checkpoints_uri(run: ResolvedRun) -> str:
    """The location of the run's checkpoints."""
    return run["checkpoint"].get("uri") or f"{run['output']}/checkpoints"


def checkpoint_in_storage(uri: str, storage: Any) -> Checkpoint | None:
    """A checkpoint as Ray Train takes it without a copy.

    None if it lies outside of Ray's own storage folder.
    """
    checkpoint = Checkpoint(uri)
    is_inside = PurePosixPath(checkpoint.path).is_relative_to(storage.experiment_fs_path)
    is_same_filesystem = checkpoint.filesystem.type_name == storage.storage_filesystem.type_name
    return checkpoint if is_inside and is_same_filesystem else None

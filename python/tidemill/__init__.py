"""Tidemill: Stable Diffusion pre-training in Rust.

The verbs of the command line are functions that return their result as a dict; the two stages of the data
pipeline are callables over Arrow record batches and tables; the training stream is an iterator.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

# Huge pages for large tensors on the CPU: see crates/tidemill/src/allocator.rs.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

# Before the native module.
from tidemill import _libtorch  # noqa: F401  # isort: skip
from tidemill import _native
from tidemill._native import InputError, LostPeersError, TidemillError
from tidemill.run_file import ResolvedRun, RunFile, arguments_of, command_line_of, resolve
from tidemill.stream import Stream

if TYPE_CHECKING:
    import torch

    from tidemill.stream_dataset import StreamDataset

__all__ = [
    "Encode",
    "Encoders",
    "InputError",
    "LostPeersError",
    "Mode",
    "Prepare",
    "ResolvedRun",
    "RunFile",
    "Stream",
    "StreamDataset",
    "TidemillError",
    "dedup",
    "export",
    "inspect",
    "load",
    "main",
    "preprocess",
    "resolve",
    "run",
    "sample",
    "train",
]

Mode: TypeAlias = Literal["offline", "online", "colocated"]
"""How the encoders feed the trainer."""


class Encoders(Protocol):
    """Encodes units of work elsewhere."""

    def want(self, unit: str, epoch: int, resolution: int) -> int:
        """Asks for the rows of a unit (JSON) in an epoch; gives a number to `take` them by."""

    def take(self, number: int) -> Any:
        """Those rows as `Encode` gives them, once; None if they are not there within about a second."""


# Where a verb starts workers, they run in the same Python.
os.environ.setdefault("TIDEMILL_PYTHON", sys.executable)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """PyTorch takes most of a second to import; where it is not needed, as in Ray's tasks, it is not."""
        if name == "StreamDataset":
            from tidemill.stream_dataset import StreamDataset

            return StreamDataset
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line (without the program's name) as the binary does; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb = next((argument for argument in arguments if not argument.startswith("-")), None)
    if verb != "train":
        return _native.main(["tidemill", *arguments])
    from tidemill.distributed import end, process_group

    with process_group() as place:
        code = _native.main(["tidemill", *arguments, *place])
        end(code)
        return code


def preprocess(run: RunFile, **overrides: Any) -> dict[str, Any]:
    """Turns image-caption pairs into a latent dataset."""
    return _call("preprocess", run, overrides)


def dedup(run: RunFile, **overrides: Any) -> dict[str, Any]:
    """Finds the duplicates among the rows of the run's latent dataset, and writes them as a mask."""
    return _call("dedup", run, overrides)


def train(
    run: RunFile,
    listener: Callable[[dict[str, Any]], Any] | None = None,
    mode: Mode = "offline",
    encoders: Encoders | None = None,
    denoiser: torch.nn.Module | None = None,
    stop: threading.Event | None = None,
    **overrides: Any,
) -> dict[str, Any]:
    """Trains the U-Net from its last checkpoint or from the start, on the run's latent dataset or its pairs.

    In the modes "online" and "colocated" there is no dataset: pairs are encoded as they are wanted. Of
    several processes (torchrun's, or Ray Train's workers) each calls it. `listener` is called with each line
    of metrics, on every rank; if it raises, training ends after a checkpoint. So it does, on all ranks, once
    `stop` is set on one of them, or a signal comes (ctrl-c, SIGTERM): `"finished"` is then False. A second
    ctrl-c does not wait for that. Online, `encoders` may do the encoding elsewhere, as those of
    `tidemill.ray` do.

    `denoiser`, compiled or not, is trained in place of the model folder's U-Net, from the weights that it has
    (of several processes, those of the first). It is called as diffusers' `UNet2DConditionModel` is:
    `denoiser(sample, timesteps, text)`. While it is trained its parameters are the trainer's. Afterwards they
    are float32 again, rounded to the run's precision: `load` gives all digits, or the average.
    """

    def hear(line: str) -> None:
        if listener is not None:
            listener(json.loads(line))

    from tidemill.distributed import process_group
    from tidemill.interrupt import stopping_at_ctrl_c

    arguments = [*command_line_of(run, **overrides), "--mode", mode]
    with process_group() as place, stopping_at_ctrl_c(stop) as stopping:
        return json.loads(_native.train([*arguments, *place], hear, encoders, denoiser, stopping))


def load(run: RunFile, module: torch.nn.Module, ema: bool = True, **overrides: Any) -> int:
    """Puts the weights of the run's last checkpoint, or of `sample.step`, into `module`; returns their step.

    With `ema` they are the averaged ones, if averaging had begun.
    """
    return _native.load(*arguments_of(run, overrides), module, ema)


def sample(run: RunFile, **overrides: Any) -> dict[str, Any]:
    """Draws the pictures of the run's `[sample]` section."""
    return _call("sample", run, overrides)


def export(run: RunFile, **overrides: Any) -> dict[str, Any]:
    """Writes the trained model as a folder that diffusers opens."""
    return _call("export", run, overrides)


def run(run: RunFile, mode: Mode = "offline", **overrides: Any) -> dict[str, Any]:
    """Does all of it: preprocess, train, sample, export; in other modes without the first."""
    return _call("run", run, overrides, "--mode", mode)


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Says what a dataset or a Parquet source holds."""
    return json.loads(_native.call(["inspect", os.fspath(path)]))


class Prepare:
    """Decodes, filters, crops, resizes, tokenises: image files and captions in, pixels and token ids out."""

    def __init__(self, run: RunFile, **overrides: Any) -> None:
        self._stage = _native.Prepare(*arguments_of(run, overrides))

    def __call__(self, batch: Any) -> Any:
        """Takes anything with `__arrow_c_array__` or `__arrow_c_stream__`; gives a RecordBatch or Table."""
        return self._stage(batch)


class Encode:
    """Runs the frozen VAE and text encoder on what `Prepare` gave: latent moments and text embeddings out.

    From then on this process's tensors on the CPU come from mimalloc, which keeps what was freed.
    """

    def __init__(self, run: RunFile, **overrides: Any) -> None:
        self._stage = _native.Encode(*arguments_of(run, overrides))

    def __call__(self, batch: Any) -> Any:
        """Takes anything with `__arrow_c_array__` or `__arrow_c_stream__`; gives a RecordBatch or Table."""
        return self._stage(batch)


def _call(verb: str, run: RunFile, overrides: Mapping[str, Any], *flags: str) -> dict[str, Any]:
    return json.loads(_native.call([verb, *command_line_of(run, **overrides), *flags]))

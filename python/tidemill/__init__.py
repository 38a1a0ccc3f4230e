"""Tidemill: Stable Diffusion pre-training in Rust.

The verbs of the command line are functions that return their result as a dict, which notebooks show as
a table. The two stages of
the data pipeline are callables over Arrow record batches and tables. The training stream is an
iterator.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

# PyTorch then uses huge pages for large tensors on the CPU; the reasons are in the crate's
# allocator module.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

# Must come before the native module, which links against libtorch.
from tidemill import _libtorch  # noqa: F401  # isort: skip
from tidemill import _native
from tidemill._native import VERSION as __version__
from tidemill._native import InputError, LostPeersError, TidemillError
from tidemill.display import Result
from tidemill.run_file import ResolvedRun, RunFile, resolve, to_arguments, to_command_line
from tidemill.stream import Stream

if TYPE_CHECKING:
    import torch

    from tidemill.stream_dataset import StreamDataset

__all__ = [
    "ASSETS",
    "Encode",
    "Encoders",
    "InputError",
    "LostPeersError",
    "Mode",
    "Prepare",
    "ResolvedRun",
    "Result",
    "RunFile",
    "Stream",
    "StreamDataset",
    "TidemillError",
    "__version__",
    "contact_sheet",
    "dedup",
    "evaluate",
    "export",
    "init",
    "inspect",
    "load",
    "main",
    "plan",
    "preprocess",
    "report",
    "resolve",
    "run",
    "sample",
    "synth",
    "train",
]

Mode: TypeAlias = Literal["offline", "online", "colocated"]
"""Where training rows come from: a dataset, encoders that run beside the trainer, or the trainer's
own ones.
"""


class Encoders(Protocol):
    """Encodes units of work in other processes."""

    def want(self, unit: str, epoch: int, resolution: int) -> int:
        """Asks for the rows of a unit (JSON) in an epoch; returns a number for `take`."""

    def take(self, number: int) -> Any:
        """The rows of a request as `Encode` returns them, once.

        None if they take longer than about a second.
        """


ASSETS = Path(__file__).parent / "assets"
"""A folder with small models in the diffusers layout, and `judge`, a small DINOv2: for trying things out."""

# Jupyter shows standard error as if all of it were errors.
if "ipykernel" in sys.modules:
    _native.redirect_status_to_stdout()

# Worker processes that a verb starts run in the same Python.
os.environ.setdefault("TIDEMILL_PYTHON", sys.executable)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Imports `StreamDataset` on first use: PyTorch takes most of a second to import.

        Ray's tasks skip it.
        """
        if name == "StreamDataset":
            from tidemill.stream_dataset import StreamDataset

            return StreamDataset
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line (without the program's name) like the binary; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb = next((argument for argument in arguments if not argument.startswith("-")), None)
    if verb != "train":
        return _native.main(["tidemill", *arguments])
    from tidemill.distributed import exit_failed_rank, process_group

    with process_group() as rank_arguments:
        code = _native.main(["tidemill", *arguments, *rank_arguments])
        exit_failed_rank(code)
        return code


def preprocess(run: RunFile, **overrides: Any) -> Result:
    """Turns image-caption pairs into a latent dataset."""
    return _call("preprocess", run, overrides)


def dedup(run: RunFile, **overrides: Any) -> Result:
    """Finds duplicates among the rows of the run's latent dataset and writes them as a mask."""
    return _call("dedup", run, overrides)


def train(
    run: RunFile,
    listener: Callable[[dict[str, Any]], Any] | None = None,
    mode: Mode = "offline",
    encoders: Encoders | None = None,
    denoiser: torch.nn.Module | None = None,
    stop: threading.Event | None = None,
    **overrides: Any,
) -> Result:
    """Trains the U-Net on the run's latent dataset or its pairs.

    Training resumes from the last checkpoint if there is one. The modes "online" and "colocated"
    use no dataset: pairs are encoded when they are needed. Each process of a group (torchrun's, or
    Ray Train's workers) calls this function.

    `listener` is called with each line of metrics, on every rank; if it raises, training ends after
    a checkpoint. Training also ends after a checkpoint, on all ranks, if `stop` is set on one of
    them or a signal arrives (ctrl-c, SIGTERM); `"finished"` is then False. A second ctrl-c ends it
    without a checkpoint.

    In the mode "online" `encoders` may encode in other processes, as those of `tidemill.ray` do.

    `denoiser`, compiled or not, is trained instead of the model folder's U-Net, from its current
    weights (with several processes, from those of the first). It is called like diffusers'
    `UNet2DConditionModel`: `denoiser(sample, timesteps, text)`. During training its parameters
    belong to the trainer. Afterwards they are float32 again, rounded to the run's precision; `load`
    returns the exact weights, or their average.
    """

    def on_metrics(line: str) -> None:
        if listener is not None:
            listener(json.loads(line))

    from tidemill.distributed import process_group
    from tidemill.interrupt import stop_at_ctrl_c

    arguments = [*to_command_line(run, **overrides), "--mode", mode]
    with process_group() as rank_arguments, stop_at_ctrl_c(stop) as stop_request:
        done = _native.train([*arguments, *rank_arguments], on_metrics, encoders, denoiser, stop_request)
    # Other ranks than the first have no result.
    return Result(json.loads(done) or {})


def load(run: RunFile, module: torch.nn.Module, ema: bool = True, **overrides: Any) -> int:
    """Loads the trained weights into `module`; returns their step.

    The weights are those of the run's last checkpoint, or of step `sample.step`. With `ema` it
    loads the averaged weights, if averaging had started.
    """
    return _native.load(*to_arguments(run, overrides), module, ema)


def sample(run: RunFile, **overrides: Any) -> Result:
    """Draws the images of the run's `[sample]` section."""
    return _call("sample", run, overrides)


def evaluate(run: RunFile, *flags: str, **overrides: Any) -> Result:
    """Judges the images of the run's newest checkpoint, as its `[eval]` section says.

    `flags` are those of the command line: `"--all"`, `"--watch"`, or `"--step"` and a number.
    """
    return _call("eval", run, overrides, *flags)


def export(
    run: RunFile,
    to: str | os.PathLike[str] | None = None,
    single_file: str | os.PathLike[str] | None = None,
    variant: Literal["f32", "fp16"] = "f32",
    **overrides: Any,
) -> Result:
    """Writes the trained model as a folder that diffusers can load, by default in the run's output.

    `to` may be a repository of the Hugging Face Hub, `hf://user/name`. `variant` is the dtype of the
    weights, `"fp16"` under the names of diffusers' `variant="fp16"`. With `single_file` it also writes
    all weights to one file in the layout of the first Stable Diffusion releases, for diffusers'
    `from_single_file` and other programs.
    """
    return _call("export", run, overrides, *_options(to=to, single_file=single_file, variant=variant))


def run(run: RunFile, mode: Mode = "offline", **overrides: Any) -> Result:
    """Runs preprocess, train, sample and export; only the mode "offline" preprocesses."""
    return _call("run", run, overrides, "--mode", mode)


def init(
    pairs: str | os.PathLike[str],
    output: str | os.PathLike[str] = "run.toml",
    models: str | os.PathLike[str] | None = None,
) -> Result:
    """Looks at the pairs in a folder or at a URI, and writes a first run file for them."""
    options = _options(output=output, models=models)
    return Result(json.loads(_native.call(["init", os.fspath(pairs), *options])))


def synth(to: str | os.PathLike[str], rows: int = 10_000, files: int = 4, seed: int = 0) -> Result:
    """Draws captioned scenes as Parquet files, the data of the quickstart."""
    numbers = {"rows": str(rows), "files": str(files), "seed": str(seed)}
    return Result(json.loads(_native.call(["synth", os.fspath(to), *_options(**numbers), "--quiet"])))


def inspect(
    path: str | os.PathLike[str],
    unused: Literal["rejected", "quarantined"] | None = None,
    limit: int = 100,
) -> Result:
    """Describes the content of a dataset or a Parquet source.

    With `unused`, `"list"` has up to `limit` rows of a dataset that are not used, and why.
    """
    options = [] if unused is None else _options(list=unused, limit=str(limit))
    return Result(json.loads(_native.call(["inspect", os.fspath(path), *options, "--quiet"])))


def contact_sheet(run: RunFile, to: str | os.PathLike[str], seed: int = 0, **overrides: Any) -> Result:
    """Draws random rows of the run's source, as training sees them, into a PNG file."""
    done = _call("inspect", run, overrides, *_options(sheet=to, seed=str(seed)), "--quiet")
    return Result(verb="contact sheet", sheet=done["sheet"])


def plan(
    run: RunFile,
    cluster: str | os.PathLike[str] | None = None,
    rates: str | os.PathLike[str] | None = None,
    plot: str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> Result:
    """Says what the run takes in each mode: throughput, hours, cost, memory.

    `cluster` is a file with the machines, `rates` one with measured rates, or the output of a run. `plot`
    is the path of charts without extension.
    """
    return _call("plan", run, overrides, *_options(cluster=cluster, rates=rates, plot=plot), "--quiet")


def report(run: str | os.PathLike[str]) -> Result:
    """Draws the report of a run's output folder, one HTML file."""
    return Result(json.loads(_native.call(["report", os.fspath(run)])))


class Prepare:
    """Turns image files and captions into pixels and token ids.

    It decodes, filters, crops, resizes and tokenises.
    """

    def __init__(self, run: RunFile, **overrides: Any) -> None:
        self._stage = _native.Prepare(*to_arguments(run, overrides))

    def __call__(self, batch: Any) -> Any:
        """Takes anything with `__arrow_c_array__` or `__arrow_c_stream__`.

        Returns a RecordBatch or Table.
        """
        return self._stage(batch)


class Encode:
    """Turns the output of `Prepare` into latent moments and text embeddings.

    It runs the frozen VAE and text encoder. Afterwards mimalloc allocates this process's tensors on
    the CPU; it keeps freed memory for reuse.
    """

    def __init__(self, run: RunFile, **overrides: Any) -> None:
        self._stage = _native.Encode(*to_arguments(run, overrides))

    def __call__(self, batch: Any) -> Any:
        """Takes anything with `__arrow_c_array__` or `__arrow_c_stream__`.

        Returns a RecordBatch or Table.
        """
        return self._stage(batch)


def _options(**options: str | os.PathLike[str] | None) -> list[str]:
    """Options of the command line, without those that are None."""
    given = {name: os.fspath(value) for name, value in options.items() if value is not None}
    return [text for name, value in given.items() for text in (f"--{name.replace('_', '-')}", value)]


def _call(verb: str, run: RunFile, overrides: Mapping[str, Any], *flags: str) -> Result:
    return Result(json.loads(_native.call([verb, *to_command_line(run, **overrides), *flags])))

"""Tidemill: Stable Diffusion pre-training in Rust.

The verbs of the command line are functions that return their result as a dict; the two stages of the data
pipeline are callables over Arrow record batches and tables; the training stream is an iterator.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch  # noqa: F401  # loads the libtorch that the native module links against

from tidemill import _native
from tidemill._native import InputError, TidemillError
from tidemill.distributed import process_group
from tidemill.stream import Stream, StreamDataset

__all__ = [
    "Encode",
    "InputError",
    "Prepare",
    "Stream",
    "StreamDataset",
    "TidemillError",
    "dedup",
    "export",
    "inspect",
    "main",
    "preprocess",
    "run",
    "sample",
    "train",
]

RunFile: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any]"
"""A run file's path, or its content as nested mappings."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line (without the program's name) as the binary does; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb = next((argument for argument in arguments if not argument.startswith("-")), None)
    # Where a verb starts workers, they run in the same Python.
    os.environ.setdefault("TIDEMILL_PYTHON", sys.executable)
    if verb != "train":
        return _native.main(["tidemill", *arguments])
    with process_group() as place:
        return _native.main(["tidemill", *arguments, *place])


def preprocess(run: RunFile, **overrides: Any) -> dict[str, Any]:
    """Turns image-caption pairs into a latent dataset."""
    return _call("preprocess", run, overrides)


def dedup(run: RunFile, **overrides: Any) -> dict[str, Any]:
    """Finds the duplicates among the rows of the run's latent dataset, and writes them as a mask."""
    return _call("dedup", run, overrides)


def train(run: RunFile, **overrides: Any) -> dict[str, Any]:
    """Trains the U-Net on the run's latent dataset, from its last checkpoint or from the start.

    Of several processes (torchrun's, or Ray Train's workers) each calls it.
    """
    with process_group() as place:
        return _call("train", run, overrides, place)


def sample(run: RunFile, **overrides: Any) -> dict[str, Any]:
    """Draws the pictures of the run's `[sample]` section."""
    return _call("sample", run, overrides)


def export(run: RunFile, **overrides: Any) -> dict[str, Any]:
    """Writes the trained model as a folder that diffusers opens."""
    return _call("export", run, overrides)


def run(run: RunFile, **overrides: Any) -> dict[str, Any]:
    """Does all of it: preprocess, train, sample, export."""
    return _call("run", run, overrides)


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Says what a dataset or a Parquet source holds."""
    return json.loads(_native.call(["inspect", os.fspath(path)]))


class Prepare:
    """Decodes, filters, crops, resizes, tokenises: image files and captions in, pixels and token ids out."""

    def __init__(self, run: RunFile, **overrides: Any) -> None:
        self._stage = _native.Prepare(*_run_file(run, overrides))

    def __call__(self, batch: Any) -> Any:
        """Takes anything with `__arrow_c_array__` or `__arrow_c_stream__`; gives a RecordBatch or Table."""
        return self._stage(batch)


class Encode:
    """Runs the frozen VAE and text encoder on what `Prepare` gave: latent moments and text embeddings out."""

    def __init__(self, run: RunFile, **overrides: Any) -> None:
        self._stage = _native.Encode(*_run_file(run, overrides))

    def __call__(self, batch: Any) -> Any:
        """Takes anything with `__arrow_c_array__` or `__arrow_c_stream__`; gives a RecordBatch or Table."""
        return self._stage(batch)


def _call(verb: str, run: RunFile, overrides: Mapping[str, Any], more: Sequence[str] = ()) -> dict[str, Any]:
    path, settings = _run_file(run, overrides)
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    return json.loads(_native.call([verb, path, *arguments, *more]))


def _run_file(run: RunFile, overrides: Mapping[str, Any]) -> tuple[str, list[str]]:
    """A run file's path and `section.key=value` overrides; a mapping is an empty file with overrides."""
    if isinstance(run, Mapping):
        return os.devnull, [*_settings(run), *_settings(overrides)]
    return os.fspath(run), list(_settings(overrides))


def _settings(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        # `engine={"device": "cpu"}` and `**{"engine.device": "cpu"}` mean the same.
        name = prefix + key
        if isinstance(value, Mapping):
            yield from _settings(value, name + ".")
        else:
            yield f"{name}={_toml(value)}"


def _toml(value: Any) -> str:
    """A value as TOML, which writes strings, numbers and booleans as JSON does, but not tables."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(os.fspath(value) if isinstance(value, os.PathLike) else value)

"""What Python takes for a run file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, Union

from tidemill import _native


@dataclass(frozen=True)
class ResolvedRun:
    """A run file that means the same wherever it is read; `resolve` gives it."""

    text: str
    """All of it, as JSON."""

    def __getitem__(self, section: str) -> Any:
        """A section, or a key outside of any."""
        return json.loads(self.text)[section]


RunFile: TypeAlias = Union[str, "os.PathLike[str]", Mapping[str, Any], ResolvedRun]
"""A run file's path, its content as nested mappings, or what `resolve` gave."""


def resolve(run: RunFile, **overrides: Any) -> ResolvedRun:
    """The run file in full, with absolute paths: for processes in other folders or on other machines."""
    return ResolvedRun(_native.portable(*arguments_of(run, overrides)))


def arguments_of(run: RunFile, overrides: Mapping[str, Any]) -> tuple[str, list[str]]:
    """A run file's path and `section.key=value` overrides, of an empty file if there is no path."""
    if isinstance(run, ResolvedRun):
        sections = json.loads(run.text)
        return os.devnull, [*(f"{key}={_toml(sections[key])}" for key in sections), *_settings(overrides)]
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

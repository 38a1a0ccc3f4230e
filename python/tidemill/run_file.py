"""What Python takes for a run file."""

from __future__ import annotations

import json
import math
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
"""A run file's path, its content as nested mappings, or what `resolve` gave.

In mappings, and in the overrides that every function takes, None is a key that is left out: as an override it
changes nothing. An empty mapping is the empty table, so `{"train": {"ema": {}}}` switches averaging on.
"""


def resolve(run: RunFile, **overrides: Any) -> ResolvedRun:
    """The run file in full, with absolute paths: for processes in other folders or on other machines."""
    return ResolvedRun(_native.portable(*arguments_of(run, overrides)))


def arguments_of(run: RunFile, overrides: Mapping[str, Any]) -> tuple[str, list[str]]:
    """A run file's path and `section.key=value` overrides, of an empty file if there is no path."""
    if isinstance(run, ResolvedRun):
        sections = json.loads(run.text, object_hook=_without_null)
        return os.devnull, [*(f"{key}={_toml(sections[key])}" for key in sections), *_settings(overrides)]
    if isinstance(run, Mapping):
        return os.devnull, [*_settings(run), *_settings(overrides)]
    return os.fspath(run), list(_settings(overrides))


def command_line_of(run: RunFile, **overrides: Any) -> list[str]:
    """The same as a verb of the command line takes them."""
    path, settings = arguments_of(run, overrides)
    return [path, *(argument for setting in settings for argument in ("--set", setting))]


def _without_null(table: dict[str, Any]) -> dict[str, Any]:
    """Refuses null, which is what the native side's JSON makes of infinity, and no key that is left out."""
    for key, value in table.items():
        if value is None:
            raise _native.InputError(f"{key}: a number that is not finite cannot be handed on; give another")
    return table


def _settings(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        # `engine={"device": "cpu"}` and `**{"engine.device": "cpu"}` mean the same.
        name = prefix + key
        if isinstance(value, Mapping):
            # A table that is there means something even if it sets nothing.
            yield from list(_settings(value, name + ".")) or [f"{name}={{}}"]
        elif value is not None:
            yield f"{name}={_toml(value)}"


def _toml(value: Any) -> str:
    """A value as TOML, which writes most strings and numbers, and booleans, as JSON does, but not tables."""
    if isinstance(value, Mapping):
        items = (f"{_string(k)} = {_toml(v)}" for k, v in value.items() if v is not None)
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if value is None:
        # Without it, what comes after would move up.
        raise _native.InputError("a list in a run file cannot hold None; leave it out")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (str, os.PathLike)):
        return _string(os.fspath(value))
    return json.dumps(value)


def _string(text: str) -> str:
    """A string as TOML, which knows no surrogates and takes DEL only escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

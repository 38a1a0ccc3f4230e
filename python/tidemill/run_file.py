"""Run files in Python: paths, mappings with overrides, and resolved run files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, Union

from tidemill._native import InputError, portable
from tidemill.display import escape, to_shorter_path, to_table


@dataclass(frozen=True, repr=False)
class ResolvedRun:
    """A run file with all its keys and absolute paths, as `resolve` returns it.

    It means the same wherever it is read.
    """

    text: str
    """The whole run file as JSON."""

    def __getitem__(self, section: str) -> Any:
        """A section, or a top-level key."""
        return json.loads(self.text)[section]

    def __repr__(self) -> str:
        """The most important keys."""
        return f"ResolvedRun({', '.join(f'{key}={value!r}' for key, value in self._summary().items())})"

    def _repr_html_(self) -> str:
        return to_table("run", [(key, escape(value)) for key, value in self._summary().items()])

    def _source(self) -> list[str]:
        uris = self["source"]["uri"]
        return [to_shorter_path(uri) for uri in ([uris] if isinstance(uris, str) else uris)]

    def _summary(self) -> dict[str, Any]:
        phases = [f"{phase['steps']} steps at {phase['resolution']} px" for phase in self["train"]["phase"]]
        return {
            "name": self["name"],
            "output": to_shorter_path(self["output"]),
            "source": self._source(),
            "models": to_shorter_path(self["models"]["path"]),
            "global_batch": self["train"]["global_batch"],
            "phases": ", then ".join(phases),
        }


RunFile: TypeAlias = Union[str, "os.PathLike[str]", Mapping[str, Any], ResolvedRun]
"""A run file: its path, its content as nested mappings, or the result of `resolve`.

In mappings, and in the overrides that every function takes, a key with the value None is left out:
such an override changes nothing. An empty mapping is an empty table, so `{"train": {"ema": {}}}`
enables averaging.
"""


def resolve(run: RunFile, **overrides: Any) -> ResolvedRun:
    """The run file in full, with absolute paths.

    It is for processes in other folders or on other machines.
    """
    return ResolvedRun(portable(*to_arguments(run, overrides)))


def to_arguments(run: RunFile, overrides: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The path and the `section.key=value` overrides of a run file.

    Without a path, those of an empty file.
    """
    if isinstance(run, ResolvedRun):
        sections = json.loads(run.text, object_hook=_refuse_null)
        settings = (f"{key}={_to_toml(sections[key])}" for key in sections)
        return os.devnull, [*settings, *_flatten(overrides)]
    if isinstance(run, Mapping):
        return os.devnull, [*_flatten(run), *_flatten(overrides)]
    return os.fspath(run), list(_flatten(overrides))


def to_command_line(run: RunFile, **overrides: Any) -> list[str]:
    """The run file and overrides as arguments of a verb on the command line."""
    path, settings = to_arguments(run, overrides)
    return [path, *(argument for setting in settings for argument in ("--set", setting))]


def _refuse_null(table: dict[str, Any]) -> dict[str, Any]:
    """Refuses null values.

    The native side writes infinity and NaN as null, and leaves out keys without a value.
    """
    for key, value in table.items():
        if value is None:
            raise InputError(f"{key}: a number that is not finite cannot be passed on; set a finite one")
    return table


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Nested mappings as `section.key=value` settings."""
    for key, value in values.items():
        # `engine={"device": "cpu"}` and `**{"engine.device": "cpu"}` mean the same.
        name = prefix + key
        if isinstance(value, Mapping):
            # The presence of a table means something even if it has no keys.
            yield from list(_flatten(value, name + ".")) or [f"{name}={{}}"]
        elif value is not None:
            yield f"{name}={_to_toml(value)}"


def _to_toml(value: Any) -> str:
    """A value as TOML.

    Most strings, numbers and booleans are written as in JSON; tables are not.
    """
    if isinstance(value, Mapping):
        items = (f"{_to_toml_string(k)} = {_to_toml(v)}" for k, v in value.items() if v is not None)
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_to_toml, value)) + "]"
    if value is None:
        # Leaving it out would shift the elements after it.
        raise InputError("a list in a run file cannot hold None; leave it out")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (str, os.PathLike)):
        return _to_toml_string(os.fspath(value))
    return json.dumps(value)


def _to_toml_string(text: str) -> str:
    """A string as TOML, which forbids surrogates and allows DEL only escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

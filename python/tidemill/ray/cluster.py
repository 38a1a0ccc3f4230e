"""The cluster that a run file names in `[engine.ray]`, and the environment of its workers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import ray

import tidemill
from tidemill.run_file import ResolvedRun


def connect(run: ResolvedRun) -> None:
    """Starts Ray in this process, on the cluster that the run file names, unless it has been started."""
    if not ray.is_initialized():
        start(run["engine"]["ray"].get("address"))


def start(address: str | None, **options: Any) -> None:
    """Starts Ray in this process; without an address as Ray itself does."""
    try:
        ray.init(**({"address": address} if address else {}), **options)
    except (ConnectionError, ValueError) as error:
        where = f"engine.ray.address = {json.dumps(address)}" if address else "a Ray cluster"
        raise tidemill.InputError(f"{where}: {error}") from error


def with_env(run: ResolvedRun, runtime_env: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A runtime environment with the variables of the run file. One that it has itself stays as it is."""
    env, given = run["engine"]["ray"]["env"], dict(runtime_env or {})
    return {**given, "env_vars": {**env, **given.get("env_vars", {})}} if env else given


def remote_with_env(run: ResolvedRun, remote: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a stage of Ray Data, with the variables of the run file."""
    runtime_env = with_env(run, remote.get("runtime_env"))
    return {**remote, "runtime_env": runtime_env} if runtime_env else dict(remote)

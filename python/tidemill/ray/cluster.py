"""The cluster that a run file names in `[engine.ray]`, and the environment of its workers."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

import ray

import tidemill
from tidemill.run_file import ResolvedRun

# Seconds for which a cluster's address is tried, as its head node may be coming up; for which one try goes on
# where nothing answers; and between two of them.
PATIENCE_S = 10.0
TRY_S = 3.0
BETWEEN_S = 0.5


def connect(run: ResolvedRun) -> None:
    """Starts Ray in this process, on the cluster that the run file names, unless it has been started."""
    if not ray.is_initialized():
        start(run["engine"]["ray"].get("address"))


def start(address: str | None, **options: Any) -> None:
    """Starts Ray in this process; without an address as Ray itself does."""
    name, place = _named(address)
    try:
        if place:
            _reach(place)
        ray.init(**({"address": address} if address else {}), **options)
    except (ConnectionError, ValueError) as error:
        raise tidemill.InputError(f"{name}: {error}") from error


def _named(address: str | None) -> tuple[str, str | None]:
    """What to call the cluster, and the address that Ray takes: in place of two it has that of a variable."""
    variable = os.environ.get("RAY_ADDRESS")
    if variable and address in (None, "auto"):
        return f"RAY_ADDRESS={variable}", variable
    return f"engine.ray.address = {json.dumps(address)}" if address else "a Ray cluster", address


def _reach(address: str) -> None:
    """Waits until something answers at host:port, for a while: Ray itself tries for many minutes, in silence.

    Addresses of another form are left to Ray.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=TRY_S).close()
            return
        except (OSError, OverflowError) as error:
            if time.monotonic() >= end:
                raise ConnectionError(
                    f"nothing has answered there for {PATIENCE_S:.0f} s ({error}); see whether the head node "
                    "runs and this machine can reach it, or give the address that `ray start --head` shows"
                ) from error
        time.sleep(BETWEEN_S)


def with_env(run: ResolvedRun, runtime_env: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A runtime environment with the variables of the run file. One that it has itself stays as it is."""
    env, given = run["engine"]["ray"]["env"], dict(runtime_env or {})
    return {**given, "env_vars": {**env, **given.get("env_vars", {})}} if env else given


def remote_with_env(run: ResolvedRun, remote: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a stage of Ray Data, with the variables of the run file."""
    runtime_env = with_env(run, remote.get("runtime_env"))
    return {**remote, "runtime_env": runtime_env} if runtime_env else dict(remote)

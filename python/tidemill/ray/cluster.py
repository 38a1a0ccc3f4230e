"""Connects to the cluster of `[engine.ray]`, and passes its environment variables to the workers."""

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

# Seconds for which a cluster's address is tried, because its head node may still be starting; the
# timeout of one attempt; and the pause between two attempts.
CONNECT_TIMEOUT_S = 10.0
ATTEMPT_TIMEOUT_S = 3.0
RETRY_DELAY_S = 0.5


def connect(run: ResolvedRun) -> None:
    """Connects this process to the cluster of the run file, unless Ray has been started already."""
    if not ray.is_initialized():
        start_ray(run["engine"]["ray"].get("address"))


def start_ray(address: str | None, **options: Any) -> None:
    """Starts Ray in this process. Without an address Ray decides itself which cluster it joins.

    Raises `InputError` if there is no cluster at the address.
    """
    name, target = _resolve_address(address)
    try:
        if target:
            _wait_until_reachable(target)
        ray.init(**({"address": address} if address else {}), **options)
    except (ConnectionError, ValueError) as error:
        raise tidemill.InputError(f"{name}: {error}") from error


def _resolve_address(address: str | None) -> tuple[str, str | None]:
    """A name of the cluster for messages, and the address that Ray will use.

    For None and "auto" Ray uses RAY_ADDRESS if it is set.
    """
    variable = os.environ.get("RAY_ADDRESS")
    if variable and address in (None, "auto"):
        return f"RAY_ADDRESS={variable}", variable
    return f"engine.ray.address = {json.dumps(address)}" if address else "a Ray cluster", address


def _wait_until_reachable(address: str) -> None:
    """Waits a few seconds until host:port accepts a connection.

    Ray itself would try silently for many minutes. Addresses of another form are left to Ray.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ATTEMPT_TIMEOUT_S).close()
            return
        except (OSError, OverflowError) as error:
            if time.monotonic() >= deadline:
                raise ConnectionError(
                    f"nothing has answered there for {CONNECT_TIMEOUT_S:.0f} s ({error}); check that the "
                    "head node is running and that this machine can reach it, or use the address that "
                    "`ray start --head` prints"
                ) from error
        time.sleep(RETRY_DELAY_S)


def add_env_vars(run: ResolvedRun, runtime_env: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A runtime environment with the variables of the run file.

    Variables that it already has win.
    """
    env, given = run["engine"]["ray"]["env"], dict(runtime_env or {})
    return {**given, "env_vars": {**env, **given.get("env_vars", {})}} if env else given


def add_remote_env_vars(run: ResolvedRun, remote_args: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the run file's variables to the remote arguments of a Ray Data stage."""
    runtime_env = add_env_vars(run, remote_args.get("runtime_env"))
    return {**remote_args, "runtime_env": runtime_env} if runtime_env else dict(remote_args)

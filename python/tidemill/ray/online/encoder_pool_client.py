"""The trainers' side of the encoder pool."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayTaskError

import tidemill
from tidemill.ray.failure_causes import LOST_ERRORS


class EncoderPoolClient:
    """Asks an `EncoderPool` for encoded units.

    It implements `tidemill.Encoders` for `tidemill.train`.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._numbers = itertools.count()
        self._requests: dict[int, _Request] = {}
        self.is_pool_lost = False
        """The pool's actor has died, which is not the fault of this worker."""

    def want(self, unit: str, epoch: int, resolution: int) -> int:
        """Asks for the rows of a unit; returns a number for `take`."""
        number = next(self._numbers)
        self._send(number, (unit, epoch, resolution))
        return number

    def take(self, number: int) -> pa.Table | None:
        """The rows of a request, once; None if they do not arrive within about a second.

        If the rows are lost with their process or node, the unit is asked for again.
        """
        request = self._requests[number]
        try:
            if request.rows is None:
                request.rows = self._poll_rows(request.pool_reply)
            if request.rows is None or not ray.wait([request.rows], timeout=1)[0]:
                return None
            rows = ray.get(request.rows)
        except RayTaskError as error:
            is_own = isinstance(error.cause, (tidemill.InputError, tidemill.TidemillError))
            raise error.cause if is_own else error from None
        except LOST_ERRORS:
            self._send(number, request.arguments)
            return None
        del self._requests[number]
        return rows

    def _poll_rows(self, pool_reply: ray.ObjectRef) -> ray.ObjectRef | None:
        """The reference to the rows, if the pool has answered within a second."""
        if not ray.wait([pool_reply], timeout=1)[0]:
            return None
        try:
            [rows] = ray.get(pool_reply)
        except LOST_ERRORS as error:
            self.is_pool_lost = True
            raise tidemill.TidemillError(f"the encoder pool has died: {error}") from error
        return rows

    def _send(self, number: int, arguments: tuple[str, int, int]) -> None:
        self._requests[number] = _Request(arguments, self._pool.encode_unit.remote(*arguments))


@dataclass
class _Request:
    arguments: tuple[str, int, int]
    """Unit, epoch and resolution."""
    pool_reply: ray.ObjectRef
    rows: ray.ObjectRef | None = None

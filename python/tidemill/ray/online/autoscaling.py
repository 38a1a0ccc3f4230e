"""Autoscaling of the encoder pool.

It computes how many units to prepare ahead, and when to add or remove an encoder.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection

# Units that an encoder holds: the one that it encodes, and the next.
UNITS_PER_ENCODER = 2

# Units prepared at a time, as a multiple of the average that keeps the encoders busy, because times
# vary; and the upper limit for each encoder, however long preparing takes.
PREPARE_MARGIN = 1.25
MAX_PREPARING_PER_ENCODER = 32

# Weight of the newest unit in the running averages.
NEWEST_WEIGHT = 0.1

# Seconds over which utilisation is measured before an encoder is removed, and the highest
# utilisation that the remaining encoders may then have.
MEASURE_S = 30
MAX_UTILISATION = 0.95


class StageTimes:
    """Running averages of the seconds that preparing and encoding a unit take."""

    def __init__(self) -> None:
        self.prepare_s: float | None = None
        self.encode_s: float | None = None

    def add_prepare_time(self, seconds: float) -> None:
        """Adds the preparing time of a unit."""
        self.prepare_s = _update_mean(self.prepare_s, seconds)

    def add_encode_time(self, seconds: float) -> None:
        """Adds the encoding time of a unit."""
        self.encode_s = _update_mean(self.encode_s, seconds)

    def compute_prefetch(self, encoders: int) -> int:
        """How many units should be in preparation or ready while `encoders` encode others.

        One ready unit for each encoder, plus the average number in preparation if encoders never
        wait (Little's law: throughput times preparing time), with a margin.
        """
        preparing = 1.0
        if self.prepare_s is not None and self.encode_s is not None:
            preparing = min(
                PREPARE_MARGIN * self.prepare_s / max(self.encode_s, 1e-6), MAX_PREPARING_PER_ENCODER
            )
        return math.ceil((1 + preparing) * max(encoders, 1))


class Backlog:
    """Detects prepared units that wait because all encoders are busy, and not only for a moment."""

    def __init__(self) -> None:
        self._since: float | None = None

    def is_lasting(self, ready: int, units_per_encoder: Collection[int], min_seconds: float) -> bool:
        """Whether a backlog has lasted for `min_seconds`.

        There is a backlog if, after every encoder is filled up, one more of the `ready` units is
        left for each.
        """
        free_slots = sum(UNITS_PER_ENCODER - units for units in units_per_encoder)
        if ready - free_slots < max(1, len(units_per_encoder)):
            self._since = None
            return False
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since >= min_seconds


class Utilisation:
    """The average number of encoders that had units, since the pool changed or was last judged."""

    def __init__(self) -> None:
        self._busy = 0
        self.restart()

    def restart(self) -> None:
        """Begins a new measurement."""
        self._since = self._counted_until = time.monotonic()
        self._busy_seconds = 0.0

    def set_busy(self, encoders: int) -> None:
        """Records that from now on this many encoders have units."""
        now = time.monotonic()
        self._busy_seconds += self._busy * (now - self._counted_until)
        self._busy, self._counted_until = encoders, now

    def would_suffice(self, encoders: int) -> bool:
        """Whether this many encoders would have been enough.

        False while the measurement is too short.
        """
        if time.monotonic() - self._since < MEASURE_S:
            return False
        self.set_busy(self._busy)
        mean_busy = self._busy_seconds / (self._counted_until - self._since)
        self.restart()
        return mean_busy < MAX_UTILISATION * encoders


def _update_mean(mean: float | None, seconds: float) -> float:
    return seconds if mean is None else mean + NEWEST_WEIGHT * (seconds - mean)

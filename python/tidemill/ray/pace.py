"""How many units a `Feeder` prepares at a time, and how many encoders it has: by what units took so far."""

from __future__ import annotations

import math
import time
from collections.abc import Collection

# Units that each encoder has: the one that it encodes, and the next.
UNITS_EACH = 2

# So many times the units that keep encoders busy on average are prepared at a time, for their times differ;
# and no more than so many for each encoder, however long it takes.
SPARE = 1.25
MOST_EACH = 32

# What the last unit says, beside all before.
WEIGHT = 0.1

# Seconds after which an encoder that nobody needed is given back, and the share of their time for which the
# others may then have units.
IDLE_S = 30
FULL = 0.95


class Pace:
    """What preparing a unit and encoding it take, on average; the last ones count most."""

    def __init__(self) -> None:
        self.prepare_s: float | None = None
        self.encode_s: float | None = None

    def prepared(self, seconds: float) -> None:
        """A unit took so long."""
        self.prepare_s = _mean(self.prepare_s, seconds)

    def encoded(self, seconds: float) -> None:
        """A unit took so long."""
        self.encode_s = _mean(self.encode_s, seconds)

    def ahead(self, encoders: int) -> int:
        """Units to prepare, or to have ready, while so many encoders encode others.

        One lies ready for each; the others are as many as are being prepared, on average, if encoders never
        wait (Little's law), and some more.
        """
        each = 1.0
        if self.prepare_s is not None and self.encode_s is not None:
            each = min(SPARE * self.prepare_s / max(self.encode_s, 1e-6), MOST_EACH)
        return math.ceil((1 + each) * max(encoders, 1))


class Backlog:
    """Whether units that are ready find all encoders busy, and not for a moment only."""

    def __init__(self) -> None:
        self._since: float | None = None

    def lasts(self, ready: int, units: Collection[int], patience: float) -> bool:
        """Whether of `ready` units, once each encoder has all it may have, there is one more for each.

        That must have been so for `patience` seconds.
        """
        room = sum(UNITS_EACH - had for had in units)
        if ready - room < max(1, len(units)):
            self._since = None
            return False
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since >= patience


class Load:
    """How many encoders have had units, on average since the pool changed or was judged."""

    def __init__(self) -> None:
        self._busy = 0
        self.begin()

    def begin(self) -> None:
        """Forgets what was."""
        self._since = self._at = time.monotonic()
        self._seconds = 0.0

    def count(self, busy: int) -> None:
        """So many have units now."""
        now = time.monotonic()
        self._seconds += self._busy * (now - self._at)
        self._busy, self._at = busy, now

    def fits(self, encoders: int) -> bool:
        """Whether so many would have been enough, if there was time enough to say."""
        if time.monotonic() - self._since < IDLE_S:
            return False
        self.count(self._busy)
        mean = self._seconds / (self._at - self._since)
        self.begin()
        return mean < FULL * encoders


def _mean(before: float | None, seconds: float) -> float:
    return seconds if before is None else before + WEIGHT * (seconds - before)

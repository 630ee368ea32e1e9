"""The platform's time, as well as this machine can know it.

Deadlines and reports use the platform's clock: a host whose own clock is an hour off must still stop a job at the right
moment. The distance is learned from every answer; between answers time moves with the boot clock, which no one can set.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta


def iso(moment: datetime | None) -> str | None:
    """As the contract writes times: ``2026-01-02T03:04:05.678900Z``; None stays None."""
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def parse_time(text: str | None) -> datetime | None:
    """An aware UTC datetime, or None for None, for text that is no time and for Docker's zero time (year 1)."""
    if not text:
        return None
    head, dot, tail = text.partition(".")
    if dot:  # Docker writes nanoseconds; Python keeps microseconds
        digits = len(tail) - len(tail.lstrip("0123456789"))
        text = f"{head}.{tail[:digits][:6].ljust(6, '0')}{tail[digits:]}"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC) if moment.year > 1 else None


def boot_seconds() -> float:
    """Seconds since boot, time asleep included; falls back to the monotonic clock off Linux."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    except (AttributeError, OSError):
        return time.monotonic()


class Clock:
    """Tells the platform's time. Until the first answer it is this machine's time plus the offset known from before."""

    def __init__(self, offset_s: float = 0.0) -> None:
        self._lock = threading.Lock()
        self._offset_s = offset_s
        self._base: tuple[datetime, float] | None = None

    def learn(self, server_time: datetime, *, sent: float, received: float) -> None:
        """Take in one answer: `sent` and `received` are boot seconds around the request. Slow answers teach nothing."""
        if received - sent > 5 and self._base is not None:
            return
        moment = server_time + timedelta(seconds=min(received - sent, 5) / 2)
        with self._lock:
            self._base = (moment, received)
            age = boot_seconds() - received
            self._offset_s = (moment + timedelta(seconds=age) - datetime.now(UTC)).total_seconds()

    def now(self) -> datetime:
        with self._lock:
            if self._base is None:
                return datetime.now(UTC) + timedelta(seconds=self._offset_s)
            moment, received = self._base
            return moment + timedelta(seconds=boot_seconds() - received)

    @property
    def offset_s(self) -> float:
        """Platform time minus this machine's time, seconds."""
        return self._offset_s

    def from_local(self, moment: datetime | None) -> datetime | None:
        """A time by this machine's clock (a container's start) in platform time."""
        return None if moment is None else moment + timedelta(seconds=self._offset_s)

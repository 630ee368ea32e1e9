"""Time: UTC in storage, zones at the edges, business days by the calendar of the rail that pays.

>>> first_business_day(2026, 8, calendar="FED")
datetime.date(2026, 8, 3)
>>> first_business_day(2026, 5, calendar="ECB")
datetime.date(2026, 5, 4)
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Literal
from zoneinfo import ZoneInfo, available_timezones

import holidays

Calendar = Literal["FED", "ECB"]


@cache
def _closed(calendar: Calendar) -> holidays.HolidayBase:
    # The Federal Reserve's and TARGET's own calendars: a country's public holidays are not its banks'.
    return holidays.financial_holidays(calendar)


def is_business_day(day: date, *, calendar: Calendar) -> bool:
    return day.weekday() < 5 and day not in _closed(calendar)


def next_business_day(day: date, *, calendar: Calendar) -> date:
    """``day`` itself if the calendar's banks are open on it, else the first later day they are."""
    while not is_business_day(day, calendar=calendar):
        day += timedelta(days=1)
    return day


def first_business_day(year: int, month: int, *, calendar: Calendar) -> date:
    return next_business_day(date(year, month, 1), calendar=calendar)


def add_business_days(start: datetime, days: int, *, calendar: Calendar = "FED") -> datetime:
    """``days`` business days after ``start``, at the same time of day in UTC. Used for review deadlines."""
    day = start.astimezone(UTC).date()
    for _ in range(days):
        day = next_business_day(day + timedelta(days=1), calendar=calendar)
    return datetime.combine(day, start.astimezone(UTC).timetz())


def whole_seconds(start: datetime, end: datetime) -> int:
    """Whole seconds from ``start`` to ``end``, never negative. Both aware: the subtraction is done in UTC."""
    return max(0, int((end.astimezone(UTC) - start.astimezone(UTC)).total_seconds()))


def iso_z(at: datetime | None) -> str | None:
    """ISO 8601 with ``Z``, microseconds cut to milliseconds; None stays None."""
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@cache
def zone_names() -> tuple[str, ...]:
    """The IANA zones a person may choose, in alphabetical order; read from disk once."""
    return tuple(sorted(available_timezones()))


def zone(name: str) -> ZoneInfo:
    """The IANA zone. Raises ValueError for a name that is none (``ZoneInfo`` alone would open odd paths)."""
    if name not in zone_names():
        raise ValueError(f"no IANA time zone is called {name!r}")
    return ZoneInfo(name)


def day_start(day: date, where: ZoneInfo) -> datetime:
    """The first moment of ``day`` in a zone, in UTC. Where the clock skips midnight that is the moment of the skip.

    >>> day_start(date(2026, 3, 29), ZoneInfo("Europe/Berlin")), day_start(date(2026, 3, 30), ZoneInfo("Europe/Berlin"))
    (datetime.datetime(2026, 3, 28, 23, 0, tzinfo=datetime.timezone.utc), datetime.datetime(2026, 3, 29, 22, 0, tzinfo=datetime.timezone.utc))
    """
    midnight = datetime.combine(day, datetime.min.time(), where)
    at = midnight.astimezone(UTC)
    if at.astimezone(where).replace(tzinfo=None) == midnight.replace(tzinfo=None):
        return at
    # Skipped: between the two readings of a time that never was, the clock jumps once.
    before = midnight.replace(fold=1).astimezone(UTC)
    low, high = int(before.timestamp()), int(at.timestamp())
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, where).date() >= day:
            high = middle
        else:
            low = middle
    return datetime.fromtimestamp(high, UTC)


def days_between(start: datetime, end: datetime, where: ZoneInfo) -> Iterator[tuple[date, datetime, datetime]]:
    """``[start, end)`` cut at the midnights of a zone: each day with the part of it that lies within, half-open, oldest first.

    A day has 23, 24 or 25 hours, or whatever its clocks made of it; one that a zone skipped whole does not come.
    """
    day = start.astimezone(where).date()
    while start < end:
        following = min(end, day_start(day + timedelta(days=1), where))
        if following > start:
            yield day, start, following
            start = following
        day += timedelta(days=1)

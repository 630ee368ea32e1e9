"""Time: UTC in storage, zones at the edges, business days by the calendar of the rail that pays.

>>> first_business_day(2026, 8, calendar="FED")
datetime.date(2026, 8, 3)
>>> first_business_day(2026, 5, calendar="ECB")
datetime.date(2026, 5, 4)
"""

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

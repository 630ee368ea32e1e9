"""Declared hours: when a provider says that a machine's GPUs are there to be rented.

A schedule is a list of versions, each in force until the next one. A version is "always" or weekly windows of wall-clock
time in the provider's zone (``providers.weeks``). Wall-clock time is turned into UTC day by day, so a window keeps its
local hours over a change of the clocks: where an hour is skipped the window is shorter, where one is repeated it is longer
(it opens at the first of two equal times and closes at the second).

A window from 22:00 to 06:00 in Berlin, over the night of 29 March 2026, in which 02:00 becomes 03:00:

>>> from datetime import UTC, datetime
>>> nights = Hours(zone=zone("Europe/Berlin"), windows=[[day, "22:00", "06:00"] for day in range(7)])
>>> for start, end in nights.spans(datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 3, 30, 12, tzinfo=UTC)):
...     print(start.strftime("%d %H:%M"), end.strftime("%d %H:%M"), end - start)
28 21:00 29 04:00 7:00:00
29 20:00 30 04:00 8:00:00
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from gpunex.kit.spans import Span, common, merged
from gpunex.kit.time import zone
from providers import maintenance
from providers.models import ApplicationEntry, Machine, Schedule
from providers.weeks import DAY, span

HORIZON = timedelta(days=8)  # a week and the longest window: every weekly pattern shows its next edge in it


@dataclass(frozen=True)
class Hours:
    """One version without its time in force. ``windows`` None is always."""

    zone: ZoneInfo
    windows: Sequence[Any] | None = None

    def spans(self, start: datetime, end: datetime) -> list[Span]:
        """The declared stretches between ``start`` and ``end``, in UTC and cut to them."""
        if self.windows is None:
            return merged([(start, end)])
        found = []
        weekly = [span(window) for window in self.windows]
        # A day earlier, for the window that began yesterday and runs over midnight.
        day = start.astimezone(self.zone).date() - timedelta(days=1)
        last = end.astimezone(self.zone).date()
        while day <= last:
            for opens, closes in weekly:
                if opens // DAY == day.weekday():
                    minutes = opens % DAY
                    until = minutes + closes - opens
                    found.append((_utc(self.zone, day, minutes, fold=0), _utc(self.zone, day, until, fold=1)))
            day += timedelta(days=1)
        return common(found, [(start, end)])


@lru_cache(maxsize=100_000)  # scores ask for the same days of the same zones, machine after machine
def _utc(where: ZoneInfo, day: date, minutes: int, *, fold: int) -> datetime:
    """Wall-clock time as UTC. ``fold`` chooses among two equal ones; one that is skipped is the moment of the skip."""
    days, minutes = divmod(minutes, DAY)
    wall = datetime.combine(day + timedelta(days=days), time(minutes // 60, minutes % 60, fold=fold), tzinfo=where)
    at = wall.astimezone(UTC)
    if at.astimezone(where).replace(tzinfo=None) == wall.replace(tzinfo=None):
        return at
    at, later = (wall.replace(fold=fold).astimezone(UTC) for fold in (1, 0))
    before = at.astimezone(where).utcoffset()
    while at < later and at.astimezone(where).utcoffset() == before:
        at += timedelta(minutes=1)
    return at


class Version(Protocol):
    """A version of a schedule: a row, or what an export says of one."""

    @property
    def pk(self) -> Any: ...
    @property
    def effective_from(self) -> datetime: ...
    @property
    def timezone(self) -> str: ...
    @property
    def always(self) -> bool: ...
    @property
    def windows(self) -> Any: ...


def hours_of(schedule: Version) -> Hours:
    return Hours(zone=zone(schedule.timezone), windows=None if schedule.always else schedule.windows)


def declared(schedule: Schedule, at: datetime) -> bool:
    """Whether this version, if it is in force, declares ``at``."""
    return bool(hours_of(schedule).spans(at, at + timedelta(microseconds=1)))


def in_force(machine: Machine, at: datetime) -> Schedule | None:
    """The version that counts at ``at``; None before the first."""
    return Schedule.objects.filter(machine=machine, effective_from__lte=at).order_by("-effective_from", "-pk").first()


def declared_spans(versions: Sequence[Version], start: datetime, end: datetime) -> list[Span]:
    """What one machine's ``versions`` declare between ``start`` and ``end``, each while it was in force."""
    ordered = sorted(versions, key=lambda version: (version.effective_from, version.pk or 0))
    edges = (
        [version.effective_from for version in ordered] + [max(end, *(v.effective_from for v in ordered))]
        if ordered
        else []
    )
    found: list[Span] = []
    for version, (begins, ends) in zip(ordered, pairwise(edges), strict=True):
        first, last = max(begins, start), min(ends, end)
        if first < last:
            found += hours_of(version).spans(first, last)
    return merged(found)


def window_around(machine: Machine, at: datetime) -> tuple[datetime | None, datetime | None]:
    """When ``machine`` is offered, as its schedule tells: ``(from, until)``.

    Within declared hours: since when and until when, None where no edge is within eight days. Outside: the next window's
    start (after ``at``) and end. Nothing declared in the next eight days: from the end of these, to be asked again. Planned
    maintenance ends the window early, and while it runs the machine is offered from its end.
    """
    opens, closes = edges(list(machine.schedules.all()), at)
    planned = maintenance.of(machine, at)
    if maintenance.begun(planned, at):
        assert planned is not None
        return planned.ends_at, None
    return opens, maintenance.cut(closes, planned)


def edges(versions: Sequence[Schedule], at: datetime) -> tuple[datetime | None, datetime | None]:
    """``window_around`` for versions that are at hand."""
    first, last = at - HORIZON, at + HORIZON
    for start, end in declared_spans(versions, first, last):
        if end > at:
            return (start if start > first else None), (end if end < last else None)
    return last, None


def first_version(*, machine: Machine, entry: ApplicationEntry | None, at: datetime) -> Schedule:
    """The hours that the approved entry declares; always, in UTC, where there is no entry."""
    return Schedule.objects.create(
        machine=machine,
        effective_from=at,
        timezone=entry.timezone if entry else "UTC",
        always=entry.always_available if entry else True,
        windows=entry.windows if entry and not entry.always_available else [],
        created_at=at,
    )

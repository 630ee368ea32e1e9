"""Days of uptime: how a machine kept its declared hours, day by day in UTC.

``of`` cuts the days of one machine out of its events, with the reasons; pages of one machine show these. Lists of many
machines read ``bars_of``: rows that a sweep keeps (``keep_up``), today's and yesterday's again and again, all of them where
something about the past was found out since.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import batched
from typing import Any

from django.db import connection

from gpunex.kit.spans import Span
from reliability import uptime
from reliability.losses import Piece, Sifted
from reliability.models import DailyUptime
from reliability.score import DAY, HOUR, micros, moment

DAYS = 90
FULL = 0.999  # a heartbeat's width short of a day is still a day in full
CHUNK = 500
RECENT = timedelta(hours=2)


@dataclass(frozen=True, slots=True)
class Day:
    """One UTC day, all cards together: ``state`` as ``svg.days`` draws it, hours as a card's mean, reasons with theirs."""

    day: date
    state: str
    declared_hours: float
    available_hours: float
    missing: tuple[tuple[str, float], ...] = ()
    excused: tuple[tuple[str, float], ...] = ()


def of(sifted: Sifted, at: datetime, count: int = DAYS) -> list[Day]:
    """The last ``count`` UTC days up to today, which is judged by what has passed of it, oldest first."""
    last = micros(at) // DAY
    first = last - count + 1
    cards = max(1, len(sifted.indexes))
    declared, kept = _by_day(sifted.declared.values()), _by_day(sifted.kept.values())
    missing, excused = _reasons(sifted.missing), _reasons(sifted.excused)
    found = []
    for number in range(first, last + 1):
        lost, free = missing.get(number, {}), excused.get(number, {})
        all_, good = declared.get(number, 0), kept.get(number, 0)
        found.append(
            Day(
                day=moment(number * DAY).date(),
                state=state_of(all_, sum(free.values()), good),
                declared_hours=all_ / HOUR / cards,
                available_hours=good / HOUR / cards,
                missing=_listed(lost, cards),
                excused=_listed(free, cards),
            )
        )
    return found


def state_of(declared: float, excused: float, available: float) -> str:
    """A day as it is drawn: ok, part (interrupted), down, excused (only excused time is missing), none (not declared).

    >>> state_of(24, 0, 24), state_of(24, 0, 12), state_of(24, 0, 0), state_of(24, 2, 22), state_of(24, 24, 0), state_of(0, 0, 0)
    ('ok', 'part', 'down', 'excused', 'excused', 'none')
    """
    if declared <= 0:
        return "none"
    owed = declared - excused
    if owed <= declared * (1 - FULL):
        return "excused"
    share = available / owed
    if share >= FULL:
        return "excused" if excused > declared * (1 - FULL) else "ok"
    return "part" if share > 1 - FULL else "down"


def _listed(reasons: dict[str, int], cards: int) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(((code, us / HOUR / cards) for code, us in reasons.items()), key=lambda each: -each[1]))


def _by_day(lists: Iterable[Iterable[Span]]) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    for spans in lists:
        for number, length in _cut_by_day(spans):
            found[number] += length
    return found


def _reasons(pieces: Iterable[Piece]) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for piece in pieces:
        for number, length in _cut_by_day(piece.spans):
            found[number][piece.code] += length
    return found


def _cut_by_day(spans: Iterable[Span]) -> Iterator[tuple[int, int]]:
    """Each stretch cut at the midnights of UTC: the day's number since 1970, and how long, in microseconds."""
    for start, end in spans:
        begin, until = micros(start), micros(end)
        while begin < until:
            following = min(until, (begin // DAY + 1) * DAY)
            yield begin // DAY, following - begin
            begin = following


# --- kept for lists --------------------------------------------------------------------------------------------------


def bars_of(machines: Iterable[Any], *, at: datetime, count: int = DAYS) -> dict[int, list[str]]:
    """The states of the last ``count`` days of each machine, by its key, oldest first, in one query; as last kept."""
    keys = [machine if isinstance(machine, int) else machine.pk for machine in machines]
    first = _midnight(at).date() - timedelta(days=count - 1)
    rows = DailyUptime.objects.filter(machine__in=keys, day__gte=first)
    states: dict[int, dict[date, str]] = defaultdict(dict)
    for machine, day, declared, excused, available in rows.values_list(
        "machine_id", "day", "declared_s", "excused_s", "available_s"
    ):
        states[machine][day] = state_of(declared, excused, available)
    wanted = [first + timedelta(days=number) for number in range(count)]
    return {key: [states[key].get(day, "none") for day in wanted] for key in keys}


def keep_up(*, at: datetime) -> int:
    """Today and yesterday of every live machine, and all days of those whose past changed or is not kept yet. Rows written."""
    whole = _to_be_read_again(at)
    every = _live()
    return sum(
        [
            *(_keep(chunk, at=at, count=DAYS) for chunk in batched(sorted(whole), CHUNK)),
            *(_keep(chunk, at=at, count=2) for chunk in batched([key for key in every if key not in whole], CHUNK)),
        ]
    )


def _keep(machines: Sequence[int], *, at: datetime, count: int) -> int:
    found = uptime.days_of(machines, since=_midnight(at) - timedelta(days=count - 1), at=at)
    rows = [
        DailyUptime(
            machine_id=machine,
            day=day.day.date(),
            declared_s=day.declared_s,
            excused_s=day.excused_s,
            available_s=day.available_s,
        )
        for machine, days in found.items()
        for day in days
    ]
    DailyUptime.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["machine", "day"],
        update_fields=["declared_s", "excused_s", "available_s"],
    )
    return len(rows)


def _live() -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM providers_machine WHERE retired_at IS NULL ORDER BY id")
        return [key for (key,) in cursor.fetchall()]


def _to_be_read_again(at: datetime) -> set[int]:
    """Machines without a row, and those of which something about an earlier day was found out not long ago."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT id FROM providers_machine machine WHERE retired_at IS NULL AND (
                NOT EXISTS (SELECT FROM reliability_dailyuptime day WHERE day.machine_id = machine.id)
                OR EXISTS (
                    SELECT FROM reliability_excuse excuse WHERE excuse.machine_id = machine.id
                        AND excuse.recorded_at > %(since)s AND excuse.started_at < %(yesterday)s
                )
            )
            """,
            {"since": at - RECENT, "yesterday": _midnight(at) - timedelta(days=1)},
        )
        return {key for (key,) in cursor.fetchall()}


def _midnight(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)

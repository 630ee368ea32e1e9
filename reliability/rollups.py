"""Samples by the hour: one row a card and hour, made once the hour is over and again when late samples of it come.

Each step is one statement that writes what the samples say, whatever was there: twice or at once by two is once. A host
that was away sends up to a day of samples; ``LateHour`` names its hours, and only they are rolled up again.
"""

from datetime import UTC, datetime, timedelta

from django.db import connection, transaction
from django.db.models import Min

from reliability import partitions
from reliability.models import LateHour, Rollup, Sample
from reliability.telemetry import LATE, MEASURES

HOUR = timedelta(hours=1)
GRACE = LATE + timedelta(minutes=2)  # what came in time is committed by then
MOST_AT_ONCE = 500

_WELL = (
    "'gpu_idle', 'applications_clocks', 'sync_boost', 'display_clocks'"  # not the highest clocks, and nothing is wrong
)
_HEAT = "'sw_thermal_slowdown', 'hw_thermal_slowdown', 'hw_slowdown'"
_READINGS = [f"{name}_{part}" for name in MEASURES for part in ("least", "mean", "most")]
_COLUMNS = ("machine_id", "samples", *_READINGS, "held_back", "too_hot")
_ROLL = f"""
INSERT INTO reliability_samplehour (gpu_id, hour, {", ".join(_COLUMNS)})
SELECT s.gpu_id, date_trunc('hour', s.at, 'UTC'), max(s.machine_id), count(*),
    {", ".join(f"min(s.{column}), avg(s.{column}), max(s.{column})" for column in MEASURES.values())},
    avg((s.throttle_reasons - ARRAY[{_WELL}] <> '[]')::int), avg((s.throttle_reasons ?| ARRAY[{_HEAT}])::int)
FROM reliability_sample s {{where}}
GROUP BY 1, 2
ON CONFLICT (gpu_id, hour) DO UPDATE SET {", ".join(f"{column} = EXCLUDED.{column}" for column in _COLUMNS)}
"""  # noqa: S608
_ROLL_HOUR = _ROLL.format(where="WHERE s.at >= %s AND s.at < %s")
_ROLL_LATE = _ROLL.format(
    where="JOIN providers_gpu g ON g.id = s.gpu_id"
    " JOIN unnest(%s::bigint[], %s::timestamptz[]) AS late (machine_id, hour)"
    " ON late.machine_id = g.machine_id AND s.at >= late.hour AND s.at < late.hour + interval '1 hour'"
    " WHERE s.at >= %s AND s.at < %s"
)


def roll_up(*, at: datetime) -> dict[str, int]:
    """Roll up the hours that are over, then those whose samples came late. Returns how many hours and how many late ones."""
    return {"hours": _roll_hours(at), "late": _roll_late(at)}


def _roll_hours(at: datetime) -> int:
    end = _hour(at - GRACE)
    rolled = 0
    while _roll_next(end, at):
        rolled += 1
    return rolled


@transaction.atomic
def _roll_next(end: datetime, at: datetime) -> bool:
    """One hour in one transaction: a stop in the middle loses no other."""
    mark = Rollup.objects.select_for_update().filter(pk=1).first()
    if mark is None:
        first = Sample.objects.filter(at__gt=at - partitions.SAMPLES.keep).aggregate(at=Min("at"))["at"]
        mark = Rollup(pk=1, until=min(_hour(first or end), end))
    # What is no longer kept raw can't be rolled up.
    mark.until = max(mark.until, _hour(at - partitions.SAMPLES.keep))
    due = mark.until < end
    if due:
        partitions.make_for(partitions.HOURS, [mark.until])
        with connection.cursor() as cursor:
            cursor.execute(_ROLL_HOUR, [mark.until, mark.until + HOUR])
        mark.until += HOUR
    mark.save()
    return due


@transaction.atomic
def _roll_late(at: datetime) -> int:
    """A mark that comes while this runs waits for it, and stands again afterwards."""
    until = Rollup.objects.values_list("until", flat=True).first()
    if until is None:
        return 0
    waiting = LateHour.objects.filter(hour__lt=until).order_by("hour", "pk")[:MOST_AT_ONCE]
    rows = list(waiting.select_for_update(skip_locked=True).values_list("pk", "machine_id", "hour"))
    if not rows:
        return 0
    LateHour.objects.filter(pk__in=[pk for pk, _machine, _at in rows]).delete()
    hours = [hour for _pk, _machine, hour in rows]
    partitions.make_for(partitions.HOURS, hours)
    with connection.cursor() as cursor:
        cursor.execute(_ROLL_LATE, [[machine for _pk, machine, _at in rows], hours, min(hours), max(hours) + HOUR])
    return len(rows)


def _hour(at: datetime) -> datetime:
    """
    >>> _hour(datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)).isoformat()
    '2026-12-31T23:00:00+00:00'
    """
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)

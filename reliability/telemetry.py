"""Telemetry: what the cards read, kept raw for a week by day and for 13 months by hour, and read again for charts.

Samples come late (a host keeps a day of them while it cannot reach us), twice, and by clocks that are off:

- ``keep`` writes all samples of many hosts in one statement; one that is there already stays as it is.
- Times are corrected by how far the sender's clock was off when it sent (``corrected``), then believed within bounds.
- An hour that was rolled up before its samples came is noted as late, and rolled up again (``reliability.rollups``).

Charts of an hour and a day read the raw samples, longer ones the hours; that of a week also, for the end that is not rolled
up yet, raw samples. All are cut into fewer than 200 bins in SQL: a bin without a sample is a hole, never a zero.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from django.db import IntegrityError, connection, transaction

from reliability import partitions
from reliability.models import Rollup, Sample

OLDEST = timedelta(hours=25)  # agents keep a day of samples for us
NEWEST = timedelta(minutes=5)  # a clock may be off by some
LATE = timedelta(minutes=3)  # an hour is over for so long, and its samples are late; it is rolled up a little later
NOISE = timedelta(seconds=2)  # the way here takes some time: below it a clock is not called wrong
_NO_PARTITION = "23514"  # check_violation: no partition of the relation has the row's time

READINGS: Mapping[str, str] = {
    "temperature_c": "float8", "power_w": "float8", "utilization_pct": "float8", "fan_pct": "float8", "memory_used_mib": "int",
    "memory_total_mib": "int", "sm_clock_mhz": "int", "memory_clock_mhz": "int", "throttle_reasons": "jsonb",
}  # fmt: skip

# The machine is known by its secret in the same statement: one that was revoked a moment ago writes nothing.
_KEEP = f"""
WITH posted AS (
    SELECT * FROM unnest(%s::int[], %s::uuid[], %s::text[], %s::timestamptz[]) AS p (n, public_id, secret_hash, at)
), heard AS (
    SELECT p.n, p.at AS received_at, m.id AS machine_id
    FROM posted p JOIN providers_machine m
    ON m.public_id = p.public_id AND m.secret_hash = p.secret_hash AND m.retired_at IS NULL
), fitting AS (
    SELECT heard.n, heard.received_at, heard.machine_id, g.id AS gpu_id, s.at, {", ".join(f"s.{name}" for name in READINGS)}
    FROM json_to_recordset(%s) AS s (n int, gpu_uuid text, at timestamptz, {", ".join(map(" ".join, READINGS.items()))})
    JOIN heard ON heard.n = s.n
    JOIN providers_gpu g ON g.machine_id = heard.machine_id AND g.uuid = s.gpu_uuid AND g.removed_at IS NULL
    WHERE s.at >= heard.received_at - %s AND s.at <= heard.received_at + %s
), kept AS (
    INSERT INTO reliability_sample (gpu_id, machine_id, at, {", ".join(READINGS)})
    SELECT gpu_id, machine_id, at, {", ".join(READINGS)} FROM fitting
    ON CONFLICT DO NOTHING
), late AS (
    INSERT INTO reliability_latehour (machine_id, hour)
    SELECT DISTINCT machine_id, date_trunc('hour', at, 'UTC') FROM fitting
    WHERE date_trunc('hour', at, 'UTC') + interval '1 hour' + %s <= received_at
    ON CONFLICT DO NOTHING
)
SELECT heard.n, count(fitting.n) FROM heard LEFT JOIN fitting ON fitting.n = heard.n GROUP BY heard.n
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class Post:
    """Samples of the protocol, validated, as one host sent them; ``at`` is when they came."""

    public_id: UUID
    secret_hash: str
    samples: Sequence[dict[str, Any]]
    at: datetime


def keep(posts: Sequence[Post]) -> list[int | None]:
    """Write all samples of these in one statement. For each, how many are kept now; None where the secret is no machine's.

    Left out: samples of no card of the machine's, older than a day, or from the future.
    """
    rows = [
        {**sample, "n": n, "at": sample["at"].isoformat(), "throttle_reasons": sample["throttle_reasons"] or []}
        for n, post in enumerate(posts)
        for sample in post.samples
    ]
    values = [
        list(range(len(posts))),
        [str(post.public_id) for post in posts],
        [post.secret_hash for post in posts],
        [post.at for post in posts],
        json.dumps(rows),
        OLDEST,
        NEWEST,
        LATE,
    ]
    try:
        kept = _keep(values)
    except IntegrityError as error:
        if getattr(error.__cause__, "pgcode", "") != _NO_PARTITION:
            raise
        partitions.make_for(partitions.SAMPLES, (sample["at"] for post in posts for sample in _near(post)))
        kept = _keep(values)
    return [kept.get(n) for n in range(len(posts))]


def _near(post: Post) -> Iterable[dict[str, Any]]:
    return (sample for sample in post.samples if post.at - OLDEST <= sample["at"] <= post.at + NEWEST)


@transaction.atomic
def _keep(values: list[Any]) -> dict[int, int]:
    with connection.cursor() as cursor:
        cursor.execute(_KEEP, values)
        return dict(cursor.fetchall())


def corrected(times: datetime, *, sent_at: datetime | None, received_at: datetime) -> datetime:
    """A time by the sender's clock, in ours. ``sent_at``: what that clock said when it sent; unknown corrects nothing.

    >>> noon = datetime(2026, 10, 14, 12, tzinfo=UTC)
    >>> hour = timedelta(hours=1)
    >>> corrected(noon + hour, sent_at=noon + hour + NOISE, received_at=noon + NOISE).hour  # a clock an hour ahead
    12
    >>> corrected(noon, sent_at=noon, received_at=noon + NOISE) == noon  # two seconds on the way
    True
    """
    if sent_at is None or abs(received_at - sent_at) <= NOISE:
        return times
    try:
        return times + (received_at - sent_at)
    except OverflowError:  # the year 1 or 9999: as far from now as before
        return times


def last_samples(gpus: Sequence[int]) -> dict[int, Sample]:
    """The newest sample of each of these cards, by their keys: one step down an index for each."""
    newest = Sample.objects.raw(
        "SELECT s.* FROM unnest(%s::bigint[]) AS g (id) CROSS JOIN LATERAL"
        " (SELECT * FROM reliability_sample WHERE gpu_id = g.id ORDER BY at DESC LIMIT 1) s",
        [list(gpus)],
    )
    return {sample.gpu_id: sample for sample in newest}


# --- charts ----------------------------------------------------------------------------------------------------------

MEASURES = {
    "temperature": "temperature_c",
    "power": "power_w",
    "utilization": "utilization_pct",
    "memory": "memory_used_mib",
}
Reach = Literal["1h", "24h", "7d", "30d"]
# How far back, and how long a bin is; bins begin at whole multiples of their length since midnight.
REACHES: Mapping[Reach, tuple[timedelta, timedelta]] = {
    "1h": (timedelta(hours=1), timedelta(seconds=30)),
    "24h": (timedelta(days=1), timedelta(minutes=10)),
    "7d": (timedelta(days=7), timedelta(hours=1)),
    "30d": (timedelta(days=30), timedelta(hours=4)),
}
_ROLLED = ("7d", "30d")
_TAIL = timedelta(hours=3)  # more than this is never read raw in a long chart, however late the rollup is
_ORIGIN = datetime(2026, 1, 1, tzinfo=UTC)

type Reading = tuple[float, float, float]


@dataclass(frozen=True)
class Series:
    """Readings of some cards in bins of ``step`` from ``start`` on, ``count`` of them, the last one not over yet.

    ``cards``: by the card's key and the measure's name one entry a bin: least, mean and most, or None where nothing was read.
    Temperature in °C, power in watts, utilization in percent, memory in MiB.
    """

    start: datetime
    step: timedelta
    count: int
    cards: dict[int, dict[str, list[Reading | None]]]

    def of_all(self, measure: str) -> list[Reading | None]:
        """The machine as a whole, bin by bin: its lowest reading, the mean of its cards, its highest."""
        columns = [card[measure] for card in self.cards.values()]
        return [_together([column[n] for column in columns]) for n in range(self.count)]


def _together(readings: Sequence[Reading | None]) -> Reading | None:
    known = [reading for reading in readings if reading is not None]
    if not known:
        return None
    least, means, most = zip(*known, strict=True)
    return min(least), sum(means) / len(means), max(most)


def series(*, gpus: Sequence[int], reach: Reach, at: datetime) -> Series:
    """What these cards (by their keys) read up to ``at``, in a few statements, however many samples there are."""
    length, step = REACHES[reach]
    last = _ORIGIN + (at - _ORIGIN) // step * step
    start = last - length + step
    count = (last - start) // step + 1
    rows: list[Any] = []
    with connection.cursor() as cursor:
        raw_from = start
        if reach in _ROLLED:
            mark = Rollup.objects.values_list("until", flat=True).first() or start
            raw_from = max(start, mark, at - _TAIL)
            values: list[Any] = [step, _ORIGIN, list(gpus), start, raw_from]
            cursor.execute(_FROM_HOURS, values)
            rows += cursor.fetchall()
        if reach != "30d" or not rows:  # the last hour of a month is too narrow to see, unless it is all there is
            values = [step, _ORIGIN, list(gpus), raw_from, at]
            cursor.execute(_FROM_SAMPLES, values)
            rows += cursor.fetchall()
    cards: dict[int, dict[str, list[Reading | None]]] = {
        gpu: {measure: [None] * count for measure in MEASURES} for gpu in gpus
    }
    for gpu, moment, _samples, *values in rows:
        number = (moment - start) // step
        if not 0 <= number < count:
            continue
        for measure, n in zip(MEASURES, range(0, len(values), 3), strict=True):
            if values[n] is not None:
                # The bin in which the hours end and the raw samples begin is in both.
                before = cards[gpu][measure][number]
                reading = (values[n], values[n + 1], values[n + 2])
                cards[gpu][measure][number] = reading if before is None else _together([before, reading])
    return Series(start, step, count, cards)


_FROM_SAMPLES = f"""
SELECT gpu_id, date_bin(%s, at, %s) AS bin, count(*),
    {", ".join(f"min({column})::float8, avg({column})::float8, max({column})::float8" for column in MEASURES.values())}
FROM reliability_sample WHERE gpu_id = ANY(%s::bigint[]) AND at >= %s AND at <= %s GROUP BY 1, 2
"""  # noqa: S608
_FROM_HOURS = f"""
SELECT gpu_id, date_bin(%s, hour, %s) AS bin, sum(samples),
    {
    ", ".join(
        f"min({name}_least), sum({name}_mean * samples) / sum(samples) FILTER (WHERE {name}_mean IS NOT NULL), max({name}_most)"
        for name in MEASURES
    )
}
FROM reliability_samplehour WHERE gpu_id = ANY(%s::bigint[]) AND hour >= %s AND hour < %s GROUP BY 1, 2
"""  # noqa: S608

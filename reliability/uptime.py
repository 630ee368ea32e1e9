"""What scores rest on, for many machines at once: range arithmetic in SQL, a fixed number of statements for any number.

``pasts_of`` gives what ``reliability.events.past`` gives for each machine alone, microsecond by microsecond; a test holds
both against each other on random histories. Declared hours come from ``providers.schedules`` (wall-clock time has one
meaning in the product, not a second one in SQL), the rest is multiranges:

    owed of a card   declared × [since, at)  − excused of the machine − excused of the card
    kept of a card   owed × connected − not available

Cards of one machine that have the same log share one result.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from gpunex.kit.spans import Span, merged
from providers.schedules import declared_spans
from reliability import events, recorded
from reliability.availability import EXCUSED, NOTICE, WITHDRAWN
from reliability.models import ScoreTerms
from reliability.score import FIRST_RUNS, NEVER_RAN, Card, Job, Past, Run, Stretch, Terms, micros

_BOUNDS = """ARRAY(
    SELECT (extract(epoch FROM bound) * 1000000)::bigint
    FROM unnest({0}) piece CROSS JOIN LATERAL (VALUES (lower(piece)), (upper(piece))) AS bounds (bound)
)"""
_QUOTED = {name: ", ".join(f"'{state}'" for state in sorted(states)) for name, states in
    (("excused", EXCUSED), ("withdrawn", WITHDRAWN))}  # fmt: skip

# What every statement below begins with. Rows of ``asked``: a machine, and its declared and excused time.
_SETS = f"""
WITH asked AS MATERIALIZED (
    SELECT machine_id, declared::tstzmultirange, excused::tstzmultirange
    FROM unnest(%(machines)s::bigint[], %(declared)s::text[], %(excused)s::text[]) AS a (machine_id, declared, excused)
), linked AS MATERIALIZED (
    SELECT machine_id, range_agg(tstzrange(
        greatest(started_at, %(start)s),
        CASE WHEN coalesce(closed_at, ended_at) <= %(at)s AND ended_at < %(at)s THEN ended_at ELSE %(at)s END
    )) AS connected
    FROM reliability_connection
    WHERE machine_id = ANY(%(machines)s::bigint[]) AND started_at < %(at)s
        AND (ended_at IS NULL OR ended_at > %(start)s OR closed_at > %(at)s)
    GROUP BY machine_id
), logged AS MATERIALIZED (
    SELECT gpu_id, min(at) AS first_at, min(at) FILTER (WHERE state = 'available') AS first_available,
        range_agg(tstzrange(greatest(at, %(start)s), upto)) FILTER (
            WHERE state NOT IN ('available', {_QUOTED["excused"]}) AND upto > greatest(at, %(start)s)
        ) AS blocked,
        range_agg(tstzrange(greatest(excused_from, %(start)s), until)) FILTER (
            WHERE state IN ({_QUOTED["excused"]}, {_QUOTED["withdrawn"]}) AND until > greatest(excused_from, %(start)s)
        ) AS excused
    FROM (
        SELECT log.gpu_id, log.state, log.at, until,
            CASE WHEN log.state IN ({_QUOTED["withdrawn"]}) THEN least(until, log.at + %(notice)s) ELSE until END AS upto,
            CASE WHEN log.state IN ({_QUOTED["withdrawn"]}) THEN least(until, log.at + %(notice)s) ELSE log.at END
                AS excused_from
        FROM (
            SELECT a.gpu_id, a.state, a.at, coalesce(lead(a.at) OVER (PARTITION BY a.gpu_id ORDER BY a.at, a.id), %(at)s) AS until
            FROM reliability_availability a JOIN providers_gpu g ON g.id = a.gpu_id
            WHERE g.machine_id = ANY(%(machines)s::bigint[]) AND a.at < %(at)s
        ) log
    ) judged
    GROUP BY gpu_id
), begun AS MATERIALIZED (
    SELECT gpu.id AS gpu_id, gpu.public_id, gpu.index, gpu.machine_id, logged.blocked, logged.excused, run.first_run,
        CASE WHEN logged.first_at IS NULL OR run.first_run < logged.first_at THEN run.first_run
            ELSE logged.first_available END AS since
    FROM providers_gpu gpu
    LEFT JOIN logged ON logged.gpu_id = gpu.id
    LEFT JOIN LATERAL (
        SELECT received_at AS first_run FROM reliability_benchmark
        WHERE gpu_id = gpu.id AND state = 'accepted' AND received_at <= %(at)s ORDER BY received_at LIMIT 1
    ) run ON true
    WHERE gpu.machine_id = ANY(%(machines)s::bigint[])
), alike AS (
    SELECT machine_id, since, blocked, excused,
        array_agg(public_id::text ORDER BY index, gpu_id) AS cards, array_agg(index ORDER BY index, gpu_id) AS places
    FROM begun WHERE since < %(at)s GROUP BY machine_id, since, blocked, excused
), sets AS (
    SELECT alike.machine_id, alike.cards, alike.places, own.declared, own.declared - owed.owed AS excused, owed.owed,
        owed.owed * coalesce(linked.connected, '{{}}') - coalesce(alike.blocked, '{{}}') AS kept
    FROM alike
    JOIN asked USING (machine_id)
    LEFT JOIN linked USING (machine_id)
    CROSS JOIN LATERAL (
        SELECT asked.declared * tstzmultirange(tstzrange(greatest(alike.since, %(start)s), %(at)s)) AS declared
    ) own
    CROSS JOIN LATERAL (
        SELECT own.declared - asked.excused - coalesce(alike.excused, '{{}}') AS owed
    ) owed
)
"""  # noqa: S608
_CARDS = f"{_SETS} SELECT machine_id, cards, places, {_BOUNDS.format('owed')}, {_BOUNDS.format('kept')} FROM sets"  # noqa: S608
# Version 1 takes the machine as a whole, from its first run on.
_WHOLE = f"""
{_SETS}, whole AS (SELECT machine_id, min(first_run) AS since FROM begun GROUP BY machine_id)
SELECT whole.machine_id, {_BOUNDS.format("owed.owed")}, {_BOUNDS.format("owed.owed * coalesce(linked.connected, '{}')")}
FROM whole JOIN asked USING (machine_id) LEFT JOIN linked USING (machine_id)
CROSS JOIN LATERAL (
    SELECT asked.declared * tstzmultirange(tstzrange(greatest(whole.since, %(start)s), %(at)s)) - asked.excused AS owed
) owed
WHERE whole.since < %(at)s
"""  # noqa: S608
_DAYS = f"""
{_SETS}, pieces AS (
    SELECT machine_id, cardinality(cards) AS cards, kind, lower(piece) AS begun, upper(piece) AS ended
    FROM sets
    CROSS JOIN LATERAL (VALUES ('declared', declared), ('excused', excused), ('kept', kept)) AS every (kind, stretches)
    CROSS JOIN LATERAL unnest(stretches) AS piece
), cut AS (
    SELECT machine_id, kind, day, cards * extract(epoch FROM least(ended, day + interval '24 hours') - greatest(begun, day)) AS s
    FROM pieces CROSS JOIN LATERAL generate_series(date_trunc('day', begun, 'UTC'), ended, interval '24 hours') AS day
    WHERE day < ended
)
SELECT machine_id, day, coalesce(sum(s) FILTER (WHERE kind = 'declared'), 0)::float8,
    coalesce(sum(s) FILTER (WHERE kind = 'excused'), 0)::float8, coalesce(sum(s) FILTER (WHERE kind = 'kept'), 0)::float8
FROM cut GROUP BY machine_id, day
"""  # noqa: S608
_RUNS = """
SELECT gpu.machine_id, gpu.public_id::text,
    array_agg((extract(epoch FROM run.received_at) * 1000000)::bigint ORDER BY run.received_at, run.id),
    array_agg(run.performance ORDER BY run.received_at, run.id),
    array_agg(run.sustained ORDER BY run.received_at, run.id)
FROM (
    SELECT b.id, b.gpu_id, b.received_at, b.performance, (b.details->>'sustained_ratio')::float8 AS sustained,
        row_number() OVER (PARTITION BY b.gpu_id ORDER BY b.received_at, b.id) AS number
    FROM reliability_benchmark b JOIN providers_gpu g ON g.id = b.gpu_id
    WHERE g.machine_id = ANY(%(machines)s::bigint[]) AND b.state = 'accepted' AND b.received_at <= %(at)s AND b.performance > 0
) run
JOIN providers_gpu gpu ON gpu.id = run.gpu_id
WHERE run.number <= %(first)s OR run.received_at >= %(start)s
GROUP BY gpu.machine_id, gpu.public_id
"""
_JOBS = """
SELECT outcome.machine_id,
    array_agg((extract(epoch FROM outcome.at) * 1000000)::bigint),
    array_agg(NOT outcome.provider_fault OR EXISTS (
        SELECT FROM reliability_incident i WHERE i.reference = outcome.reference AND i.excused_at <= %(at)s
    )),
    array_agg(outcome.cause <> ALL(%(never_ran)s)),
    array_agg(array_to_string(outcome.cards, ','))
FROM reliability_outcome outcome
WHERE outcome.machine_id = ANY(%(machines)s::bigint[]) AND outcome.at >= %(start)s AND outcome.at <= %(at)s
    AND coalesce(outcome.recorded_at, outcome.at) <= %(at)s
GROUP BY outcome.machine_id
"""

_HOURS = """
SELECT machine_id, effective_from, created_at, timezone, always, windows::text, id FROM providers_schedule
WHERE machine_id = ANY(%(machines)s::bigint[]) AND created_at <= %(at)s ORDER BY effective_from, id
"""
# The budget is a month's: what was planned earlier in it has used some.
_PLANNED = """
SELECT machine_id, starts_at, ends_at, declared_at, cancelled_at FROM providers_maintenancewindow
WHERE machine_id = ANY(%(machines)s::bigint[]) AND ends_at > %(start)s
    AND declared_at <= %(at)s AND (cancelled_at IS NULL OR cancelled_at > %(at)s)
ORDER BY starts_at, id
"""
_EXCUSES = """
SELECT machine_id, started_at, ended_at FROM reliability_excuse
WHERE machine_id = ANY(%(machines)s::bigint[]) AND ended_at > %(start)s AND recorded_at <= %(at)s
"""


@dataclass(frozen=True, slots=True)
class Day:
    """One UTC day of one machine, all its cards together, in card-seconds."""

    day: datetime
    declared_s: float
    excused_s: float
    available_s: float


def terms_at(at: datetime) -> Terms:
    """The terms that were in force at ``at``."""
    last = ScoreTerms.objects.filter(effective_from__lte=at).order_by("-effective_from").first()
    if last is None:
        return Terms()
    return Terms(
        half_life_days=last.half_life_days,
        window_days=last.window_days,
        notice_hours=last.notice_hours,
        budget_hours=last.budget_hours,
    )


def pasts_of(
    machines: Sequence[int],
    *,
    at: datetime,
    whole: bool = False,
    terms: Terms | None = None,
    time_alone: bool = False,
) -> dict[int, Past]:
    """What the formula takes at ``at`` for each machine, by its key.

    ``whole``: with what version 1 takes, too. ``time_alone``: without jobs and runs, for who looks at the uptime alone.
    """
    terms = terms or terms_at(at)
    start = at - timedelta(days=terms.window_days)
    values = _values(machines, start=start, at=at, terms=terms)
    cards: dict[int, list[tuple[int, Card]]] = defaultdict(list)
    runs: dict[str, list[Run]] = {}
    jobs: dict[int, list[Job]] = {}
    owed: dict[int, list[Stretch]] = {}
    connected: dict[int, list[Stretch]] = {}
    with connection.cursor() as cursor:
        if not time_alone:
            runs, jobs = _read_runs(cursor, values), _read_jobs(cursor, values)
        cursor.execute(_CARDS, values)
        for machine, ids, places, owed_, kept in cursor.fetchall():
            mine, available = _pairs(owed_), _pairs(kept)
            for card, place in zip(ids, places, strict=True):
                cards[machine].append((place, Card(card, mine, available, runs.get(card, ()))))
        if whole:
            cursor.execute(_WHOLE, values)
            for machine, owed_, kept in cursor.fetchall():
                owed[machine], connected[machine] = _pairs(owed_), _pairs(kept)
    return {
        machine: Past(
            at=micros(at),
            cards=[card for _place, card in sorted(cards.get(machine, ()), key=lambda pair: pair[0])],
            jobs=jobs.get(machine, ()),
            terms=terms,
            owed=owed.get(machine, ()),
            connected=connected.get(machine, ()),
        )
        for machine in machines
    }


def days_of(machines: Sequence[int], *, since: datetime, at: datetime) -> dict[int, list[Day]]:
    """Each UTC day from ``since`` (a midnight) up to ``at`` in which a machine had declared time."""
    values = _values(machines, start=since, at=at, terms=terms_at(at))
    found: dict[int, list[Day]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(_DAYS, values)
        for machine, day, *seconds in cursor.fetchall():
            found[machine].append(Day(day, *seconds))
    return found


def _read_runs(cursor: Any, values: dict[str, Any]) -> dict[str, list[Run]]:
    """The runs of each card, by its public id, oldest first."""
    cursor.execute(_RUNS, values | {"first": FIRST_RUNS})
    return {
        card: list(map(Run, times, performances, sustained))
        for _machine, card, times, performances, sustained in cursor.fetchall()
    }


def _read_jobs(cursor: Any, values: dict[str, Any]) -> dict[int, list[Job]]:
    """The jobs of each machine, by its key."""
    cursor.execute(_JOBS, values | {"never_ran": sorted(NEVER_RAN)})
    rows = cursor.fetchall()
    names = _names(cursor, rows)
    return {
        machine: list(map(Job, times, good, [names[cards] for cards in on], ran))
        for machine, times, good, ran, on in rows
    }


def _names(cursor: Any, rows: Iterable[Any]) -> dict[str, frozenset[str]]:
    """The public ids of each list of cards that jobs name."""
    lists = {on for row in rows for on in row[4] if on}
    keys = sorted({int(key) for on in lists for key in on.split(",")})
    nobody: dict[str, frozenset[str]] = {"": frozenset()}
    if not keys:
        return nobody
    cursor.execute("SELECT id, public_id::text FROM providers_gpu WHERE id = ANY(%s::bigint[])", [keys])
    names = dict(cursor.fetchall())
    return nobody | {on: frozenset(names[key] for key in map(int, on.split(",")) if key in names) for on in lists}


def _pairs(bounds: list[int]) -> list[Stretch]:
    bounds.sort()
    return list(zip(bounds[::2], bounds[1::2], strict=True))


def _values(machines: Sequence[int], *, start: datetime, at: datetime, terms: Terms) -> dict[str, Any]:
    keys = list(machines)
    declared = _declared(keys, start=start, at=at)
    excused = _excused(keys, start=start, at=at, terms=terms)
    nothing, common = _literal([]), _literal(excused.pop(None, []))
    return {
        "machines": keys,
        "declared": [declared.get(key, nothing) for key in keys],
        "excused": [_literal(excused[key]) if key in excused else common for key in keys],
        "start": start,
        "at": at,
        "notice": timedelta(microseconds=NOTICE),
    }


def _declared(keys: list[int], *, start: datetime, at: datetime) -> dict[int, str]:
    """The declared hours of each machine, as text of a multirange. Machines with the same hours are worked out once."""
    versions: dict[int, list[events.Hours]] = defaultdict(list)
    for machine, *values in _rows(_HOURS, machines=keys, at=at):
        versions[machine].append(events.Hours(*values))
    known: dict[Any, str] = {}
    found = {}
    for machine, mine in versions.items():
        # What was over before the window began changes nothing in it.
        begun = [number for number, version in enumerate(mine) if version.effective_from <= start]
        counting = mine[begun[-1] :] if begun else mine
        pattern = tuple(
            (max(version.effective_from, start), version.timezone, version.always, version.windows)
            for version in counting
        )
        if pattern not in known:
            read = [replace(version, windows=json.loads(str(version.windows))) for version in counting]
            known[pattern] = _literal(declared_spans(read, start, at))
        found[machine] = known[pattern]
    return found


def _excused(keys: list[int], *, start: datetime, at: datetime, terms: Terms) -> dict[int | None, list[Span]]:
    """Excused time of the machines that have some of their own; under None that of all."""
    outages = [(each.started_at, each.ended_at) for each in recorded.outages_at(start) if each.recorded_at <= at]
    windows: dict[int, list[events.Planned]] = defaultdict(list)
    for machine, *values in _rows(_PLANNED, machines=keys, at=at, start=start - timedelta(days=31)):
        windows[machine].append(events.Planned(*values))
    spans: dict[int | None, list[Span]] = defaultdict(list)
    for machine, planned in windows.items():
        spans[machine] += events.excused_maintenance(
            planned, notice=timedelta(hours=terms.notice_hours), budget=timedelta(hours=terms.budget_hours)
        )
    for machine, started_at, ended_at in _rows(_EXCUSES, machines=keys, at=at, start=start):
        spans[machine].append((started_at, ended_at))
    return {None: merged(outages)} | {machine: merged([*mine, *outages]) for machine, mine in spans.items()}


def _rows(statement: str, **values: Any) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        found: list[Any] = cursor.fetchall()
    return found


def _literal(spans: Iterable[Span]) -> str:
    return "{" + ",".join(f"[{start.isoformat()},{end.isoformat()})" for start, end in spans) + "}"

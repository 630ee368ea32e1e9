"""Heartbeats of machines that are where they were, many in one statement.

Nearly all beats say nothing new: the machine is connected, has not restarted, its driver is as it was. Such a beat moves
``last_seen_at``, and ``proved_at`` of the jobs that it lists. ``keep`` writes all that came within a moment in one
statement: the fast door of the API (``providers.api.door``) calls it for many, ``connections.beat`` for one.

Rules:

- What a beat proves, it proves as of its receipt. The host's own time is evidence of nothing but its clock.
- A machine is known by its secret in the same statement, so that one that was removed proves nothing from that moment on.
- Rows are locked in order, and one that somebody else holds is left out: a batch waits for nobody. Whatever is left out,
  or says something new, goes the long way (``connections.beat``).
- Beats out of order or twice never move a time back.

The clock: ``clock_offset_ms`` is how far the host is ahead of us, smoothed; the time on the way is part of it. A value that
is off by more than two seconds waits for the next beat to confirm it: one beat that a proxy kept for an hour is no clock.

>>> follow(100, None, 200), follow(100, None, 3_600_000)
((120, None), (100, 3600000))
>>> follow(100, 3_600_000, 3_600_100), follow(100, 3_600_000, 90)
((3600100, None), (98, None))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection

STEP_MS = 2000
_FOLLOWED = 5  # a measurement counts a fifth


@dataclass(frozen=True, slots=True)
class Beat:
    """One proof of life. ``running``: the jobs that it lists as running: id, attempt, and when the container started."""

    public_id: UUID
    secret_hash: str
    boot_id: str
    at: datetime
    nvml: str = "ok"
    agent_version: str = ""
    offset_ms: int | None = None
    running: Sequence[tuple[UUID, int, datetime | None]] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What the protocol answers: the revision of what the machine should run, whether it takes new work, when to beat again."""

    revision: int
    drain: bool
    interval_s: int


def keep(beats: Sequence[Beat]) -> list[Answer | None]:
    """Write these; each machine at most once. None for those that say something new, or whose row is busy: nothing is written."""
    running = [
        (str(job), attempt, started, n) for n, beat in enumerate(beats) for job, attempt, started in beat.running
    ]
    values: list[Any] = [
        list(range(len(beats))),
        [str(beat.public_id) for beat in beats],
        [beat.secret_hash for beat in beats],
        [beat.boot_id for beat in beats],
        [beat.nvml for beat in beats],
        [beat.agent_version for beat in beats],
        [beat.offset_ms for beat in beats],
        [beat.at for beat in beats],
    ]
    statement = _KEEP
    if running:
        statement = _KEEP_AND_PROVE
        values += [list(column) for column in zip(*running, strict=True)]
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        answers = {n: Answer(revision, drain, seconds) for n, revision, drain, seconds in cursor.fetchall()}
    return [answers.get(n) for n in range(len(beats))]


def follow(offset: int | None, candidate: int | None, measured: int | None) -> tuple[int | None, int | None]:
    """The smoothed offset and its candidate after one more measurement. The statement below does the same."""
    if measured is None:
        return offset, candidate
    if offset is None:
        return measured, None
    if abs(measured - offset) <= STEP_MS:
        return offset + int((measured - offset) / _FOLLOWED), None
    if candidate is not None and abs(measured - candidate) <= STEP_MS:
        return measured, None
    return offset, measured


_CLOCK = f"""
    clock_offset_ms = CASE
        WHEN seen.offset_ms IS NULL THEN m.clock_offset_ms
        WHEN m.clock_offset_ms IS NULL THEN seen.offset_ms
        WHEN abs(seen.offset_ms::bigint - m.clock_offset_ms) <= {STEP_MS}
            THEN m.clock_offset_ms + (seen.offset_ms - m.clock_offset_ms) / {_FOLLOWED}
        WHEN abs(seen.offset_ms::bigint - m.clock_candidate_ms) <= {STEP_MS} THEN seen.offset_ms
        ELSE m.clock_offset_ms END,
    clock_candidate_ms = CASE
        WHEN seen.offset_ms IS NULL THEN m.clock_candidate_ms
        WHEN m.clock_offset_ms IS NULL OR abs(seen.offset_ms::bigint - m.clock_offset_ms) <= {STEP_MS}
            OR abs(seen.offset_ms::bigint - m.clock_candidate_ms) <= {STEP_MS} THEN NULL
        ELSE seen.offset_ms END"""
_SEEN = f"""
WITH seen AS (
    SELECT b.*, m.id, p.heartbeat_seconds
    FROM unnest(%s::int[], %s::uuid[], %s::text[], %s::text[], %s::text[], %s::text[], %s::int[], %s::timestamptz[])
        AS b (n, public_id, secret_hash, boot_id, nvml, agent_version, offset_ms, at)
    JOIN providers_machine m ON m.public_id = b.public_id
    JOIN policy_policy p ON p.id = 1
    WHERE m.secret_hash = b.secret_hash AND m.retired_at IS NULL AND m.offline_since IS NULL
        AND m.connected_since IS NOT NULL AND m.boot_id = b.boot_id AND m.nvml = b.nvml
        AND m.last_seen_at > b.at - make_interval(secs => p.offline_seconds)
    ORDER BY m.id FOR NO KEY UPDATE OF m SKIP LOCKED
), moved AS (
    UPDATE providers_machine m SET last_seen_at = greatest(m.last_seen_at, seen.at),
        agent_version = coalesce(nullif(seen.agent_version, ''), m.agent_version), {_CLOCK}
    FROM seen WHERE m.id = seen.id
    RETURNING seen.n, m.revision, m.draining OR m.paused_at IS NOT NULL, seen.heartbeat_seconds
)"""  # noqa: S608
_KEEP = f"{_SEEN} SELECT * FROM moved"  # noqa: S608
# As ``providers.workloads.prove``: only what we know as running, in that attempt and that container.
_KEEP_AND_PROVE = f"""{_SEEN}, listed AS (
    SELECT w.id, seen.at
    FROM unnest(%s::uuid[], %s::int[], %s::timestamptz[], %s::int[]) AS r (job, attempt, started_at, n)
    JOIN seen ON seen.n = r.n
    JOIN providers_workload w ON w.public_id = r.job AND w.machine_id = seen.id
    WHERE w.observed = 'running' AND w.attempt = r.attempt AND (
        r.started_at IS NULL OR w.container_started_at IS NULL
        OR abs(extract(epoch FROM r.started_at - w.container_started_at)) < 1)
    ORDER BY w.id FOR NO KEY UPDATE OF w SKIP LOCKED
), proved AS (
    UPDATE providers_workload w SET proved_at = greatest(w.proved_at, listed.at) FROM listed WHERE w.id = listed.id
)
SELECT * FROM moved"""  # noqa: S608

"""Scores of machines: computed from what was recorded, kept as rows that say what they rest on.

Each row is what the formula makes of the events that were known at its time; ``manage.py replay_score`` computes any of
them again from the export, to the last digit. For that, ``refresh`` scores as of a moment that is a little past
(``SETTLED``): whatever was recorded up to then is written by now, whoever wrote it.

A machine is scored soon after something that counts, and else hourly. What happened is found by when it was recorded, so
that a job whose end comes to be known late is seen at once, too.

Readers ask for the version that counts (``latest``, ``latest_of``); newer ones run in its shadow (``reliability.formulas``).
"""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from itertools import batched
from typing import Any

from django.db import connection

from gpunex.policy.models import Policy
from providers.models import Machine
from reliability import formulas, uptime
from reliability import score as formula
from reliability.models import Score, ScoreTerms
from reliability.score import Parts, Past, Terms, micros

EVERY = timedelta(hours=1)
SETTLED = timedelta(seconds=5)  # longer than any transaction that records something
RECENT = 2 * EVERY  # what was recorded before is in every machine's hourly score
CHUNK = 500
KEPT_WHOLE = timedelta(days=7)  # older scores: one a day


def latest(machine: Machine) -> Score | None:
    """The machine's score as last computed; None before the first."""
    found: Score | None = Score.objects.counting().filter(machine=machine).order_by("-at").first()
    return found


def latest_of(machines: Iterable[Any]) -> dict[int, Score]:
    """The same for many, by the machine's key, in one query."""
    found: dict[int, Score] = Score.objects.latest_of(machines)
    return found


# --- computing -------------------------------------------------------------------------------------------------------


def refresh(*, at: datetime, most: int | None = None) -> int:
    """Score the machines that are due, those first to which something happened. Returns how many were.

    ``most`` bounds the hourly ones, so that a burst of them never keeps waiting what just happened.
    """
    keep_terms(at=at)
    fresh, hourly = _due(at)
    due = [*fresh, *(hourly if most is None else hourly[:most])]
    for chunk in batched(due, CHUNK):
        compute(chunk, at=at)
    return len(due)


def compute(machines: Sequence[int], *, at: datetime) -> int:
    """Score these machines (their keys) as of ``at``, by each version that runs. What is there already stays as it is."""
    versions = formulas.running(at)
    pasts = uptime.pasts_of(machines, at=at, whole=bool(formulas.WHOLE & set(versions)))
    rows = [_row(machine, past, version, at) for machine, past in pasts.items() for version in versions]
    Score.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def keep_terms(*, at: datetime) -> Terms:
    """The terms as the policy sets them now; a change is recorded, and counts from now on."""
    policy = Policy.load()
    terms = Terms(
        half_life_days=policy.score_half_life_days,
        window_days=policy.score_window_days,
        notice_hours=policy.maintenance_notice_hours,
        budget_hours=policy.maintenance_hours_a_month,
    )
    if uptime.terms_at(at) != terms:
        values = {
            name: getattr(terms, name) for name in ("half_life_days", "window_days", "notice_hours", "budget_hours")
        }
        ScoreTerms.objects.bulk_create([ScoreTerms(effective_from=at, **values)], ignore_conflicts=True)
    return terms


def scores_of(machines: Sequence[Machine], *, at: datetime) -> dict[int, Parts]:
    """The parts of each machine's score at ``at`` by the version that counts, by its key: not stored."""
    version = formulas.counting(at)
    pasts = uptime.pasts_of([machine.pk for machine in machines], at=at, whole=version in formulas.WHOLE)
    return {key: formulas.FORMULAS[version](past) for key, past in pasts.items()}


def digest(past: Past) -> str:
    """A short name of what a score rests on: another past has another one."""
    facts = (
        past.at,
        past.terms.half_life_days,
        past.terms.window_days,
        [(card.key, list(card.owed), list(card.kept), list(map(tuple, card.runs))) for card in past.cards],
        sorted([4 * job.at + 2 * job.good + job.ran for job in past.jobs]),
        sorted([(job.at, sorted(job.cards)) for job in past.jobs if job.cards]),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _row(machine: int, past: Past, version: int, at: datetime) -> Score:
    parts = formulas.FORMULAS[version](past)
    inputs: dict[str, Any] = {
        "declared_hours": round(parts.declared_hours, 3),
        "connected_hours": round(parts.available_hours, 3),
        "jobs": parts.jobs,
        "runs": parts.runs,
    }
    if version not in formulas.WHOLE:
        inputs["digest"] = digest(past)
        inputs["cards"] = cards_of(past, parts)
    return Score(
        machine_id=machine,
        at=at,
        version=version,
        score=parts.score,
        uptime=parts.uptime,
        completion=parts.completion,
        consistency=parts.consistency,
        new=parts.new,
        margin=None if version in formulas.WHOLE else parts.margin,
        inputs=inputs,
    )


def cards_of(past: Past, machine: Parts) -> dict[str, list[float]]:
    """Each card's own score, by its public id: score, uptime, completion, consistency, margin."""
    alone = len(past.cards) == 1 and all(not job.cards or past.cards[0].key in job.cards for job in past.jobs)
    return {
        card.key: [own.score, own.uptime, own.completion, own.consistency, own.margin]
        for card in past.cards
        for own in (machine if alone else formula.of_card(past, card),)
    }


_DUE = """
WITH recent AS (
    SELECT machine_id, max(at) AS at FROM (
        SELECT machine_id, recorded_at AS at FROM reliability_outcome WHERE recorded_at > %(since)s
        UNION ALL SELECT machine_id, excused_at FROM reliability_incident WHERE excused_at > %(since)s
        UNION ALL SELECT machine_id, recorded_at FROM reliability_excuse WHERE recorded_at > %(since)s
        UNION ALL SELECT machine_id, started_at FROM reliability_connection WHERE started_at > %(since)s
        UNION ALL SELECT machine_id, closed_at FROM reliability_connection WHERE closed_at > %(since)s
        UNION ALL SELECT g.machine_id, a.at FROM reliability_availability a JOIN providers_gpu g ON g.id = a.gpu_id
            WHERE a.at > %(since)s
        UNION ALL SELECT g.machine_id, b.received_at FROM reliability_benchmark b JOIN providers_gpu g ON g.id = b.gpu_id
            WHERE b.state = 'accepted' AND b.received_at > %(since)s
    ) happened WHERE at <= %(at)s GROUP BY machine_id
)
SELECT machine.id, last.at IS NULL OR coalesce(recent.at > last.at, false)
FROM providers_machine machine
LEFT JOIN recent ON recent.machine_id = machine.id
LEFT JOIN LATERAL (
    SELECT at FROM reliability_score WHERE machine_id = machine.id AND version = %(version)s AND at <= %(at)s
    ORDER BY at DESC LIMIT 1
) last ON true
WHERE machine.retired_at IS NULL AND (last.at IS NULL OR last.at <= %(hourly)s OR recent.at > last.at)
    AND EXISTS (
        SELECT FROM reliability_benchmark run JOIN providers_gpu card ON card.id = run.gpu_id
        WHERE card.machine_id = machine.id AND run.state = 'accepted' AND run.received_at <= %(at)s
    )
ORDER BY last.at NULLS FIRST, machine.id
"""


def _due(at: datetime) -> tuple[list[int], list[int]]:
    """Keys of the machines to which something happened since their last score (or that have none), and of the hourly ones."""
    with connection.cursor() as cursor:
        cursor.execute(_DUE, {"at": at, "since": at - RECENT, "hourly": at - EVERY, "version": formulas.counting(at)})
        rows = cursor.fetchall()
    return [key for key, fresh in rows if fresh], [key for key, fresh in rows if not fresh]


def thin(*, at: datetime) -> int:
    """Keep one score a day, the last, of what is older than a week: each can be computed again. Returns how many went."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            DELETE FROM reliability_score old WHERE old.at < %(limit)s AND EXISTS (
                SELECT FROM reliability_score later
                WHERE later.machine_id = old.machine_id AND later.version = old.version AND later.at > old.at
                    AND later.at < date_trunc('day', old.at, 'UTC') + interval '24 hours'
            )
            """,
            {"limit": at - KEPT_WHOLE},
        )
        return int(cursor.rowcount)


# --- read by others --------------------------------------------------------------------------------------------------


def share_available(machines: Sequence[int], *, since: datetime, at: datetime) -> dict[int, tuple[float, float]]:
    """The uptime of each machine between ``since`` and ``at``, unweighted: declared hours (of its longest card), and the
    share of all cards' declared time in which they were available. Machines without declared time are left out.
    """
    terms = uptime.terms_at(at)
    days = max(1, -((since - at) // timedelta(days=1)))
    terms = Terms(terms.half_life_days, days, terms.notice_hours, terms.budget_hours)
    found = {}
    for key, past in uptime.pasts_of(machines, at=at, terms=terms, time_alone=True).items():
        start = micros(since)
        owed = [formula.length(_cut(card.owed, start)) for card in past.cards]
        if any(owed):
            kept = sum(formula.length(_cut(card.kept, start)) for card in past.cards)
            found[key] = (max(owed) / formula.HOUR, kept / sum(owed))
    return found


def _cut(stretches: Iterable[formula.Stretch], start: int) -> list[formula.Stretch]:
    return [(max(begin, start), end) for begin, end in stretches if end > start]


def trend(machines: Sequence[int], *, at: datetime, days: int = 90) -> list[tuple[date, float]]:
    """The last score of each UTC day, oldest first: the mean of these machines, each weighing as its present cards.

    Days on which none of them was scored are left out.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH daily AS (
                SELECT DISTINCT ON (machine_id, day) machine_id, date_trunc('day', at, 'UTC') AS day, score
                FROM reliability_score
                WHERE machine_id = ANY(%(machines)s::bigint[]) AND version = %(version)s AND at > %(since)s AND at <= %(at)s
                ORDER BY machine_id, day, at DESC
            ), weights AS (
                SELECT machine_id, greatest(count(*) FILTER (WHERE removed_at IS NULL), 1) AS cards
                FROM providers_gpu WHERE machine_id = ANY(%(machines)s::bigint[]) GROUP BY machine_id
            )
            SELECT (day AT TIME ZONE 'UTC')::date, sum(score * cards) / sum(cards)
            FROM daily JOIN weights USING (machine_id) GROUP BY day ORDER BY day
            """,
            {
                "machines": list(machines),
                "version": formulas.counting(at),
                "since": at - timedelta(days=days),
                "at": at,
            },
        )
        return [(day, float(value)) for day, value in cursor.fetchall()]

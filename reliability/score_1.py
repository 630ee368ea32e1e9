"""The reliability score, version 1: as it counted first. It stays, so that scores that were stored by it can be computed again.

    score = 100 × (0.5 × uptime + 0.3 × completion + 0.2 × consistency)

Each part is a mean in which an event of age t weighs 2^(−t / 14 days); what is older than 90 days counts for nothing.

- **uptime**: connected time over declared time. Excused time (planned maintenance, the platform's own outages) is in
  neither. Nothing before the machine was first measured counts.
- **completion**: jobs that did not end by the provider's fault, over all jobs.
- **consistency**: benchmark runs; each is the share of the first accepted result of its GPU that was reached, at most 1,
  lowered further where clocks fell by more than 5 % under sustained load (throttling).

A new machine has shown little, so a prior fills each part up to a fixed weight: 72 declared hours at 0.95, 10 jobs at 0.95,
3 runs at 1. Evidence takes the prior's place, and at the full weight nothing of it is left. Until 72 declared hours are
behind it the machine is called new.

A machine that is declared around the clock, 100 hours old, connected but for the last hour; 4 jobs just now of which one
failed by its fault; one run at 90 % of the first:

>>> from datetime import UTC, datetime, timedelta
>>> now = datetime(2026, 3, 10, tzinfo=UTC)
>>> def hours(n): return timedelta(hours=n)
>>> part = score(
...     at=now,
...     declared=[(now - hours(100), now)],
...     connected=[(now - hours(100), now - hours(1))],
...     excused=[],
...     jobs=[Event(now, 1.0), Event(now, 1.0), Event(now, 1.0), Event(now, 0.0)],
...     runs=[Event(now, 0.9)],
... )
>>> round(part.uptime, 4)  # 90.36 weighted hours, of which the last one, which weighs 1.00, is missing
0.9889
>>> round(part.completion, 4)  # (3 + 6 × 0.95) / 10
0.87
>>> round(part.consistency, 4)  # (0.9 + 2) / 3
0.9667
>>> round(part.score, 2), part.new  # 100 × (0.5 × 0.9889 + 0.3 × 0.87 + 0.2 × 0.9667)
(94.88, False)

Two weeks later the same failed job weighs half, and the prior has taken its place:

>>> later = score(at=now + timedelta(days=14), declared=[], connected=[], excused=[], jobs=[Event(now, 0.0)], runs=[])
>>> round(later.completion, 4)  # (0.5 × 0 + 9.5 × 0.95) / 10
0.9025
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpunex.kit.spans import Span, common, seconds, without
from reliability import score as current

VERSION = 1
UPTIME, COMPLETION, CONSISTENCY = 0.5, 0.3, 0.2
HALF_LIFE_DAYS, WINDOW_DAYS = 14, 90
PRIOR_HOURS, PRIOR_UPTIME = 72.0, 0.95
PRIOR_JOBS, PRIOR_COMPLETION = 10.0, 0.95
PRIOR_RUNS, PRIOR_CONSISTENCY = 3.0, 1.0
SUSTAINED_ENOUGH = 0.95
_HOUR = 3600.0


@dataclass(frozen=True)
class Event:
    """Something that happened at a time, and how well: 0 to 1."""

    at: datetime
    value: float


@dataclass(frozen=True)
class Parts:
    """A score and what it rests on. Parts are 0 to 1, hours are unweighted."""

    score: float
    uptime: float
    completion: float
    consistency: float
    new: bool
    declared_hours: float
    connected_hours: float
    jobs: int
    runs: int


def score(
    *,
    at: datetime,
    declared: Iterable[Span],
    connected: Iterable[Span],
    excused: Iterable[Span],
    jobs: Iterable[Event],
    runs: Iterable[Event],
    half_life_days: float = HALF_LIFE_DAYS,
    window_days: float = WINDOW_DAYS,
) -> Parts:
    """The score at ``at`` of a machine with this past. What lies after ``at`` or before the window is left out."""
    start = at - timedelta(days=window_days)
    half_life = half_life_days * 86400
    owed = without(common(declared, [(start, at)]), excused)
    kept = common(owed, connected)
    past_jobs = [job for job in jobs if start <= job.at <= at]
    past_runs = [run for run in runs if start <= run.at <= at]
    owed_hours, kept_hours = (_weight_of_spans(spans, at, half_life) / _HOUR for spans in (owed, kept))
    uptime = _filled(kept_hours, owed_hours, PRIOR_HOURS, PRIOR_UPTIME)
    completion = _filled(*_weighted(past_jobs, at, half_life), PRIOR_JOBS, PRIOR_COMPLETION)
    consistency = _filled(*_weighted(past_runs, at, half_life), PRIOR_RUNS, PRIOR_CONSISTENCY)
    declared_hours = seconds(owed) / _HOUR
    return Parts(
        score=100 * (UPTIME * uptime + COMPLETION * completion + CONSISTENCY * consistency),
        uptime=uptime,
        completion=completion,
        consistency=consistency,
        new=declared_hours < PRIOR_HOURS,
        declared_hours=declared_hours,
        connected_hours=seconds(kept) / _HOUR,
        jobs=len(past_jobs),
        runs=len(past_runs),
    )


def consistency_of(*, performance: float, first: float, sustained: float | None) -> float:
    """How consistent one run is with the first accepted one of its card.

    >>> consistency_of(performance=90.0, first=100.0, sustained=0.98)
    0.9
    >>> consistency_of(performance=100.0, first=100.0, sustained=0.76)
    0.8
    """
    level = min(1.0, performance / first)
    return level if sustained is None else level * min(1.0, sustained / SUSTAINED_ENOUGH)


def weight(age_seconds: float, half_life_seconds: float) -> float:
    return 2.0 ** (-age_seconds / half_life_seconds)


def _weight_of_spans(spans: Iterable[Span], at: datetime, half_life: float) -> float:
    """∫ 2^(−age / half-life) over the spans, in seconds."""
    return math.fsum(
        half_life
        / math.log(2)
        * (weight((at - end).total_seconds(), half_life) - weight((at - start).total_seconds(), half_life))
        for start, end in spans
    )


def _weighted(events: Iterable[Event], at: datetime, half_life: float) -> tuple[float, float]:
    weighed = [(weight((at - event.at).total_seconds(), half_life), event.value) for event in events]
    return math.fsum(share * value for share, value in weighed), math.fsum(share for share, _value in weighed)


def _filled(good: float, all_: float, prior_weight: float, prior: float) -> float:
    """Good over all, where ``all_`` is filled up to ``prior_weight`` by the prior."""
    missing = max(0.0, prior_weight - all_)
    return (good + missing * prior) / (all_ + missing)


def of_machine(past: current.Past) -> current.Parts:
    """The score of a past as later versions know it: this one takes the machine as a whole, whatever its cards did."""

    def spans(stretches: Iterable[current.Stretch]) -> list[Span]:
        return [(current.moment(start), current.moment(end)) for start, end in stretches]

    runs = [
        Event(
            current.moment(run.at),
            consistency_of(performance=run.performance, first=card.runs[0].performance, sustained=run.sustained),
        )
        for card in past.cards
        for run in card.runs
    ]
    found = score(
        at=current.moment(past.at),
        declared=spans(past.owed),
        connected=spans(past.connected),
        excused=[],
        jobs=[Event(current.moment(job.at), float(job.good)) for job in past.jobs],
        runs=runs,
        half_life_days=past.terms.half_life_days,
        window_days=past.terms.window_days,
    )
    return current.Parts(
        score=found.score,
        uptime=found.uptime,
        completion=found.completion,
        consistency=found.consistency,
        margin=0.0,
        new=found.new,
        declared_hours=found.declared_hours,
        available_hours=found.connected_hours,
        jobs=found.jobs,
        runs=found.runs,
    )

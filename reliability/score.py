"""The reliability score, version 2: a pure function of what was recorded, so that anyone can compute it again.

    score = 100 × (0.5 × uptime + 0.3 × completion + 0.2 × consistency)

Each part is a mean in which what is t old weighs 2^(−t / 14 days); what is older than 90 days counts for nothing. All
times are whole microseconds since 1970 (UTC), so that none is lost on its way through SQL or JSON.

- **uptime**: the time in which cards could be rented, or were, over the time that was declared: the hours of the schedule
  that was in force, from the moment at which a card could first be rented, less what is excused (maintenance with notice
  and within its budget, outages of the platform, pauses by an admin). A card could be rented while its machine was
  connected and nothing of its provider's kept it back: see ``reliability.availability``. Of a machine all cards count alike.
- **completion**: jobs that did not end by the provider's fault, over all jobs that ran (``HOST_CAUSES``, ``NEVER_RAN``).
- **consistency**: benchmark runs. Each is the share that was reached of its card's own measure, at most 1: the median of
  the card's first three accepted runs, but at least 90 % of what its model should reach, so that a card that begins low
  does not make that its measure. Lowered further where clocks fell by more than 5 % under sustained load (throttling).

A new machine has shown little, so a prior fills each part up to a fixed weight: 72 declared hours at 0.95, 10 jobs at 0.95,
3 runs at 1. Evidence takes the prior's place, and at the full weight nothing of it is left. Until 72 declared hours are
behind it the machine is called new.

The **margin** says how sure the score is: the true one lies within it in nine of ten cases. Each part is taken as a
proportion with a Beta distribution of its evidence and the whole prior; a day counts as one observation of uptime, a job and
a run as one each. The margin is 1.645 × √(Σ weight² × variance).

A machine with one card, declared around the clock, 100 hours old, available but for the last hour; 4 jobs just now of which
one failed by its fault; a first run at 100 and one at 90 just now:

>>> hour = 3_600_000_000
>>> now = 500_000 * hour
>>> card = Card(
...     key="a",
...     owed=[(now - 100 * hour, now)],
...     kept=[(now - 100 * hour, now - hour)],
...     runs=[Run(now - 3000 * hour, 100.0), Run(now - 2900 * hour, 100.0), Run(now - 2800 * hour, 100.0), Run(now, 90.0)],
... )
>>> part = of_machine(Past(at=now, cards=[card], jobs=[Job(now, good=True)] * 3 + [Job(now, good=False)]))
>>> round(part.uptime, 4)  # 90.36 weighted hours, of which the last one, which weighs 1.00, is missing
0.9889
>>> round(part.completion, 4)  # (3 + 6 × 0.95) / 10
0.87
>>> round(part.consistency, 4)  # (0.9 + 2) / 3; the first runs are older than 90 days
0.9667
>>> round(part.score, 2), part.new  # 100 × (0.5 × 0.9889 + 0.3 × 0.87 + 0.2 × 0.9667)
(94.88, False)

A machine that has shown nothing yet, as it is shown: 96 ± 9.5

>>> nothing = of_machine(Past(at=now))
>>> round(nothing.score, 1), round(nothing.margin, 1), nothing.new  # 1.645 × √(50² × 0.0475 / 4 + 30² × 0.0475 / 11)
(96.0, 9.5, True)

Two weeks later the same failed job weighs half, and the prior has taken its place:

>>> later = of_machine(Past(at=now + 14 * 24 * hour, jobs=[Job(now, good=False)]))
>>> round(later.completion, 4)  # (0.5 × 0 + 9.5 × 0.95) / 10
0.9025
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import NamedTuple

VERSION = 2
UPTIME, COMPLETION, CONSISTENCY = 0.5, 0.3, 0.2
HALF_LIFE_DAYS, WINDOW_DAYS = 14, 90
PRIOR_HOURS, PRIOR_UPTIME = 72.0, 0.95
PRIOR_JOBS, PRIOR_COMPLETION = 10.0, 0.95
PRIOR_RUNS, PRIOR_CONSISTENCY = 3.0, 1.0
FIRST_RUNS = 3
LEAST_MEASURE = 90.0  # percent of what the model should reach
SUSTAINED_ENOUGH = 0.95
CONFIDENCE = 1.645  # standard deviations of 90 %

# Whose fault a job's end is. Everything else that ran is the customer's own doing, or went as it should.
HOST_CAUSES = frozenset(
    {"gpu_lost", "gpu_unavailable", "docker_failed", "disk_full", "host_restart", "agent_shutdown", "machine_lost"}
)
# The container never ran, for reasons of what was asked: this says nothing about the machine, good or bad.
NEVER_RAN = frozenset({"image_missing", "image_denied", "image_invalid", "cuda_too_old", "spec_invalid"})

HOUR = 3_600_000_000
DAY = 24 * HOUR
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

type Stretch = tuple[int, int]  # from, until; half-open


@dataclass(frozen=True, slots=True)
class Terms:
    """What an admin may set: see ``Policy``. Notice and budget are those of excused maintenance."""

    half_life_days: int = HALF_LIFE_DAYS
    window_days: int = WINDOW_DAYS
    notice_hours: int = 24
    budget_hours: int = 8


class Job(NamedTuple):
    """How a customer's job ended. ``cards``: on which it was; empty where that is not known, then it counts for each.

    ``ran``: False where the container never did (``NEVER_RAN``). Version 1 counted these too.
    """

    at: int
    good: bool
    cards: frozenset[str] = frozenset()
    ran: bool = True


class Run(NamedTuple):
    """An accepted benchmark run: percent of what the model should reach, and the least share of it under sustained load."""

    at: int
    performance: float
    sustained: float | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU: ``owed`` is its declared time less what is excused, ``kept`` the part of it in which it was available.

    ``runs``, oldest first, are its first three and those of the window.
    """

    key: str
    owed: Sequence[Stretch] = ()
    kept: Sequence[Stretch] = ()
    runs: Sequence[Run] = ()


@dataclass(frozen=True, slots=True)
class Past:
    """What a score at ``at`` rests on. ``owed`` and ``connected`` are the machine's as a whole (version 1 counted these)."""

    at: int
    cards: Sequence[Card] = ()
    jobs: Sequence[Job] = ()
    terms: Terms = Terms()
    owed: Sequence[Stretch] = ()
    connected: Sequence[Stretch] = ()

    @property
    def start(self) -> int:
        return self.at - self.terms.window_days * DAY


@dataclass(frozen=True, slots=True)
class Parts:
    """A score and what it rests on. Parts are 0 to 1, hours unweighted; ``*_weight`` is the evidence, weighted by its age."""

    score: float
    uptime: float
    completion: float
    consistency: float
    margin: float
    new: bool
    declared_hours: float
    available_hours: float
    jobs: int
    runs: int
    hours_weight: float = 0.0
    jobs_weight: float = 0.0
    runs_weight: float = 0.0


def of_machine(past: Past) -> Parts:
    """The score of all the cards of ``past`` together."""
    half_life = past.terms.half_life_days * DAY
    weigh, start, at = _Weigher(past.at, half_life), past.start, past.at
    owed = [weigh.hours(card.owed) for card in past.cards]
    owed_hours, kept_hours = math.fsum(owed), math.fsum(weigh.hours(card.kept) for card in past.cards)
    # Cards that came later, or left, make the evidence of the others no smaller.
    evidence = max(owed, default=0.0)
    share = kept_hours / owed_hours if owed_hours else 1.0
    jobs = [(job.at, float(job.good)) for job in past.jobs if job.ran and start <= job.at <= at]
    runs = [(run.at, value) for card in past.cards for run, value in values_of(card.runs) if start <= run.at <= at]
    good_jobs, all_jobs = weigh.mean(jobs)
    good_runs, all_runs = weigh.mean(runs)
    uptime = _filled(evidence * share, evidence, PRIOR_HOURS, PRIOR_UPTIME)
    completion = _filled(good_jobs, all_jobs, PRIOR_JOBS, PRIOR_COMPLETION)
    consistency = _filled(good_runs, all_runs, PRIOR_RUNS, PRIOR_CONSISTENCY)
    variance = math.fsum(
        weight * weight * _variance(good, all_, prior_weight, prior)
        for weight, good, all_, prior_weight, prior in (
            (UPTIME, evidence * share / 24, evidence / 24, PRIOR_HOURS / 24, PRIOR_UPTIME),
            (COMPLETION, good_jobs, all_jobs, PRIOR_JOBS, PRIOR_COMPLETION),
            (CONSISTENCY, good_runs, all_runs, PRIOR_RUNS, PRIOR_CONSISTENCY),
        )
    )
    declared = [length(card.owed) for card in past.cards]
    longest = max(declared, default=0)
    return Parts(
        score=100 * (UPTIME * uptime + COMPLETION * completion + CONSISTENCY * consistency),
        uptime=uptime,
        completion=completion,
        consistency=consistency,
        margin=100 * CONFIDENCE * math.sqrt(variance),
        new=longest < PRIOR_HOURS * HOUR,
        declared_hours=longest / HOUR,
        available_hours=longest / HOUR * sum(length(card.kept) for card in past.cards) / max(1, sum(declared)),
        jobs=len(jobs),
        runs=len(runs),
        hours_weight=evidence,
        jobs_weight=all_jobs,
        runs_weight=all_runs,
    )


def of_card(past: Past, card: Card) -> Parts:
    """The score of one of the cards of ``past``: its own hours and runs, and the jobs that ran on it."""
    jobs = [job for job in past.jobs if not job.cards or card.key in job.cards]
    return of_machine(replace(past, cards=[card], jobs=jobs))


def of_provider(machines: Iterable[tuple[Parts, int]]) -> Parts | None:
    """The mean of machines' scores, each weighing as its number of cards; None without a machine."""
    rows = [(parts, weight) for parts, weight in machines if weight > 0]
    total = sum(weight for _parts, weight in rows)
    if not total:
        return None

    def mean(name: str) -> float:
        return math.fsum(getattr(parts, name) * weight for parts, weight in rows) / total

    return Parts(
        score=mean("score"),
        uptime=mean("uptime"),
        completion=mean("completion"),
        consistency=mean("consistency"),
        margin=math.sqrt(math.fsum((parts.margin * weight) ** 2 for parts, weight in rows)) / total,
        new=all(parts.new for parts, _weight in rows),
        declared_hours=math.fsum(parts.declared_hours for parts, _weight in rows),
        available_hours=math.fsum(parts.available_hours for parts, _weight in rows),
        jobs=sum(parts.jobs for parts, _weight in rows),
        runs=sum(parts.runs for parts, _weight in rows),
    )


def values_of(runs: Sequence[Run]) -> list[tuple[Run, float]]:
    """Each run of one card, oldest first, with how consistent it is: 0 to 1.

    >>> [round(value, 3) for _run, value in values_of([Run(1, 100.0), Run(2, 97.0), Run(3, 104.0), Run(4, 90.0)])]
    [1.0, 0.97, 1.0, 0.9]
    >>> [round(value, 3) for _run, value in values_of([Run(1, 72.0), Run(2, 72.0), Run(3, 72.0, sustained=0.76)])]
    [0.8, 0.8, 0.64]
    """
    if not runs:
        return []
    measure = max(LEAST_MEASURE, median(run.performance for run in runs[:FIRST_RUNS]))
    return [(run, min(1.0, run.performance / measure) * _held(run.sustained)) for run in runs]


def _held(sustained: float | None) -> float:
    return 1.0 if sustained is None else min(1.0, sustained / SUSTAINED_ENOUGH)


class _Weigher:
    """Weights by age. The same list of stretches is weighed once: cards of one machine mostly share theirs."""

    def __init__(self, at: int, half_life: int) -> None:
        self._at, self._half_life = at, half_life
        self._known: dict[int, float] = {}

    def hours(self, stretches: Sequence[Stretch]) -> float:
        """∫ 2^(−age / half-life) over the stretches, in hours."""
        if id(stretches) not in self._known:
            self._known[id(stretches)] = weighted_hours(stretches, at=self._at, half_life=self._half_life)
        return self._known[id(stretches)]

    def mean(self, events: Sequence[tuple[int, float]]) -> tuple[float, float]:
        """The weighted sum of values, and the sum of the weights."""
        shares = [weight(self._at - at, self._half_life) for at, _value in events]
        return math.fsum([share * event[1] for share, event in zip(shares, events, strict=True)]), math.fsum(shares)


def weight(age: int, half_life: int) -> float:
    return 2.0 ** (-age / half_life)


def weighted_hours(stretches: Iterable[Stretch], *, at: int, half_life: int) -> float:
    """∫ 2^(−age / half-life) over the stretches, in hours.

    >>> round(weighted_hours([(0, DAY)], at=DAY, half_life=14 * DAY), 3)
    23.416
    """
    return (
        half_life
        / HOUR
        / math.log(2)
        * math.fsum([2.0 ** ((end - at) / half_life) - 2.0 ** ((start - at) / half_life) for start, end in stretches])
    )


def length(stretches: Iterable[Stretch]) -> int:
    return sum(end - start for start, end in stretches)


def micros(at: datetime) -> int:
    """Microseconds since 1970.

    >>> micros(datetime(1970, 1, 2, 0, 0, 0, 5, tzinfo=UTC)) == DAY + 5, moment(DAY + 5).microsecond
    (True, 5)
    """
    return (at - _EPOCH) // _MICROSECOND


def moment(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def _filled(good: float, all_: float, prior_weight: float, prior: float) -> float:
    """Good over all, where ``all_`` is filled up to ``prior_weight`` by the prior."""
    missing = max(0.0, prior_weight - all_)
    return (good + missing * prior) / (all_ + missing)


def _variance(good: float, all_: float, prior_weight: float, prior: float) -> float:
    """Of a Beta distribution with this evidence beside the whole prior."""
    count = all_ + prior_weight
    share = min(1.0, (good + prior_weight * prior) / count)
    return share * (1 - share) / (count + 1)

"""What each event costs: which part of a machine's declared time it took, and how many points that is now.

With W the evidence of a part, weighted by age, and P its prior's weight:

    a stretch not available   50 × (its weighted card-hours / all owed card-hours) × W / max(W, 72)
    a job                     30 × its weight / max(W, 10)
    a run                     20 × its weight × (1 − its consistency) / max(W, 3)
    the prior                 what it fills in is not full marks: 5 % of the hours and jobs that are missing

These sum to 100 less the score; a test holds that.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from gpunex.kit.spans import Span, common, merged, without
from reliability import availability, events, score_1
from reliability import score as formula
from reliability.events import Events
from reliability.score import DAY, Parts, Past, Stretch, micros, moment, weight, weighted_hours

SHORT = timedelta(seconds=60)  # shorter gaps are one entry together


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that costs points now.

    ``component``: uptime, completion or consistency. ``code``: a kind of ``Gap``, "silent" (it goes on, or nothing more is
    known), "short" (gaps below a minute, together), a state of ``Availability``, the cause of a job, "below" or "throttled"
    for a run. ``cards``: the indexes of the cards it is about, none where it is the whole machine.
    """

    component: str
    code: str
    points: float
    started_at: datetime
    ended_at: datetime
    ongoing: bool = False
    count: int = 1
    cards: tuple[int, ...] = ()
    value: float | None = None  # of a run: its consistency
    throttle_reasons: tuple[str, ...] = ()
    halved_at: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event took from one card, or excused."""

    code: str
    start: datetime  # of the event; its pieces may be several
    end: datetime
    index: int
    spans: list[Span]


@dataclass(frozen=True)
class Sifted:
    declared: dict[int, list[Span]]
    kept: dict[int, list[Span]]
    missing: list[Piece]
    excused: list[Piece]
    indexes: tuple[int, ...]


def sift(found: Events, past: Past, at: datetime, *, whole: bool) -> Sifted:
    start = moment(past.start)
    window = [(start, at)]
    declared = events.declared_at(found, start=start, at=at)
    links = merged(events.connected_at(found, at))
    connected = common(links, window)
    silences = without(window, connected)
    reasons = _excuses(found, at, past)
    known = {card.id: card for card in found.cards}
    sides: dict[str, dict[int, list[Span]]] = {"declared": {}, "kept": {}}
    missing: list[Piece] = []
    excused: list[Piece] = []
    for card in past.cards:
        own = None if whole else known[card.key]
        index, log = (own.index, own.states) if own else (-1, ())
        owed, kept = _spans(card.owed), _spans(card.kept)
        begun = _begun(own) if own else min(run.at for each in found.cards for run in each.runs)
        mine = common(declared, [(max(begun, start), at)])
        sides["declared"][index], sides["kept"][index] = mine, kept
        lost = without(owed, kept)
        for begin, end in silences:
            if spans := common(lost, [(begin, end)]):
                missing.append(Piece(_kind(found, begin, end, at), begin, end, index, spans))
        held = common(lost, connected)
        for change, until in _stretches(log, at):
            if spans := common(held, [(change.at, until)]):
                missing.append(Piece(change.state, change.at, until, index, spans))
        left = without(mine, owed)
        for code, begin, end in reasons:
            if spans := common(left, [(begin, end)]):
                excused.append(Piece(code, begin, end, index, spans))
                left = without(left, spans)
        for change, until in _stretches(log, at):
            if spans := common(left, [(change.at, until)]):
                excused.append(Piece(change.state, change.at, until, index, spans))
                left = without(left, spans)
    return Sifted(
        declared=sides["declared"],
        kept=sides["kept"],
        missing=missing,
        excused=excused,
        indexes=tuple(sorted(sides["declared"])),
    )


def _begun(card: events.CardEvents) -> datetime:
    """Since when the card counts; it does."""
    found = availability.judged(
        [(micros(change.at), change.state) for change in card.states],
        first_run=micros(card.runs[0].at) if card.runs else None,
        until=micros(datetime.max.replace(tzinfo=UTC)),
    )
    return moment(found.since or 0)


def _excuses(found: Events, at: datetime, past: Past) -> list[tuple[str, datetime, datetime]]:
    """What excuses time of the machine, by name."""
    planned = replace(found, outages=(), excuses=())
    return [
        *(("outage", each.started_at, each.ended_at) for each in found.outages if each.recorded_at <= at),
        *(("excuse", each.started_at, each.ended_at) for each in found.excuses if each.recorded_at <= at),
        *(("maintenance", *span) for span in events.excused_at(planned, at=at, terms=past.terms)),
    ]


def _kind(found: Events, begin: datetime, end: datetime, at: datetime) -> str:
    if end < at:
        for gap in found.gaps:
            if gap.started_at < end and gap.ended_at > begin:
                return gap.kind
    return "silent"


def _stretches(log: Sequence[events.Change], at: datetime) -> Iterator[tuple[events.Change, datetime]]:
    known = [change for change in log if change.at < at]
    for number, change in enumerate(known):
        until = known[number + 1].at if number + 1 < len(known) else at
        if change.state != availability.State.AVAILABLE and change.at < until:
            yield change, until


def _spans(stretches: Iterable[Stretch]) -> list[Span]:
    return [(moment(start), moment(end)) for start, end in stretches]


def uptime_losses(sifted: Sifted, past: Past, evidence: Parts) -> list[Loss]:
    rate = _rate(past, evidence)
    grouped: dict[tuple[str, datetime, datetime], list[Piece]] = defaultdict(list)
    for piece in sifted.missing:
        grouped[piece.code, piece.start, piece.end].append(piece)
    found: list[Loss] = []
    short: list[Loss] = []
    for (code, start, end), pieces in grouped.items():
        points = rate * math.fsum(_hours(piece.spans, past) for piece in pieces)
        cards = tuple(sorted({piece.index for piece in pieces}))
        first = min(piece.spans[0][0] for piece in pieces)
        last = max(piece.spans[-1][1] for piece in pieces)
        loss = Loss(
            component="uptime",
            code=code,
            points=points,
            started_at=max(start, first) if code not in availability.State.values else start,
            ended_at=last,
            ongoing=micros(end) >= past.at,
            cards=() if cards == sifted.indexes else cards,
        )
        is_short = end - start < SHORT and not loss.ongoing and code not in availability.State.values
        (short if is_short else found).append(loss)
    if short:
        found.append(
            Loss(
                component="uptime",
                code="short",
                points=math.fsum(loss.points for loss in short),
                started_at=min(loss.started_at for loss in short),
                ended_at=max(loss.ended_at for loss in short),
                count=len(short),
            )
        )
    return found


def _rate(past: Past, evidence: Parts) -> float:
    """Points that one weighted card-hour costs."""
    owed = math.fsum(
        weighted_hours(card.owed, at=past.at, half_life=past.terms.half_life_days * DAY) for card in past.cards
    )
    if not owed:
        return 0.0
    return 100 * formula.UPTIME / owed * evidence.hours_weight / max(evidence.hours_weight, formula.PRIOR_HOURS)


def _hours(spans: Iterable[Span], past: Past) -> float:
    return weighted_hours(
        [(micros(start), micros(end)) for start, end in spans], at=past.at, half_life=past.terms.half_life_days * DAY
    )


def job_losses(found: Events, past: Past, evidence: Parts) -> list[Loss]:
    half_life, index_of = past.terms.half_life_days * DAY, {card.id: card.index for card in found.cards}
    rate = 100 * formula.COMPLETION / max(evidence.jobs_weight, formula.PRIOR_JOBS)
    losses = []
    for job in found.jobs:
        counted = past.start <= micros(job.at) <= past.at and micros(job.recorded_at) <= past.at
        excused = job.excused_at is not None and micros(job.excused_at) <= past.at
        if counted and job.provider_fault and not excused and job.cause not in formula.NEVER_RAN:
            losses.append(
                Loss(
                    component="completion",
                    code=job.cause,
                    points=rate * weight(past.at - micros(job.at), half_life),
                    started_at=job.at,
                    ended_at=job.at,
                    cards=tuple(sorted(index_of[card] for card in job.cards if card in index_of)),
                )
            )
    return losses


def run_losses(found: Events, past: Past, evidence: Parts, *, whole: bool) -> list[Loss]:
    rate = 100 * formula.CONSISTENCY / max(evidence.runs_weight, formula.PRIOR_RUNS)
    losses = []
    for card in found.cards:
        told_runs = [run for run in card.runs if run.performance and run.performance > 0 and micros(run.at) <= past.at]
        runs = [formula.Run(micros(run.at), run.performance or 0.0, run.sustained) for run in told_runs]
        for told, (run, value) in zip(told_runs, _values(runs, whole=whole), strict=True):
            if run.at < past.start or value >= 1:
                continue
            held = run.sustained is not None and run.sustained < formula.SUSTAINED_ENOUGH
            losses.append(
                Loss(
                    component="consistency",
                    code="throttled" if held else "below",
                    points=rate * weight(past.at - run.at, past.terms.half_life_days * DAY) * (1 - value),
                    started_at=told.at,
                    ended_at=told.at,
                    cards=(card.index,),
                    value=value,
                    throttle_reasons=tuple(told.throttle_reasons) if held else (),
                )
            )
    return losses


def _values(runs: list[formula.Run], *, whole: bool) -> list[tuple[formula.Run, float]]:
    if not whole:
        return formula.values_of(runs)
    return [
        (
            run,
            score_1.consistency_of(performance=run.performance, first=runs[0].performance, sustained=run.sustained),
        )
        for run in runs
    ]


def prior(evidence: Parts) -> dict[str, float]:
    """What the prior does not fill in, by component."""

    def gap(weight_: float, have: float, full: float, prior: float) -> float:
        missing = max(0.0, full - have)
        return 100 * weight_ * missing * (1 - prior) / (have + missing)

    return {
        "uptime": gap(formula.UPTIME, evidence.hours_weight, formula.PRIOR_HOURS, formula.PRIOR_UPTIME),
        "completion": gap(formula.COMPLETION, evidence.jobs_weight, formula.PRIOR_JOBS, formula.PRIOR_COMPLETION),
        "consistency": gap(formula.CONSISTENCY, evidence.runs_weight, formula.PRIOR_RUNS, formula.PRIOR_CONSISTENCY),
    }

"""Everything that a machine's score rests on, as a document that anyone may have: the export, and the way back to a score.

``reliability.recorded`` takes it from the tables, ``as_json`` and ``from_json`` carry it, and ``past`` turns it into what the formula takes
(``reliability.score.Past``), with nothing but this document. ``past`` is written to be read, not to be fast: it is the
reference that the product's own way through SQL (``reliability.uptime``) has to equal, microsecond by microsecond.

A score at a time rests on what was known then, and each event says when that was:

- a connection that ended later, or whose end was noticed later, was still a connection;
- a schedule counts from when it was declared, an excuse, a finding about an outage and a job's end from when they were
  written down;
- maintenance that was cancelled later was still planned.

So a past score stays what it was, whatever is found out since; the next score has it.

The document has no names and no keys of the database: cards and the machine go by their public ids. Times are ISO 8601 in
UTC, with all six digits.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gpunex.kit.spans import Span, common, merged, without
from providers.schedules import declared_spans
from reliability import availability
from reliability.score import DAY, FIRST_RUNS, NEVER_RAN, Card, Job, Past, Run, Stretch, Terms, micros, moment

FORMAT = "gpunex-score-events/1"


@dataclass(frozen=True, slots=True)
class Hours:
    """A version of the declared hours. ``pk`` orders versions of one moment: the last one written counts."""

    effective_from: datetime
    created_at: datetime
    timezone: str
    always: bool
    windows: Sequence[Any]
    pk: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """A stretch of connection; ``ended_at`` None while it lasts, ``closed_at`` when its end was noticed."""

    started_at: datetime
    ended_at: datetime | None = None
    closed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Silence:
    """What is known of a gap between two connections: ``kind`` as ``reliability.connections`` says. It changes no score."""

    started_at: datetime
    ended_at: datetime
    kind: str


@dataclass(frozen=True, slots=True)
class Planned:
    """Maintenance that was announced."""

    starts_at: datetime
    ends_at: datetime
    declared_at: datetime
    cancelled_at: datetime | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Excused:
    """An outage of the platform, or time that an admin took out, with the reason."""

    started_at: datetime
    ended_at: datetime
    recorded_at: datetime
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    at: datetime
    state: str


@dataclass(frozen=True, slots=True)
class Measured:
    """An accepted benchmark run; ``throttle_reasons`` as the card told them."""

    at: datetime
    performance: float | None
    sustained: float | None = None
    throttle_reasons: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class CardEvents:
    id: str
    index: int = 0
    states: Sequence[Change] = ()
    runs: Sequence[Measured] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended. ``cards``: their ids, none if they are not known."""

    at: datetime
    recorded_at: datetime
    cause: str
    provider_fault: bool
    excused_at: datetime | None = None
    excused_reason: str = ""
    cards: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TermsFrom:
    effective_from: datetime
    half_life_days: int
    window_days: int
    notice_hours: int
    budget_hours: int


@dataclass(frozen=True)
class Events:
    """The events of one machine. All lists are in the order of their time."""

    machine: str
    schedules: Sequence[Hours] = ()
    connections: Sequence[Link] = ()
    gaps: Sequence[Silence] = ()
    maintenance: Sequence[Planned] = ()
    outages: Sequence[Excused] = ()
    excuses: Sequence[Excused] = ()
    cards: Sequence[CardEvents] = ()
    jobs: Sequence[Ended] = ()
    terms: Sequence[TermsFrom] = ()


# --- to a score ------------------------------------------------------------------------------------------------------


def past(events: Events, *, at: int) -> Past:
    """What the formula takes at ``at`` (microseconds since 1970), from what was known then."""
    terms = terms_at(events.terms, moment(at))
    start = at - terms.window_days * DAY
    window: list[Span] = [(moment(start), moment(at))]
    first_run = min((run.at for card in events.cards for run in card.runs if micros(run.at) <= at), default=None)
    declared = declared_at(events, start=moment(start), at=moment(at))
    excused = excused_at(events, at=moment(at), terms=terms)
    connected = common(connected_at(events, moment(at)), window)
    owed = without(declared, excused)
    cards = []
    for card in events.cards:
        runs = [run for run in card.runs if micros(run.at) <= at]
        found = availability.judged(
            [(micros(change.at), change.state) for change in card.states],
            first_run=micros(runs[0].at) if runs else None,
            until=at,
        )
        if found.since is None or found.since >= at:
            continue
        own = without(common(owed, [(moment(found.since), moment(at))]), _spans(found.excused))
        kept = without(common(own, connected), _spans(found.blocked))
        cards.append(Card(key=card.id, owed=_stretches(own), kept=_stretches(kept), runs=_runs(runs, start=start)))
    of_all = common(owed, [(first_run, moment(at))]) if first_run is not None else []
    return Past(
        at=at,
        cards=cards,
        jobs=jobs_at(events.jobs, start=start, at=at),
        terms=terms,
        owed=_stretches(of_all),
        connected=_stretches(common(of_all, connected)),
    )


def terms_at(terms: Sequence[TermsFrom], at: datetime) -> Terms:
    """What the policy said of the score at ``at``; the specification's numbers before anything was recorded."""
    known = [each for each in terms if each.effective_from <= at]
    if not known:
        return Terms()
    last = known[-1]
    return Terms(
        half_life_days=last.half_life_days,
        window_days=last.window_days,
        notice_hours=last.notice_hours,
        budget_hours=last.budget_hours,
    )


def declared_at(events: Events, *, start: datetime, at: datetime) -> list[Span]:
    """The declared hours between ``start`` and ``at``, by the versions that were declared by then, each while it was in force."""
    return declared_spans([each for each in events.schedules if each.created_at <= at], start, at)


def connected_at(events: Events, at: datetime) -> list[Span]:
    """When the machine was connected, as it was known at ``at``."""
    found = []
    for link in events.connections:
        noticed = link.closed_at or link.ended_at
        known = link.ended_at is not None and noticed is not None and noticed <= at
        found.append((link.started_at, link.ended_at if known and link.ended_at is not None else at))
    return common(found, [(datetime.min.replace(tzinfo=UTC), at)])


def excused_at(events: Events, *, at: datetime, terms: Terms) -> list[Span]:
    """What counts against nobody, as it was known at ``at``."""
    planned = [
        window
        for window in events.maintenance
        if window.declared_at <= at and (window.cancelled_at is None or window.cancelled_at > at)
    ]
    known = [(each.started_at, each.ended_at) for each in (*events.outages, *events.excuses) if each.recorded_at <= at]
    return merged(
        [
            *known,
            *excused_maintenance(
                planned, notice=timedelta(hours=terms.notice_hours), budget=timedelta(hours=terms.budget_hours)
            ),
        ]
    )


def excused_maintenance(windows: Iterable[Any], *, notice: timedelta, budget: timedelta) -> list[Span]:
    """Planned maintenance that counts against nobody: told ``notice`` ahead, and up to ``budget`` a calendar month (UTC).

    Windows are taken in order until the month's budget is used up; the window that crosses it is excused in part.
    """
    left: dict[tuple[int, int], timedelta] = defaultdict(lambda: budget)
    excused: list[Span] = []
    told = [window for window in windows if window.declared_at <= window.starts_at - notice]
    for start, end in merged((window.starts_at.astimezone(UTC), window.ends_at.astimezone(UTC)) for window in told):
        at = start
        while at < end:
            month = (at.year, at.month)
            next_month = at.replace(
                year=at.year + at.month // 12, month=at.month % 12 + 1, day=1, hour=0, minute=0, second=0, microsecond=0
            )
            piece = min(end, next_month)
            take = min(left[month], piece - at)
            if take > timedelta():
                excused.append((at, at + take))
                left[month] -= take
            at = piece
    return excused


def jobs_at(jobs: Iterable[Ended], *, start: int, at: int) -> list[Job]:
    """The jobs that had ended by ``at``, as it was known then; an excused one went well."""
    return [
        Job(
            at=micros(job.at),
            good=not job.provider_fault or (job.excused_at is not None and micros(job.excused_at) <= at),
            cards=frozenset(job.cards),
            ran=job.cause not in NEVER_RAN,
        )
        for job in jobs
        if start <= micros(job.at) <= at and micros(job.recorded_at) <= at
    ]


def _runs(runs: Sequence[Measured], *, start: int) -> list[Run]:
    """The first ones and those of the window; without a score by the model none says anything."""
    scored = [
        Run(micros(run.at), run.performance, run.sustained) for run in runs if run.performance and run.performance > 0
    ]
    return [run for number, run in enumerate(scored) if number < FIRST_RUNS or run.at >= start]


def _spans(stretches: Iterable[Stretch]) -> list[Span]:
    return [(moment(start), moment(end)) for start, end in stretches]


def _stretches(spans: Iterable[Span]) -> list[Stretch]:
    return [(micros(start), micros(end)) for start, end in spans]


# --- as JSON ---------------------------------------------------------------------------------------------------------

_LISTS: dict[str, Any] = {
    "schedules": Hours,
    "connections": Link,
    "gaps": Silence,
    "maintenance": Planned,
    "outages": Excused,
    "excuses": Excused,
    "jobs": Ended,
    "terms": TermsFrom,
}


class NotEvents(ValueError):
    """The text is no export of this version."""


def as_json(events: Events) -> dict[str, Any]:
    """The document, ready for ``json.dumps``."""
    document: dict[str, Any] = {"format": FORMAT, "machine": events.machine}
    for name in _LISTS:
        document[name] = [_plain(asdict(each)) for each in getattr(events, name)]
    document["cards"] = [_plain(asdict(card)) for card in events.cards]
    return document


def from_json(document: Any) -> Events:
    """Raises NotEvents where the document is not as ``as_json`` makes it."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise NotEvents(f"This is no document of the format {FORMAT}.")
    try:
        lists: dict[str, Any] = {name: [_typed(kind, each) for each in document[name]] for name, kind in _LISTS.items()}
        cards = [
            CardEvents(
                id=str(card["id"]),
                index=int(card["index"]),
                states=[_typed(Change, each) for each in card["states"]],
                runs=[_typed(Measured, each) for each in card["runs"]],
            )
            for card in document["cards"]
        ]
        return Events(machine=str(document["machine"]), cards=cards, **lists)
    except (KeyError, TypeError, ValueError) as error:
        raise NotEvents(f"The document is not complete: {error!r}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _typed(kind: Any, values: dict[str, Any]) -> Any:
    """A row of the document as ``kind``; what ends in ``_at``, ``at`` or ``_from`` is a time."""
    return kind(
        **{
            name: datetime.fromisoformat(value) if isinstance(value, str) and _is_time(name) else value
            for name, value in values.items()
        }
    )


def _is_time(name: str) -> bool:
    return name == "at" or name.endswith(("_at", "_from"))

"""The events of machines (``reliability.events``), taken from the tables: a fixed number of queries, however many machines."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import BooleanField, ExpressionWrapper, F, Q, Window
from django.db.models.functions import RowNumber

from providers.models import Gpu, Machine, MaintenanceWindow, Schedule
from reliability.events import (
    CardEvents,
    Change,
    Ended,
    Events,
    Excused,
    Hours,
    Link,
    Measured,
    Planned,
    Silence,
    TermsFrom,
)
from reliability.models import (
    Availability,
    Benchmark,
    Connection,
    Excuse,
    Gap,
    Incident,
    Outcome,
    PlatformOutage,
    ScoreTerms,
)
from reliability.score import FIRST_RUNS


def read(machine: Machine, *, since: datetime | None = None) -> Events:
    """The events of one machine: all of them, or those that a score after ``since`` can rest on."""
    return read_all([machine], since=since)[machine.pk]


def read_all(machines: Sequence[Machine], *, since: datetime | None = None) -> dict[int, Events]:
    """The same for many, by the machine's key, in a fixed number of queries."""
    keys = [machine.pk for machine in machines]
    gpus = list(Gpu.objects.filter(machine__in=keys).order_by("index", "pk"))
    lists: dict[str, Mapping[int, list[Any]]] = {
        "schedules": _schedules(keys),
        "connections": _connections(keys, since),
        "gaps": _gaps(keys, since),
        "maintenance": _maintenance(keys, since),
        "excuses": _excuses(keys, since),
        "cards": _cards(gpus, since),
        "jobs": _jobs(keys, since, names={gpu.pk: str(gpu.public_id) for gpu in gpus}),
    }
    outages, terms = outages_at(since), _terms()
    return {
        machine.pk: Events(
            machine=str(machine.public_id),
            outages=outages,
            terms=terms,
            **_of(machine.pk, lists),
        )
        for machine in machines
    }


def _of(machine: int, lists: dict[str, Mapping[int, list[Any]]]) -> dict[str, Any]:
    return {name: found.get(machine, []) for name, found in lists.items()}


def _by_machine(rows: Iterable[tuple[int, Any]]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for machine, each in rows:
        found[machine].append(each)
    return found


def _schedules(keys: list[int]) -> dict[int, list[Any]]:
    rows = Schedule.objects.filter(machine__in=keys).order_by("effective_from", "pk")
    return _by_machine(
        (row.machine_id, Hours(row.effective_from, row.created_at, row.timezone, row.always, row.windows, row.pk))
        for row in rows
    )


def _connections(keys: list[int], since: datetime | None) -> dict[int, list[Any]]:
    rows = Connection.objects.filter(machine__in=keys).order_by("started_at", "pk")
    if since is not None:
        rows = rows.filter(Q(ended_at=None) | Q(ended_at__gt=since) | Q(closed_at__gt=since))
    return _by_machine((row.machine_id, Link(row.started_at, row.ended_at, row.closed_at)) for row in rows)


def _gaps(keys: list[int], since: datetime | None) -> dict[int, list[Any]]:
    rows = Gap.objects.filter(machine__in=keys).order_by("started_at")
    if since is not None:
        rows = rows.filter(ended_at__gt=since)
    return _by_machine((row.machine_id, Silence(row.started_at, row.ended_at, row.kind)) for row in rows)


def _maintenance(keys: list[int], since: datetime | None) -> dict[int, list[Any]]:
    rows = MaintenanceWindow.objects.filter(machine__in=keys).order_by("starts_at", "pk")
    if since is not None:  # the budget is a month's: what was planned earlier in it has used some
        rows = rows.filter(ends_at__gt=since - timedelta(days=31))
    return _by_machine(
        (row.machine_id, Planned(row.starts_at, row.ends_at, row.declared_at, row.cancelled_at, row.reason))
        for row in rows
    )


def _excuses(keys: list[int], since: datetime | None) -> dict[int, list[Any]]:
    rows = Excuse.objects.filter(machine__in=keys).order_by("started_at", "pk")
    if since is not None:
        rows = rows.filter(ended_at__gt=since)
    return _by_machine(
        (row.machine_id, Excused(row.started_at, row.ended_at, row.recorded_at, row.reason)) for row in rows
    )


def outages_at(since: datetime | None = None) -> list[Excused]:
    """The platform's outages that reach beyond ``since``; one that lasts has no end yet."""
    rows = PlatformOutage.objects.order_by("started_at", "pk")
    if since is not None:
        rows = rows.filter(Q(ended_at__gt=since) | Q(ongoing=True))
    return [
        Excused(
            row.started_at,
            datetime.max.replace(tzinfo=UTC) if row.ongoing else row.ended_at,
            row.recorded_at or row.ended_at,
            row.kind,
        )
        for row in rows
    ]


def _terms() -> list[TermsFrom]:
    return [
        TermsFrom(row.effective_from, row.half_life_days, row.window_days, row.notice_hours, row.budget_hours)
        for row in ScoreTerms.objects.order_by("effective_from")
    ]


def _cards(gpus: list[Gpu], since: datetime | None) -> dict[int, list[Any]]:
    keys = [gpu.pk for gpu in gpus]
    states: dict[int, list[Change]] = defaultdict(list)
    for gpu, at, state in (
        Availability.objects.filter(gpu__in=keys).order_by("at", "pk").values_list("gpu_id", "at", "state")
    ):
        states[gpu].append(Change(at, state))
    runs: dict[int, list[Measured]] = defaultdict(list)
    accepted = Benchmark.objects.filter(
        gpu__in=keys, state=Benchmark.State.ACCEPTED, received_at__isnull=False
    ).annotate(number=Window(RowNumber(), partition_by="gpu_id", order_by=["received_at", "pk"]))
    if since is not None:
        # One without a performance is no measure: it must not take the place of one that is.
        measured = ExpressionWrapper(Q(performance__gt=0), output_field=BooleanField())
        scored = Window(RowNumber(), partition_by=[F("gpu_id"), measured], order_by=["received_at", "pk"])
        accepted = accepted.annotate(scored=scored).filter(
            Q(number=1) | Q(scored__lte=FIRST_RUNS) | Q(received_at__gte=since)
        )
    for row in accepted.order_by("received_at", "pk"):
        details = row.details or {}
        runs[row.gpu_id].append(
            Measured(
                row.received_at or row.requested_at,
                row.performance,
                details.get("sustained_ratio"),
                tuple(details.get("throttle_reasons") or ()),
            )
        )
    return _by_machine(
        (gpu.machine_id, CardEvents(str(gpu.public_id), gpu.index, states[gpu.pk], runs[gpu.pk])) for gpu in gpus
    )


def _jobs(keys: list[int], since: datetime | None, *, names: dict[int, str]) -> dict[int, list[Any]]:
    ended = Outcome.objects.filter(machine__in=keys).order_by("at", "pk")
    if since is not None:
        ended = ended.filter(at__gte=since)
    rows = list(ended)
    excused: dict[Any, Incident] = {
        incident.reference: incident
        for incident in Incident.objects.filter(machine__in=keys, excused_at__isnull=False, reference__isnull=False)
    }
    found = []
    for row in rows:
        incident = excused.get(row.reference)
        found.append(
            (
                row.machine_id,
                Ended(
                    row.at,
                    row.recorded_at or row.at,
                    row.cause,
                    row.provider_fault,
                    incident.excused_at if incident else None,
                    incident.excused_reason if incident else "",
                    [names[card] for card in row.cards if card in names],
                ),
            )
        )
    return _by_machine(found)

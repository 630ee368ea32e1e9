"""Scores of machines: the formula of ``reliability.score`` fed from the tables, and kept as rows that say what they rest on."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import batched
from typing import Any

from django.db.models import Exists, F, OuterRef, Q, Subquery
from django.db.models.functions import Greatest

from gpunex.kit.spans import Span, common, merged, seconds, without
from gpunex.policy.models import Policy
from providers.models import Machine, MaintenanceWindow, Schedule
from providers.schedules import declared_spans
from reliability import score as formula
from reliability.models import Benchmark, Connection, Incident, Outcome, PlatformOutage, Score

EVERY = timedelta(hours=1)
CHUNK = 200


def latest(machine: Machine) -> Score | None:
    """The machine's score as last computed; None before the first."""
    return Score.objects.filter(machine=machine).order_by("-at").first()


def latest_of(machines: Iterable[Machine]) -> dict[int, Score]:
    """The same for many, by the machine's key, in one query."""
    return {
        score.machine_id: score
        for score in Score.objects.filter(machine__in=machines).order_by("machine", "-at").distinct("machine")
    }


def refresh(*, at: datetime) -> int:
    """Score the machines that are due: hourly, and soon after something that counts happened. Returns how many were."""
    due = list(_due(at).order_by("pk"))
    for machines in batched(due, CHUNK):
        scored = scores_of(machines, at=at)
        Score.objects.bulk_create(
            [_row(machine, scored[machine.pk], at) for machine in machines], ignore_conflicts=True
        )
    return len(due)


def scores_of(machines: Sequence[Machine], *, at: datetime) -> dict[int, formula.Parts]:
    """The parts of each machine's score at ``at``, by its key: a fixed number of queries, however many machines."""
    policy = Policy.load()
    pasts = pasts_of(machines, at=at, policy=policy)
    return {machine: formula.score(at=at, **terms_of(policy), **past) for machine, past in pasts.items()}


def pasts_of(machines: Sequence[Machine], *, at: datetime, policy: Policy) -> dict[int, dict[str, Any]]:
    """What each machine's score rests on, by its key: the formula's ``declared``, ``connected``, ``excused``, ``jobs`` and ``runs``."""
    past = _Past(machines, start=at - timedelta(days=policy.score_window_days), at=at, policy=policy)
    return {machine.pk: past.of(machine) for machine in machines}


def terms_of(policy: Policy) -> dict[str, Any]:
    """The formula's half-life and window as the policy sets them."""
    return {"half_life_days": policy.score_half_life_days, "window_days": policy.score_window_days}


def _due(at: datetime) -> Any:
    newest = Score.objects.filter(machine=OuterRef("pk")).order_by("-at")
    happened = Greatest(
        Subquery(Outcome.objects.filter(machine=OuterRef("pk")).order_by("-at").values("at")[:1]),
        Subquery(_accepted().filter(gpu__machine=OuterRef("pk")).order_by("-received_at").values("received_at")[:1]),
        Subquery(Connection.objects.filter(machine=OuterRef("pk")).order_by("-started_at").values("started_at")[:1]),
        Subquery(
            Connection.objects.filter(machine=OuterRef("pk"), ended_at__isnull=False)
            .order_by("-ended_at")
            .values("ended_at")[:1]
        ),
        Subquery(
            Incident.objects.filter(machine=OuterRef("pk"), excused_at__isnull=False)
            .order_by("-excused_at")
            .values("excused_at")[:1]
        ),
    )
    measured = Exists(_accepted().filter(gpu__machine=OuterRef("pk")))
    return (
        Machine.objects.live()
        .annotate(scored_at=Subquery(newest.values("at")[:1]), happened_at=happened)
        .filter(measured)
        .filter(Q(scored_at=None) | Q(scored_at__lte=at - EVERY) | Q(happened_at__gt=F("scored_at")))
    )


def _row(machine: Machine, parts: formula.Parts, at: datetime) -> Score:
    return Score(
        machine=machine,
        at=at,
        version=formula.VERSION,
        score=parts.score,
        uptime=parts.uptime,
        completion=parts.completion,
        consistency=parts.consistency,
        new=parts.new,
        inputs={
            "declared_hours": round(parts.declared_hours, 3),
            "connected_hours": round(parts.connected_hours, 3),
            "jobs": parts.jobs,
            "runs": parts.runs,
        },
    )


def _accepted() -> Any:
    return Benchmark.objects.filter(state=Benchmark.State.ACCEPTED)


class _Past:
    """What is recorded of some machines since ``start``."""

    def __init__(self, machines: Sequence[Machine], *, start: datetime, at: datetime, policy: Policy) -> None:
        self._start, self._at, self._policy = start, at, policy
        keys = [machine.pk for machine in machines]
        self._connected: dict[int, list[Span]] = defaultdict(list)
        self._schedules: dict[int, list[Any]] = defaultdict(list)
        self._maintenance: dict[int, list[Span]] = defaultdict(list)
        self._jobs: dict[int, list[formula.Event]] = defaultdict(list)
        self._runs: dict[int, list[formula.Event]] = defaultdict(list)
        self._since: dict[int, datetime] = {}
        self._outages: list[Span] = list(
            PlatformOutage.objects.filter(ended_at__gt=start).values_list("started_at", "ended_at")
        )
        self._read_connections(keys)
        self._read_schedules(machines, keys)
        self._read_jobs(keys)
        self._read_runs(keys)

    def of(self, machine: Machine) -> dict[str, Any]:
        key = machine.pk
        since = max(self._start, self._since.get(key, self._at))
        return {
            "declared": declared_spans(self._schedules[key], since, self._at),
            "connected": self._connected[key],
            "excused": merged([*self._outages, *self._maintenance[key]]),
            "jobs": self._jobs[key],
            "runs": self._runs[key],
        }

    def _read_connections(self, keys: list[int]) -> None:
        rows = Connection.objects.filter(machine__in=keys).filter(Q(ended_at=None) | Q(ended_at__gt=self._start))
        for row in rows.select_related("machine"):
            seen = row.machine.last_seen_at or row.started_at
            # Between two heartbeats a machine is as connected as at the first; silent for longer, only up to its last one.
            open_end = self._at if row.machine.is_connected(self._at, self._policy.offline_seconds) else seen
            self._connected[row.machine_id].append((row.started_at, row.ended_at or open_end))

    def _read_schedules(self, machines: Sequence[Machine], keys: list[int]) -> None:
        for schedule in Schedule.objects.filter(machine__in=keys):
            self._schedules[schedule.machine_id].append(schedule)
        planned: dict[int, list[MaintenanceWindow]] = defaultdict(list)
        for window in MaintenanceWindow.objects.filter(machine__in=keys, cancelled_at=None, ends_at__gt=self._start):
            planned[window.machine_id].append(window)
        for key, windows in planned.items():
            self._maintenance[key] = excused_maintenance(
                windows,
                notice=timedelta(hours=self._policy.maintenance_notice_hours),
                budget=timedelta(hours=self._policy.maintenance_hours_a_month),
            )

    def _read_jobs(self, keys: list[int]) -> None:
        excused = Incident.objects.filter(reference=OuterRef("reference"), excused_at__isnull=False)
        rows = Outcome.objects.filter(machine__in=keys, at__gte=self._start, at__lte=self._at)
        for row in rows.annotate(excused=Exists(excused)):
            good = not row.provider_fault or row.excused
            self._jobs[row.machine_id].append(formula.Event(row.at, float(good)))

    def _read_runs(self, keys: list[int]) -> None:
        """Runs against the first accepted one of their card, however long ago that was."""
        first: dict[int, float] = {}
        rows = _accepted().filter(gpu__machine__in=keys, received_at__isnull=False).order_by("received_at", "pk")
        for row in rows.values_list("gpu_id", "gpu__machine_id", "received_at", "performance", "details"):
            gpu, machine, received_at, performance, details = row
            self._since.setdefault(machine, received_at)
            if not performance:
                continue
            first.setdefault(gpu, performance)
            if received_at >= self._start:
                value = formula.consistency_of(
                    performance=performance, first=first[gpu], sustained=(details or {}).get("sustained_ratio")
                )
                self._runs[machine].append(formula.Event(received_at, value))


def excused_maintenance(windows: Iterable[MaintenanceWindow], *, notice: timedelta, budget: timedelta) -> list[Span]:
    """Planned maintenance that counts against nobody: told ``notice`` ahead, and up to ``budget`` a calendar month (UTC).

    Windows are taken in order until the month's budget is used up; the window that crosses it is excused in part.
    """
    left: dict[tuple[int, int], float] = defaultdict(budget.total_seconds)
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
            take = min(left[month], (piece - at).total_seconds())
            if take > 0:
                excused.append((at, at + timedelta(seconds=take)))
                left[month] -= take
            at = piece
    return excused


def uptime_spans(machine: Machine, *, start: datetime, end: datetime) -> dict[str, list[Span]]:
    """What a chart of uptime shows between ``start`` and ``end``: declared, connected and excused time."""
    past = _Past([machine], start=start, at=end, policy=Policy.load()).of(machine)
    window = [(start, end)]
    return {name: common(past[name], window) for name in ("declared", "connected", "excused")}


def share_connected(spans: dict[str, list[Span]]) -> float | None:
    """Connected over declared time of ``uptime_spans``, without what is excused; None where nothing was declared."""
    owed = without(spans["declared"], spans["excused"])
    return seconds(common(owed, spans["connected"])) / seconds(owed) if owed else None

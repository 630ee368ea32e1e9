"""What a provider declares about a machine: its hours, planned maintenance, and what is kept from renters.

Hours are versions, never edited. Wider hours count at once; narrower ones from the next midnight of the schedule's zone that
is at least 24 hours away, so that nobody takes back hours that a renter may be counting on. A change that does both is cut
in two: until that midnight the old and the new hours count together (where both are in one zone; else the old ones).

Hiding and draining change no declared hour: they keep new renters away while the clock of the uptime runs on.

Maintenance is excused in the uptime with enough notice and within the month's budget, as the policy says. What is declared
must be both; a machine that has to go down sooner goes down undeclared.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import User
from gpunex.kit import show
from gpunex.kit.refusals import Refusal
from gpunex.kit.spans import seconds, without
from gpunex.kit.time import zone
from gpunex.policy.models import Policy
from providers import machines
from providers.models import Gpu, GpuClaim, Machine, MaintenanceWindow, Schedule, Workload
from providers.schedules import hours_of
from providers.weeks import DAY, WEEK, check_windows, span

NOTICE = timedelta(hours=24)
COMPARED = timedelta(days=15)  # two weeks show every weekly pattern, whatever zone it is in
FURTHEST_MAINTENANCE = timedelta(days=366)


class NoHours(Refusal):
    code = "no_hours"
    message = _(
        "Choose at least one hour of the week, or “Around the clock”. To take the machine off the market, hide or retire it."
    )


class MachineRetired(Refusal):
    code = "machine_retired"
    message = _("This machine is retired. Run the installer on the host to connect it anew.")


class MachineInUse(Refusal):
    code = "machine_in_use"
    message = _("A customer's work runs on this machine. Drain it, wait until the rental has ended, then retire it.")


class KeptByHost(Refusal):
    code = "kept_by_host"
    message = _(
        "The host itself keeps this GPU (GPUNEX_GPUS of the installer). Run the installer again there to give it."
    )


class MaintenanceInThePast(Refusal):
    code = "maintenance_past"
    message = _("The window begins in the past. Choose a later start.")


class MaintenanceTooSoon(Refusal):
    code = "maintenance_notice"
    message = _("Maintenance is excused with %(hours)s hours' notice. The earliest start is %(earliest)s.")


class MaintenanceTooFar(Refusal):
    code = "maintenance_far"
    message = _("The window begins more than a year from now. Choose an earlier start.")


class MaintenanceEmpty(Refusal):
    code = "maintenance_empty"
    message = _("The window ends before it begins. Choose a later end.")


class MaintenanceOverlaps(Refusal):
    code = "maintenance_overlaps"
    message = _("Another window of this machine overlaps: %(starts)s. Cancel that one first, or choose another time.")


class MaintenanceOverBudget(Refusal):
    code = "maintenance_budget"
    message = _("%(budget)s hours a month are excused on a machine. In this window's month %(left)s are left.")


class MaintenanceBegun(Refusal):
    code = "maintenance_begun"
    message = _("This window has begun or is over. It can't be cancelled any more.")


# --- hours -----------------------------------------------------------------------------------------------------------


@transaction.atomic
def declare_schedule(
    *, machine: Machine, timezone: str, always: bool, windows: Sequence[Any], by: User | None, at: datetime
) -> list[Schedule]:
    """Declare new hours; returns the versions written, oldest first, none if they are in force already.

    Raises NoHours, MachineRetired, what ``check_windows`` raises, and ValueError for a zone that does not exist.
    """
    machine = _locked(machine)
    zone(timezone)
    if not always:
        check_windows(windows)
        if not windows:
            raise NoHours
    known = list(Schedule.objects.filter(machine=machine).order_by("effective_from", "pk"))
    begun = [version for version in known if version.effective_from <= at]
    current = begun[-1] if begun else None
    pending = _still_to_come(known, at)
    asked = _version(machine, timezone, always, windows, by, at)
    if not pending and current is not None and _same(current, asked):
        return []
    promised = [version for version in (current, *pending) if version is not None]
    effective = at if not any(_takes_away(version, asked, at) for version in promised) else next_midnight(timezone, at)
    rows: list[Schedule] = []
    if effective > at and current is not None and not _same(current, both := _together(current, asked, by)):
        both.effective_from = at
        rows.append(both)
    # A version that was to come would take over again: from its time on, what is declared now counts instead.
    for version in pending:
        row = asked if version.effective_from >= effective else _together(version, asked, by)
        rows.append(_copy(row, version.effective_from, by, at))
    rows.append(_copy(asked, effective, by, at))
    rows.sort(key=lambda row: row.effective_from)
    for row in rows:
        row.created_at = at
        row.save()
    return rows


def next_midnight(timezone: str, at: datetime) -> datetime:
    """The first midnight in ``timezone`` that is at least 24 hours after ``at``, in UTC.

    >>> next_midnight("Europe/Berlin", datetime(2026, 10, 14, 14, 5, tzinfo=UTC))
    datetime.datetime(2026, 10, 15, 22, 0, tzinfo=datetime.timezone.utc)
    """
    local = (at + NOTICE).astimezone(zone(timezone))
    midnight = datetime.combine(local.date(), time(), tzinfo=local.tzinfo)
    if midnight.astimezone(UTC) < at + NOTICE:
        midnight = datetime.combine(local.date() + timedelta(days=1), time(), tzinfo=local.tzinfo)
    return midnight.astimezone(UTC)


def still_to_come(*, machine: Machine, at: datetime) -> list[Schedule]:
    """The versions that will take over after ``at``, in order; the last one is what is declared in the end."""
    return _still_to_come(list(Schedule.objects.filter(machine=machine).order_by("effective_from", "pk")), at)


def _still_to_come(versions: Iterable[Schedule], at: datetime) -> list[Schedule]:
    # Of several from one moment, the last one written counts.
    return list({version.effective_from: version for version in versions if version.effective_from > at}.values())


def _version(
    machine: Machine, timezone: str, always: bool, windows: Sequence[Any], by: User | None, at: datetime
) -> Schedule:
    return Schedule(
        machine=machine,
        effective_from=at,
        timezone=timezone,
        always=always,
        windows=[] if always else [list(window) for window in windows],
        created_by=by,
        created_at=at,
    )


def _copy(version: Schedule, effective_from: datetime, by: User | None, at: datetime) -> Schedule:
    row = _version(version.machine, version.timezone, version.always, version.windows, by, at)
    row.effective_from = effective_from
    return row


def _same(one: Schedule, other: Schedule) -> bool:
    if one.always or other.always:
        return one.always and other.always and one.timezone == other.timezone
    return one.timezone == other.timezone and sorted(map(list, one.windows)) == sorted(map(list, other.windows))


def _takes_away(old: Schedule, new: Schedule, at: datetime) -> bool:
    """Whether ``old`` declares a moment that ``new`` does not."""
    end = at + COMPARED
    return seconds(without(hours_of(old).spans(at, end), hours_of(new).spans(at, end))) > 0


def _together(old: Schedule, new: Schedule, by: User | None) -> Schedule:
    """The hours of both, where they are in one zone; else the old ones."""
    both = _version(old.machine, old.timezone, old.always, old.windows, by, old.created_at)
    if new.always:
        both.always, both.windows = True, []
    elif not old.always and old.timezone == new.timezone:
        both.windows = _union([*old.windows, *new.windows])
    return both


def _union(windows: Iterable[Any]) -> list[list[Any]]:
    """Weekly windows that may overlap, as the fewest that do not; none is longer than until the next midnight.

    >>> _union([[0, "22:00", "02:00"], [1, "01:00", "03:30"]])
    [[0, '22:00', '24:00'], [1, '00:00', '03:30']]
    """
    minutes = {minute % WEEK for window in windows for minute in range(*span(window))}
    result = []
    for day in range(7):
        opens = [m for m in range(DAY) if day * DAY + m in minutes and (m == 0 or day * DAY + m - 1 not in minutes)]
        closes = [
            m + 1 for m in range(DAY) if day * DAY + m in minutes and (m == DAY - 1 or day * DAY + m + 1 not in minutes)
        ]
        result += [[day, _clock(start), _clock(end)] for start, end in zip(opens, closes, strict=True)]
    return result


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


# --- kept from renters -----------------------------------------------------------------------------------------------


@transaction.atomic
def hide(*, machine: Machine, hidden: bool, at: datetime) -> Machine:
    """Keep all of the machine's GPUs from renters, or show them again. Rentals that run go on."""
    machine = _locked(machine)
    if hidden != (machine.hidden_at is not None):
        machine.hidden_at = at if hidden else None
        machine.save(update_fields=["hidden_at"])
    return machine


@transaction.atomic
def drain(*, machine: Machine, draining: bool, at: datetime) -> Machine:
    """Take no new work, benchmarks among it, so that the host can be stopped once what runs has ended; or take work again."""
    machine = _locked(machine)
    if machine.draining != draining:
        machine.draining = draining
        machine.save(update_fields=["draining"])
    return machine


@transaction.atomic
def give(*, gpu: Gpu, given: bool, at: datetime) -> Gpu:
    """Give a GPU to the platform, or keep it. A rental on it goes on to its end. Raises KeptByHost."""
    _locked(gpu.machine)
    gpu = Gpu.objects.select_for_update(no_key=True, of=("self",)).get(pk=gpu.pk)
    if given and gpu.facts.get("given") is False:
        raise KeptByHost
    if gpu.given != given:
        gpu.given = given
        gpu.save(update_fields=["given"])
    return gpu


@transaction.atomic
def retire(*, machine: Machine, at: datetime) -> list[Workload]:
    """Let the machine go for good, as ``machines.retire`` does, once no customer's work is on it. Raises MachineInUse."""
    machine = _locked(machine)
    rented = GpuClaim.objects.current(at).filter(gpu__machine=machine, lane=0, kind=GpuClaim.Kind.RENTAL).exists()
    if rented or Workload.objects.known_to_machine().filter(machine=machine, kind=Workload.Kind.JOB).exists():
        raise MachineInUse
    return machines.retire(machine=machine, at=at)


def _locked(machine: Machine) -> Machine:
    machine = Machine.objects.select_for_update(no_key=True, of=("self",)).get(pk=machine.pk)
    if machine.retired_at is not None:
        raise MachineRetired
    return machine


# --- maintenance -----------------------------------------------------------------------------------------------------


@transaction.atomic
def declare_maintenance(
    *, machine: Machine, starts_at: datetime, ends_at: datetime, reason: str, by: User | None, at: datetime
) -> MaintenanceWindow:
    """Announce planned maintenance. Refused, by the names above, where it would not be excused whole."""
    machine, policy = _locked(machine), Policy.load()
    notice = timedelta(hours=policy.maintenance_notice_hours)
    if ends_at <= starts_at:
        raise MaintenanceEmpty
    if starts_at <= at:
        raise MaintenanceInThePast
    if starts_at < at + notice:
        raise MaintenanceTooSoon(hours=policy.maintenance_notice_hours, earliest=show.moment(_next_minute(at + notice)))
    if starts_at > at + FURTHEST_MAINTENANCE:
        raise MaintenanceTooFar
    standing = MaintenanceWindow.objects.filter(machine=machine, cancelled_at=None)
    other = standing.filter(starts_at__lt=ends_at, ends_at__gt=starts_at).order_by("starts_at").first()
    if other is not None:
        raise MaintenanceOverlaps(starts=show.moment(other.starts_at))
    for month, needed in _by_month(starts_at, ends_at).items():
        left = budget_left(machine=machine, month=month)
        if needed > left:
            raise MaintenanceOverBudget(
                budget=policy.maintenance_hours_a_month, left=show.duration(int(left.total_seconds()))
            )
    return MaintenanceWindow.objects.create(
        machine=machine,
        starts_at=starts_at,
        ends_at=ends_at,
        reason=reason.strip()[:200],
        declared_at=at,
        declared_by=by,
    )


@transaction.atomic
def cancel_maintenance(*, window: MaintenanceWindow, at: datetime) -> MaintenanceWindow:
    """Take the announcement back. Repeating it is harmless. Raises MaintenanceBegun."""
    window = MaintenanceWindow.objects.select_for_update(no_key=True, of=("self",)).get(pk=window.pk)
    if window.cancelled_at is None:
        if window.starts_at <= at:
            raise MaintenanceBegun
        window.cancelled_at = at
        window.save(update_fields=["cancelled_at"])
    return window


def budget_left(*, machine: Machine, month: datetime) -> timedelta:
    """What the policy still excuses on the machine in the UTC month of ``month``."""
    first = _first_of_month(month)
    windows = MaintenanceWindow.objects.filter(
        machine=machine, cancelled_at=None, starts_at__lt=_next_month(first), ends_at__gt=first
    )
    used = sum((_by_month(window.starts_at, window.ends_at)[first] for window in windows), timedelta())
    return max(timedelta(), timedelta(hours=Policy.load().maintenance_hours_a_month) - used)


def _by_month(start: datetime, end: datetime) -> dict[datetime, timedelta]:
    """How long the stretch is in each UTC month that it touches, by the month's first moment."""
    found = {}
    at = start.astimezone(UTC)
    while at < end:
        first = _first_of_month(at)
        until = min(end, _next_month(first))
        found[first] = until - at
        at = until
    return found


def _first_of_month(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def _next_month(first: datetime) -> datetime:
    return (first + timedelta(days=32)).replace(day=1)


def _next_minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0) + timedelta(minutes=1)

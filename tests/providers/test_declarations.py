"""What a provider declares: hours that widen at once and narrow with notice, maintenance, hiding, retiring."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunex.kit.spans import seconds, without
from providers import declarations as told
from providers.claims import claim_gpus
from providers.models import Gpu, GpuClaim, Machine, Schedule
from providers.schedules import declared_spans, in_force
from providers.weeks import WindowsOverlap, check_windows, windows_of_hours
from tests.marketplace.conftest import machine, provider

pytestmark = pytest.mark.django_db
AT = datetime(2026, 10, 14, 14, 5, tzinfo=UTC)  # a Wednesday; Berlin is two hours ahead
NIGHTS = [[day, "20:00", "08:00"] for day in range(7)]
EVENINGS = [[day, "20:00", "24:00"] for day in range(7)]
MORNINGS = [[day, "06:00", "10:00"] for day in range(7)]


@pytest.fixture
def host() -> Machine:
    return machine(provider(at=AT), at=AT)


def declare(host: Machine, windows: list[Any] | None, *, zone: str = "UTC", at: datetime = AT) -> list[Schedule]:
    return told.declare_schedule(
        machine=host, timezone=zone, always=windows is None, windows=windows or [], by=None, at=at
    )


def offered(host: Machine, start: datetime, hours: int) -> float:
    spans = declared_spans(list(Schedule.objects.filter(machine=host)), start, start + timedelta(hours=hours))
    return seconds(spans) / 3600


@pytest.mark.spec("D2")
def test_fewer_hours_count_from_the_next_local_midnight_a_day_away(host: Machine) -> None:
    (version,) = declare(host, NIGHTS, zone="Europe/Berlin")
    assert version.effective_from == datetime(2026, 10, 15, 22, 0, tzinfo=UTC)
    assert in_force(host, version.effective_from - timedelta(seconds=1)).always
    assert in_force(host, version.effective_from) == version


@pytest.mark.spec("D2")
def test_more_hours_count_at_once(host: Machine) -> None:
    late = AT + timedelta(days=3)
    declare(host, EVENINGS)
    (version,) = declare(host, NIGHTS, at=late)
    assert version.effective_from == late
    assert declare(host, None, at=late + timedelta(minutes=1))[0].effective_from == late + timedelta(minutes=1)


@pytest.mark.spec("D2")
def test_a_change_that_adds_and_takes_counts_in_two_steps(host: Machine) -> None:
    declare(host, EVENINGS)
    late = AT + timedelta(days=3)
    both, then = declare(host, MORNINGS, at=late)
    assert both.effective_from == late
    assert both.windows == [window for day in range(7) for window in ([day, "06:00", "10:00"], [day, "20:00", "24:00"])]
    assert then.effective_from == datetime(2026, 10, 19, 0, 0, tzinfo=UTC)
    assert then.windows == MORNINGS


def test_the_same_hours_again_write_nothing(host: Machine) -> None:
    assert declare(host, None) == []
    late = AT + timedelta(days=3)
    declare(host, NIGHTS)
    assert declare(host, NIGHTS, at=late) == []


def test_taking_a_reduction_back_before_it_counts_keeps_all_hours(host: Machine) -> None:
    declare(host, EVENINGS)
    declare(host, None, at=AT + timedelta(hours=1))
    assert offered(host, AT, 24 * 14) == 24 * 14


def test_a_second_reduction_does_not_shorten_the_notice_of_the_first(host: Machine) -> None:
    declare(host, EVENINGS)
    declare(host, MORNINGS, at=AT + timedelta(hours=1))
    midnight = datetime(2026, 10, 16, tzinfo=UTC)
    assert offered(host, AT, 33) == 33  # until that midnight nothing is taken away
    assert offered(host, midnight, 24) == 4
    assert in_force(host, midnight).windows == MORNINGS


hours_of_a_week = st.sets(st.integers(0, 167), min_size=1).map(windows_of_hours)


@settings(max_examples=25, deadline=None)
@given(changes=st.lists(st.tuples(hours_of_a_week, st.integers(0, 60)), min_size=1, max_size=3))
def test_nothing_that_was_promised_for_the_next_day_is_ever_taken_back(changes: list[tuple[list[Any], int]]) -> None:
    host = machine(provider(at=AT), at=AT)
    at = AT
    for windows, later in changes:
        at += timedelta(hours=later)
        before = declared_spans(list(Schedule.objects.filter(machine=host)), at, at + timedelta(hours=24))
        declare(host, windows, at=at)
        after = list(Schedule.objects.filter(machine=host))
        assert not without(before, declared_spans(after, at, at + timedelta(hours=24)))
        end = at + timedelta(days=10)
        (wanted,) = Schedule.objects.filter(machine=host).order_by("-effective_from", "-pk")[:1]
        assert sorted(map(list, wanted.windows)) == sorted(windows)
        assert in_force(host, end) == wanted
    for version in Schedule.objects.filter(machine=host, always=False):
        check_windows(version.windows)


@pytest.mark.parametrize(
    ("windows", "refusal"),
    [([], told.NoHours), ([[0, "08:00", "12:00"], [0, "11:00", "13:00"]], WindowsOverlap)],
)
def test_hours_that_are_none_are_refused_and_nothing_is_written(
    host: Machine, windows: list[Any], refusal: type[Exception]
) -> None:
    with pytest.raises(refusal):
        told.declare_schedule(machine=host, timezone="UTC", always=False, windows=windows, by=None, at=AT)
    with pytest.raises(ValueError, match="no IANA time zone"):
        declare(host, None, zone="Mars/Olympus")
    assert Schedule.objects.filter(machine=host).count() == 1


# --- maintenance ---


def announce(host: Machine, starts_in: timedelta, length: timedelta = timedelta(hours=2)) -> Any:
    return told.declare_maintenance(
        machine=host, starts_at=AT + starts_in, ends_at=AT + starts_in + length, reason=" Kernel ", by=None, at=AT
    )


@pytest.mark.spec("A5")
def test_maintenance_with_notice_and_within_the_budget_is_announced(host: Machine) -> None:
    window = announce(host, timedelta(hours=24))
    assert window.reason == "Kernel"
    assert told.budget_left(machine=host, month=AT) == timedelta(hours=6)
    told.cancel_maintenance(window=window, at=AT)
    assert told.budget_left(machine=host, month=AT) == timedelta(hours=8)
    told.cancel_maintenance(window=window, at=AT + timedelta(days=9))  # cancelled before: nothing more to do


@pytest.mark.parametrize(
    ("starts_in", "length", "refusal"),
    [
        (timedelta(hours=-1), timedelta(hours=2), told.MaintenanceInThePast),
        (timedelta(hours=23), timedelta(hours=2), told.MaintenanceTooSoon),
        (timedelta(hours=30), timedelta(0), told.MaintenanceEmpty),
        (timedelta(hours=30), timedelta(hours=-1), told.MaintenanceEmpty),
        (timedelta(hours=30), timedelta(hours=8, seconds=1), told.MaintenanceOverBudget),
        (timedelta(days=400), timedelta(hours=1), told.MaintenanceTooFar),
    ],
)
def test_maintenance_that_would_not_be_excused_is_refused(
    host: Machine, starts_in: timedelta, length: timedelta, refusal: type[Exception]
) -> None:
    with pytest.raises(refusal) as caught:
        announce(host, starts_in, length)
    assert "%(" not in str(caught.value)
    assert host.maintenance.count() == 0


def test_two_windows_of_one_machine_do_not_overlap(host: Machine) -> None:
    announce(host, timedelta(hours=30))
    with pytest.raises(told.MaintenanceOverlaps):
        announce(host, timedelta(hours=31))
    announce(machine(host.provider, at=AT), timedelta(hours=31))


def test_a_window_over_the_end_of_a_month_takes_from_both_budgets(host: Machine) -> None:
    announce(host, datetime(2026, 10, 31, 22, 0, tzinfo=UTC) - AT, timedelta(hours=6))
    assert told.budget_left(machine=host, month=AT) == timedelta(hours=6)
    assert told.budget_left(machine=host, month=AT + timedelta(days=30)) == timedelta(hours=4)


def test_a_window_that_has_begun_stands(host: Machine) -> None:
    window = announce(host, timedelta(hours=30))
    with pytest.raises(told.MaintenanceBegun):
        told.cancel_maintenance(window=window, at=AT + timedelta(hours=31))


# --- kept from renters, given, retired ---


@pytest.mark.spec("B6")
def test_a_gpu_is_taken_back_and_given_again_unless_the_host_keeps_it(host: Machine) -> None:
    gpu = host.gpus.first()
    assert not told.give(gpu=gpu, given=False, at=AT).given
    assert gpu not in Gpu.objects.offerable()
    assert told.give(gpu=gpu, given=True, at=AT).given
    Gpu.objects.filter(pk=gpu.pk).update(given=False, facts={"given": False})
    with pytest.raises(told.KeptByHost):
        told.give(gpu=gpu, given=True, at=AT)


def test_a_machine_with_a_customers_work_is_not_retired(host: Machine) -> None:
    reference = uuid.uuid4()
    claim_gpus(gpus=[host.gpus.first()], kind=GpuClaim.Kind.RENTAL, reference=reference, at=AT)
    with pytest.raises(told.MachineInUse):
        told.retire(machine=host, at=AT)
    host.refresh_from_db()
    assert host.retired_at is None


def test_a_retired_machine_takes_no_further_decision(host: Machine) -> None:
    told.retire(machine=host, at=AT)
    host.refresh_from_db()
    assert host.retired_at == AT
    assert not host.gpus.present().exists()
    for decide in (
        lambda: told.hide(machine=host, hidden=True, at=AT),
        lambda: told.drain(machine=host, draining=True, at=AT),
        lambda: declare(host, NIGHTS),
        lambda: announce(host, timedelta(hours=30)),
        lambda: told.retire(machine=host, at=AT),
    ):
        with pytest.raises(told.MachineRetired):
            decide()

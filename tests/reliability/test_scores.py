"""The score against a slow reference, and fed from the tables."""

import math
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.models import Machine, MaintenanceWindow, Schedule
from reliability import incidents, score, scores
from reliability.models import Benchmark, Connection, PlatformOutage, Score
from reliability.score import Event
from tests.hosts import Host, approved, connected, measure

NOW = datetime(2026, 6, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def parts(**changes: Any) -> score.Parts:
    whole: dict[str, Any] = {"at": NOW, "declared": [], "connected": [], "excused": [], "jobs": [], "runs": []}
    return score.score(**whole | changes)


def ago(hours: float) -> datetime:
    return NOW - hours * HOUR


@pytest.mark.spec("I1", "K")
def test_a_machine_that_has_shown_nothing_stands_on_the_prior_and_is_new() -> None:
    found = parts()
    assert (found.uptime, found.completion, found.consistency) == pytest.approx((0.95, 0.95, 1.0))
    assert found.new is True
    assert found.score == pytest.approx(96.0)


@pytest.mark.spec("I1")
def test_a_machine_without_fault_reaches_a_hundred() -> None:
    found = parts(
        declared=[(ago(90 * 24), NOW)],
        connected=[(ago(90 * 24), NOW)],
        jobs=[Event(ago(n), 1.0) for n in range(0, 600, 20)],
        runs=[Event(ago(24 * n), 1.0) for n in range(10)],
    )
    assert found.score == pytest.approx(100.0)
    assert found.new is False


@pytest.mark.spec("I1")
@pytest.mark.case("marketplace-42", "marketplace-44")
def test_what_is_not_declared_or_is_excused_does_not_count() -> None:
    down = (ago(200), ago(100))
    connected_ = [(ago(1000), ago(200)), (ago(100), NOW)]
    bad = parts(declared=[(ago(1000), NOW)], connected=connected_)
    assert bad.uptime < 0.85
    assert parts(declared=[(ago(1000), NOW)], connected=connected_, excused=[down]).uptime == pytest.approx(1.0)
    assert parts(declared=[(ago(1000), down[0]), (down[1], NOW)], connected=connected_).uptime == pytest.approx(1.0)


@pytest.mark.spec("I3")
def test_a_fault_weighs_half_after_two_weeks_and_nothing_after_ninety_days() -> None:
    def lost(days: float) -> float:
        """Points that an outage of ten hours costs when it is so long ago."""
        end = ago(24 * days)
        kept = [(ago(24 * 100), end - 10 * HOUR), (end, NOW)]
        return (
            100.0
            - parts(
                declared=[(ago(24 * 100), NOW)], connected=kept, jobs=[Event(NOW, 1.0)] * 10, runs=[Event(NOW, 1.0)] * 3
            ).score
        )

    assert lost(1) > 0.5
    assert lost(15) == pytest.approx(lost(1) / 2, rel=1e-6)
    assert lost(91) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.spec("I1")
def test_one_failure_in_two_is_not_half() -> None:
    found = parts(jobs=[Event(NOW, 1.0), Event(NOW, 0.0)])
    assert found.completion == pytest.approx(0.86)


def test_what_lies_in_the_future_or_before_the_window_is_left_out() -> None:
    assert parts(jobs=[Event(NOW + HOUR, 0.0), Event(ago(24 * 91), 0.0)]).jobs == 0


hours = st.integers(0, 24 * 100)
pairs = st.lists(
    st.tuples(hours, hours).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: (ago(max(pair)), ago(min(pair)))),
    max_size=8,
)
events = st.lists(st.builds(lambda age, value: Event(ago(age), value), hours, st.floats(0, 1)), max_size=12)


@settings(max_examples=40, deadline=None)
@given(declared=pairs, connected=pairs, excused=pairs, jobs=events, runs=events)
def test_the_formula_equals_the_slow_way_hour_by_hour(
    declared: Any, connected: Any, excused: Any, jobs: Any, runs: Any
) -> None:
    """Every span begins and ends on the hour, so an hour is in or out as a whole."""

    def within(spans: Any, start: datetime) -> bool:
        return any(begin <= start < end for begin, end in spans)

    owed = kept = 0.0
    for hour in range(24 * 90):
        start = ago(hour + 1)
        if not within(declared, start) or within(excused, start):
            continue
        rate = math.log(2) / (14 * 24)
        share = (math.exp(-rate * hour) - math.exp(-rate * (hour + 1))) / rate
        owed += share
        kept += share if within(connected, start) else 0.0
    expected_uptime = (kept + max(0.0, 72 - owed) * 0.95) / max(72.0, owed)

    def mean(some: list[Event], full: float, prior: float) -> float:
        weighed = [
            (2 ** (-(NOW - one.at).total_seconds() / 86400 / 14), one.value)
            for one in some
            if (NOW - one.at).days <= 90
        ]
        weighed = [
            w
            for w, one in zip(weighed, [e for e in some if (NOW - e.at).days <= 90], strict=True)
            if one.at >= ago(24 * 90)
        ]
        total = sum(share for share, _ in weighed)
        return (sum(share * value for share, value in weighed) + max(0.0, full - total) * prior) / max(full, total)

    found = parts(declared=declared, connected=connected, excused=excused, jobs=jobs, runs=runs)
    assert found.uptime == pytest.approx(expected_uptime, abs=1e-9)
    assert found.completion == pytest.approx(mean(jobs, 10, 0.95), abs=1e-9)
    assert found.consistency == pytest.approx(mean(runs, 3, 1.0), abs=1e-9)
    assert 0 <= found.score <= 100


@pytest.fixture
def host(db: None, now: datetime) -> Host:
    """Measured, and connected for ten days without a gap."""
    start = now - timedelta(days=10)
    host = connected(approved(at=start), at=start, count=1)
    Schedule.objects.update(effective_from=start)
    measure(host, at=start)
    Connection.objects.all().delete()
    Connection.objects.create(machine=host.machine, boot_id="boot-1", started_at=start)
    Machine.objects.update(last_seen_at=now - timedelta(seconds=7), connected_since=start, enrolled_at=start)
    return host


def current(host: Host, at: datetime) -> score.Parts:
    return scores.scores_of([host.machine], at=at)[host.machine.pk]


@pytest.mark.spec("I4")
def test_scores_are_stored_hourly_and_when_something_happens(host: Host, now: datetime) -> None:
    assert scores.latest(host.machine) is None
    assert scores.refresh(at=now) == 1
    first = scores.latest(host.machine)
    assert first is not None
    assert first.version == score.VERSION
    assert first.uptime == pytest.approx(1.0, abs=1e-4)
    assert scores.refresh(at=now + timedelta(minutes=30)) == 0
    incidents.record_outcome(
        machine=host.machine,
        reference=uuid.uuid4(),
        cause="gpu_lost",
        provider_fault=True,
        at=now + timedelta(minutes=31),
    )
    assert scores.refresh(at=now + timedelta(minutes=32)) == 1
    assert scores.refresh(at=now + timedelta(minutes=33)) == 0
    second = scores.latest(host.machine)
    assert second is not None
    assert second.score < first.score
    assert scores.refresh(at=now + timedelta(minutes=95)) == 1
    assert Score.objects.count() == 3
    assert scores.latest_of([host.machine])[host.machine.pk] == scores.latest(host.machine)


def test_a_machine_that_was_never_measured_has_no_score(db: None, now: datetime) -> None:
    connected(approved(at=now), at=now)
    assert scores.refresh(at=now) == 0


def test_refreshing_takes_as_many_queries_for_ten_machines_as_for_one(
    db: None, now: datetime, django_assert_max_num_queries: Any
) -> None:
    provider = approved(at=now, entries=[{"quantity": 20}])
    for _ in range(10):
        measure(connected(provider, at=now, count=1), at=now)
    with django_assert_max_num_queries(12):
        assert scores.refresh(at=now + timedelta(minutes=1)) == 10


def test_the_time_before_the_first_benchmark_does_not_count(host: Host, now: datetime) -> None:
    Benchmark.objects.update(received_at=now - 5 * HOUR)
    assert current(host, now).declared_hours == pytest.approx(5.0)


def test_a_silent_machine_is_connected_up_to_its_last_word(host: Host, now: datetime) -> None:
    Machine.objects.update(last_seen_at=now - 6 * HOUR)
    found = current(host, now)
    assert found.declared_hours - found.connected_hours == pytest.approx(6.0, abs=0.01)


@pytest.mark.spec("I1", "A5")
@pytest.mark.parametrize(
    ("told_before", "hours_long", "excused"),
    [(25, 4, 4), (23, 4, 0), (25, 12, 8)],
    ids=["in time", "too late", "beyond the budget"],
)
def test_planned_maintenance_is_excused_with_notice_and_within_the_months_budget(
    told_before: int, hours_long: int, excused: int, host: Host, now: datetime
) -> None:
    start = now - timedelta(days=2)
    MaintenanceWindow.objects.create(
        machine=host.machine, starts_at=start, ends_at=start + hours_long * HOUR, declared_at=start - told_before * HOUR
    )
    whole = 240 - 5 / 3600
    assert current(host, now).declared_hours == pytest.approx(whole - excused, abs=0.01)
    MaintenanceWindow.objects.update(cancelled_at=now)
    assert current(host, now).declared_hours == pytest.approx(whole, abs=0.01)


def test_the_budget_of_maintenance_is_a_calendar_months() -> None:
    def window(start: str, hours_long: int) -> MaintenanceWindow:
        begins = datetime.fromisoformat(start).replace(tzinfo=UTC)
        return MaintenanceWindow(starts_at=begins, ends_at=begins + hours_long * HOUR, declared_at=begins - 48 * HOUR)

    found = scores.excused_maintenance(
        [window("2026-01-10T00:00", 6), window("2026-01-20T00:00", 6), window("2026-01-31T20:00", 8)],
        notice=24 * HOUR,
        budget=8 * HOUR,
    )
    assert [(f"{start:%m-%d %H}", (end - start) / HOUR) for start, end in found] == [
        ("01-10 00", 6.0),
        ("01-20 00", 2.0),
        ("02-01 00", 4.0),
    ]


def test_the_platforms_outage_is_nobodys_downtime(host: Host, now: datetime) -> None:
    start = now - timedelta(days=1)
    Connection.objects.all().delete()
    Connection.objects.create(machine=host.machine, started_at=now - timedelta(days=10), ended_at=start)
    Connection.objects.create(machine=host.machine, started_at=start + 3 * HOUR)
    assert current(host, now).uptime < 0.99
    PlatformOutage.objects.create(started_at=start, ended_at=start + 3 * HOUR)
    assert current(host, now).uptime == pytest.approx(1.0, abs=1e-4)


def test_an_excused_incident_gives_the_points_back(host: Host, now: datetime) -> None:
    reference = uuid.uuid4()
    incident = incidents.record_incident(
        machine=host.machine, key="rental:1", cause="gpu_lost", at=now, reference=reference
    )
    incidents.record_outcome(machine=host.machine, reference=reference, cause="gpu_lost", provider_fault=True, at=now)
    before = current(host, now).completion
    incidents.excuse(
        incident=incident, by=host.machine.provider.organisation.created_by, reason="A mistake of ours", at=now
    )
    assert current(host, now).completion > before


@pytest.mark.spec("I1")
def test_only_the_providers_fault_counts_against_completion(host: Host, now: datetime) -> None:
    for cause in ("exit_nonzero", "oom", "image_missing", "stopped"):
        incidents.record_outcome(
            machine=host.machine, reference=uuid.uuid4(), cause=cause, provider_fault=False, at=now
        )
    assert current(host, now).completion > 0.95


@pytest.mark.spec("I1")
def test_throttling_and_falling_behind_lower_consistency(host: Host, now: datetime) -> None:
    at = now - timedelta(days=1)
    measure(host, at=at, shares=0.9)
    slower = current(host, now).consistency
    assert slower < 1
    run = Benchmark.objects.order_by("-received_at").first()
    assert run is not None
    run.details = {**run.details, "sustained_ratio": 0.7}
    run.save()
    assert current(host, now).consistency < slower


@pytest.mark.case("marketplace-43")
def test_a_schedule_changed_afterwards_does_not_undo_downtime(host: Host, now: datetime) -> None:
    Connection.objects.update(ended_at=now - 20 * HOUR)
    before = current(host, now).uptime
    Schedule.objects.create(
        machine=host.machine, effective_from=now, timezone="UTC", always=False, windows=[[0, "00:00", "01:00"]]
    )
    assert current(host, now).uptime == pytest.approx(before)

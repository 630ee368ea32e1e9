"""Scores fed from the tables, stored, and kept fresh."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from gpunex.celery import SWEEPS
from gpunex.policy.models import Policy
from marketplace import listings
from providers import declarations
from providers.models import Gpu, Machine, MaintenanceWindow, Schedule
from reliability import availability, events, excuses, incidents, score, scores, uptime
from reliability.models import Availability, Benchmark, Connection, PlatformOutage, Score, ScoreTerms
from tests.hosts import Host, approved, connected, measure, person

HOUR = timedelta(hours=1)


@pytest.fixture
def host(db: None, now: datetime) -> Host:
    """Measured, and connected for ten days without a gap."""
    start = now - timedelta(days=10)
    host = connected(approved(at=start), at=start, count=1)
    Schedule.objects.update(effective_from=start, created_at=start)
    measure(host, at=start)
    Connection.objects.all().delete()
    Connection.objects.create(machine=host.machine, boot_id="boot-1", started_at=start)
    Machine.objects.update(last_seen_at=now - timedelta(seconds=7), connected_since=start, enrolled_at=start)
    availability.observe(at=datetime.now(UTC))
    return host


def current(host: Host, at: datetime) -> score.Parts:
    return scores.scores_of([host.machine], at=at)[host.machine.pk]


@pytest.mark.spec("I4")
def test_scores_are_stored_hourly_and_when_something_happens(host: Host, now: datetime) -> None:
    now += timedelta(seconds=30)  # the card's first availability is noted by now
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
    with django_assert_max_num_queries(15):
        assert scores.refresh(at=now + timedelta(minutes=1)) == 10


def test_the_time_before_the_first_benchmark_does_not_count(host: Host, now: datetime) -> None:
    Benchmark.objects.update(received_at=now - 5 * HOUR)
    assert current(host, now).declared_hours == pytest.approx(5.0)


def test_a_silent_machine_is_connected_up_to_its_last_word(host: Host, now: datetime) -> None:
    Connection.objects.update(ended_at=now - 6 * HOUR, closed_at=now - 6 * HOUR + timedelta(seconds=50))
    found = current(host, now)
    assert found.declared_hours - found.available_hours == pytest.approx(6.0, abs=0.01)


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

    found = events.excused_maintenance(
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


# --- what was known when ---------------------------------------------------------------------------------------------


@pytest.mark.spec("I1", "I3")
def test_a_job_whose_end_came_to_be_known_late_is_seen_at_once_and_changes_no_score_of_before(
    host: Host, now: datetime
) -> None:
    assert scores.refresh(at=now) == 1
    later = now + timedelta(minutes=12)
    incidents.record_outcome(
        machine=host.machine,
        reference=uuid.uuid4(),
        cause="machine_lost",
        provider_fault=True,
        at=now - timedelta(minutes=1),
        recorded_at=later,
    )
    assert current(host, now).jobs == 0
    assert scores.refresh(at=later + timedelta(seconds=20)) == 1
    assert current(host, later).jobs == 1


@pytest.mark.spec("I3")
def test_what_is_excused_later_leaves_the_scores_of_before_as_they_were(host: Host, now: datetime) -> None:
    Connection.objects.update(ended_at=now - 20 * HOUR, closed_at=now - 20 * HOUR)
    before = current(host, now)
    admin = person("admin", is_staff=True)
    with pytest.raises(excuses.ReasonMissing):
        excuses.excuse_time(
            machine=host.machine, started_at=now - 2 * HOUR, ended_at=now, by=admin, reason=" ", at=now + HOUR
        )
    with pytest.raises(excuses.NoStretch):
        excuses.excuse_time(
            machine=host.machine, started_at=now, ended_at=now + 2 * HOUR, by=admin, reason="ours", at=now + HOUR
        )
    excuses.excuse_time(
        machine=host.machine, started_at=now - 20 * HOUR, ended_at=now, by=admin, reason="Our router", at=now + HOUR
    )
    assert current(host, now) == before
    after = current(host, now + HOUR)
    assert after.uptime > before.uptime + 0.02
    assert scores.refresh(at=now + HOUR) == 1


@pytest.mark.case("marketplace-43")
def test_recomputing_all_is_idempotent(host: Host, now: datetime) -> None:
    scores.refresh(at=now)
    [first] = Score.objects.all()
    assert scores.compute([host.machine.pk], at=now) == 1
    [again] = Score.objects.all()
    assert (again.pk, again.score, again.inputs) == (first.pk, first.score, first.inputs)
    assert first.inputs["digest"]
    assert list(first.inputs["cards"]) == [str(host.gpus[0].public_id)]


@pytest.mark.spec("I3", "K")
def test_other_terms_count_from_the_first_score_after_their_change(host: Host, now: datetime) -> None:
    scores.refresh(at=now)
    assert ScoreTerms.objects.count() == 0  # the specification's
    Policy.objects.update(score_half_life_days=7)
    assert uptime.terms_at(now + timedelta(minutes=1)).half_life_days == 14
    scores.refresh(at=now + timedelta(minutes=2))
    assert uptime.terms_at(now).half_life_days == 14
    assert uptime.terms_at(now + timedelta(minutes=3)).half_life_days == 7


def test_what_just_happened_is_scored_before_the_hourly_ones(db: None, now: datetime) -> None:
    provider = approved(at=now, entries=[{"quantity": 20}])
    hosts = []
    for _ in range(3):
        hosts.append(connected(provider, at=now, count=1))
        measure(hosts[-1], at=now)
    assert scores.refresh(at=now + HOUR) == 3
    at = now + 3 * HOUR
    incidents.record_outcome(
        machine=hosts[2].machine, reference=uuid.uuid4(), cause="gpu_lost", provider_fault=True, at=at
    )
    assert scores.refresh(at=at, most=1) == 2
    fresh = set(Score.objects.filter(at=at).values_list("machine", flat=True))
    assert hosts[2].machine.pk in fresh
    assert scores.refresh(at=at, most=1) == 1


def test_of_old_scores_one_a_day_stays(host: Host, now: datetime) -> None:
    noon = now.replace(hour=12, minute=0, second=0, microsecond=0)
    machine = host.machine
    for days in (9, 8, 2):
        for hours in (0, 1, 2):
            Score.objects.create(
                machine=machine, at=noon - timedelta(days=days) + hours * HOUR, version=2, score=90 + hours,
                uptime=1, completion=1, consistency=1,
            )  # fmt: skip
    assert scores.thin(at=noon) == 4
    assert scores.thin(at=noon) == 0
    assert Score.objects.count() == 5
    assert [value for _day, value in scores.trend([machine.pk], at=noon)] == [92.0, 92.0, 92.0]


# --- available -------------------------------------------------------------------------------------------------------


def states(host: Host) -> list[str]:
    return list(Availability.objects.filter(gpu=host.gpus[0]).order_by("at", "pk").values_list("state", flat=True))


@pytest.mark.spec("I1", "D2")
def test_hidden_time_stays_declared_and_is_not_available(host: Host, now: datetime) -> None:
    at = now + timedelta(minutes=1)
    declarations.hide(machine=host.machine, hidden=True, at=at)
    assert availability.observe(at=at) == 1
    assert availability.observe(at=at + HOUR) == 0
    declarations.hide(machine=host.machine, hidden=False, at=at + 10 * HOUR)
    availability.observe(at=at + 10 * HOUR)
    assert states(host)[-2:] == ["hidden", "available"]
    found = current(host, at + 11 * HOUR)
    assert found.declared_hours - found.available_hours == pytest.approx(10, abs=0.02)


@pytest.mark.spec("I1", "D2")
def test_a_card_that_its_provider_takes_back_stays_declared_for_a_day(host: Host, now: datetime) -> None:
    at = now + timedelta(minutes=1)
    declarations.give(gpu=host.gpus[0], given=False, at=at)
    availability.observe(at=at)
    found = current(host, at + 100 * HOUR)
    assert found.declared_hours - found.available_hours == pytest.approx(24, abs=0.02)
    assert found.declared_hours == pytest.approx(240 + 24, abs=0.1)


@pytest.mark.spec("I1")
def test_paused_by_an_admin_counts_neither_for_nor_against(host: Host, now: datetime) -> None:
    at, admin = now + timedelta(minutes=1), person("admin", is_staff=True)
    excuses.pause(machine=host.machine, by=admin, reason="Looks odd", at=at)
    with pytest.raises(excuses.PausedAlready):
        excuses.pause(machine=host.machine, by=admin, reason="Again", at=at)
    availability.observe(at=at)
    Connection.objects.update(ended_at=at + HOUR, closed_at=at + HOUR)
    excuses.resume(machine=host.machine, by=admin, at=at + 50 * HOUR)
    with pytest.raises(excuses.NotPaused):
        excuses.resume(machine=host.machine, by=admin, at=at + 50 * HOUR)
    availability.observe(at=at + 50 * HOUR)
    found = current(host, at + 50 * HOUR)
    assert found.uptime == pytest.approx(1.0, abs=1e-3)
    assert found.declared_hours == pytest.approx(240, abs=0.1)
    [pause] = host.machine.pauses.all()
    assert (pause.reason, pause.by, pause.ended_at) == ("Looks odd", admin, at + 50 * HOUR)


@pytest.mark.spec("C4", "I1")
def test_a_failed_card_is_down_alone(now: datetime, db: None) -> None:
    host = connected(approved(at=now), at=now, count=2)
    measure(host, at=now)
    availability.observe(at=datetime.now(UTC))
    at = now + HOUR
    Gpu.objects.filter(pk=host.gpus[0].pk).update(health=Gpu.Health.FATAL)
    availability.observe(at=at)
    past = uptime.pasts_of([host.machine.pk], at=at + 9 * HOUR)[host.machine.pk]
    failed, sound = (score.of_card(past, card) for card in past.cards)
    assert failed.declared_hours - failed.available_hours == pytest.approx(9, abs=0.02)
    assert sound.declared_hours == pytest.approx(sound.available_hours, abs=0.02)


@pytest.mark.spec("I2", "D4")
def test_a_refresh_of_listings_notes_what_changed(host: Host, now: datetime) -> None:
    at = datetime.now(UTC)
    declarations.drain(machine=host.machine, draining=True, at=at)
    listings.refresh(at=at, machines=[host.machine])
    assert states(host)[-1] == "draining"


def test_what_was_noted_can_not_be_edited(host: Host) -> None:
    row = Availability.objects.first()
    assert row is not None
    row.state = "available"
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        row.save()
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        Availability.objects.all().delete()


@pytest.mark.spec("I2")
def test_a_listing_has_the_score_within_a_minute_of_what_happened() -> None:
    assert SWEEPS["scores"].every + scores.SETTLED.total_seconds() + SWEEPS["listings"].every < 60

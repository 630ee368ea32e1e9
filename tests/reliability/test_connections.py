"""Heartbeats, silence, and the platform's own outages."""

from datetime import datetime, timedelta

import pytest

from gpunex.accounts.models import Notice
from gpunex.outbox.models import Message
from providers import machines
from providers.models import Machine, Provider
from reliability.connections import beat, silence, watch
from reliability.models import Connection, PlatformOutage
from tests.hosts import Host, approved, connected

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)


@pytest.fixture
def provider(now: datetime) -> Provider:
    return approved(at=now)


@pytest.fixture
def host(provider: Provider, now: datetime) -> Host:
    host = connected(provider, at=now)
    Connection.objects.all().delete()
    Machine.objects.update(last_seen_at=None, connected_since=None)
    assert pulse(host, now)
    return host


def pulse(host: Host, at: datetime, *, boot_id: str = "boot-1", nvml: str = "ok") -> bool:
    return beat(machine=host.machine, boot_id=boot_id, nvml=nvml, at=at)


def watch_from(start: datetime, seconds: int) -> dict[str, int]:
    """As the sweep does: each few seconds. The sum of what it found."""
    found = {"offline": 0, "lost": 0}
    for second in range(0, seconds + 1, 5):
        for name, count in watch(at=start + second * SECOND).items():
            found[name] += count
    return found


def stretches(host: Host) -> list[tuple[datetime, datetime | None]]:
    return list(
        Connection.objects.filter(machine=host.machine).order_by("started_at").values_list("started_at", "ended_at")
    )


@pytest.mark.spec("B5", "I1")
def test_regular_beats_are_one_stretch_and_one_row(host: Host, now: datetime) -> None:
    for second in range(10, 3600, 10):
        assert pulse(host, now + second * SECOND) is False
    assert stretches(host) == [(now, None)]
    assert host.machine.last_seen_at == now + 3590 * SECOND


def test_a_beat_costs_one_statement_while_nothing_changes(
    host: Host, now: datetime, django_assert_num_queries: object
) -> None:
    machine = host.machine
    from gpunex.policy.models import Policy

    policy = Policy.load()
    with django_assert_num_queries(1):  # type: ignore[operator]
        beat(machine=machine, boot_id="boot-1", at=now + 10 * SECOND, policy=policy)


@pytest.mark.spec("B5")
def test_silence_makes_a_machine_offline_as_of_its_last_proof(host: Host, now: datetime) -> None:
    watch(at=now)
    assert watch(at=now + 44 * SECOND) == {"offline": 0, "lost": 0}
    assert watch(at=now + 46 * SECOND) == {"offline": 1, "lost": 0}
    assert watch(at=now + 50 * SECOND) == {"offline": 0, "lost": 0}
    assert host.machine.offline_since == now
    assert stretches(host) == [(now, now)]
    assert not host.machine.is_connected(now + 46 * SECOND, 45)


@pytest.mark.spec("B5")
def test_it_is_back_with_its_first_beat(host: Host, now: datetime) -> None:
    watch_from(now, 60)
    back = now + 70 * SECOND
    assert pulse(host, back) is True
    machine = host.machine
    assert (machine.offline_since, machine.connected_since) == (None, back)
    assert stretches(host) == [(now, now), (back, None)]


def test_a_gap_that_no_sweep_saw_is_a_gap_all_the_same(host: Host, now: datetime) -> None:
    back = now + 100 * SECOND
    assert pulse(host, back) is True
    assert stretches(host) == [(now, now), (back, None)]


def test_a_reboot_begins_a_new_stretch(host: Host, now: datetime) -> None:
    pulse(host, now + 10 * SECOND)
    assert pulse(host, now + 20 * SECOND, boot_id="boot-2") is True
    assert stretches(host) == [(now, now + 10 * SECOND), (now + 20 * SECOND, None)]


def test_a_machine_that_reboots_every_minute_has_a_stretch_for_each(host: Host, now: datetime) -> None:
    for minute in range(1, 11):
        pulse(host, now + 60 * minute * SECOND, boot_id=f"boot-{minute + 1}")
    assert len(stretches(host)) == 11
    assert sum(ended is None for _, ended in stretches(host)) == 1


@pytest.mark.case("agent-15")
def test_a_hung_driver_is_a_change_and_no_silence(host: Host, now: datetime) -> None:
    assert pulse(host, now + 10 * SECOND, nvml="hung") is True
    assert pulse(host, now + 20 * SECOND, nvml="hung") is False
    assert host.machine.nvml == "hung"
    assert stretches(host) == [(now, None)]


def test_beats_out_of_order_and_twice_never_go_back(host: Host, now: datetime) -> None:
    for second in (30, 10, 30, 20):
        pulse(host, now + second * SECOND)
    assert host.machine.last_seen_at == now + 30 * SECOND
    assert stretches(host) == [(now, None)]


@pytest.mark.spec("K")
def test_ten_minutes_of_silence_lose_a_machine_and_tell_its_owner_once(
    host: Host, provider: Provider, now: datetime
) -> None:
    assert watch_from(now, 595) == {"offline": 1, "lost": 0}
    assert watch_from(now + 600 * SECOND, 300) == {"offline": 0, "lost": 1}
    assert host.machine.lost_at == now + 600 * SECOND
    notice = Notice.objects.get(organisation=provider.organisation)
    assert notice.event == "machines_lost"
    assert Message.objects.get().to == provider.organisation.created_by.email
    pulse(host, now + 1000 * SECOND)
    assert host.machine.lost_at is None
    assert [notice.event for notice in Notice.objects.order_by("pk")] == ["machines_lost", "machines_back"]


def test_a_short_silence_tells_nobody(host: Host, now: datetime) -> None:
    watch_from(now, 120)
    pulse(host, now + 130 * SECOND)
    assert not Notice.objects.exists()


def test_ten_machines_lost_at_once_are_one_notice(provider: Provider, now: datetime) -> None:
    for _ in range(10):
        connected(provider, at=now, count=1)
    Machine.objects.update(last_seen_at=now)  # enrolling ten takes its time
    assert watch_from(now + 10 * SECOND, 640) == {"offline": 10, "lost": 10}
    notice = Notice.objects.get()
    assert "(+5)" in notice.data["machines"]
    assert Message.objects.count() == 1


def test_flapping_for_an_hour_is_no_storm(host: Host, now: datetime) -> None:
    start = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    for round_ in range(4):
        begun = start + round_ * 800 * SECOND
        pulse(host, begun)
        Machine.objects.update(last_seen_at=begun)
        watch_from(begun, 700)
    assert Notice.objects.filter(event="machines_lost").count() == 1
    assert Notice.objects.filter(event="machines_back").count() == 1


def test_the_platforms_own_outage_stops_the_clocks(host: Host, now: datetime) -> None:
    watch_from(now, 10)
    up_again = now + timedelta(hours=2)
    assert watch(at=up_again) == {"offline": 0, "lost": 0}
    outage = PlatformOutage.objects.get()
    assert (outage.started_at, outage.ended_at) == (now + 10 * SECOND, up_again)
    assert silence(host.machine, up_again) == 10
    assert watch_from(up_again + 5 * SECOND, 35) == {"offline": 0, "lost": 0}
    assert watch_from(up_again + 45 * SECOND, 0) == {"offline": 1, "lost": 0}
    assert watch_from(up_again + 50 * SECOND, 535) == {"offline": 0, "lost": 0}
    assert watch_from(up_again + 590 * SECOND, 0) == {"offline": 0, "lost": 1}


def test_a_machine_that_comes_back_right_after_an_outage_was_never_away(host: Host, now: datetime) -> None:
    watch(at=now)
    up_again = now + timedelta(hours=2)
    watch(at=up_again)
    pulse(host, up_again + 30 * SECOND)
    watch_from(up_again + 30 * SECOND, 10)
    assert host.machine.lost_at is None
    assert not Notice.objects.exists()


def test_a_retired_machine_ends_its_stretch_and_is_never_lost(host: Host, now: datetime) -> None:
    machines.retire(machine=host.machine, at=now + 5 * SECOND)
    watch_from(now + 10 * SECOND, 700)
    assert stretches(host) == [(now, now)]
    assert host.machine.lost_at is None
    assert pulse(host, now + 800 * SECOND) is False

"""Beats in bulk say the same as one by one, and stretches of connection are what a slow reference says."""

import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpunex.accounts.models import Notice
from gpunex.kit.time import iso_z
from marketplace import listings
from marketplace.models import Listing
from marketplace.pricing import set_price
from providers import workloads
from providers.models import Machine, Workload
from reliability import beats, connections
from reliability.beats import Beat, follow
from reliability.connections import Journal, beat, watch
from reliability.models import Connection, Gap, PlatformOutage, Watch
from tests.bench import rows
from tests.hosts import Host, approved, connected, measure

pytestmark = pytest.mark.django_db
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.fixture
def host(now: datetime) -> Host:
    host = connected(approved(at=now), at=now, count=2)
    Connection.objects.all().delete()
    Machine.objects.update(last_seen_at=None, connected_since=None, clock_offset_ms=None)
    beat(machine=host.machine, boot_id="boot-1", at=now)
    return host


def of(host: Host, at: datetime, /, **changes: Any) -> Beat:
    machine = host.machine
    known: dict[str, Any] = {
        "public_id": machine.public_id,
        "secret_hash": machine.secret_hash,
        "boot_id": "boot-1",
        "at": at,
    }
    return Beat(**known | changes)


@pytest.mark.spec("B5")
def test_what_is_new_or_not_the_machines_goes_the_long_way(host: Host, now: datetime) -> None:
    at = now + 10 * SECOND
    odd: list[dict[str, Any]] = [
        {"boot_id": "boot-2"}, {"nvml": "hung"}, {"secret_hash": "0" * 64}, {"public_id": uuid.uuid4()}, {"at": now + MINUTE},
    ]  # fmt: skip
    for changes in odd:
        assert beats.keep([of(host, at, **changes)]) == [None]
    assert host.machine.last_seen_at == now
    answers = beats.keep([of(host, at, public_id=uuid.uuid4()), of(host, at, agent_version="0.9.9")])
    assert [answer is not None for answer in answers] == [False, True]
    assert (host.machine.last_seen_at, host.machine.agent_version) == (at, "0.9.9")
    Machine.objects.update(retired_at=at)
    assert beats.keep([of(host, at)]) == [None]


def test_a_beat_proves_the_jobs_it_lists_as_the_long_way_does(host: Host, now: datetime) -> None:
    started = now - MINUTE
    jobs = [
        workloads.assign(machine=host.machine, kind=Workload.Kind.JOB, spec={}, gpus=host.gpus[:1], at=now)
        for _ in range(3)
    ]
    Workload.objects.update(observed="running", container_started_at=started, proved_at=now)
    at = now + 10 * SECOND
    listed = [
        (jobs[0].public_id, 1, started),
        (jobs[1].public_id, 2, started),
        (jobs[2].public_id, 1, started + MINUTE),
    ]
    assert beats.keep([of(host, at, running=listed)]) != [None]
    assert [job.proved_at for job in Workload.objects.order_by("pk")] == [at, now, now]


@given(
    offset=st.one_of(st.none(), st.integers(-10_000, 10_000)),
    candidate=st.one_of(st.none(), st.integers(-10_000, 10_000)),
    measured=st.one_of(st.none(), st.sampled_from([-(2**31), 2**31 - 1]), st.integers(-10_000, 10_000)),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_statement_follows_the_clock_as_the_rule_does(
    offset: int | None, candidate: int | None, measured: int | None, host: Host, now: datetime
) -> None:
    Machine.objects.update(clock_offset_ms=offset, clock_candidate_ms=candidate, last_seen_at=now)
    assert beats.keep([of(host, now + SECOND, offset_ms=measured)]) != [None]
    assert (host.machine.clock_offset_ms, host.machine.clock_candidate_ms) == follow(offset, candidate, measured)


def test_one_beat_from_yesterday_is_no_clock_and_two_in_a_row_are(host: Host, now: datetime) -> None:
    for ahead in (0, -86_400, 0, 3600, 3600):
        host.beat(sent_at=iso_z(now + ahead * SECOND))
    assert abs((host.machine.clock_offset_ms or 0) - 3_600_000) < 60_000
    assert connections.tell_clocks(at=now) == 1
    assert connections.tell_clocks(at=now) == 1
    assert Notice.objects.filter(event="clock_off").count() == 1


# --- stretches -------------------------------------------------------------------------------------------------------

OFFLINE = 45


def reference(beats_: list[tuple[int, int]]) -> list[tuple[int, int | None]]:
    """(started, ended) of each stretch, from (second, boot) in the order of receipt; the last one is open."""
    stretches: list[list[int | None]] = []
    last, boot = None, None
    for second, booted in beats_:
        seen = second if last is None else max(second, last)
        if last is None or second - last > OFFLINE or booted != boot:
            if stretches:
                stretches[-1][1] = last
            stretches.append([seen, None])
        last, boot = seen, booted
    return [(start, end) for start, end in stretches]  # type: ignore[misc]


@given(
    steps=st.lists(st.tuples(st.integers(-30, 130), st.sampled_from([0, 0, 0, 0, 1])), min_size=1, max_size=25),
    sweep_every=st.sampled_from([None, 5, 40]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_sequence_of_beats_makes_the_stretches_of_the_reference(
    steps: list[tuple[int, int]], sweep_every: int | None, host: Host, now: datetime
) -> None:
    """Steps are seconds to the next beat (back ones arrive out of order) and restarts; sweeps of any period change nothing."""
    for model in (Connection, Gap, PlatformOutage, Watch):
        model.objects.all().delete()
    Machine.objects.update(
        last_seen_at=None, connected_since=None, offline_since=None, lost_at=None, unsettled_until=None, boot_id="b0"
    )
    heard, second, boot, swept = [], 0, 0, 0
    for step, restarts in steps:
        arrives = max(0, second + step)
        if sweep_every:  # the sweep runs on the wall clock, which no beat turns back
            while swept + sweep_every < arrives:
                swept += sweep_every
                watch(at=now + swept * SECOND)
        boot += restarts
        heard.append((arrives, boot))
        beat(machine=host.machine, boot_id=f"b{boot}", at=now + arrives * SECOND)
        second = max(second, arrives)
    found = Connection.objects.order_by("started_at", "pk").values_list("started_at", "ended_at")
    assert [
        (round((start - now).total_seconds()), None if end is None else round((end - now).total_seconds()))
        for start, end in found
    ] == reference(heard)
    assert Gap.objects.count() <= max(0, len(reference(heard)) - 1)


# --- gaps ------------------------------------------------------------------------------------------------------------


def back(host: Host, at: datetime, *, boot_id: str = "boot-1", journal: Journal | None = None) -> Gap:
    assert beat(machine=host.machine, boot_id=boot_id, journal=journal, at=at) is True
    return Gap.objects.order_by("-started_at").first()  # type: ignore[return-value]


def told(since: datetime, until: datetime, *, ran: bool = True, boot_id: str = "boot-1") -> Journal:
    return Journal(since=since, until=until, boot_id=boot_id, ran=ran)


@pytest.mark.spec("I1")
def test_a_gap_that_the_journal_covers_was_the_network_whatever_the_hosts_clock_says(host: Host, now: datetime) -> None:
    at = now + 20 * MINUTE
    day = timedelta(days=1)
    gap = back(host, at, journal=told(now + day, at + day))
    assert (gap.kind, gap.started_at, gap.ended_at) == (Gap.Kind.JOURNALLED, now, at)
    assert gap.evidence["ran"] is True


@pytest.mark.parametrize(
    ("changes", "boot_id", "kind"),
    [
        ({"ran": False}, "boot-1", "unknown"),
        ({"boot_id": "boot-0"}, "boot-1", "unknown"),
        ({"boot_id": "boot-2"}, "boot-2", "reboot"),
        ({"until": 5 * MINUTE}, "boot-1", "unknown"),
    ],
)
def test_a_journal_that_does_not_cover_it_proves_nothing(
    changes: dict[str, Any], boot_id: str, kind: str, host: Host, now: datetime
) -> None:
    at = now + 20 * MINUTE
    until = now + changes.pop("until", 20 * MINUTE)
    assert back(host, at, boot_id=boot_id, journal=told(now, until, **changes)).kind == kind


def test_a_gap_in_our_own_outage_is_ours(host: Host, now: datetime) -> None:
    PlatformOutage.objects.create(started_at=now + 10 * SECOND, ended_at=now + 20 * MINUTE)
    assert back(host, now + 20 * MINUTE + 5 * SECOND).kind == Gap.Kind.PLATFORM


def test_the_door_takes_a_gap_and_refuses_one_that_ends_before_it_begins(host: Host, now: datetime) -> None:
    Machine.objects.update(last_seen_at=now - 10 * MINUTE)
    gap = {"from": iso_z(now - 10 * MINUTE), "to": iso_z(now), "boot_id": "boot-1", "ran": True}
    assert host.beat(gap=gap | {"to": iso_z(now - 20 * MINUTE)}).status_code == 422
    assert host.beat(gap=gap | {"ran": "perhaps"}).status_code == 422
    assert host.beat(gap=gap).status_code == 200
    assert Gap.objects.get().kind == Gap.Kind.JOURNALLED
    assert host.beat(gap=gap).status_code == 200
    assert Gap.objects.count() == 1


# --- flapping --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("B5")
def test_offers_of_a_machine_that_keeps_breaking_off_wait_and_its_owner_is_told_once(host: Host, now: datetime) -> None:
    measure(host, at=now)
    variant = host.gpus[0].variant
    assert variant is not None
    set_price(provider=host.machine.provider, gpu_model=variant.model, price_micro=400_000, by=None, at=now)

    def state(at: datetime) -> str:
        listings.refresh(machines=[host.machine], at=at)
        return Listing.objects.get().state

    Machine.objects.update(last_seen_at=now)
    at = now
    for number in range(1, 6):
        at += 2 * MINUTE
        assert beat(machine=host.machine, boot_id="boot-1", at=at) is True
        assert state(at) == ("offered" if number < 3 else "hidden")
    assert Notice.objects.filter(event="machine_unsettled").count() == 1
    uptime = Connection.objects.filter(ended_at__isnull=False)
    assert uptime.count() == 5  # each gap counts as it was
    settled = host.machine.unsettled_until
    assert settled == now + 6 * MINUTE + 30 * MINUTE
    while at < settled:
        at += 10 * SECOND
        beat(machine=host.machine, boot_id="boot-1", at=at)
    assert state(at) == "offered"


# --- most fall silent ------------------------------------------------------------------------------------------------


def fleet_of(sizes: list[int], now: datetime) -> list[list[Machine]]:
    return [rows.machines(rows.provider(at=now), size, gpus=1, at=now) for size in sizes]


def beat_all(machines: list[Machine], at: datetime) -> None:
    Machine.objects.filter(pk__in=[machine.pk for machine in machines]).update(last_seen_at=at)


def sweep(start: datetime, seconds: int, *, beating: list[Machine]) -> dict[str, int]:
    found = {"offline": 0, "lost": 0}
    for second in range(0, seconds + 1, 5):
        at = start + second * SECOND
        beat_all(beating, at)
        for name, count in watch(at=at).items():
            found[name] += count
    return found


@pytest.mark.spec("I1", "B5")
def test_when_most_fall_silent_it_is_ours_nobody_is_lost_and_it_ends_when_they_are_back(now: datetime) -> None:
    provided = fleet_of([6, 3, 1], now)
    everybody = [machine for machines in provided for machine in machines]
    for number, machine in enumerate(everybody):  # beats are spread over their period
        beat_all([machine], now + (number % 10) * SECOND)
    began = now + 9 * SECOND
    assert sweep(began, 1200, beating=[]) == {"offline": 0, "lost": 0}
    outage = PlatformOutage.objects.get()
    assert (outage.kind, outage.ongoing, outage.started_at) == ("silence", True, now)
    assert outage.evidence["silent"] == 10
    again = began + 1205 * SECOND
    assert sweep(again, 10, beating=everybody) == {"offline": 0, "lost": 0}
    outage.refresh_from_db()
    assert (outage.ongoing, outage.ended_at) == (False, again)
    assert sweep(again + 15 * SECOND, 100, beating=everybody[:-1]) == {"offline": 1, "lost": 0}


@pytest.mark.parametrize(
    ("sizes", "silent"),
    [
        ([40, 2, 2], [40, 0, 0]),  # one provider with most of the machines
        ([40, 2, 2], [40, 1, 0]),  # and somebody else's bad luck
        ([30, 30, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]),  # many accounts with a machine each
        ([4, 4], [2, 2]),  # too few
        ([10], [10]),  # nobody else is there to tell
    ],
)
def test_nobody_can_stage_an_outage_of_ours(sizes: list[int], silent: list[int], now: datetime) -> None:
    provided = fleet_of(sizes, now)
    going = [machine for machines, quiet in zip(provided, silent, strict=True) for machine in machines[quiet:]]
    beat_all([machine for machines in provided for machine in machines], now)
    assert sweep(now, 60, beating=going) == {"offline": sum(silent), "lost": 0}
    assert not PlatformOutage.objects.exists()


def test_a_silence_of_ours_ends_after_six_hours_at_the_latest(now: datetime) -> None:
    for machines in fleet_of([5, 5], now):
        beat_all(machines, now)
    watch(at=now)
    for minute in range(1, 361):
        Watch.objects.update(at=now + minute * MINUTE - 5 * SECOND)
        watch(at=now + minute * MINUTE)
    assert PlatformOutage.objects.get().ongoing is False
    Watch.objects.update(at=now + 361 * MINUTE)
    assert watch(at=now + 361 * MINUTE)["offline"] == 10


def test_the_sweep_of_silence_costs_the_same_for_many(now: datetime) -> None:
    provided = fleet_of([3, 3], now)
    beat_all(provided[0] + provided[1], now)
    watch(at=now)
    with CaptureQueriesContext(connection) as few:
        watch(at=now + 5 * SECOND)
    fleet_of([30, 30], now)
    with CaptureQueriesContext(connection) as many:
        watch(at=now + 10 * SECOND)
    assert len(few) == len(many)

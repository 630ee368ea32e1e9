"""Events and telemetry: kept once, believed with bounds, and a fatal one takes its card alone off the market."""

import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest

from gpunex.kit.time import iso_z
from marketplace.models import Listing
from marketplace.pricing import set_price
from providers.inventory import health_in_words
from providers.models import Gpu
from reliability import health, incidents
from reliability.models import HealthEvent, Incident, Outcome, Sample
from tests.hosts import Host, approved, connected, measure

pytestmark = pytest.mark.django_db


@pytest.fixture
def host(now: datetime) -> Host:
    return connected(approved(at=now), at=now, count=2)


def event(
    host: Host, kind: str, *, index: int | None = 0, at: datetime, sequence: int = 1, **data: Any
) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid4()),
        "sequence": sequence,
        "at": iso_z(at),
        "kind": kind,
        "gpu_uuid": None if index is None else host.cards[index]["uuid"],
        "data": data,
    }


def sample(host: Host, *, at: datetime, index: int = 0, **values: Any) -> dict[str, Any]:
    reading = {
        "gpu_uuid": host.cards[index]["uuid"],
        "at": iso_z(at),
        "temperature_c": 61,
        "power_w": 310.5,
        "utilization_pct": 99,
        "memory_used_mib": 20000,
        "memory_total_mib": 24564,
        "sm_clock_mhz": 2400,
        "memory_clock_mhz": 10501,
        "fan_pct": None,
        "throttle_reasons": [],
        "ecc_uncorrected": None,
    }
    return reading | values


@pytest.mark.case("agent-13", "agent-14")
@pytest.mark.parametrize(
    ("xid", "expected"),
    [
        (13, "ok"),
        (31, "ok"),
        (43, "ok"),
        (63, "degraded"),
        (94, "degraded"),
        (79, "fatal"),
        (95, "fatal"),
        (999, "degraded"),
    ],
)
def test_an_xid_is_the_programs_fault_a_warning_or_the_cards_end(
    xid: int, expected: str, host: Host, now: datetime
) -> None:
    assert host.call("events", {"events": [event(host, "xid", at=now, xid=xid)]}).json()["acknowledged"] == 1
    assert [gpu.health for gpu in host.gpus] == [expected, "ok"]
    if expected != "ok":
        assert str(xid) in health_in_words(host.gpus[0])


@pytest.mark.case("agent-13")
@pytest.mark.parametrize(
    ("kind", "data", "expected", "severity"),
    [
        ("ecc", {"counter": "uncorrected", "before": 0, "after": 1}, "degraded", "degraded"),
        ("ecc", {"counter": "row_remap_pending", "before": 0, "after": 1}, "degraded", "degraded"),
        ("ecc", {"counter": "pages_pending", "before": 0, "after": 1}, "degraded", "degraded"),
        ("ecc", {"counter": "row_remap_failed", "before": 0, "after": 1}, "fatal", "fatal"),
        ("ecc", {"counter": "uncorrected", "before": 9, "after": 0}, "ok", "note"),  # a driver that was loaded anew
        ("ecc", {"counter": "uncorrected", "before": 0, "after": 10**12}, "ok", "note"),  # no counter jumps so far
        ("ecc", {"counter": "uncorrected", "before": "0", "after": True}, "ok", "note"),
        ("ecc", {"counter": ["uncorrected"], "before": 0, "after": 1}, "ok", "note"),
        ("ecc", {}, "ok", "note"),
        ("thermal", {"seconds": 61, "temperature_c": 91}, "ok", "degraded"),
        ("xid", {"xid": 140}, "fatal", "fatal"),  # a memory error that escaped
        ("xid", {"xid": 74}, "fatal", "fatal"),  # NVLink
        ("xid", {"xid": 31}, "ok", "application"),
        ("xid", {"xid": 10**6}, "ok", "note"),
        ("boot", {"boot_id": "b"}, "ok", "note"),
    ],
)
def test_an_event_is_as_grave_as_the_table_says(
    kind: str, data: dict[str, Any], expected: str, severity: str, host: Host, now: datetime
) -> None:
    host.call("events", {"events": [event(host, kind, at=now, **data)]})
    assert [gpu.health for gpu in host.gpus] == [expected, "ok"]
    kept = HealthEvent.objects.get()
    assert kept.severity == severity
    gpu, other = host.gpus
    assert health.last_event(gpu) == (kept if severity in ("degraded", "fatal") else None)
    assert health.last_event(other) is None
    if expected != "ok":
        assert health_in_words(gpu)


def test_events_by_a_clock_that_is_off_are_told_in_our_time(host: Host, now: datetime) -> None:
    off = now - timedelta(hours=5)
    host.call("events", {"events": [event(host, "boot", index=None, at=off)], "sent_at": iso_z(off)})
    kept = HealthEvent.objects.get()
    assert abs(kept.at - now) < timedelta(seconds=30)


@pytest.mark.spec("I1")
@pytest.mark.case("marketplace-21")
def test_a_fatal_event_takes_that_card_off_the_market_in_the_same_request(host: Host, now: datetime) -> None:
    measure(host, at=now - timedelta(minutes=1))
    variant = host.gpus[0].variant
    assert variant is not None
    set_price(provider=host.machine.provider, gpu_model=variant.model, price_micro=400_000, by=None, at=now)
    host.beat()
    host.report_inventory()
    assert Listing.objects.get().gpus_free == 2
    host.call("events", {"events": [event(host, "gpu_lost", at=now)]})
    listing = Listing.objects.get()
    assert (listing.state, listing.gpus_free) == ("offered", 1)


def test_events_are_kept_once_and_the_highest_sequence_is_acknowledged(host: Host, now: datetime) -> None:
    events = [event(host, "xid", at=now, sequence=number, xid=79) for number in (5, 6, 7)]
    assert host.call("events", {"events": events}).json()["acknowledged"] == 7
    Gpu.objects.update(health="ok")
    assert host.call("events", {"events": events}).json()["acknowledged"] == 7
    assert HealthEvent.objects.count() == 3
    assert host.gpus[0].health == "ok"  # a repeat says nothing new


def test_an_event_of_the_host_needs_no_card_and_one_of_a_strange_card_is_kept_without(
    host: Host, now: datetime
) -> None:
    strange = event(host, "xid", at=now, sequence=2, xid=79) | {"gpu_uuid": "GPU-elsewhere"}
    host.call("events", {"events": [event(host, "docker_down", index=None, at=now), strange]})
    assert [(kept.kind, kept.gpu) for kept in HealthEvent.objects.order_by("sequence")] == [
        ("docker_down", None),
        ("xid", None),
    ]
    assert [gpu.health for gpu in host.gpus] == ["ok", "ok"]


@pytest.mark.parametrize(
    "change",
    [{"kind": "party"}, {"id": "1"}, {"at": "soon"}, {"data": "x"}, {"data": {"x": "y" * 5000}}, {"sequence": -1}],
)
def test_an_event_that_cannot_be_is_refused(change: dict[str, Any], host: Host, now: datetime) -> None:
    answer = host.call("events", {"events": [event(host, "boot", index=None, at=now) | change]})
    assert answer.status_code == 422
    assert not HealthEvent.objects.exists()


@pytest.mark.case("agent-5", "agent-9")
def test_telemetry_is_kept_and_unknown_is_null(host: Host, now: datetime) -> None:
    readings = [sample(host, at=now - timedelta(seconds=5 * n), power_w=None, throttle_reasons=None) for n in range(10)]
    assert host.call("telemetry", {"samples": readings}).json()["kept"] == 10
    assert host.call("telemetry", {"samples": readings}).json()["kept"] == 10
    kept = Sample.objects.first()
    assert Sample.objects.count() == 10
    assert kept is not None
    assert (kept.power_w, kept.fan_pct, kept.temperature_c, kept.throttle_reasons) == (None, None, 61.0, [])


def test_telemetry_of_five_hundred_samples_is_few_statements(
    host: Host, now: datetime, django_assert_max_num_queries: Any
) -> None:
    readings = [sample(host, at=now - timedelta(seconds=n)) for n in range(500)]
    with django_assert_max_num_queries(8):
        assert host.call("telemetry", {"samples": readings}).json()["kept"] == 500
    assert host.call("telemetry", {"samples": [*readings, readings[0]]}).status_code == 422


def test_samples_of_strange_cards_of_yesterday_and_of_the_future_are_left_out(host: Host, now: datetime) -> None:
    readings = [
        sample(host, at=now),
        sample(host, at=now) | {"gpu_uuid": "GPU-elsewhere"},
        sample(host, at=now) | {"gpu_uuid": None},
        sample(host, at=now - timedelta(days=2)),
        sample(host, at=now + timedelta(minutes=10)),
    ]
    assert host.call("telemetry", {"samples": readings}).json()["kept"] == 1


@pytest.mark.parametrize(
    "change", [{"utilization_pct": 101}, {"power_w": "hot"}, {"memory_used_mib": -1}, {"at": None}]
)
def test_a_sample_that_cannot_be_is_refused(change: dict[str, Any], host: Host, now: datetime) -> None:
    assert host.call("telemetry", {"samples": [sample(host, at=now) | change]}).status_code == 422


def test_incidents_and_outcomes_are_written_once(host: Host, now: datetime) -> None:
    reference = uuid.uuid4()
    for cause in ("gpu_lost", "disk_full"):
        incidents.record_incident(
            machine=host.machine, key="rental:1", cause=cause, at=now, reference=reference, evidence={"xid": 79}
        )
        incidents.record_outcome(machine=host.machine, reference=reference, cause=cause, provider_fault=True, at=now)
    assert [incident.cause for incident in Incident.objects.all()] == ["gpu_lost"]
    assert [outcome.cause for outcome in Outcome.objects.all()] == ["gpu_lost"]


def test_an_incident_is_excused_with_a_reason_and_once(host: Host, now: datetime) -> None:
    by = host.machine.provider.organisation.created_by
    incident = incidents.record_incident(machine=host.machine, key="rental:1", cause="gpu_lost", at=now)
    with pytest.raises(incidents.ReasonMissing):
        incidents.excuse(incident=incident, by=by, reason="  ", at=now)
    incidents.excuse(incident=incident, by=by, reason="Our own\nmistake", at=now)
    incidents.excuse(incident=incident, by=by, reason="Another reason", at=now + timedelta(hours=1))
    incident.refresh_from_db()
    assert (incident.excused_reason, incident.excused_at, incident.excused_by) == ("Our own mistake", now, by)

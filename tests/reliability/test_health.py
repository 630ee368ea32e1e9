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


def test_samples_older_than_a_week_are_dropped(host: Host, now: datetime) -> None:
    gpu = host.gpus[0]
    for days in (0, 6, 8, 30):
        Sample.objects.create(machine=gpu.machine, gpu=gpu, at=now - timedelta(days=days))
    assert health.drop_old_samples(at=now) == 2
    assert Sample.objects.count() == 2
    assert health.last_samples(gpu.machine)[gpu.pk].at == now


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

"""How GPUs stand, and the words for it: each standing on its own, the worst first."""

import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest

from providers import fleet
from providers.claims import claim_gpus
from providers.fleet import Hidden, Host, Standing
from providers.models import Gpu, GpuClaim, Machine, Schedule
from providers.views import words
from tests.marketplace.conftest import machine, provider

pytestmark = pytest.mark.django_db


def host_of(row: Machine, at: datetime, **options: Any) -> Host:
    (host,) = fleet.read(provider=row.provider, offline_seconds=45, at=at, **options).hosts
    return host


@pytest.fixture
def row(now: datetime) -> Machine:
    return machine(provider(at=now), at=now, gpus=1)


@pytest.mark.spec("B5")
@pytest.mark.parametrize(
    ("change", "standing", "shown"),
    [
        ({}, Standing.FREE, "Free"),
        ({"given": False}, Standing.KEPT, "Kept by you"),
        ({"health": "fatal", "health_reason": "xid:79"}, Standing.FAILED, "Failed"),
        ({"health": "degraded", "health_reason": "xid:63"}, Standing.FREE, "Free, degraded"),
        ({"admitted": False}, Standing.UNADMITTED, "Waiting for admission"),
        ({"variant": None}, Standing.UNADMITTED, "Not in the catalogue"),
        ({"benchmarked_at": None}, Standing.WAITING, "Waiting for its first benchmark"),
    ],
)
def test_a_card_stands_as_it_is(
    row: Machine, now: datetime, change: dict[str, Any], standing: Standing, shown: str
) -> None:
    Gpu.objects.update(**change)
    host = host_of(row, now)
    assert host.cards[0].standing == standing
    assert words.card_said(host.cards[0], host).text == shown


@pytest.mark.spec("C4")
def test_a_delisted_card_says_why_and_what_to_do(row: Machine, now: datetime) -> None:
    reason = {"code": "performance", "performance": 71.2, "floor": 80.0, "throttle_reasons": ["hw_thermal_slowdown"]}
    Gpu.objects.update(delisted_at=now, delisted_reason=reason)
    host = host_of(row, now)
    said = words.card_said(host.cards[0], host)
    assert host.cards[0].standing == Standing.DELISTED
    assert "71.2 %" in said.reason
    assert "80 %" in said.reason
    assert "cooling" in said.todo
    assert words.host_said(host, now).text == "Connected, 1 delisted"


@pytest.mark.parametrize(("kind", "standing"), [("rental", Standing.RENTED), ("benchmark", Standing.MEASURING)])
def test_who_holds_a_card_is_told_apart(row: Machine, now: datetime, kind: str, standing: Standing) -> None:
    claim_gpus(
        gpus=list(row.gpus.all()), kind=GpuClaim.Kind(kind), reference=uuid.uuid4(), at=now - timedelta(minutes=1)
    )
    assert host_of(row, now).cards[0].standing == standing


@pytest.mark.parametrize(
    ("change", "hidden"),
    [
        ({"hidden_at": "now"}, Hidden.PROVIDER),
        ({"draining": True}, Hidden.DRAINING),
        ({"paused_at": "now"}, Hidden.PAUSED),
        ({"nvml": "hung"}, Hidden.HUNG),
    ],
)
def test_a_sound_card_that_is_not_offered_says_whose_decision_it_is(
    row: Machine, now: datetime, change: dict[str, Any], hidden: Hidden
) -> None:
    Machine.objects.update(**{name: now if value == "now" else value for name, value in change.items()})
    host = host_of(row, now)
    assert (host.hidden, host.cards[0].standing) == (hidden, Standing.HIDDEN)
    assert words.card_said(host.cards[0], host).reason


@pytest.mark.spec("D2")
def test_outside_its_hours_a_machine_is_hidden(row: Machine, now: datetime) -> None:
    tomorrow = (now + timedelta(days=1)).weekday()
    Schedule.objects.create(
        machine=row,
        effective_from=now - timedelta(days=2),
        timezone="UTC",
        always=False,
        windows=[[tomorrow, "00:00", "24:00"]],
    )
    host = host_of(row, now)
    assert host.hidden == Hidden.HOURS
    assert words.host_said(host, now).text == "Outside its hours"


@pytest.mark.spec("B5")
def test_silence_makes_a_machine_offline_and_all_its_cards(row: Machine, now: datetime) -> None:
    assert host_of(row, now + timedelta(seconds=44)).connected
    host = host_of(row, now + timedelta(seconds=46))
    assert host.cards[0].standing == Standing.OFFLINE
    said = words.host_said(host, now + timedelta(seconds=46))
    assert said.state == "bad"
    assert said.text.startswith("Offline since")
    assert "46 s ago" in said.reason


def test_a_machine_that_was_never_heard_of_says_what_to_do(row: Machine, now: datetime) -> None:
    Machine.objects.update(last_seen_at=None)
    said = words.host_said(host_of(row, now), now)
    assert (said.state, said.text) == ("idle", "Not connected yet")
    assert said.todo


def test_prices_count_only_where_they_are_given(row: Machine, now: datetime) -> None:
    model = row.gpus.get().variant.model_id
    assert host_of(row, now).cards[0].standing == Standing.FREE
    assert host_of(row, now, priced=set()).cards[0].standing == Standing.UNPRICED
    assert host_of(row, now, priced={model}).cards[0].standing == Standing.FREE


def test_a_fleet_is_read_in_the_same_number_of_queries_however_large(
    row: Machine, now: datetime, django_assert_num_queries: Any
) -> None:
    for _ in range(5):
        machine(row.provider, at=now, gpus=4)
    with django_assert_num_queries(5):
        found = fleet.read(provider=row.provider, offline_seconds=45, at=now)
        assert (found.given, found.counts[Standing.FREE]) == (21, 21)
        assert [host.models for host in found.hosts]

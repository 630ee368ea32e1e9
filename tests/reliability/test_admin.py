"""The admin's pages of reliability: what is looked at, and what is decided on them."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from gpunex.accounts.models import User
from providers.models import EnrolmentKey, Gpu, Machine
from reliability import anomalies, cases, floors, incidents, scores
from reliability.models import (
    Anomaly,
    Benchmark,
    Case,
    Connection,
    Delisting,
    FloorWaiver,
    Incident,
    PlatformOutage,
    Score,
)
from tests.hosts import Host, approved, connected, measure, person

pytestmark = pytest.mark.django_db


@pytest.fixture
def host(now: datetime) -> Host:
    host = connected(approved(at=now), at=now)
    measure(host, at=now)
    return host


@pytest.fixture
def staff(admin_door: Any) -> tuple[User, Client]:
    return admin_door


@pytest.fixture
def admin_door(client: Client, settings: Any) -> tuple[User, Client]:
    """Signed in as staff. The second factor that the door of /admin/ asks for is not this test's subject."""
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "AdminDoor" not in name]
    user = person("admin", is_staff=True, is_superuser=True)
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return user, client


def change(model: str, pk: int) -> str:
    return reverse(f"admin:reliability_{model}_change", args=[pk])


def test_every_list_and_page_opens(staff: tuple[User, Client], host: Host, now: datetime) -> None:
    user, client = staff
    scores.refresh(at=now + timedelta(minutes=1))
    incidents.record_incident(machine=host.machine, key="rental:1", cause="gpu_lost", at=now, evidence={"xid": 79})
    incidents.record_outcome(
        machine=host.machine, reference=host.machine.public_id, cause="gpu_lost", provider_fault=True, at=now
    )
    PlatformOutage.objects.create(started_at=now.replace(year=2020), ended_at=now)
    anomalies.note(kind=Anomaly.Kind.CLOCK, machine=host.machine, evidence={"offset_ms": 9000}, at=now)
    host.facts = {"docker_version": "24.0.7"}
    host.report_inventory()
    cases.open_case(
        organisation=host.machine.provider.organisation, by=user, kind="other", subject="<b>", text="<i>x</i>", at=now
    )
    names = (
        "benchmark", "score", "connection", "healthevent", "outcome", "incident", "platformoutage", "gap", "pause", "excuse",
        "formulaswitch", "delisting", "floorwaiver", "anomaly", "case", "machinerisk",
    )  # fmt: skip
    for name in names:
        assert client.get(reverse(f"admin:reliability_{name}_changelist")).status_code == 200, name
    for model in (Benchmark, Score, Connection, Incident, Delisting, Anomaly, Case):
        row = model.objects.first()
        assert row is not None, model
        page = client.get(change(str(model._meta.model_name), row.pk))
        assert page.status_code == 200
        assert Benchmark.objects.first().nonce not in page.content.decode()  # type: ignore[union-attr]
        assert "<i>x</i>" not in page.content.decode()
    assert client.get(change("machinerisk", host.machine.pk)).status_code == 200


def test_an_incident_is_excused_with_a_reason_by_whom(staff: tuple[User, Client], host: Host, now: datetime) -> None:
    user, client = staff
    incident = incidents.record_incident(machine=host.machine, key="rental:1", cause="gpu_lost", at=now)
    address = change("incident", incident.pk)
    empty = client.post(address, {"decision": "excuse", "reason": "  "})
    assert empty.status_code == 422
    incident.refresh_from_db()
    assert incident.excused_at is None
    typed = {"decision": "excuse", "reason": "Our own mistake", "cause": "disk_full"}
    assert client.post(address, typed).status_code == 302
    incident.refresh_from_db()
    assert (incident.excused_reason, incident.excused_by, incident.cause) == ("Our own mistake", user, "gpu_lost")
    client.post(address, {"decision": "excuse", "reason": "Another"})
    incident.refresh_from_db()
    assert incident.excused_reason == "Our own mistake"


def test_a_floor_is_waived_paused_and_revoked_on_the_machines_page(
    staff: tuple[User, Client], host: Host, now: datetime
) -> None:
    user, client = staff
    host.facts = {"docker_version": "24.0.7"}
    host.report_inventory()
    assert all(gpu.delisted_at for gpu in host.gpus)
    address = change("machinerisk", host.machine.pk)
    wrong = client.post(address, {"decision": "waive", "floor": "software", "days": "0", "reason": "x"})
    assert wrong.status_code == 422
    nowhere = client.post(address, {"decision": "waive", "floor": "software", "gpu": "9", "days": "7", "reason": "x"})
    assert nowhere.status_code == 422
    typed = {"decision": "waive", "floor": "software", "gpu": "", "days": "7", "reason": "Backported by the vendor"}
    assert client.post(address, typed).status_code == 302
    assert not any(gpu.delisted_at for gpu in host.gpus)
    waiver = FloorWaiver.objects.get()
    assert (waiver.by, waiver.reason) == (user, "Backported by the vendor")
    assert client.post(change("floorwaiver", waiver.pk), {"decision": "revoke"}).status_code == 302
    assert all(gpu.delisted_at for gpu in host.gpus)
    assert client.post(address, {"decision": "pause", "reason": "Looks odd"}).status_code == 302
    assert host.machine.paused_at is not None
    assert client.post(address, {"decision": "resume"}).status_code == 302
    assert host.machine.paused_at is None


def test_machines_stand_in_the_order_of_their_risk(staff: tuple[User, Client], host: Host, now: datetime) -> None:
    _user, client = staff
    risky = connected(approved(at=now), at=now, hostname="risky")
    incidents.record_incident(machine=risky.machine, key="rental:1", cause="gpu_lost", at=now)
    page = client.get(reverse("admin:reliability_machinerisk_changelist")).content.decode()
    assert page.index(f">{risky.machine.name}<") < page.index(f">{host.machine.name}<")


def test_an_anomaly_is_decided_once_with_a_note(staff: tuple[User, Client], host: Host, now: datetime) -> None:
    user, client = staff
    anomalies.note(kind=Anomaly.Kind.CLOCK, machine=host.machine, evidence={"offset_ms": 9000}, at=now)
    row = Anomaly.objects.get()
    assert client.post(change("anomaly", row.pk), {"decision": "decide", "state": "dismissed"}).status_code == 422
    typed = {"decision": "decide", "state": "dismissed", "note": "Its NTP was down"}
    assert client.post(change("anomaly", row.pk), typed).status_code == 302
    row.refresh_from_db()
    assert (row.state, row.note, row.by) == ("dismissed", "Its NTP was down", user)
    with pytest.raises(anomalies.AlreadyDecided):
        anomalies.decide(anomaly=row, state=Anomaly.State.CONFIRMED, text="x", by=user, at=now)


def test_the_queue_shows_what_waits_first_and_an_answer_may_excuse(
    staff: tuple[User, Client], host: Host, now: datetime
) -> None:
    user, client = staff
    organisation = host.machine.provider.organisation
    incident = incidents.record_incident(machine=host.machine, key="rental:1", cause="gpu_lost", at=now)
    fields = {"organisation": organisation, "by": organisation.created_by}
    done = cases.open_case(kind="other", subject="Done", text="x", at=now - timedelta(days=2), **fields)
    cases.answer(case=done, by=user, text="y", at=now - timedelta(days=2))
    case = cases.open_case(kind="incident", subject="Waits", reference="rental:1", text="Not me", at=now, **fields)
    page = client.get(reverse("admin:reliability_case_changelist")).content.decode()
    assert page.index("Waits") < page.index("Done")
    typed = {"decision": "answer", "text": "You are right", "excuse": "on"}
    assert client.post(change("case", case.pk), typed).status_code == 302
    case.refresh_from_db()
    incident.refresh_from_db()
    assert case.state == "answered"
    assert incident.excused_by == user
    assert client.post(change("case", case.pk), {"decision": "close"}).status_code == 302
    case.refresh_from_db()
    assert case.state == "closed"


def test_who_may_only_look_decides_nothing(staff: tuple[User, Client], host: Host, now: datetime) -> None:
    user, client = staff
    incident = incidents.record_incident(machine=host.machine, key="rental:1", cause="gpu_lost", at=now)
    user.is_superuser = False
    user.save()
    from django.contrib.auth.models import Permission

    user.user_permissions.add(Permission.objects.get(codename="view_incident"))
    assert client.get(change("incident", incident.pk)).status_code == 200
    client.post(change("incident", incident.pk), {"decision": "excuse", "reason": "x"})
    incident.refresh_from_db()
    assert incident.excused_at is None


# --- The sweep of anomalies ---


def test_clocks_cards_and_keys_that_are_odd_are_noted_once(host: Host, now: datetime) -> None:
    Machine.objects.update(last_seen_at=now, clock_offset_ms=-7000, enrolled_at=now - timedelta(days=3))
    Gpu.objects.filter(pk=host.gpus[0].pk).update(removed_at=now)
    Gpu.objects.update(first_seen_at=now - timedelta(days=3))
    assert anomalies.look(at=now) == 2
    assert anomalies.look(at=now + timedelta(seconds=30)) == 2
    assert set(Anomaly.objects.values_list("kind", flat=True)) == {"clock", "gpu_count"}
    key = EnrolmentKey.objects.get()
    machine = host.machine
    Machine.objects.bulk_create(
        [
            Machine(
                provider=machine.provider,
                enrolled_with=key,
                name=f"m{number}",
                fingerprint=str(number),
                tier="community",
                secret_hash=str(number),
                enrolled_at=now,
            )
            for number in range(11)
        ]
    )
    anomalies.look(at=now)
    assert Anomaly.objects.get(kind="many_machines").evidence["machines"] == 11


def test_a_dismissed_anomaly_stays_so_while_it_goes_on(host: Host, now: datetime) -> None:
    def seen(at: datetime) -> None:
        anomalies.note(kind=Anomaly.Kind.CLOCK, machine=host.machine, evidence={}, at=at)

    seen(now)
    anomalies.decide(anomaly=Anomaly.objects.get(), state=Anomaly.State.DISMISSED, text="x", by=person("a"), at=now)
    for hours in (1, 20, 40):
        seen(now + timedelta(hours=hours))
    assert Anomaly.objects.get().state == "dismissed"
    seen(now + timedelta(hours=70))
    assert Anomaly.objects.filter(state="open").count() == 1


def test_a_uuid_on_two_live_machines_is_noted_for_the_second(host: Host, now: datetime) -> None:
    other = connected(approved(at=now), at=now, count=1)
    other.cards[0]["uuid"] = host.cards[0]["uuid"]
    other.report_inventory()
    row = Anomaly.objects.get(kind="duplicate_uuid")
    assert row.machine == other.machine
    assert row.evidence["held_by"] == str(host.machine_id)
    assert floors.in_words(None) == ("", "")

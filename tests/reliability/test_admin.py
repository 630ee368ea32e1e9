"""The admin's pages of reliability: looked at, and incidents excused."""

from datetime import datetime
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from gpunex.accounts.models import User
from reliability import incidents, scores
from reliability.models import Benchmark, Connection, Incident, PlatformOutage, Score
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


def test_every_list_and_page_opens(staff: tuple[User, Client], host: Host, now: datetime) -> None:
    _user, client = staff
    scores.refresh(at=now)
    incidents.record_incident(machine=host.machine, key="rental:1", cause="gpu_lost", at=now, evidence={"xid": 79})
    incidents.record_outcome(
        machine=host.machine, reference=host.machine.public_id, cause="gpu_lost", provider_fault=True, at=now
    )
    PlatformOutage.objects.create(started_at=now.replace(year=2020), ended_at=now)
    for name in ("benchmark", "score", "connection", "healthevent", "outcome", "incident", "platformoutage"):
        assert client.get(reverse(f"admin:reliability_{name}_changelist")).status_code == 200, name
    for model in (Benchmark, Score, Connection, Incident):
        row = model.objects.first()
        assert row is not None
        page = client.get(reverse(f"admin:reliability_{model._meta.model_name}_change", args=[row.pk]))
        assert page.status_code == 200
        assert Benchmark.objects.first().nonce not in page.content.decode()  # type: ignore[union-attr]


def test_an_incident_is_excused_with_a_reason_by_whom(staff: tuple[User, Client], host: Host, now: datetime) -> None:
    user, client = staff
    incident = incidents.record_incident(machine=host.machine, key="rental:1", cause="gpu_lost", at=now)
    address = reverse("admin:reliability_incident_change", args=[incident.pk])
    empty = client.post(address, {"excused_reason": "  "})
    assert empty.status_code == 200
    incident.refresh_from_db()
    assert incident.excused_at is None
    assert client.post(address, {"excused_reason": "Our own mistake", "cause": "disk_full"}).status_code == 302
    incident.refresh_from_db()
    assert (incident.excused_reason, incident.excused_by, incident.cause) == ("Our own mistake", user, "gpu_lost")
    assert client.post(address, {"excused_reason": "Another"}).status_code == 403

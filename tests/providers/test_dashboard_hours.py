"""The Availability tab: the weekly editor without JavaScript, and what it answers."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from gpunex.kit.time import zone
from providers.models import Machine, Provider, Schedule
from providers.views.availability import next_week
from tests.marketplace.conftest import machine, provider
from tests.providers.test_dashboard_pages import signed_in
from tests.providers.test_fleet import host_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner(now: datetime) -> Provider:
    return provider(at=now - timedelta(days=40))


@pytest.fixture
def host(owner: Provider, now: datetime) -> Machine:
    return machine(owner, at=now)


@pytest.fixture
def client(owner: Provider) -> Client:
    return signed_in(owner)


def send(client: Client, host: Machine, **data: Any) -> Any:
    return client.post(reverse("providers:availability_of", args=[host.public_id]), data)


@pytest.mark.spec("D2")
def test_fewer_hours_are_declared_and_said_to_count_later(client: Client, host: Machine) -> None:
    answer = client.post(
        reverse("providers:availability_of", args=[host.public_id]),
        {"availability": "weekly", "timezone": "Europe/Berlin", "hours": [str(hour) for hour in range(18, 26)]},
        follow=True,
    )
    assert "Until then hours that you took away are still offered" in answer.text
    version = Schedule.objects.get(machine=host, always=False)
    assert version.windows == [[0, "18:00", "02:00"]]
    assert version.timezone == "Europe/Berlin"
    assert "8 hours a week" in client.get(reverse("providers:availability")).text


def test_a_preset_fills_the_boxes_and_saves_nothing(client: Client, host: Machine) -> None:
    answer = send(client, host, availability="weekly", timezone="Asia/Amman", preset="weekends")
    assert answer.status_code == 200
    assert answer.text.count(" checked") == 48 + 1
    assert 'value="Asia/Amman"' in answer.text
    assert Schedule.objects.filter(machine=host).count() == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"availability": "weekly", "timezone": "UTC"}, "Choose at least one hour"),
        ({"availability": "weekly", "timezone": "Mars/Olympus", "hours": ["1"]}, "is not a time zone"),
        ({"availability": "weekly", "timezone": "../../etc/passwd", "hours": ["1"]}, "is not a time zone"),
        ({"availability": "weekly", "timezone": "", "hours": ["1"]}, "Write the time zone"),
        ({"availability": "weekly", "timezone": "UTC", "hours": ["168"]}, "not an hour of the week"),
        ({"availability": "sometimes", "timezone": "UTC"}, "Select a valid choice"),
        ({}, "Choose when the GPUs are available"),
    ],
)
def test_hours_that_are_none_are_refused_beside_their_field(
    client: Client, host: Machine, data: dict[str, Any], words: str
) -> None:
    answer = send(client, host, **data)
    assert answer.status_code == 422
    assert words in answer.text
    assert Schedule.objects.filter(machine=host).count() == 1


def test_the_next_week_is_shown_as_it_will_be_offered(host: Machine, now: datetime) -> None:
    Schedule.objects.create(
        machine=host,
        effective_from=now - timedelta(days=1),
        timezone="Asia/Amman",
        always=False,
        windows=[[day, "22:00", "06:00"] for day in range(7)],
    )
    week = next_week(host_of(host, now), "Asia/Amman", now)
    assert len(week) == 7
    assert week[0]["day"] == now.astimezone(zone("Asia/Amman")).date()
    assert {(day["said"], day["hours"]) for day in week} == {("00:00–06:00, 22:00–24:00", "8")}


def test_a_page_in_arabic_begins_its_week_on_saturday(owner: Provider, host: Machine) -> None:
    text = signed_in(owner, "ar").get(reverse("providers:availability_of", args=[host.public_id])).text
    assert 'dir="rtl"' in text
    assert text.index('value="120"') < text.index('value="0"')

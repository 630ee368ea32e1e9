"""A machine's page: what it says, and what a provider decides there."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from marketplace import listings, pricing
from marketplace.models import Listing
from providers.models import Gpu, GpuModel, Machine, MaintenanceWindow, Provider, Workload
from reliability.models import Benchmark, Gap, Sample
from tests.marketplace.conftest import USDC, machine, provider, rent, renter_with, report
from tests.providers.test_dashboard_pages import signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner(now: datetime) -> Provider:
    return provider(at=now - timedelta(days=40))


@pytest.fixture
def host(owner: Provider, now: datetime) -> Machine:
    row = machine(owner, at=now, gpus=2)
    pricing.set_price(provider=owner, gpu_model=GpuModel.objects.get(slug="l4-24gb"), price_micro=USDC, by=None, at=now)
    listings.refresh(at=now, machines=[row])
    return row


@pytest.fixture
def client(owner: Provider) -> Client:
    return signed_in(owner)


def page(client: Client, host: Machine) -> str:
    return client.get(reverse("providers:machine", args=[host.public_id])).text


def post(client: Client, name: str, *args: Any, **data: Any) -> Any:
    return client.post(reverse(f"providers:{name}", args=args), data)


@pytest.mark.spec("B5")
def test_the_page_says_connected_and_offline_soon_after(client: Client, host: Machine, now: datetime) -> None:
    assert "Connected, 2 free" in page(client, host)
    Machine.objects.update(last_seen_at=now - timedelta(seconds=46))
    text = page(client, host)
    assert "Offline since" in text
    assert "docker logs --tail 50 gpunex-agent" in text
    assert (
        "Offline since"
        in client.get(reverse("providers:machine", args=[host.public_id]), headers={"HX-Request": "true"}).text
    )


@pytest.mark.spec("D2")
def test_hide_now_takes_the_offer_away_and_show_now_brings_it_back(client: Client, host: Machine) -> None:
    assert post(client, "machine_hide", host.public_id).status_code == 302
    assert Listing.objects.get(machine=host).state == Listing.State.HIDDEN
    assert "Hidden by you" in page(client, host)
    post(client, "machine_unhide", host.public_id)
    assert Listing.objects.get(machine=host).state == Listing.State.OFFERED


def test_draining_takes_the_offer_away_until_work_is_taken_again(client: Client, host: Machine) -> None:
    post(client, "machine_drain", host.public_id)
    assert Listing.objects.get(machine=host).state == Listing.State.HIDDEN
    assert "Draining" in page(client, host)
    post(client, "machine_resume", host.public_id)
    assert Listing.objects.get(machine=host).state == Listing.State.OFFERED


def test_retiring_waits_for_the_rental_to_end(client: Client, host: Machine, now: datetime) -> None:
    began = now - timedelta(minutes=2)
    rental = rent(renter_with(100 * USDC, at=began), Listing.objects.get(machine=host), at=began)
    report(rental, "running", at=began)
    answer = post(client, "machine_retire", host.public_id)
    assert answer.status_code == 422
    assert "Nothing was changed" in answer.text
    assert "Drain it" in answer.text
    report(rental, "finished", at=now, exit_code=0, cause="completed", finished_at=now)
    assert post(client, "machine_retire", host.public_id).status_code == 302
    host.refresh_from_db()
    assert host.retired_at is not None
    assert Listing.objects.get(machine=host).state == Listing.State.RETIRED
    assert "Retired on" in page(client, host)
    assert host.name in client.get(reverse("providers:machines"), {"state": "retired"}).text
    assert host.name not in client.get(reverse("providers:machines")).text
    assert post(client, "machine_hide", host.public_id).status_code == 422


@pytest.mark.spec("B6")
def test_a_gpu_is_taken_back_and_given_again(client: Client, host: Machine) -> None:
    gpu = host.gpus.get(index=1)
    post(client, "gpu_keep", host.public_id, gpu.public_id)
    assert Listing.objects.get(machine=host).gpus_total == 1
    assert "Kept by you" in page(client, host)
    post(client, "gpu_give", host.public_id, gpu.public_id)
    assert Listing.objects.get(machine=host).gpus_total == 2
    Gpu.objects.filter(pk=gpu.pk).update(given=False, facts={"given": False})
    answer = post(client, "gpu_give", host.public_id, gpu.public_id)
    assert answer.status_code == 422
    assert "GPUNEX_GPUS" in answer.text


@pytest.mark.spec("A5")
def test_maintenance_is_announced_in_the_machines_zone_and_cancelled(
    client: Client, host: Machine, now: datetime
) -> None:
    host.schedules.update(timezone="Asia/Amman")  # UTC+3 all year
    day = (now + timedelta(days=3)).date()
    answer = post(
        client, "maintenance", host.public_id, starts_at=f"{day}T05:00", ends_at=f"{day}T07:00", reason="Fans <b>"
    )
    assert answer.status_code == 302
    window = MaintenanceWindow.objects.get()
    assert window.starts_at.isoformat() == f"{day}T02:00:00+00:00"
    text = page(client, host)
    assert "05:00–07:00" in text
    assert "Fans &lt;b&gt;" in text
    post(client, "maintenance_cancel", host.public_id, window.pk)
    window.refresh_from_db()
    assert window.cancelled_at is not None


@pytest.mark.parametrize(
    ("starts", "ends", "words"),
    [
        ("", "", "This field is required"),
        ("tomorrow", "later", "Enter a valid date"),
        ("2020-01-01T00:00", "2020-01-01T01:00", "begins in the past"),
    ],
)
def test_a_window_that_is_none_is_refused_where_it_was_typed(
    client: Client, host: Machine, starts: str, ends: str, words: str
) -> None:
    answer = post(client, "maintenance", host.public_id, starts_at=starts, ends_at=ends)
    assert answer.status_code == 422
    assert words in answer.text
    assert not MaintenanceWindow.objects.exists()
    assert starts == "" or f'value="{starts}"' in answer.text


def test_readings_are_shown_with_their_units_and_unknown_ones_are_not_zero(
    client: Client, host: Machine, now: datetime
) -> None:
    gpu = host.gpus.get(index=0)
    Sample.objects.bulk_create(
        Sample(
            machine=host,
            gpu=gpu,
            at=now - timedelta(minutes=minute),
            temperature_c=61,
            power_w=None,
            utilization_pct=98,
            memory_used_mib=2048,
        )
        for minute in (1, 2)
    )
    text = page(client, host)
    assert "61 °C" in text
    assert "98 %" in text
    assert "2.0 GiB" in text
    assert "0 W" not in text


def test_the_list_narrows_by_state_and_name(client: Client, owner: Provider, host: Machine, now: datetime) -> None:
    away = machine(owner, at=now - timedelta(hours=1), name="oslo-1")
    url = reverse("providers:machines")

    def found(**query: str) -> set[str]:
        text = client.get(url, query).text
        return {row.name for row in (host, away) if f">{row.name}<" in text}

    assert found() == {host.name, "oslo-1"}
    assert found(state="connected") == {host.name}
    assert found(state="offline") == found(state="attention") == found(q="OSLO") == {"oslo-1"}
    assert found(state="retired") == set()
    assert "No machine is like that" in client.get(url, {"q": "nothing"}).text


@pytest.mark.spec("C3")
def test_measuring_again_starts_a_run_once(client: Client, host: Machine, now: datetime) -> None:
    answer = post(client, "measure_again", host.public_id)
    assert answer.status_code == 302
    assert Benchmark.objects.filter(gpu__machine=host, state="requested").count() == 2
    assert Workload.objects.filter(machine=host, kind="benchmark").count() == 1
    again = client.post(reverse("providers:measure_again", args=[host.public_id]), follow=True)
    assert "None of these GPUs can be measured now" in again.text
    assert Workload.objects.filter(machine=host).count() == 1


def test_a_machine_that_is_away_is_not_measured(client: Client, host: Machine, now: datetime) -> None:
    Machine.objects.update(last_seen_at=now - timedelta(hours=1))
    answer = client.post(reverse("providers:measure_again", args=[host.public_id]), follow=True)
    assert "not connected" in answer.text
    assert not Benchmark.objects.exists()


def test_readings_are_drawn_for_an_hour_a_day_a_week_and_a_month(
    client: Client, host: Machine, now: datetime, django_assert_max_num_queries: Any
) -> None:
    for gpu in host.gpus.all():
        Sample.objects.bulk_create(
            Sample(
                machine=host, gpu=gpu, at=now - timedelta(minutes=minute), temperature_c=50 + gpu.index * 20 + minute
            )
            for minute in (1, 2, 3, 30)
        )
    url = reverse("providers:machine", args=[host.public_id])
    for reach in ("1h", "24h", "7d", "30d"):
        with django_assert_max_num_queries(32):
            answer = client.get(url, {"reach": reach})
        assert f'href="?reach={reach}#telemetry" aria-current="true"' in answer.text
        assert "Temperature of all GPUs in the last" in answer.text
        assert 'aria-labelledby="chart-power"' not in answer.text  # nothing was read
        assert "The same in numbers" in answer.text
    part = client.get(url, {"reach": "24h"}, headers={"HX-Request": "true", "HX-Target": "readings"})
    assert 'id="readings"' in part.text
    assert "<h1" not in part.text
    assert client.get(url, {"reach": "<b>"}).status_code == 200


def test_gaps_say_network_or_machine_and_a_wrong_clock_how_to_set_it(
    client: Client, host: Machine, now: datetime
) -> None:
    kinds = [Gap.Kind.JOURNALLED, Gap.Kind.UNKNOWN, Gap.Kind.REBOOT, Gap.Kind.PLATFORM]
    for number, kind in enumerate(kinds):
        start = now - timedelta(hours=number + 2)
        Gap.objects.create(machine=host, started_at=start, ended_at=start + timedelta(minutes=12), kind=kind)
    text = page(client, host)
    for words in (
        "The agent ran all the while",
        "Nothing tells that the agent ran",
        "Restart of the host",
        "Our outage",
    ):
        assert words in text
    assert "12 min" in text
    assert "timedatectl" not in text
    Machine.objects.update(clock_offset_ms=-7500)
    text = page(client, host)
    assert "7.5 s behind" in " ".join(text.replace('<bdi dir="ltr">', "").replace("</bdi>", "").split())
    assert "timedatectl set-ntp true" in text


@pytest.mark.spec("B5")
def test_a_machine_that_keeps_breaking_off_is_said_to_wait(client: Client, host: Machine, now: datetime) -> None:
    Machine.objects.update(unsettled_until=now + timedelta(minutes=20))
    assert "its connection keeps breaking" in page(client, host)
    listings.refresh(at=now, machines=[host])
    assert Listing.objects.get(machine=host).state == Listing.State.HIDDEN
    assert "last heard from" in client.get(reverse("providers:machines")).text

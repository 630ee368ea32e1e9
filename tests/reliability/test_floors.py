"""Floors of software and uptime, several at once, and what an admin waives."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from gpunex.accounts.models import Notice, User
from gpunex.outbox.models import Message
from gpunex.policy.models import Policy
from providers.models import Machine
from reliability import availability, floors, software, uptime_floor, waivers
from reliability.models import Benchmark, Connection, Delisting, Floor
from tests.hosts import Host, approved, connected, measure, person

pytestmark = pytest.mark.django_db
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def host(now: datetime) -> Host:
    host = connected(approved(at=now), at=now, count=2)
    measure(host, at=now)
    return host


def offered(host: Host) -> list[int]:
    return [gpu.index for gpu in host.gpus if gpu.benchmarked_at and not gpu.delisted_at]


def report(host: Host, **facts: Any) -> None:
    host.facts = facts
    assert host.report_inventory().status_code == 200


def uptime(host: Host, *, at: datetime, month: float | None, week: float | None, hours: float = 720.0) -> bool:
    figures = uptime_floor.Figures(month=month, week=week, hours=hours)
    return floors.judge_uptime(machine=host.machine, figures=figures, at=at)


# --- Software ---


@pytest.mark.spec("K", "C4")
@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"cuda_version": "12.2"}, "CUDA 12.2"),
        ({"docker_version": "24.0.7"}, "Docker is 24.0.7"),
        ({"toolkit_version": "1.17.7"}, "1.17.8"),
        ({"runc_version": "1.3.2"}, "1.2.8 / 1.3.3"),
    ],
)
def test_software_that_is_too_old_takes_the_machine_off_the_market_until_it_is_new(
    facts: dict[str, Any], word: str, host: Host, now: datetime
) -> None:
    report(host, **facts)
    assert offered(host) == []
    why, todo = floors.in_words(host.gpus[0].delisted_reason)
    assert word in why
    assert todo
    report(host, **facts)
    assert Notice.objects.filter(event="software_delisted").count() == 1
    report(host)
    assert offered(host) == [0, 1]
    assert Notice.objects.filter(event="relisted").count() == 1
    assert Delisting.objects.get().ended_at is not None


def test_a_distributions_own_build_is_accepted_once_it_is_on_the_list(host: Host, now: datetime) -> None:
    report(host, runc_version="1.1.12-0ubuntu3.1")
    assert offered(host) == []
    Policy.objects.update(runc_accepted=["1.1.12-0ubuntu3.1"])
    floors.sweep(at=now)
    assert offered(host) == [0, 1]


def test_a_version_that_is_not_known_misses_nothing(host: Host) -> None:
    report(host, docker_version=None, toolkit_version="", runc_version="mine")
    assert offered(host) == [0, 1]
    assert software.outdated(host.machine, Policy.load()) == []


# --- Uptime ---


@pytest.mark.spec("K", "C4")
def test_uptime_below_the_floor_delists_and_a_good_week_lists_again(host: Host, now: datetime) -> None:
    assert uptime(host, at=now, month=0.85, week=0.80)
    assert offered(host) == []
    why, _todo = floors.in_words(host.gpus[0].delisted_reason)
    assert "85.0 %" in why
    assert "90.0 %" in why
    uptime(host, at=now + DAY, month=0.84, week=0.85)
    assert offered(host) == []
    uptime(host, at=now + 7 * DAY, month=0.86, week=0.95)
    assert offered(host) == [0, 1]
    uptime(host, at=now + 8 * DAY, month=0.87, week=0.96)  # the month is still low, and the week keeps it listed
    assert offered(host) == [0, 1]
    assert Notice.objects.filter(event="uptime_delisted").count() == 1


@pytest.mark.spec("K")
def test_before_72_declared_hours_there_is_only_one_warning(host: Host, now: datetime) -> None:
    uptime(host, at=now, month=0.5, week=0.5, hours=71.9)
    uptime(host, at=now + HOUR, month=0.5, week=0.5, hours=71.95)
    assert offered(host) == [0, 1]
    assert Notice.objects.filter(event="uptime_low").count() == 1
    uptime(host, at=now + 2 * HOUR, month=0.5, week=0.5, hours=72.1)
    assert offered(host) == []


def test_a_machine_without_declared_time_is_not_judged(host: Host, now: datetime) -> None:
    assert not uptime(host, at=now, month=None, week=None, hours=0.0)
    assert offered(host) == [0, 1]


def test_the_sweep_takes_its_figures_from_what_is_recorded(host: Host, now: datetime) -> None:
    at = now + 10 * DAY  # heard of for minutes, then never again
    availability.observe(at=now + MINUTE)
    Machine.objects.update(last_seen_at=now + HOUR, offline_since=now + HOUR)
    Connection.objects.update(ended_at=now + HOUR)
    floors.sweep(at=at)
    assert Delisting.objects.filter(floor="uptime", ended_at=None).count() == 1
    assert floors.sweep(at=at) == 0


# --- Several at once, and waivers ---


def test_two_floors_at_once_are_both_told_and_both_have_to_pass(host: Host, now: datetime) -> None:
    report(host, docker_version="24.0.7")
    uptime(host, at=now, month=0.5, week=0.5)
    why, _todo = floors.in_words(host.gpus[0].delisted_reason)
    assert "Docker" in why
    assert "50.0 %" in why
    report(host)
    assert offered(host) == []
    assert host.gpus[0].delisted_reason["code"] == "uptime"
    uptime(host, at=now + DAY, month=0.95, week=0.99)
    assert offered(host) == [0, 1]


def test_a_waiver_keeps_a_machine_listed_until_its_end_and_not_longer(host: Host, now: datetime) -> None:
    admin = person("admin", is_staff=True)
    machine = host.machine
    waivers.grant(
        machine=machine, gpu=None, floor=Floor.SOFTWARE, reason="Backported", until=now + DAY, by=admin, at=now
    )
    report(host, docker_version="24.0.7")
    assert offered(host) == [0, 1]
    assert not Notice.objects.filter(event="software_delisted").exists()
    floors.sweep(at=now + 23 * HOUR)
    assert offered(host) == [0, 1]
    floors.sweep(at=now + DAY + MINUTE)
    assert offered(host) == []
    assert Notice.objects.filter(event="software_delisted").count() == 1


def test_a_waiver_of_one_gpu_or_one_floor_reaches_no_other(host: Host, now: datetime) -> None:
    admin, machine = person("admin", is_staff=True), host.machine
    report(host, docker_version="24.0.7")
    waiver = waivers.grant(
        machine=machine, gpu=host.gpus[1], floor=Floor.SOFTWARE, reason="x", until=now + DAY, by=admin, at=now
    )
    floors.judge_software(machine=machine, at=now + MINUTE)
    assert offered(host) == [1]
    uptime(host, at=now + 2 * MINUTE, month=0.5, week=0.5)
    assert offered(host) == []
    uptime(host, at=now + 3 * MINUTE, month=0.5, week=0.95)
    waivers.revoke(waiver=waiver, by=admin, at=now + 4 * MINUTE)
    floors.sweep(at=now + 5 * MINUTE)
    assert offered(host) == []


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"reason": "  "}, waivers.WaiverReasonMissing),
        ({"until": timedelta(0)}, waivers.WaiverDateWrong),
        ({"until": timedelta(days=400)}, waivers.WaiverDateWrong),
    ],
)
def test_a_waiver_needs_a_reason_and_an_end(change: dict[str, Any], refusal: type, host: Host, now: datetime) -> None:
    values: dict[str, Any] = {"reason": "x", "until": DAY} | change
    with pytest.raises(refusal):
        waivers.grant(
            machine=host.machine,
            gpu=None,
            floor=Floor.UPTIME,
            reason=values["reason"],
            until=now + values["until"],
            by=person("admin"),
            at=now,
        )


def test_a_gpu_of_another_machine_cannot_be_waived_here(host: Host, now: datetime) -> None:
    other = connected(approved(at=now), at=now, count=1)
    with pytest.raises(waivers.WaiverElsewhere):
        waivers.grant(
            machine=host.machine,
            gpu=other.gpus[0],
            floor=Floor.UPTIME,
            reason="x",
            until=now + DAY,
            by=person("admin"),
            at=now,
        )


def test_network_below_the_floor_takes_also_the_cards_that_were_not_measured(host: Host, now: datetime) -> None:
    slow = {"latency_ms": 20.0, "download_mbps": 60.0, "upload_mbps": 500.0}
    measure(host, at=now + 30 * HOUR, network=slow)
    host.cards.append(host.cards[0] | {"uuid": "GPU-11111111-2222", "index": 2})
    measure(host, at=now + 30 * HOUR + 11 * MINUTE, network=slow)
    host.report_inventory()
    floors.judge_software(machine=host.machine, at=now + 31 * HOUR)
    assert [bool(gpu.delisted_at) for gpu in host.gpus] == [True, True, True]
    notice = Notice.objects.get(event="machine_delisted")
    assert (notice.data["download"], notice.data["network_floor"]) == ("60", "100")


def test_the_provider_is_told_in_its_own_language(host: Host, now: datetime) -> None:
    user = host.machine.provider.organisation.created_by
    user.language = "ar"
    user.save()
    report(host, docker_version="24.0.7")
    mail = Message.objects.get(event="software_delisted", to=user.email)
    assert host.machine.name in mail.subject


# --- Pages ---


@pytest.fixture
def host_of_an_hour(now: datetime) -> Host:
    """Measured an hour ago, so that nothing holds its cards when a page looks at them."""
    host = connected(approved(at=now), at=now, count=2)
    measure(host, at=now - HOUR)
    Machine.objects.update(last_seen_at=now)
    return host


@pytest.fixture
def door(host_of_an_hour: Host, client: Client) -> Client:
    host = host_of_an_hour
    client.force_login(
        host.machine.provider.organisation.created_by, backend="django.contrib.auth.backends.ModelBackend"
    )
    return client


@pytest.mark.parametrize("language", ["en", "ar"])
def test_the_benchmarks_tab_says_why_waived_until_when_and_how_to_appeal(
    language: str, door: Client, host_of_an_hour: Host, now: datetime
) -> None:
    host = host_of_an_hour
    User.objects.update(language=language)
    report(host, docker_version="24.0.7")
    waivers.grant(
        machine=host.machine,
        gpu=host.gpus[1],
        floor=Floor.SOFTWARE,
        reason="Backported",
        until=now + DAY,
        by=person("admin"),
        at=now,
    )
    floors.apply_now(machine=host.machine, at=now + MINUTE)
    run = Benchmark.objects.filter(gpu=host.gpus[0]).latest("pk")
    Benchmark.objects.filter(pk=run.pk).update(
        state="refused", code="above_peak", details={"measure": "fp16_tflops", "value": 9000.0, "limit": 100.0}
    )
    page = door.get(reverse("providers:benchmarks")).content.decode()
    assert f'lang="{language}"' in page
    assert "24.0.7" in page
    assert "Backported" in page
    assert f"about=floor&amp;reference={host.gpus[0].public_id}" in page
    assert "9,000.0" in page
    one = door.get(reverse("providers:benchmark_gpu", args=[host.gpus[0].public_id])).content.decode()
    assert "9,000.0" in one
    assert door.get(reverse("providers:benchmark_gpu", args=[host.gpus[1].public_id])).status_code == 200


def test_measuring_again_is_asked_for_on_the_page_and_not_without_end(door: Client, host_of_an_hour: Host) -> None:
    address = reverse("providers:measure_again", args=[host_of_an_hour.machine_id])
    assert door.post(address, follow=True).status_code == 200
    asked = Benchmark.objects.filter(trigger="asked")
    assert asked.count() == 2
    door.post(address, follow=True)
    assert asked.count() == 2

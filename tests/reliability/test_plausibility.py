"""When a card is measured anew, which results are believed, what is only odd, and the two numbers of a score."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db.models import F
from django.utils import translation

from gpunex.policy.models import Policy
from providers.models import Gpu, Machine, VariantExpectation
from reliability import benchmarks, performance, plausibility
from reliability.models import Anomaly, Benchmark, HealthEvent
from tests import hosts
from tests.hosts import Host, approved, connected, measure, open_benchmark, result_of

pytestmark = pytest.mark.django_db
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
def host(now: datetime) -> Host:
    return connected(approved(at=now), at=now, count=1)


def request(host: Host, at: datetime) -> int:
    Machine.objects.filter(public_id=host.machine_id).update(last_seen_at=at)
    return benchmarks.request_due(at=at)


def send(host: Host, result: dict[str, Any], *, asked_before: timedelta = MINUTE) -> Any:
    workload = open_benchmark(host)
    Benchmark.objects.filter(workload=workload).update(requested_at=F("requested_at") - asked_before)
    return host.call(f"workloads/{workload.public_id}/result", result)


# --- When ---


@pytest.mark.spec("C1")
@pytest.mark.parametrize("change", ["driver", "agent", "power limit"])
def test_a_change_of_driver_agent_or_card_calls_for_a_new_run_while_it_stays_offered(
    change: str, host: Host, now: datetime
) -> None:
    measure(host, at=now)
    assert request(host, now + HOUR) == 0
    if change == "driver":
        Machine.objects.update(driver_version="590.10")
    elif change == "agent":
        Machine.objects.update(agent_version="0.2.0")
    else:
        gpu = host.gpus[0]
        Gpu.objects.update(facts=gpu.facts | {"power_limit_w": 300.0})
    assert host.gpus[0].benchmarked_at is not None
    assert request(host, now + HOUR) == 1
    assert Benchmark.objects.latest("pk").trigger == "change"
    hosts.answer(open_benchmark(host), at=now + HOUR + MINUTE)
    assert request(host, now + 2 * HOUR) == 0


@pytest.mark.spec("C1")
def test_a_grave_health_event_calls_for_a_new_run_and_a_harmless_one_does_not(host: Host, now: datetime) -> None:
    measure(host, at=now)

    def event(severity: str, at: datetime) -> None:
        HealthEvent.objects.create(
            event_id=host.gpus[0].public_id if severity == "application" else host.machine.public_id,
            machine=host.machine,
            gpu=host.gpus[0],
            sequence=1,
            kind="xid",
            severity=severity,
            at=at,
            received_at=at,
        )

    event("application", now + HOUR)
    assert request(host, now + 2 * HOUR) == 0
    event("degraded", now + 2 * HOUR)
    assert request(host, now + 2 * HOUR + MINUTE) == 1
    assert Benchmark.objects.latest("pk").trigger == "health"


def test_what_keeps_changing_is_not_measured_all_the_time(host: Host, now: datetime) -> None:
    measure(host, at=now)
    Machine.objects.update(driver_version="590.10")
    assert request(host, now + 9 * MINUTE) == 0
    assert request(host, now + 11 * MINUTE) == 1


def test_the_offset_within_the_period_is_always_the_same_and_that_of_the_whole_machine(now: datetime) -> None:
    host = connected(approved(at=now), at=now, count=2)
    first, second = host.gpus
    assert benchmarks.spread(first) == benchmarks.spread(second) == benchmarks.spread(Gpu.objects.get(pk=first.pk))
    assert -1 <= benchmarks.spread(first) <= 1


# --- What is believed ---


@pytest.mark.case("marketplace-33")
def test_a_result_that_comes_sooner_than_it_can_be_measured_is_refused(host: Host, now: datetime) -> None:
    request(host, now)
    answer = send(host, result_of(open_benchmark(host)), asked_before=timedelta())
    assert answer.status_code == 422
    run = Benchmark.objects.get()
    assert (run.state, run.code) == ("refused", "too_early")
    assert "4" in plausibility.in_words(run.code, run.details)
    assert request(host, now + HOUR) == 0  # its workload still holds the card
    hosts.finish(open_benchmark(host), at=now + HOUR)
    assert request(host, now + 2 * HOUR) == 1


def test_measures_that_do_not_fit_together_are_refused(host: Host, now: datetime) -> None:
    request(host, now)
    result = result_of(open_benchmark(host))
    result["gpus"][0]["fp32_tflops"] /= 3
    assert send(host, result).json()["gpus"] == [{"uuid": host.gpus[0].uuid, "state": "refused", "reason": "disagree"}]


def test_a_card_that_is_gone_has_no_result(host: Host, now: datetime) -> None:
    request(host, now)
    result = result_of(open_benchmark(host))
    Gpu.objects.update(removed_at=now)
    send(host, result)
    assert Benchmark.objects.get().code == "gone"
    assert Gpu.objects.get().performance is None


def test_a_card_of_an_unknown_model_is_held_to_what_no_card_reaches(now: datetime) -> None:
    host = Host(hosts.api_key(approved(at=now), at=now), [hosts.card(0, name="Unheard Of 1000")])
    host.enrol()
    host.beat()
    request(host, now)
    result = result_of(open_benchmark(host))
    result["gpus"][0]["vram_read_gbps"] = 1e6
    send(host, result)
    assert Benchmark.objects.get().code == "above_peak"


def test_one_card_in_two_spellings_is_one_card(host: Host, now: datetime) -> None:
    uuid = host.cards[0]["uuid"]
    shouted = "GPU-" + uuid.removeprefix("GPU-").upper()
    host.cards[0]["uuid"] = shouted
    assert host.report_inventory().status_code == 200
    assert [gpu.uuid for gpu in Gpu.objects.all()] == [uuid]
    host.cards.append(host.cards[0] | {"uuid": uuid})
    assert host.report_inventory().status_code == 422
    request(host, now)
    result = result_of(open_benchmark(host))
    result["gpus"][0]["uuid"] = shouted
    assert send(host, result).json()["gpus"][0]["state"] == "accepted"


def test_every_code_has_words_in_every_language() -> None:
    facts = {
        "measure": "fp16_tflops",
        "other": "fp32_tflops",
        "times": 2.7,
        "after": 1.0,
        "least": 8,
        "value": 9,
        "limit": 3,
    }
    for language in ("en", "ar"):
        with translation.override(language):
            for code in plausibility.WORDS:
                assert "%(" not in plausibility.in_words(code, facts)
    assert plausibility.in_words("") == ""
    assert plausibility.in_words("above_peak") == "above_peak"  # a row without its figures says at least its code


# --- What is only odd ---


def test_too_good_for_its_own_history_and_a_sudden_jump_are_noted_and_believed(host: Host, now: datetime) -> None:
    for day in range(3):
        measure(host, at=now + day * 30 * HOUR, shares=0.85)
    measure(host, at=now + 90 * HOUR, shares=1.2)
    assert host.gpus[0].performance == pytest.approx(120.0)
    assert set(Anomaly.objects.values_list("kind", flat=True)) == {"too_good", "jump"}
    good = Anomaly.objects.get(kind="too_good")
    assert (good.evidence["performance"], good.evidence["best_before"]) == (120.0, 85.0)


# --- The score ---


@pytest.mark.spec("C3")
def test_a_run_has_a_score_against_its_model_and_points_across_models(now: datetime) -> None:
    for model in ("l4-24gb", "rtx-4090-24gb"):
        measure(connected(approved(at=now, entries=[{"model": model}]), at=now, count=1, model=model), at=now)
    slow, fast = Benchmark.objects.order_by("pk")
    assert slow.performance == fast.performance == pytest.approx(100.0)
    assert slow.absolute is not None
    assert fast.absolute is not None
    assert fast.absolute > 2 * slow.absolute
    assert performance.points_of(Gpu.objects.all()) == {slow.gpu_id: slow.absolute, fast.gpu_id: fast.absolute}
    expected = VariantExpectation.objects.get(variant=fast.gpu.variant, kernel_version="1")
    assert fast.absolute == pytest.approx(
        performance.absolute_of({name: getattr(expected, name) for name in performance.MEASURES})
    )
    assert Policy.load().benchmark_every_hours == 24

"""When benchmarks run, which results are believed, and what takes a card off the market."""

import itertools
import json
import math
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db.models import F
from django.utils import translation

from gpunex.accounts.models import Notice
from gpunex.policy.models import Tier
from providers import claims, workloads
from providers.models import Gpu, GpuClaim, Machine, Provider, Workload
from reliability import benchmarks, floors
from reliability.models import Benchmark
from tests import hosts
from tests.hosts import Host, approved, connected, measure, open_benchmark, result_of

pytestmark = pytest.mark.django_db
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
def host(now: datetime) -> Host:
    return connected(approved(at=now), at=now, count=2)


def seen(host: Host, at: datetime) -> datetime:
    Machine.objects.filter(public_id=host.machine_id).update(last_seen_at=at)
    return at


def request(host: Host, at: datetime) -> int:
    return benchmarks.request_due(at=seen(host, at))


def states(host: Host) -> list[str]:
    return list(Benchmark.objects.filter(gpu__machine=host.machine).order_by("pk").values_list("state", flat=True))


def offered(host: Host) -> list[int]:
    return [gpu.index for gpu in host.gpus if gpu.benchmarked_at and not gpu.delisted_at]


def send(host: Host, workload: Workload, result: dict[str, Any]) -> Any:
    """As if it had been asked for a minute ago: what comes sooner than it can be measured is refused."""
    Benchmark.objects.filter(workload=workload).update(requested_at=F("requested_at") - MINUTE)
    return host.call(f"workloads/{workload.public_id}/result", result)


# --- When ---


@pytest.mark.spec("C1", "A9")
def test_a_new_machine_is_measured_at_once_also_what_is_not_admitted(now: datetime) -> None:
    provider = approved(at=now, entries=[{"quantity": 1}])
    host = Host(hosts.api_key(provider, at=now), [hosts.card(0), hosts.card(1), hosts.card(2, name="Unheard Of 1000")])
    host.enrol()
    assert request(host, now) == 0  # enrolled, and not heard of yet
    host.beat()
    assert request(host, now) == 1
    workload = open_benchmark(host)
    assert workload.gpu_uuids == [gpu["uuid"] for gpu in host.cards]
    spec = workloads.spec_of(workload)
    assert (spec["suite"], spec["kernel_version"], len(spec["nonce"])) == ("gpu", "1", 64)
    assert {claim.kind for claim in GpuClaim.objects.all()} == {"benchmark"}
    assert request(host, now + MINUTE) == 0


@pytest.mark.spec("C1")
def test_never_during_a_rental(host: Host, now: datetime) -> None:
    claims.claim_gpus(gpus=host.gpus[:1], kind=GpuClaim.Kind.RENTAL, reference=host.gpus[0].public_id, at=now)
    assert request(host, now) == 1
    assert open_benchmark(host).gpu_uuids == [host.cards[1]["uuid"]]


@pytest.mark.parametrize(
    "change",
    [
        {"draining": True},
        {"paused_at": "now"},
        {"nvml": "hung"},
        {"retired_at": "now"},
        {"offline_since": "now"},
        {"connected_since": None},
    ],
)
def test_not_on_a_machine_that_is_not_ready_for_it(change: dict[str, Any], host: Host, now: datetime) -> None:
    Machine.objects.update(**{name: now if value == "now" else value for name, value in change.items()})
    assert request(host, now) == 0


@pytest.mark.parametrize("change", [{"given": False}, {"health": "fatal"}, {"removed_at": "now"}])
def test_not_on_a_card_that_is_kept_or_dead(change: dict[str, Any], host: Host, now: datetime) -> None:
    Gpu.objects.filter(pk=host.gpus[0].pk).update(
        **{name: now if value == "now" else value for name, value in change.items()}
    )
    request(host, now)
    assert open_benchmark(host).gpu_uuids == [host.cards[1]["uuid"]]


@pytest.mark.spec("C1")
def test_again_about_once_a_day_and_not_all_at_the_same_time(host: Host, now: datetime) -> None:
    for _ in range(6):
        connected(approved(at=now), at=now, count=1)
    started: list[int] = []
    for minute in (0, *range(20 * 60, 28 * 60, 6)):
        at = now + minute * MINUTE
        Machine.objects.update(last_seen_at=at)
        begun = benchmarks.request_due(at=at)
        assert minute or begun == 7
        started += [minute] * begun if minute else []
        for workload in Workload.objects.filter(observed="assigned"):
            hosts.answer(workload, at=at + MINUTE)
    assert len(started) == 7
    assert min(started) >= 21.5 * 60
    assert max(started) <= 26.5 * 60
    assert len(set(started)) > 3


def test_a_run_that_nobody_answers_is_ended_and_tried_again_later(host: Host, now: datetime) -> None:
    request(host, now)
    workload = open_benchmark(host)
    assert request(host, now + 2 * MINUTE) == 0
    late = now + 4 * MINUTE
    assert request(host, late) == 0
    workload.refresh_from_db()
    assert (workload.observed, workload.cause, workload.wanted) == ("finished", "benchmark_unreported", "stop")
    assert states(host) == ["failed", "failed"]
    assert not GpuClaim.objects.current(late + MINUTE).exists()
    assert request(host, late + 9 * MINUTE) == 0
    assert request(host, late + 11 * MINUTE) == 1


def test_failures_are_repeated_ever_more_slowly(host: Host, now: datetime) -> None:
    begun, at = [], now
    for _ in range(4):
        while request(host, at) == 0:
            at += MINUTE
        begun.append(at)
        hosts.finish(open_benchmark(host), at=at, cause="gpu_unavailable")
    gaps = [round((later - earlier) / MINUTE) for earlier, later in itertools.pairwise(begun)]
    assert gaps == [10, 20, 40]


def test_a_busy_card_is_skipped_and_its_claim_let_go(host: Host, now: datetime) -> None:
    request(host, now)
    answer = host.report(open_benchmark(host), "finished", cause="busy")
    assert answer.status_code == 200
    assert states(host) == ["skipped", "skipped"]
    assert not GpuClaim.objects.filter(period__endswith=None).exists()


def test_a_card_that_was_repaired_is_measured_before_it_is_offered(host: Host, now: datetime) -> None:
    measure(host, at=now)
    first, second = host.cards
    host.cards = [first | {"health": "fatal"}, second]
    host.report_inventory()
    assert offered(host) == [0, 1]
    assert [gpu.index for gpu in Gpu.objects.offerable().filter(machine=host.machine)] == [1]
    host.cards = [first, second]
    host.report_inventory()
    assert offered(host) == [1]
    assert request(host, now + HOUR) == 1
    assert open_benchmark(host).gpu_uuids == [first["uuid"]]


# --- What is believed ---


@pytest.mark.spec("C2", "C3")
def test_a_good_result_is_kept_with_all_its_figures_and_lists_the_cards(host: Host, now: datetime) -> None:
    request(host, now)
    workload = open_benchmark(host)
    answer = send(host, workload, result_of(workload, shares=0.97))
    assert answer.status_code == 200
    assert [gpu["state"] for gpu in answer.json()["gpus"]] == ["accepted", "accepted"]
    run = Benchmark.objects.filter(workload=workload).first()
    assert run is not None
    assert run.performance == pytest.approx(97.0)
    assert (run.latency_ms, run.download_mbps, run.disk_read_mb_s) == (12.0, 940.0, 3200.0)
    assert run.details["sustained_ratio"] == 0.98
    assert [gpu.performance for gpu in host.gpus] == [pytest.approx(97.0)] * 2
    assert offered(host) == [0, 1]
    assert host.report(workload, "finished", cause="completed").status_code == 200
    assert not GpuClaim.objects.filter(period__endswith=None).exists()


def test_the_same_result_again_changes_nothing(host: Host, now: datetime) -> None:
    request(host, now)
    workload = open_benchmark(host)
    send(host, workload, result_of(workload, shares=0.97))
    better = result_of(workload, shares=1.2)
    assert send(host, workload, better).status_code == 200
    assert [gpu.performance for gpu in host.gpus] == [pytest.approx(97.0)] * 2


@pytest.mark.case("marketplace-33")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"nonce": "0" * 64}, "nonce"),
        ({"checksum": "0" * 64}, "checksum"),
        ({"checksum": "é"}, "checksum"),
        ({"kernel_version": "2"}, "kernels"),
        ({"attempt": 2}, ""),
        ({"simulated": True}, "simulated"),
    ],
    ids=["nonce", "checksum", "checksum of other letters", "kernels", "attempt", "simulated"],
)
def test_a_result_that_answers_something_else_is_refused_whole(
    change: dict[str, Any], code: str, host: Host, now: datetime
) -> None:
    request(host, now)
    workload = open_benchmark(host)
    answer = send(host, workload, result_of(workload) | change)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert states(host) == ["refused", "refused"] if code else ["requested", "requested"]
    assert {run.code for run in Benchmark.objects.all()} == {code}
    host.report(workload, "finished", cause="completed")
    assert states(host) == ["refused", "refused"] if code else ["failed", "failed"]
    assert offered(host) == []


def test_yesterdays_nonce_is_refused(host: Host, now: datetime) -> None:
    old = measure(host, at=now)
    kept = result_of(old)
    request(host, now + 30 * HOUR)
    workload = open_benchmark(host)
    assert send(host, workload, kept).status_code == 422


def test_a_gpu_that_was_not_asked_for_is_refused(host: Host, now: datetime) -> None:
    request(host, now)
    workload = open_benchmark(host)
    result = result_of(workload)
    result["gpus"][0]["uuid"] = "GPU-unheard-of"
    assert send(host, workload, result).status_code == 422


@pytest.mark.parametrize(
    ("value", "status"),
    [(0, 200), (-1, 422), ("NaN", 422), (1e400, 422), (None, 200), ("fast", 422), (826, 200)],
    ids=["zero", "negative", "NaN", "infinite", "missing", "text", "ten times the limit"],
)
def test_values_that_cannot_be_are_refused_for_that_card_alone(
    value: Any, status: int, host: Host, now: datetime
) -> None:
    request(host, now)
    workload = open_benchmark(host)
    result = result_of(workload)
    result["gpus"][0]["fp32_tflops"] = value
    if isinstance(value, float) and math.isinf(value):
        answer = host.client.post(
            f"{hosts.ROOT}workloads/{workload.public_id}/result",
            json.dumps(result),
            content_type="application/json",
            headers={"Authorization": f"Bearer {host.secret}"},
        )
    else:
        answer = send(host, workload, result)
    assert answer.status_code == status
    if status == 200:
        assert sorted(states(host)) == ["accepted", "refused"]
        refused = Benchmark.objects.get(state="refused")
        assert refused.code == ("above_peak" if value == 826 else "not_a_number")
        assert refused.details["measure"] == "fp32_tflops"
        assert "FP32" in benchmarks.in_words(refused.code, refused.details)
        assert len(offered(host)) == 1
    else:
        assert states(host) == ["requested", "requested"]


def test_a_quarter_above_the_expected_is_believed_and_more_is_not(host: Host, now: datetime) -> None:
    request(host, now)
    workload = open_benchmark(host)
    first, second = workload.gpu_uuids
    send(host, workload, result_of(workload, shares={first: 1.24, second: 1.26}))
    assert {run.gpu.uuid: run.state for run in Benchmark.objects.select_related("gpu")} == {
        first: "accepted",
        second: "refused",
    }


def test_a_card_outside_the_catalogue_has_figures_and_no_score(now: datetime) -> None:
    host = Host(hosts.api_key(approved(at=now), at=now), [hosts.card(0, name="Unheard Of 1000")])
    host.enrol()
    host.beat()
    measure(host, at=now)
    run = Benchmark.objects.get()
    assert (run.state, run.fp32_tflops, run.performance) == ("accepted", 10.0, None)


def test_another_machine_cannot_answer(host: Host, now: datetime) -> None:
    request(host, now)
    workload = open_benchmark(host)
    other = connected(approved(at=now), at=now)
    assert send(other, workload, result_of(workload)).status_code == 404


# --- What follows ---


@pytest.mark.spec("C4", "K")
def test_a_weak_card_is_measured_again_after_ten_minutes_and_the_median_of_two_delists_it(
    host: Host, now: datetime
) -> None:
    measure(host, at=now)
    weak = {host.cards[0]["uuid"]: 0.7, host.cards[1]["uuid"]: 1.0}
    measure(host, at=now + 30 * HOUR, shares=weak)
    assert offered(host) == [0, 1]
    at = now + 30 * HOUR
    assert request(host, at + 9 * MINUTE) == 0
    measure(host, at=at + 11 * MINUTE, shares=weak)
    assert offered(host) == [1]
    gpu = host.gpus[0]
    assert gpu.delisted_reason["code"] == "performance"
    assert (gpu.delisted_reason["performance"], gpu.delisted_reason["floor"]) == (70.0, 80.0)
    why, what = floors.in_words(gpu.delisted_reason)
    assert "70.0 %" in why
    assert what
    notice = Notice.objects.get(event="gpu_delisted")
    assert notice.organisation == host.machine.provider.organisation
    assert request(host, at + 30 * MINUTE) == 0
    measure(host, at=at + 72 * MINUTE, shares=weak)
    assert Notice.objects.filter(event="gpu_delisted").count() == 1


@pytest.mark.spec("C4")
def test_one_passing_run_lists_a_delisted_card_again(host: Host, now: datetime) -> None:
    test_a_weak_card_is_measured_again_after_ten_minutes_and_the_median_of_two_delists_it(host, now)
    measure(host, at=now + 34 * HOUR, shares=0.95)
    assert offered(host) == [0, 1]
    assert host.gpus[0].delisted_reason is None
    assert Notice.objects.filter(event="relisted").count() == 1


@pytest.mark.spec("K")
def test_two_runs_whose_median_is_above_the_floor_keep_a_card(host: Host, now: datetime) -> None:
    measure(host, at=now, shares=0.78)
    assert offered(host) == []
    measure(host, at=now + 11 * MINUTE, shares=0.9)
    assert offered(host) == [0, 1]
    measure(host, at=now + 40 * HOUR, shares=0.79)
    measure(host, at=now + 40 * HOUR + 11 * MINUTE, shares=0.79)
    assert offered(host) == []


def test_a_new_card_below_the_floor_is_not_offered_before_its_second_run(host: Host, now: datetime) -> None:
    measure(host, at=now, shares=0.5)
    assert offered(host) == []
    assert [gpu.delisted_at for gpu in host.gpus] == [None, None]
    measure(host, at=now + 11 * MINUTE, shares=0.5)
    assert all(gpu.delisted_at for gpu in host.gpus)


SLOW_NETWORK = {"latency_ms": 20.0, "download_mbps": 60.0, "upload_mbps": 500.0}
SLOW_DISK = {"read_mb_s": 180.0, "write_mb_s": 150.0, "random_read_iops": 900.0}


@pytest.mark.spec("C4")
@pytest.mark.parametrize(
    ("slow", "word"), [({"network": SLOW_NETWORK}, "Download"), ({"disk": SLOW_DISK}, "SSD")], ids=["network", "disk"]
)
def test_a_slow_line_or_disk_takes_all_cards_off_the_market_until_it_passes(
    slow: dict[str, Any], word: str, host: Host, now: datetime
) -> None:
    measure(host, at=now)
    measure(host, at=now + 30 * HOUR, **slow)
    assert offered(host) == [0, 1]
    measure(host, at=now + 30 * HOUR + 11 * MINUTE, **slow)
    assert offered(host) == []
    assert word in floors.in_words(host.gpus[0].delisted_reason)[0]
    assert Notice.objects.filter(event="machine_delisted").count() == 1
    measure(host, at=now + 32 * HOUR)
    assert offered(host) == [0, 1]


ENTERPRISE = {"tier": "enterprise", "ups": True, "entries": [{"model": "l4-24gb", "quantity": 8}]}


@pytest.fixture
def enterprise(now: datetime) -> Host:
    return connected(approved(at=now, **ENTERPRISE), at=now, count=2, model="l4-24gb")


@pytest.mark.spec("E3", "K")
def test_an_enterprise_machine_with_a_slower_line_is_offered_as_community(enterprise: Host, now: datetime) -> None:
    line = {"latency_ms": 5.0, "download_mbps": 700.0, "upload_mbps": 600.0}
    fast = {"latency_ms": 5.0, "download_mbps": 2400.0, "upload_mbps": 2300.0}
    measure(enterprise, at=now, network=fast)
    assert enterprise.machine.tier == Tier.ENTERPRISE
    measure(enterprise, at=now + 30 * HOUR, network=line)
    assert enterprise.machine.tier == Tier.ENTERPRISE
    measure(enterprise, at=now + 60 * HOUR, network=line)
    assert enterprise.machine.tier == Tier.COMMUNITY
    assert [reason["code"] for reason in enterprise.machine.tier_reasons["measured"]] == ["download", "upload"]
    assert offered(enterprise) == [0, 1]
    enterprise.report_inventory()
    assert enterprise.machine.tier == Tier.COMMUNITY
    measure(enterprise, at=now + 90 * HOUR, network=fast)
    assert enterprise.machine.tier == Tier.ENTERPRISE


@pytest.mark.spec("K")
def test_the_enterprise_floor_of_a_card_is_higher(enterprise: Host, now: datetime) -> None:
    fast = {"latency_ms": 5.0, "download_mbps": 2400.0, "upload_mbps": 2300.0}
    measure(enterprise, at=now, network=fast, shares=0.85)
    measure(enterprise, at=now + 11 * MINUTE, network=fast, shares=0.85)
    assert offered(enterprise) == []
    assert enterprise.gpus[0].delisted_reason["floor"] == 90.0


@pytest.mark.spec("E3")
@pytest.mark.parametrize(
    ("host_facts", "ups", "code"),
    [
        ({"cpu_cores": 4}, True, "cpu_cores"),
        ({"memory_mib": 32 * 1024}, True, "memory"),
        ({"disk_free_gib": 200.0}, True, "disk_free"),
        ({}, False, "ups"),
    ],
)
def test_a_host_below_the_enterprise_floor_is_offered_as_community_with_the_reason(
    host_facts: dict[str, Any], ups: bool, code: str, now: datetime
) -> None:
    provider: Provider = approved(at=now, **{**ENTERPRISE, "ups": ups})
    host = Host(hosts.api_key(provider, at=now), [hosts.card(0, model="l4-24gb"), hosts.card(1, model="l4-24gb")])
    host.facts = host_facts
    host.enrol()
    assert host.machine.tier == Tier.COMMUNITY
    assert [reason["code"] for reason in host.machine.tier_reasons["host"]] == [code]


def test_reasons_are_told_in_the_readers_language(host: Host, now: datetime) -> None:
    with translation.override("ar"):
        why, what = floors.in_words(
            {"code": "performance", "performance": 70.04, "floor": 80.0, "throttle_reasons": ["hw_thermal"]}
        )
    assert "70.0" in why
    assert "hw_thermal" in what

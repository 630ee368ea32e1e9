"""Benchmarks: when they run, which results are believed, and what follows from them.

**When.** A card that was never measured, or has to prove itself again, is measured as soon as its machine is connected and
nothing runs on it; later about once in the policy's period, spread so that not all machines measure at once. A run takes
the cards through ``providers.claims`` like everybody else, so it never meets a rental.

**What is believed.** A result answers one nonce once, for the cards it was asked for, with the checksum that only that
nonce and these cards give. Values that are not numbers above 0, or above 1.25 times what the card should reach, are
refused. All of this is a machine's own word: it makes a lie costly, and cannot exclude one.

**Performance score** of a card: the geometric mean of its measured over expected values, FP16, FP32 and tensor FLOPS and
VRAM read and write, times 100, so that 100 is a card of its model as it should be and twice as fast in one of five
measures is worth as much as half as fast costs:

>>> expected = VariantExpectation(fp16_tflops=80, fp32_tflops=80, tensor_tflops=160, vram_read_gbps=900, vram_write_gbps=900)
>>> run = {"fp16_tflops": 80, "fp32_tflops": 80, "tensor_tflops": 160, "vram_read_gbps": 900, "vram_write_gbps": 450}
>>> round(performance_of(run, expected), 1)  # (1 × 1 × 1 × 1 × 0.5) ^ (1/5)
87.1

**What follows** is judged in ``reliability.floors``.
"""

import hashlib
import math
import secrets
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q
from django.utils.translation import gettext_lazy as _

from gpunex.kit.refusals import Refusal
from gpunex.policy.models import Policy
from providers.claims import GpusTaken, claim_gpus, release, unclaimed
from providers.models import Gpu, GpuClaim, Machine, VariantExpectation, Workload
from providers.workloads import assign, end_unseen
from reliability import floors
from reliability.models import Benchmark

log = structlog.get_logger(__name__)
State = Benchmark.State

KERNEL_VERSION = "1"
MEASURES = ("fp16_tflops", "fp32_tflops", "tensor_tflops", "vram_read_gbps", "vram_write_gbps")
IMPLAUSIBLE = 1.25  # times the expected value
CHECKSUM_ROUNDS = 1000
DETAILS = (
    "vram_copy_gbps",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_c",
    "power_w",
    "throttle_reasons",
    "sustained_ratio",
)
SLACK = timedelta(seconds=120)  # to hear of the assignment, to measure network and disk, to answer
RETRY = timedelta(minutes=10)  # after a run that failed or was skipped; doubled with each further one
RETEST_DELISTED = timedelta(hours=1)
JITTER = 0.1  # of the period, a card's own
MACHINES_A_SWEEP = 50
UNREPORTED = "benchmark_unreported"


class ResultRefused(Refusal):
    code = "invalid"
    message = _("The benchmark result is not believed: %(why)s.")


class NotConnected(Refusal):
    code = "not_connected"
    message = _("The machine is not connected, or takes no work now. Once it is back it is measured by itself.")


class NothingToMeasure(Refusal):
    code = "nothing_to_measure"
    message = _(
        "None of these GPUs can be measured now: they are rented, being measured, failed, or were measured less than %(minutes)s minutes ago."
    )


# --- When ---


def request_due(*, at: datetime) -> int:
    """End what never reported, then start what is due. Returns how many runs were started."""
    close_expired(at=at)
    policy = Policy.load()
    due: dict[Machine, list[Gpu]] = defaultdict(list)
    for gpu in _candidates(at, policy):
        if at >= due_at(gpu, _history(gpu), policy=policy, at=at):
            due[gpu.machine].append(gpu)
        if len(due) >= MACHINES_A_SWEEP:
            break
    return sum(_start(machine, gpus, at) for machine, gpus in due.items())


def measure_again(*, machine: Machine, gpus: Sequence[Gpu], at: datetime) -> int:
    """Measure now, because the provider asks, those of ``gpus`` that nothing holds; how many that are.

    A card is asked for at most once in the policy's repeat time, so that nobody measures until a run comes out well.
    Raises NotConnected, NothingToMeasure.
    """
    policy = Policy.load()
    machine = Machine.objects.get(pk=machine.pk)
    if (
        not machine.is_connected(at, policy.offline_seconds)
        or machine.nvml != "ok"
        or machine.draining
        or machine.paused_at is not None
    ):
        raise NotConnected
    wanted = (
        Gpu.objects.present()
        .filter(machine=machine, given=True, pk__in=[gpu.pk for gpu in gpus])
        .exclude(health=Gpu.Health.FATAL)
    )
    recent = Benchmark.objects.filter(gpu=OuterRef("pk")).filter(
        Q(state=State.REQUESTED) | Q(requested_at__gt=at - timedelta(minutes=policy.benchmark_repeat_minutes))
    )
    free = list(unclaimed(wanted, at).exclude(Exists(recent)).order_by("index"))
    if not free or not _start(machine, free, at):
        raise NothingToMeasure(minutes=policy.benchmark_repeat_minutes)
    return len(free)


def due_at(gpu: Gpu, runs: Sequence[Benchmark], *, policy: Policy, at: datetime) -> datetime:
    """When ``gpu`` is to be measured next, from its ended runs, newest first; in the past means now."""
    if not runs:
        return at
    last = runs[0]
    ended_at = last.received_at or last.requested_at
    if last.state != State.ACCEPTED:
        failures = 0
        for run in runs:
            if run.state == State.ACCEPTED:
                break
            failures += 1
        return ended_at + min(RETRY * 2 ** min(failures - 1, 10), timedelta(hours=policy.benchmark_every_hours))
    if gpu.benchmarked_at is None and last.received_at and not floors.below(last):
        return at  # back, or repaired, since that run
    if floors.below(last):
        if gpu.delisted_at is None:
            return ended_at + timedelta(minutes=policy.benchmark_repeat_minutes)
        return ended_at + max(RETEST_DELISTED, timedelta(minutes=policy.benchmark_repeat_minutes))
    spread = int.from_bytes(hashlib.sha256(last.nonce.encode()).digest()[:4]) / 2**32 * 2 - 1
    return ended_at + timedelta(hours=policy.benchmark_every_hours) * (1 + JITTER * spread)


def _candidates(at: datetime, policy: Policy) -> Any:
    """Cards that may be measured now, those of the machines that wait longest first; catalogued or not, admitted or not."""
    gpus = Gpu.objects.present().filter(
        given=True,
        machine__in=Machine.objects.connected(at, policy.offline_seconds).filter(
            nvml="ok", draining=False, paused_at=None, offline_since=None, connected_since__isnull=False
        ),
    )
    # Most cards passed not long ago and nothing has been heard since: left out here, so that few are looked at one by one.
    period = timedelta(hours=policy.benchmark_every_hours) * (1 - JITTER)
    later_run = Benchmark.objects.filter(gpu=OuterRef("pk"), received_at__gt=OuterRef("benchmarked_at"))
    return (
        unclaimed(gpus.exclude(health=Gpu.Health.FATAL), at)
        .filter(
            Q(benchmarked_at=None)
            | Q(benchmarked_at__lte=at - period)
            | Q(delisted_at__isnull=False)
            | Exists(later_run)
        )
        .exclude(Exists(Benchmark.objects.filter(gpu=OuterRef("pk"), state=State.REQUESTED)))
        .select_related("machine", "variant")
        .order_by(F("benchmarked_at").asc(nulls_first=True), "machine", "index")
    )


def _history(gpu: Gpu) -> list[Benchmark]:
    return list(gpu.benchmarks.exclude(state=State.REQUESTED).order_by("-requested_at", "-pk")[:10])


def _start(machine: Machine, gpus: Sequence[Gpu], at: datetime) -> bool:
    """One workload measures all of a machine's cards that are due, one after the other."""
    nonce = secrets.token_hex(32)
    seconds = settings.BENCHMARK_SECONDS
    try:
        with transaction.atomic():
            workload = assign(
                machine=machine,
                kind=Workload.Kind.BENCHMARK,
                spec={"suite": "gpu", "nonce": nonce, "kernel_version": KERNEL_VERSION, "seconds": seconds},
                gpus=gpus,
                stop_at=at + SLACK + len(gpus) * timedelta(seconds=2 * seconds),
                at=at,
            )
            claim_gpus(gpus=gpus, kind=GpuClaim.Kind.BENCHMARK, reference=workload.public_id, at=at)
            Benchmark.objects.bulk_create(
                [
                    Benchmark(
                        gpu=gpu,
                        workload=workload,
                        nonce=nonce,
                        kernel_version=KERNEL_VERSION,
                        simulated=machine.simulated,
                        requested_at=at,
                    )
                    for gpu in gpus
                ]
            )
    except GpusTaken:  # somebody rented one of them a moment ago
        return False
    return True


# --- Ends ---


def close_expired(*, at: datetime) -> int:
    """End the runs whose machine never answered, and those that ended without a result. Returns how many."""
    closed = 0
    for workload in (
        Workload.objects.filter(kind=Workload.Kind.BENCHMARK, benchmarks__state=State.REQUESTED)
        .distinct()
        .order_by("pk")
    ):
        if workload.observed == Workload.Observed.FINISHED:
            heard(workload=workload, at=at)
        elif workload.stop_at is not None and at > workload.stop_at + timedelta(seconds=30):
            end_unseen(workload=workload, cause=UNREPORTED, at=at)
            heard(workload=workload, at=at)
        else:
            continue
        closed += 1
    return closed


@transaction.atomic
def heard(*, workload: Workload, at: datetime) -> bool:
    """A benchmark's workload was reported on: once it has finished, its cards are let go, and cards without a result failed."""
    if workload.observed != Workload.Observed.FINISHED:
        return False
    released = release(reference=workload.public_id, at=at)
    skipped = workload.cause == "busy"
    Benchmark.objects.filter(workload=workload, state=State.REQUESTED).update(
        state=State.SKIPPED if skipped else State.FAILED,
        reason=(workload.message or workload.cause)[:200],
        received_at=at,
    )
    return released > 0


@transaction.atomic
def accept_result(*, workload: Workload, result: dict[str, Any], at: datetime) -> list[Benchmark]:
    """Take in the protocol's result (validated in shape) and judge the cards by it. The same result again changes nothing.

    Returns the runs as they are now; a card whose values are implausible, or missing, is refused alone. Raises
    ResultRefused if the result answers something else than what was asked.
    """
    runs = list(
        Benchmark.objects.select_for_update(of=("self",))
        .filter(workload=workload)
        .select_related("gpu__variant", "gpu__machine__provider__organisation")
        .order_by("pk")
    )
    _bound(workload, runs, result)
    waiting = [run for run in runs if run.state == State.REQUESTED]
    values = {gpu["uuid"]: gpu for gpu in result["gpus"]}
    for run in waiting:
        _take_in(run, values.get(run.gpu.uuid), result, at)
    accepted = [run for run in waiting if run.state == State.ACCEPTED]
    if accepted:
        floors.judge(machine=runs[0].gpu.machine, runs=accepted, at=at)
    refused = [run for run in waiting if run.state == State.REFUSED]
    if refused:
        log.warning("benchmark_refused", workload=str(workload.public_id), reasons=[run.reason for run in refused])
    return runs


def _bound(workload: Workload, runs: Sequence[Benchmark], result: dict[str, Any]) -> None:
    """Raises ResultRefused unless the result is of this run's attempt, nonce, kernels and cards."""
    if not runs or result["attempt"] != workload.attempt:
        raise ResultRefused(why="this attempt was not asked for")
    nonce, version = runs[0].nonce, runs[0].kernel_version
    if result["nonce"] != nonce:
        raise ResultRefused(why="the nonce is another run's")
    if result["kernel_version"] != version:
        raise ResultRefused(why="the kernels are of another version")
    if result["simulated"] != runs[0].simulated:
        raise ResultRefused(why="simulated and real machines are told apart")
    reported = [gpu["uuid"] for gpu in result["gpus"]]
    if len(set(reported)) < len(reported) or not set(reported) <= set(workload.gpu_uuids):
        raise ResultRefused(why="it names GPUs that were not to be measured")
    if not secrets.compare_digest(
        result["checksum"].lower().encode(), checksum(nonce, workload.gpu_uuids, version).encode()
    ):
        raise ResultRefused(why="the checksum does not fit")


def checksum(nonce: str, uuids: Sequence[str], kernel_version: str) -> str:
    """What the protocol binds a result with: SHA-256 of the nonce, folded 1000 times with each card in order of UUID."""
    state = hashlib.sha256(nonce.encode()).digest()
    for uuid in sorted(uuids):
        tail = (uuid + kernel_version).encode()
        for _round in range(CHECKSUM_ROUNDS):
            state = hashlib.sha256(state + tail).digest()
    return state.hex()


def _take_in(run: Benchmark, values: dict[str, Any] | None, result: dict[str, Any], at: datetime) -> None:
    run.received_at = at
    expected = _expected(run)
    refusal = "the result lacks this GPU" if values is None else implausible(values, expected)
    if values is not None and not refusal:
        run.state = State.ACCEPTED
        for name in MEASURES:
            setattr(run, name, values[name])
        for name in ("latency_ms", "download_mbps", "upload_mbps"):
            setattr(run, name, result["network"][name])
        run.disk_read_mb_s, run.disk_write_mb_s = result["disk"]["read_mb_s"], result["disk"]["write_mb_s"]
        run.details = {name: values[name] for name in DETAILS} | {
            "random_read_iops": result["disk"]["random_read_iops"],
            "driver_version": run.gpu.machine.driver_version,
        }
        run.performance = performance_of(values, expected) if expected else None
    else:
        run.state, run.reason = State.REFUSED, refusal
    run.save()


def _expected(run: Benchmark) -> VariantExpectation | None:
    if run.gpu.variant is None:
        return None
    return VariantExpectation.objects.filter(variant=run.gpu.variant, kernel_version=run.kernel_version).first()


def implausible(values: dict[str, Any], expected: VariantExpectation | None) -> str:
    """Why these values cannot be, "" if they can. A card without expected values is only asked for numbers above 0.

    >>> implausible({"fp16_tflops": float("nan")}, None)
    'fp16_tflops is not a number above 0'
    """
    for name in MEASURES:
        value = values.get(name)
        if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            return f"{name} is not a number above 0"
        if expected and value > IMPLAUSIBLE * getattr(expected, name):
            return f"{name} is more than {IMPLAUSIBLE} times what this card can reach"
    return ""


def performance_of(values: dict[str, Any], expected: VariantExpectation) -> float:
    """The performance score: see the module's formula."""
    ratios = [values[name] / getattr(expected, name) for name in MEASURES]
    return 100 * math.prod(ratios) ** (1 / len(ratios))

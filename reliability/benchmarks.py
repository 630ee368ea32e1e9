"""Benchmarks: when they run, what is kept of them, and what ends them.

**When.** A card is measured as soon as its machine is connected and nothing runs on it, if it was never measured or has to
prove itself again; after its driver, its agent or the card itself changed; after a health event; and about once in the
policy's period, each machine with an offset of its own, so that not all machines measure at once. One that failed is tried
again ever more slowly, one below a floor after the policy's repeat time. A run takes the cards through
``providers.claims`` like everybody else, so it never meets a rental, and none starts on a machine that drains, is paused
or is away.

**What is believed** is judged in ``reliability.plausibility``, the score computed in ``reliability.performance``, and what
follows from it in ``reliability.floors``.
"""

import hashlib
import secrets
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import models, transaction
from django.db.models import BooleanField, Exists, F, Func, OuterRef, Q, Subquery
from django.db.models.functions import JSONObject
from django.utils.translation import gettext_lazy as _

from gpunex.kit.refusals import Refusal
from gpunex.policy.models import Policy
from providers.claims import GpusTaken, claim_gpus, release, unclaimed
from providers.models import Gpu, GpuClaim, Machine, VariantExpectation, Workload
from providers.workloads import assign, end_unseen, lock, spec_of
from reliability import anomalies, floors
from reliability.models import Benchmark, HealthEvent
from reliability.performance import MEASURES, absolute_of, performance_of
from reliability.plausibility import Disbelief, checksum, implausible, in_words, unbound

__all__ = ["MEASURES", "checksum", "in_words"]

log = structlog.get_logger(__name__)
State = Benchmark.State

KERNEL_VERSION = "1"
DETAILS = (
    "vram_copy_gbps",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_c",
    "power_w",
    "throttle_reasons",
    "sustained_ratio",
)
# Of the card's facts, those whose change calls for a new run.
HARDWARE = ("vram_mib", "power_limit_w", "ecc_enabled", "pcie_generation", "pcie_width")
GRAVE = (HealthEvent.Severity.DEGRADED, HealthEvent.Severity.FATAL)
SLACK = timedelta(seconds=120)  # to hear of the assignment, to measure network and disk, to answer
RETRY = timedelta(minutes=10)  # after a run that failed or was skipped; doubled with each further one
RETEST_DELISTED = timedelta(hours=1)
JITTER = 0.1  # of the period, a machine's own
MACHINES_A_SWEEP = 50
UNREPORTED = "benchmark_unreported"


class Trigger(models.TextChoices):
    """Why a run was asked for."""

    FIRST = "first", _("first run")
    AGAIN = "again", _("back or repaired")
    RETRY = "retry", _("the run before gave no result")
    REPEAT = "repeat", _("the run before was below a floor")
    CHANGE = "change", _("driver, agent or card changed")
    HEALTH = "health", _("after a health event")
    PERIOD = "period", _("regular")
    ASKED = "asked", _("asked for by the provider")


class ResultRefused(Refusal):
    code = "invalid"
    message = _("The benchmark result is not believed: %(why)s")


class NotConnected(Refusal):
    code = "not_connected"
    message = _("The machine is not connected, or takes no work now. Once it is back it is measured by itself.")


class NothingToMeasure(Refusal):
    code = "nothing_to_measure"
    message = _(
        "None of these GPUs can be measured now: they are rented, being measured, failed, or were measured less than %(minutes)s minutes ago."
    )


# --- When ---


@dataclass(frozen=True)
class Due:
    """When a card is to be measured next, and why; a time in the past means now."""

    at: datetime
    trigger: Trigger


def request_due(*, at: datetime) -> int:
    """End what never reported, then start what is due. Returns how many runs were started."""
    close_expired(at=at)
    policy = Policy.load()
    wanted: dict[Machine, list[tuple[Gpu, Trigger]]] = defaultdict(list)
    for gpu in _candidates(at, policy):
        next_run = due(gpu, _history(gpu), policy=policy, at=at)
        if at >= next_run.at:
            wanted[gpu.machine].append((gpu, next_run.trigger))
        if len(wanted) >= MACHINES_A_SWEEP:
            break
    return sum(_start(machine, cards, at) for machine, cards in wanted.items())


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
    if not free or not _start(machine, [(gpu, Trigger.ASKED) for gpu in free], at):
        raise NothingToMeasure(minutes=policy.benchmark_repeat_minutes)
    return len(free)


def due(gpu: Gpu, runs: Sequence[Benchmark], *, policy: Policy, at: datetime) -> Due:
    """When and why ``gpu`` is to be measured next, from its ended runs, newest first."""
    if not runs:
        return Due(at, Trigger.FIRST)
    last, repeat = runs[0], timedelta(minutes=policy.benchmark_repeat_minutes)
    ended_at = last.received_at or last.requested_at
    if last.state != State.ACCEPTED:
        failures = 0
        for run in runs:
            if run.state == State.ACCEPTED:
                break
            failures += 1
        wait = min(RETRY * 2 ** min(failures - 1, 10), timedelta(hours=policy.benchmark_every_hours))
        return Due(ended_at + wait, Trigger.RETRY)
    if gpu.benchmarked_at is None and last.received_at and not floors.below(last):
        return Due(at, Trigger.AGAIN)  # back, or repaired, since that run
    if floors.below(last):
        wait = repeat if gpu.delisted_at is None else max(RETEST_DELISTED, repeat)
        return Due(ended_at + wait, Trigger.REPEAT)
    # What keeps changing, or keeps failing, is measured no more often than a weak card.
    if last.setup and last.setup != setup_of(gpu):
        return Due(ended_at + repeat, Trigger.CHANGE)
    if HealthEvent.objects.filter(gpu=gpu, severity__in=GRAVE, received_at__gt=ended_at).exists():
        return Due(ended_at + repeat, Trigger.HEALTH)
    return Due(ended_at + timedelta(hours=policy.benchmark_every_hours) * (1 + JITTER * spread(gpu)), Trigger.PERIOD)


def spread(gpu: Gpu) -> float:
    """The card's place in the period, −1 to 1: always the same one, and that of its machine's other cards, measured with it."""
    return int.from_bytes(hashlib.sha256(gpu.machine.public_id.bytes).digest()[:4]) / 2**32 * 2 - 1


def setup_of(gpu: Gpu) -> dict[str, Any]:
    """What a run is measured with: a change of it calls for a new one. ``_candidates`` builds the same in SQL."""
    machine = gpu.machine
    return {"driver_version": machine.driver_version, "agent_version": machine.agent_version} | {
        name: gpu.facts.get(name) for name in HARDWARE
    }


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
    runs = Benchmark.objects.filter(gpu=OuterRef("pk"))
    later_run = runs.filter(received_at__gt=OuterRef("benchmarked_at"))
    event = HealthEvent.objects.filter(
        gpu=OuterRef("pk"), severity__in=GRAVE, received_at__gt=OuterRef("benchmarked_at")
    )
    last = runs.filter(state=State.ACCEPTED).order_by("-requested_at", "-pk")
    changed = _Differs(
        Subquery(last.values("setup")[:1]),
        JSONObject(
            driver_version=F("machine__driver_version"),
            agent_version=F("machine__agent_version"),
            **{name: F(f"facts__{name}") for name in HARDWARE},
        ),
    )
    return (
        unclaimed(gpus.exclude(health=Gpu.Health.FATAL), at)
        .filter(
            Q(benchmarked_at=None)
            | Q(benchmarked_at__lte=at - period)
            | Q(delisted_at__isnull=False)
            | Exists(later_run)
            | Exists(event)
            | changed
        )
        .exclude(Exists(runs.filter(state=State.REQUESTED)))
        .select_related("machine", "variant")
        .order_by(F("benchmarked_at").asc(nulls_first=True), "machine", "index")
    )


class _Differs(Func):
    """Whether two JSON objects differ."""

    template, arg_joiner = "(%(expressions)s)", " IS DISTINCT FROM "
    output_field = BooleanField()
    conditional = True


def _history(gpu: Gpu) -> list[Benchmark]:
    return list(gpu.benchmarks.exclude(state=State.REQUESTED).order_by("-requested_at", "-pk")[:10])


def _start(machine: Machine, cards: Sequence[tuple[Gpu, Trigger]], at: datetime) -> bool:
    """One workload measures all of a machine's cards that are due, one after the other."""
    nonce = secrets.token_hex(32)
    seconds = settings.BENCHMARK_SECONDS
    gpus = [gpu for gpu, _trigger in cards]
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
                        trigger=trigger,
                        setup=setup_of(gpu),
                        simulated=machine.simulated,
                        requested_at=at,
                    )
                    for gpu, trigger in cards
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
        code=workload.cause[:24],
        reason=workload.message[:200],
        received_at=at,
    )
    return released > 0


def accept_result(*, workload: Workload, result: dict[str, Any], at: datetime) -> list[Benchmark]:
    """Take in the protocol's result (validated in shape) and judge the cards by it. The same result again changes nothing.

    Returns the runs as they are now; a card whose values are implausible, or missing, is refused alone. A result that
    answers something else than what was asked refuses the whole run, which is then tried again later, and raises
    ResultRefused. So does one of an attempt that was not asked for, which changes nothing.
    """
    with transaction.atomic():
        lock(workload.machine)
        runs = list(
            Benchmark.objects.select_for_update(of=("self",))
            .filter(workload=workload)
            .select_related("gpu__variant", "gpu__machine__provider__organisation")
            .order_by("pk")
        )
        if not runs or result["attempt"] != workload.attempt:
            raise ResultRefused(why=_("this attempt was not asked for."))
        waiting = [run for run in runs if run.state == State.REQUESTED]
        if not waiting:
            return runs
        seconds = float(spec_of(workload)["seconds"])
        disbelief = unbound(workload=workload, runs=runs, result=result, seconds=seconds, at=at)
        for run in waiting:
            if disbelief is None:
                _take_in(run, result, at)
            else:
                _refuse(run, disbelief, at)
        accepted = [run for run in waiting if run.state == State.ACCEPTED]
        if accepted:
            anomalies.look_at_runs(runs=accepted, at=at)
            floors.judge(machine=runs[0].gpu.machine, runs=accepted, at=at)
    refused = [run for run in waiting if run.state == State.REFUSED]
    if refused:
        log.warning("benchmark_refused", workload=str(workload.public_id), codes=[run.code for run in refused])
    if disbelief is not None:
        raise ResultRefused(why=in_words(disbelief.code, disbelief.facts))
    return runs


def _take_in(run: Benchmark, result: dict[str, Any], at: datetime) -> None:
    """One card's part of a result that answers what was asked."""
    values = next((gpu for gpu in result["gpus"] if gpu["uuid"] == run.gpu.uuid), None)
    expected = _expected(run)
    disbelief = Disbelief("missing") if values is None else implausible(values, expected)
    if run.gpu.removed_at is not None:
        disbelief = Disbelief("gone")
    if values is None or disbelief is not None:
        _refuse(run, disbelief or Disbelief("missing"), at)
        return
    run.state, run.received_at = State.ACCEPTED, at
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
    run.absolute = absolute_of(values)
    run.save()


def _refuse(run: Benchmark, disbelief: Disbelief, at: datetime) -> None:
    run.state, run.code, run.details, run.received_at = State.REFUSED, disbelief.code, disbelief.facts, at
    run.save(update_fields=["state", "code", "details", "received_at"])


def _expected(run: Benchmark) -> VariantExpectation | None:
    if run.gpu.variant is None:
        return None
    return VariantExpectation.objects.filter(variant=run.gpu.variant, kernel_version=run.kernel_version).first()

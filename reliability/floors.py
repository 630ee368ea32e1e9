"""Quality floors: which cards and machines a benchmark takes off the market, and which it puts back.

A run is below the floor of its machine's tier if the card's performance score is, or the machine's network or SSD. One run
below it is repeated (``reliability.benchmarks.due_at``); the median of that and the run before it decides. A single run
above the floor lists the card, and the machine.

A card that was never above a floor has not been listed yet and waits for the second run. Running rentals go on in any case.

What an enterprise machine misses in network or SSD makes it a community machine (``providers.tiers``); below the community
floor all its cards are off the market.
"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from statistics import median
from typing import Any

from django.utils.translation import gettext

from gpunex.policy.models import Tier, TierPolicy
from providers import tiers
from providers.models import Gpu, Machine
from providers.tiers import Measured, Shortfall
from reliability import notices
from reliability.models import Benchmark

PERFORMANCE, MACHINE = "performance", "machine"  # codes of Gpu.delisted_reason


def floor_of(tier: str) -> float:
    """The least performance score of a tier."""
    return TierPolicy.of(tier).benchmark_floor_bps / 100


def below(run: Benchmark) -> bool:
    """Whether an accepted run was below the floor that it was judged by."""
    return bool((run.details or {}).get("below"))


def judge(*, machine: Machine, runs: Sequence[Benchmark], at: datetime) -> None:
    """What follows from the accepted ``runs`` of one workload. Precondition: in a transaction, the runs locked."""
    machine = (
        Machine.objects.select_for_update(no_key=True, of=("self",))
        .select_related("provider__organisation")
        .get(pk=machine.pk)
    )
    before = _run_before(runs[0])
    slow = _judge_machine(machine, runs[0], before)
    floor = floor_of(machine.tier)
    relisted: list[Gpu] = []
    delisted = False
    for run in runs:
        gpu = Gpu.objects.select_related("variant", "machine__provider__organisation").get(pk=run.gpu_id)
        gpu.performance = run.performance
        weak = run.performance is not None and run.performance < floor
        run.details = {**run.details, "below": weak or bool(slow)}
        run.save(update_fields=["details"])
        if not (weak or slow):
            if gpu.delisted_at is not None:
                relisted.append(gpu)
            gpu.benchmarked_at, gpu.delisted_at, gpu.delisted_reason = at, None, None
        else:
            delisted |= _judge_again(gpu, run, _run_before(run), floor, slow, at)
        gpu.save(update_fields=["performance", "benchmarked_at", "delisted_at", "delisted_reason"])
    name = str(runs[0].public_id)
    if delisted and slow:
        notices.tell_machine_delisted(
            machine=machine, shortfalls=[str(shortfall) for shortfall in slow], run=name, at=at
        )
    if relisted:
        notices.tell_relisted(machine=machine, gpus=relisted, run=name, at=at)


def _judge_machine(machine: Machine, run: Benchmark, before: Benchmark | None) -> list[Shortfall]:
    """Set the machine's tier by what was measured, and return where this run misses the community floor.

    A machine loses its tier by the median of two runs, like a card its listing, and gets it back by one.
    """
    enterprise, community = (TierPolicy.of(tier) for tier in (Tier.ENTERPRISE, Tier.COMMUNITY))
    now = _measured(run)
    if not tiers.measured_shortfalls(measured=now, floor=enterprise):
        tiers.judge_measured(machine=machine, measured=now)
    elif before is not None:
        tiers.judge_measured(machine=machine, measured=_middle(now, _measured(before)))
    machine.save(update_fields=["tier", "tier_reasons"])
    return tiers.measured_shortfalls(measured=now, floor=community)


def _judge_again(
    gpu: Gpu, run: Benchmark, before: Benchmark | None, floor: float, slow: list[Shortfall], at: datetime
) -> bool:
    """A run below a floor: the second in a row decides by the median of both. Whether the card was taken off the market now."""
    if before is None or not below(before):
        return False
    if slow:
        slow = tiers.measured_shortfalls(
            measured=_middle(_measured(run), _measured(before)), floor=TierPolicy.of(Tier.COMMUNITY)
        )
    scores = [score for score in (run.performance, before.performance) if score is not None]
    middle = median(scores) if scores else None
    weak = middle is not None and middle < floor
    if not slow and not weak:
        gpu.benchmarked_at, gpu.delisted_at, gpu.delisted_reason = at, None, None
        return False
    newly = gpu.delisted_at is None
    gpu.benchmarked_at = at
    gpu.delisted_at = gpu.delisted_at or at
    gpu.delisted_reason = _reason(run, slow=slow, middle=middle, scores=scores, floor=floor)
    if newly and weak and middle is not None and not slow:
        notices.tell_gpu_delisted(gpu=gpu, performance=middle, floor=floor, run=str(run.public_id), at=at)
    return newly


def _reason(
    run: Benchmark, *, slow: list[Shortfall], middle: float | None, scores: list[float], floor: float
) -> dict[str, Any]:
    if slow:
        return {"code": MACHINE, "shortfalls": [asdict(shortfall) for shortfall in slow]}
    return {
        "code": PERFORMANCE,
        "performance": round(middle or 0.0, 1),
        "floor": floor,
        "runs": [round(score, 1) for score in scores],
        "throttle_reasons": run.details.get("throttle_reasons") or [],
        "power_w": run.details.get("power_w"),
    }


def in_words(reason: dict[str, Any] | None) -> tuple[str, str]:
    """Why a card is off the market, and what to do, in the active language; two empty texts for None."""
    if not reason:
        return "", ""
    if reason["code"] == MACHINE:
        missed = " ".join(str(Shortfall(**shortfall)) for shortfall in reason["shortfalls"])
        return missed, gettext(
            "Check the line for other traffic and the disk for other load; Docker's data has to lie on an SSD."
        )
    figures = {"performance": f"{reason['performance']:.1f}", "floor": f"{reason['floor']:.0f}"}
    why = (
        gettext(
            "It reached %(performance)s %% of what its model should (median of two runs); the floor is %(floor)s %%."
        )
        % figures
    )
    if reason.get("throttle_reasons"):
        return why, gettext("Its clocks were held back (%(reasons)s): look at cooling, dust and the power limit.") % {
            "reasons": ", ".join(reason["throttle_reasons"])
        }
    return why, gettext(
        "Look for a second program on the GPU, a power limit set too low, and a PCIe link narrower than its slot."
    )


def _run_before(run: Benchmark) -> Benchmark | None:
    """The card's accepted run before this one."""
    return (
        Benchmark.objects.filter(gpu=run.gpu_id, state=Benchmark.State.ACCEPTED, kernel_version=run.kernel_version)
        .exclude(workload=run.workload_id)
        .order_by("-received_at", "-pk")
        .first()
    )


def _measured(run: Benchmark) -> Measured:
    return Measured(download_mbps=run.download_mbps, upload_mbps=run.upload_mbps, disk_read_mb_s=run.disk_read_mb_s)


def _middle(one: Measured, other: Measured) -> Measured:
    def of(name: str) -> float | None:
        values = [value for value in (getattr(one, name), getattr(other, name)) if value is not None]
        return median(values) if values else None

    return Measured(**{name: of(name) for name in ("download_mbps", "upload_mbps", "disk_read_mb_s")})

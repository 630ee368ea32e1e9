"""Quality floors: what takes GPUs off the market, and what puts them back by itself.

    floor         whose               below it                                      back
    ------------  ------------------  --------------------------------------------  ----------------------------------
    performance   a GPU's             the median of two runs in a row               one run above it
    machine       the machine's       the same, of network or SSD                   one run above it
    software      the machine's       a version older than the policy's             the next inventory that is new enough
    uptime        the machine's       the share of 30 days (with 72 declared hours  the 7-day figure is above it
                                      or more) and of 7 days; before, a warning

Each stretch below one floor is an *episode*, a row of ``Delisting``; several may be open at once. ``apply`` derives from the
open ones, less what an admin has waived, whether a GPU is on the market (``Gpu.delisted_at`` and its reasons), and tells the
provider once per episode. Running rentals go on in any case.

One run below a floor is repeated first (``reliability.benchmarks.due``). A card that was never above it has not been listed
yet and waits for that second run. What an enterprise machine misses in network or SSD makes it a community machine
(``providers.tiers``); below the community floor all its cards are off the market.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import batched
from statistics import median
from typing import Any

import structlog
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Greatest
from django.utils.translation import gettext

from gpunex.kit import show
from gpunex.policy.models import Policy, Tier, TierPolicy
from providers import tiers
from providers.models import Gpu, Machine
from providers.tiers import Measured, Shortfall
from reliability import notices, software, uptime_floor, waivers
from reliability.models import Availability, Benchmark, Delisting, Floor, FloorWaiver, Gap
from reliability.software import Outdated

log = structlog.get_logger(__name__)

CHUNK = 200
PERFORMANCE, MACHINE = Floor.PERFORMANCE.value, Floor.MACHINE.value  # codes of Gpu.delisted_reason
SOFTWARE, UPTIME = Floor.SOFTWARE.value, Floor.UPTIME.value
_RANK = {floor: place for place, floor in enumerate(Floor.values)}


def floor_of(tier: str) -> float:
    """The least performance score of a tier."""
    return TierPolicy.of(tier).benchmark_floor_bps / 100


def below(run: Benchmark, floor: str = "") -> bool:
    """Whether an accepted run was below the floor that it was judged by; any floor if none is named."""
    missed = (run.details or {}).get("below") or []
    if missed is True:  # runs of before floors were told apart
        return True
    return floor in missed if floor else bool(missed)


# --- benchmarks ------------------------------------------------------------------------------------------------------


def judge(*, machine: Machine, runs: Sequence[Benchmark], at: datetime) -> None:
    """What follows from the accepted ``runs`` of one workload. Precondition: in a transaction, the runs locked."""
    machine = _locked(machine)
    waits = _judge_machine(machine, runs, at)
    for run in runs:
        gpu = Gpu.objects.get(pk=run.gpu_id)
        gpu.performance = run.performance
        if not _judge_gpu(machine, run, at) and not waits:
            gpu.benchmarked_at = at
        gpu.save(update_fields=["performance", "benchmarked_at"])
    apply(machine=machine, at=at)


def _judge_machine(machine: Machine, runs: Sequence[Benchmark], at: datetime) -> bool:
    """The machine's tier and its own floor. Whether a first run below the floor waits for the second.

    A machine loses its tier by the median of two runs, like a card its listing, and gets it back by one.
    """
    run, before = runs[0], _machine_before(machine, runs[0])
    enterprise, community = (TierPolicy.of(tier) for tier in (Tier.ENTERPRISE, Tier.COMMUNITY))
    now = _measured(run)
    if not tiers.measured_shortfalls(measured=now, floor=enterprise):
        tiers.judge_measured(machine=machine, measured=now)
    elif before is not None:
        tiers.judge_measured(machine=machine, measured=_middle(now, _measured(before)))
    machine.save(update_fields=["tier", "tier_reasons"])
    slow = tiers.measured_shortfalls(measured=now, floor=community)
    for each in runs:
        _mark(each, MACHINE, missed=bool(slow))
    if not slow:
        close(machine=machine, gpu=None, floor=Floor.MACHINE, at=at)
        return False
    if before is None or not below(before, MACHINE):
        return not Delisting.objects.open().filter(machine=machine, gpu=None, floor=MACHINE).exists()
    slow = tiers.measured_shortfalls(measured=_middle(now, _measured(before)), floor=community)
    if slow:
        middle = _middle(now, _measured(before))
        reason = {
            "code": MACHINE,
            "shortfalls": [asdict(shortfall) for shortfall in slow],
            "measured": asdict(middle),
            "floors": {"network_mbps": community.network_mbps, "ssd_read_mb_s": community.ssd_read_mb_s},
        }
        open_(machine=machine, gpu=None, floor=Floor.MACHINE, reason=reason, at=at)
    else:
        close(machine=machine, gpu=None, floor=Floor.MACHINE, at=at)
    return False


def _judge_gpu(machine: Machine, run: Benchmark, at: datetime) -> bool:
    """A card's own floor. Whether a first run below it waits for the second."""
    floor = floor_of(machine.tier)
    weak = run.performance is not None and run.performance < floor
    _mark(run, PERFORMANCE, missed=weak)
    if not weak:
        close(machine=machine, gpu=run.gpu, floor=Floor.PERFORMANCE, at=at)
        return False
    before = _run_before(run)
    if before is None or not below(before, PERFORMANCE):
        return not Delisting.objects.open().filter(gpu=run.gpu_id, floor=PERFORMANCE).exists()
    scores = [score for score in (run.performance, before.performance) if score is not None]
    middle = median(scores)
    if middle >= floor:
        close(machine=machine, gpu=run.gpu, floor=Floor.PERFORMANCE, at=at)
        return False
    reason = {
        "code": PERFORMANCE,
        "performance": round(middle, 1),
        "floor": floor,
        "runs": [round(score, 1) for score in scores],
        "throttle_reasons": run.details.get("throttle_reasons") or [],
        "power_w": run.details.get("power_w"),
    }
    open_(machine=machine, gpu=run.gpu, floor=Floor.PERFORMANCE, reason=reason, at=at)
    return False


def _mark(run: Benchmark, floor: str, *, missed: bool) -> None:
    others = [name for name in run.details.get("below") or [] if name != floor]
    run.details = {**run.details, "below": [*others, floor] if missed else others}
    run.save(update_fields=["details"])


def _run_before(run: Benchmark) -> Benchmark | None:
    """The card's accepted run before this one."""
    return _accepted(run).filter(gpu=run.gpu_id).first()


def _machine_before(machine: Machine, run: Benchmark) -> Benchmark | None:
    """The machine's accepted run before this one, of whichever card."""
    return _accepted(run).filter(gpu__machine=machine).first()


def _accepted(run: Benchmark) -> Any:
    return (
        Benchmark.objects.filter(state=Benchmark.State.ACCEPTED, kernel_version=run.kernel_version)
        .exclude(workload=run.workload_id)
        .order_by("-received_at", "-pk")
    )


def _measured(run: Benchmark) -> Measured:
    return Measured(download_mbps=run.download_mbps, upload_mbps=run.upload_mbps, disk_read_mb_s=run.disk_read_mb_s)


def _middle(one: Measured, other: Measured) -> Measured:
    def of(name: str) -> float | None:
        values = [value for value in (getattr(one, name), getattr(other, name)) if value is not None]
        return median(values) if values else None

    return Measured(**{name: of(name) for name in ("download_mbps", "upload_mbps", "disk_read_mb_s")})


# --- software and uptime ---------------------------------------------------------------------------------------------


@transaction.atomic
def judge_software(*, machine: Machine, at: datetime) -> bool:
    """The versions that the machine's last inventory reported, against the policy's. Whether something changed on the market."""
    machine = _locked(machine)
    old = software.outdated(machine, Policy.load())
    if old:
        reason = {"code": SOFTWARE, "outdated": [asdict(each) for each in old]}
        open_(machine=machine, gpu=None, floor=Floor.SOFTWARE, reason=reason, at=at)
    else:
        close(machine=machine, gpu=None, floor=Floor.SOFTWARE, at=at)
    return apply(machine=machine, at=at)


@transaction.atomic
def judge_uptime(*, machine: Machine, figures: uptime_floor.Figures, at: datetime) -> bool:
    """The machine's uptime against its tier's floor. Whether something changed on the market."""
    machine = _locked(machine)
    floor = TierPolicy.of(machine.tier).uptime_floor_bps / 10_000
    low = figures.month is not None and figures.month < floor
    recent_low = figures.week is not None and figures.week < floor
    standing = Delisting.objects.open().filter(machine=machine, gpu=None, floor=UPTIME).exists()
    if low and figures.hours < uptime_floor.HOURS_LEAST:
        notices.tell_uptime_low(machine=machine, share=figures.month or 0.0, floor=floor, at=at)
    elif low and recent_low:
        reason = {
            "code": UPTIME,
            "share": round(figures.month or 0.0, 4),
            "week": round(figures.week or 0.0, 4),
            "floor": floor,
            "hours": round(figures.hours),
        }
        open_(machine=machine, gpu=None, floor=Floor.UPTIME, reason=reason, at=at)
    elif standing and figures.week is not None and not recent_low:
        close(machine=machine, gpu=None, floor=Floor.UPTIME, at=at)
    return apply(machine=machine, at=at)


def sweep(*, at: datetime) -> int:
    """Judge what changes with time and policy alone, and end the waivers that have run out. Returns how many machines changed.

    Uptime can only have fallen on machines that were away, or off the market, within the month: the others are left out.
    """
    live = Machine.objects.live()
    policy = Policy.load()
    opened = Delisting.objects.open().filter(machine=OuterRef("pk"))
    away = Gap.objects.filter(machine=OuterRef("pk"), ended_at__gt=at - uptime_floor.MONTH)
    blocked = Availability.objects.filter(gpu__machine=OuterRef("pk"), at__gt=at - uptime_floor.MONTH).exclude(
        state__in=[Availability.State.AVAILABLE, Availability.State.UNADMITTED, Availability.State.PAUSED]
    )
    ended = FloorWaiver.objects.filter(machine=OuterRef("pk")).filter(
        Q(until__range=(at - timedelta(days=1), at)) | Q(revoked_at__gt=at - timedelta(days=1))
    )
    changed = 0
    low = live.filter(
        Exists(away) | Exists(blocked) | Q(offline_since__isnull=False) | Exists(opened.filter(floor=UPTIME))
    )
    for machines in batched(low.order_by("pk"), CHUNK):
        figures = uptime_floor.figures([machine.pk for machine in machines], at=at)
        changed += _each(
            lambda *, machine, at, of=figures: judge_uptime(machine=machine, figures=of[machine.pk], at=at),
            machines,
            at,
        )
    changed += _each(apply_now, live.filter(Exists(ended)).order_by("pk"), at)
    known = live.annotate(old=Exists(opened.filter(floor=SOFTWARE))).order_by("pk")
    outdated = [machine for machine in known if machine.old != bool(software.outdated(machine, policy))]
    return changed + _each(judge_software, outdated, at)


def _each(judged: Callable[..., bool], machines: Iterable[Machine], at: datetime) -> int:
    """One machine that cannot be judged never stops the rest."""
    changed = 0
    for machine in machines:
        try:
            changed += judged(machine=machine, at=at)
        except Exception:
            log.exception("floor_sweep_failed", machine=machine.pk)
    return changed


@transaction.atomic
def apply_now(*, machine: Machine, at: datetime) -> bool:
    """``apply`` for who does not hold the lock: a waiver was granted, revoked, or has run out."""
    return apply(machine=_locked(machine), at=at)


# --- episodes --------------------------------------------------------------------------------------------------------


def open_(*, machine: Machine, gpu: Gpu | None, floor: Floor, reason: dict[str, Any], at: datetime) -> Delisting:
    """Begin an episode, or bring the reason of the one that is open up to date. Precondition: the machine locked."""
    row, made = Delisting.objects.get_or_create(
        machine=machine, gpu=gpu, floor=floor, ended_at=None, defaults={"reason": reason, "started_at": at}
    )
    if not made and row.reason != reason:
        row.reason = reason
        row.save(update_fields=["reason"])
    return row


def close(*, machine: Machine, gpu: Gpu | None, floor: Floor, at: datetime) -> None:
    """End the episode, if one is open. Precondition: the machine locked."""
    Delisting.objects.open().filter(machine=machine, gpu=gpu, floor=floor).update(
        ended_at=Greatest(F("started_at"), at)
    )


def apply(*, machine: Machine, at: datetime) -> bool:
    """Make the cards of ``machine`` what the open episodes and the waivers say; tell what is new. Whether a card changed.

    Precondition: in a transaction, the machine locked.
    """
    rows = sorted(
        Delisting.objects.open().filter(machine=machine).select_related("gpu__variant", "gpu__machine"),
        key=lambda row: (_RANK[row.floor], row.pk),
    )
    granted = waivers.of(machine, at=at)
    relisted: list[Gpu] = []
    effective: set[int] = set()
    changed = False
    for gpu in machine.gpus.present().select_related("variant", "machine").order_by("index"):
        counting = [row for row in rows if row.gpu_id in (None, gpu.pk) and granted.covering(row, gpu) is None]
        effective |= {row.pk for row in counting}
        since = min((row.started_at for row in counting), default=None)
        reason = None
        if counting:
            reason = dict(counting[0].reason)
            if len(counting) > 1:
                reason["also"] = [row.reason for row in counting[1:]]
        if (gpu.delisted_at, gpu.delisted_reason) == (since, reason):
            continue
        if gpu.delisted_at is not None and since is None and gpu.benchmarked_at is not None:
            relisted.append(gpu)
        changed = True
        Gpu.objects.filter(pk=gpu.pk).update(delisted_at=since, delisted_reason=reason)
    for row in rows:
        if row.pk in effective and row.told_at is None:
            _tell(machine, row, at)
            Delisting.objects.filter(pk=row.pk).update(told_at=at)
    if relisted:
        notices.tell_relisted(machine=machine, gpus=relisted, at=at)
    return changed


def _tell(machine: Machine, row: Delisting, at: datetime) -> None:
    if row.gpu is not None:
        notices.tell_gpu_delisted(
            gpu=row.gpu,
            performance=row.reason["performance"],
            floor=row.reason["floor"],
            episode=row.pk,
            at=at,
        )
    elif row.floor == Floor.MACHINE:
        notices.tell_machine_delisted(machine=machine, reason=row.reason, episode=row.pk, at=at)
    elif row.floor == Floor.SOFTWARE:
        notices.tell_outdated(machine=machine, policy=Policy.load(), episode=row.pk, at=at)
    else:
        notices.tell_uptime_delisted(
            machine=machine, share=row.reason["share"], floor=row.reason["floor"], episode=row.pk, at=at
        )


def _locked(machine: Machine) -> Machine:
    return (
        Machine.objects.select_for_update(no_key=True, of=("self",))
        .select_related("provider__organisation")
        .get(pk=machine.pk)
    )


# --- words -----------------------------------------------------------------------------------------------------------


def in_words(reason: dict[str, Any] | None) -> tuple[str, str]:
    """Why a card is off the market, and what to do, in the active language; two empty texts for None."""
    if not reason:
        return "", ""
    told = [_in_words(each) for each in (reason, *reason.get("also", []))]
    return " ".join(why for why, _todo in told), " ".join(todo for _why, todo in told if todo)


def _in_words(reason: dict[str, Any]) -> tuple[str, str]:
    if reason["code"] == MACHINE:
        missed = " ".join(str(Shortfall(**shortfall)) for shortfall in reason["shortfalls"])
        return missed, gettext(
            "Check the line for other traffic and the disk for other load; Docker's data has to lie on an SSD."
        )
    if reason["code"] == SOFTWARE:
        missed = " ".join(str(Outdated(**each)) for each in reason["outdated"])
        return missed, gettext("Update it on the host. The agent reports the new version within five minutes.")
    if reason["code"] == UPTIME:
        return gettext(
            "It was connected %(share)s of its declared time in 30 days; the floor of its tier is %(floor)s."
        ) % {"share": _percent(reason["share"]), "floor": _percent(reason["floor"])}, gettext(
            "Keep it connected: it is offered again as soon as the figure of the last 7 days is above the floor. Declare only "
            "hours that it is there."
        )
    return _performance_in_words(reason)


def _percent(share: float) -> str:
    return f"{show.cut(100 * share, 1)} %"


def _performance_in_words(reason: dict[str, Any]) -> tuple[str, str]:
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

"""Keeping listings true: one row per machine and GPU model, a copy of what makes an offer, so that search reads one table.

``refresh`` derives everything from the truth (connection, schedule, health, benchmarks, claims, price) and writes what
changed. It runs for all machines as a sweep, and for one machine within the request that changed it. A copy may be a few
seconds old; ``start_rental`` reads the truth again before it gives a GPU away.

The first state that applies:

    retired       the machine is retired, or has no card of the model any more
    offline       nothing heard for the offline time, an outage of the platform not counted
    hidden        hidden by its provider, paused by an admin, draining, in planned maintenance, its driver hangs, its connection
                  keeps breaking, not admitted yet, or simulated where simulated machines are kept out of the market
    delisted      every card failed, or is below the benchmark floor
    benchmarking  no card has an accepted benchmark yet
    unpriced      the provider asks no price for the model
    offered       can be rented; ``offered_from`` and ``offered_until`` are the edges of its declared hours, which end early
                  where planned maintenance begins
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import batched
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Prefetch, Q

from marketplace import market, ranking
from marketplace.models import Listing, ModelPrice
from providers import maintenance, places
from providers.models import Gpu, GpuClaim, GpuModel, Machine, MaintenanceWindow
from providers.schedules import edges
from reliability import availability, outages, scores
from reliability.models import Benchmark, Score

CHUNK = 500
COPIED = (
    "variant_name", "price_micro", "state", "tier", "country", "city", "region", "gpus_total", "gpus_free", "vram_gib", "reliability",
    "reliability_new", "performance", "rank", "rank_factors", "cuda_version", "download_mbps", "upload_mbps", "disk_read_mb_s",
    "benchmarked_at", "offered_from", "offered_until",
)  # fmt: skip


@dataclass
class _Cards:
    """The cards of one model on one machine."""

    model: GpuModel
    all: list[Gpu] = field(default_factory=list)
    offerable: list[Gpu] = field(default_factory=list)
    sound: list[Gpu] = field(default_factory=list)  # offerable, measured, not delisted
    free: int = 0


@dataclass(frozen=True)
class _Truth:
    """What a chunk of machines is derived from: a fixed number of queries, however many machines."""

    cards: dict[tuple[int, int], _Cards]
    prices: dict[tuple[int, int], int]
    scores: dict[int, Score]
    benchmarks: dict[int, Benchmark]
    rented: dict[market.Key, market.Percentiles]
    asked: dict[market.Key, market.Percentiles]
    offline_seconds: int
    at: datetime


def refresh(*, at: datetime, machines: Iterable[Machine] | None = None) -> int:
    """Bring the listings of ``machines`` (of all, if none are named) up to date. Returns how many rows changed."""
    found = (
        Machine.objects.filter(pk__in=[machine.pk for machine in machines])
        if machines is not None
        else Machine.objects.filter(
            Q(retired_at=None) | ~Q(listings__state=Listing.State.RETIRED) & Q(listings__isnull=False)
        ).distinct()
    )
    keys = list(found.order_by("pk").values_list("pk", flat=True))
    patience = outages.patience(at=at)
    return sum(_refresh_chunk(list(chunk), offline_seconds=patience, at=at) for chunk in batched(keys, CHUNK))


@transaction.atomic
def _refresh_chunk(keys: list[int], *, offline_seconds: int, at: datetime) -> int:
    # Rows first, in one order: two refreshes, or a rental that starts, wait for one another instead of meeting crosswise.
    rows = {
        (row.machine_id, row.gpu_model_id): row
        for row in Listing.objects.filter(machine__in=keys).order_by("pk").select_for_update(no_key=True, of=("self",))
    }
    availability.observe(at=at, machines=keys)
    machines = list(
        Machine.objects.filter(pk__in=keys).select_related("provider").prefetch_related("schedules", _announced(at))
    )
    truth = _read(machines, offline_seconds=offline_seconds, at=at)
    fresh, changed = [], []
    for machine in machines:
        models = {model for key, model in truth.cards if key == machine.pk} | {
            model for key, model in rows if key == machine.pk
        }
        for model in models:
            row = rows.get((machine.pk, model))
            cards = truth.cards.get((machine.pk, model))
            if row is None and (cards is None or not cards.offerable):
                continue  # a card that is not admitted is no listing yet
            copy = _derive(machine, cards, truth)
            if row is None:
                fresh.append(Listing(machine=machine, gpu_model_id=model, created_at=at, refreshed_at=at, **copy))
            elif any(getattr(row, name) != value for name, value in copy.items()):
                for name, value in copy.items():
                    setattr(row, name, value)
                row.refreshed_at = at
                changed.append(row)
    Listing.objects.bulk_create(fresh, ignore_conflicts=True)
    if changed:
        Listing.objects.bulk_update(changed, [*COPIED, "refreshed_at"], batch_size=CHUNK)
    return len(fresh) + len(changed)


def _announced(at: datetime) -> "Prefetch[Any]":
    standing = MaintenanceWindow.objects.filter(cancelled_at=None, ends_at__gt=at)
    return Prefetch("maintenance", queryset=standing)


def _read(machines: Sequence[Machine], *, offline_seconds: int, at: datetime) -> _Truth:
    keys = [machine.pk for machine in machines]
    cards: dict[tuple[int, int], _Cards] = {}
    claimed = set(GpuClaim.objects.current(at).filter(lane=0, gpu__machine__in=keys).values_list("gpu_id", flat=True))
    offerable = set(Gpu.objects.offerable().filter(machine__in=keys).values_list("pk", flat=True))
    for gpu in (
        Gpu.objects.present()
        .filter(machine__in=keys, given=True, variant__isnull=False)
        .select_related("variant__model")
        .order_by("index")
    ):
        model = gpu.variant.model  # type: ignore[union-attr]  # filtered above
        of = cards.setdefault((gpu.machine_id, model.pk), _Cards(model))
        of.all.append(gpu)
        if gpu.pk not in offerable:
            continue
        of.offerable.append(gpu)
        if gpu.benchmarked_at is not None and gpu.delisted_at is None:
            of.sound.append(gpu)
            of.free += gpu.pk not in claimed
    models = {model for _, model in cards}
    return _Truth(
        cards=cards,
        prices={
            (price.provider_id, price.gpu_model_id): price.price_micro
            for price in ModelPrice.objects.filter(
                current=True, provider__in={machine.provider_id for machine in machines}
            )
        },
        scores=scores.latest_of(keys),
        benchmarks={
            benchmark.gpu.machine_id: benchmark
            for benchmark in Benchmark.objects.filter(gpu__machine__in=keys, state=Benchmark.State.ACCEPTED)
            .select_related("gpu")
            .order_by("gpu__machine", "-received_at")
            .distinct("gpu__machine")
        },
        rented=market.rented(at=at, models=models),
        asked=market.asked(at=at, models=models),
        offline_seconds=offline_seconds,
        at=at,
    )


def _derive(machine: Machine, cards: _Cards | None, truth: _Truth) -> dict[str, Any]:
    """The columns of a listing."""
    price = truth.prices.get((machine.provider_id, cards.model.pk)) if cards else None
    state = state_of(machine, cards, price=price, offline_seconds=truth.offline_seconds, at=truth.at)
    if cards is None:
        return {"state": state, "gpus_total": 0, "gpus_free": 0}
    score, benchmark = truth.scores.get(machine.pk), truth.benchmarks.get(machine.pk)
    measured = [gpu.benchmarked_at for gpu in cards.sound if gpu.benchmarked_at is not None]
    scored = [gpu.performance for gpu in cards.sound if gpu.performance is not None]
    region = places.region_of(machine.country) if machine.country else ""
    opens, closes = edges(list(machine.schedules.all()), truth.at)
    closes = maintenance.cut(closes, maintenance.first_of(machine.maintenance.all(), truth.at))
    copy: dict[str, Any] = {
        "variant_name": ", ".join(dict.fromkeys(gpu.variant.name for gpu in cards.offerable if gpu.variant))[:80],
        "price_micro": price,
        "state": state,
        "tier": machine.tier,
        "country": machine.country,
        "city": machine.city,
        "region": region,
        "gpus_total": len(cards.offerable),
        "gpus_free": cards.free,
        "vram_gib": cards.model.vram_gib,
        "reliability": score.score if score else None,
        "reliability_new": score.new if score else True,
        # The weakest card speaks for the listing: a renter may get any of them.
        "performance": min(scored) if scored else None,
        "cuda_version": machine.cuda_version,
        "download_mbps": benchmark.download_mbps if benchmark else None,
        "upload_mbps": benchmark.upload_mbps if benchmark else None,
        "disk_read_mb_s": benchmark.disk_read_mb_s if benchmark else None,
        "benchmarked_at": min(measured) if measured else None,
        "offered_from": opens,
        "offered_until": closes,
    }
    if price is None:
        return copy | {"rank": 0.0, "rank_factors": {}}
    against = ranking.market_for(
        model=cards.model.pk, region=region, price_micro=price, rented=truth.rented, asked=truth.asked
    )
    factors = ranking.points(
        reliability=copy["reliability"],
        price_micro=price,
        market=against,
        performance=copy["performance"],
        commitment_months=machine.provider.commitment_months,
        tier=machine.tier,
        age_hours=(truth.at - copy["benchmarked_at"]).total_seconds() / 3600 if copy["benchmarked_at"] else None,
    )
    return copy | {"rank": factors.total, "rank_factors": ranking.as_json(factors, against)}


def state_of(
    machine: Machine, cards: _Cards | None, *, price: int | None, offline_seconds: int, at: datetime
) -> Listing.State:
    """The first state of the module's table that applies."""
    if machine.retired_at is not None or cards is None or not cards.all:
        return Listing.State.RETIRED
    if not machine.is_connected(at, offline_seconds):
        return Listing.State.OFFLINE
    withheld = kept_back(machine) or in_maintenance(machine, at) or machine.is_unsettled(at)
    if withheld or not any(gpu.admitted for gpu in cards.all):
        return Listing.State.HIDDEN
    if not cards.sound:
        failed = not cards.offerable or any(gpu.delisted_at is not None for gpu in cards.offerable)
        return Listing.State.DELISTED if failed else Listing.State.BENCHMARKING
    return Listing.State.UNPRICED if price is None else Listing.State.OFFERED


def in_maintenance(machine: Machine, at: datetime) -> bool:
    """Whether planned maintenance of ``machine`` runs at ``at``."""
    return maintenance.begun(maintenance.first_of(machine.maintenance.all(), at), at)


def kept_back(machine: Machine) -> bool:
    """Whether a connected machine is kept from renters by somebody's decision, or because its driver hangs."""
    return (
        machine.hidden_at is not None
        or machine.paused_at is not None
        or machine.draining
        or machine.nvml == "hung"
        or (machine.simulated and not settings.SIMULATED_MACHINES_IN_MARKET)
    )

"""What machines tell about their cards: events that may take a card off the market, and telemetry samples.

An Xid is NVIDIA's number for a driver error (docs.nvidia.com/deploy/xid-errors). Some are the running program's own fault
and say nothing about the card, some end it until a restart; one that is not listed is taken as degraded, since unknown is
not healthy. A card that failed is offered again once the agent reports it well and a new benchmark passes.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid5

from django.db import transaction

from providers.inventory import LOST, XID
from providers.models import Gpu, Machine
from reliability.models import HealthEvent, Sample

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
FATAL_XIDS = frozenset({64, 74, 79, 95})
HIGHEST_XID = 9_999  # what is above is no Xid
_RANK = {Gpu.Health.OK: 0, Gpu.Health.DEGRADED: 1, Gpu.Health.FATAL: 2}

KEEP_SAMPLES = timedelta(days=7)
OLDEST_SAMPLE = timedelta(hours=25)  # agents keep a day of samples for us
NEWEST_SAMPLE = timedelta(minutes=5)  # a clock may be off by some
_READINGS = (
    "temperature_c", "power_w", "utilization_pct", "memory_used_mib", "memory_total_mib", "sm_clock_mhz", "memory_clock_mhz", "fan_pct",
)  # fmt: skip
_DELETED_AT_ONCE = 20_000


@transaction.atomic
def record_events(*, machine: Machine, events: Sequence[dict[str, Any]], at: datetime) -> tuple[int, bool]:
    """Keep the protocol's events, each once by its id. Returns the highest sequence kept, and whether a card's health changed.

    An event is kept whatever it says; what it says changes a card only the first time.
    """
    Machine.objects.select_for_update(no_key=True).only("pk").get(pk=machine.pk)
    ids = [event["id"] for event in events]
    known = set(HealthEvent.objects.filter(event_id__in=ids).values_list("event_id", flat=True))
    gpus = {gpu.uuid: gpu for gpu in Gpu.objects.present().filter(machine=machine)}
    fresh = {event["id"]: event for event in events if event["id"] not in known}
    HealthEvent.objects.bulk_create(
        [
            HealthEvent(
                event_id=event["id"],
                machine=machine,
                gpu=gpus.get(event["gpu_uuid"]),
                sequence=event["sequence"],
                kind=event["kind"],
                at=min(event["at"], at),
                received_at=at,
                data=event["data"],
            )
            for event in fresh.values()
        ],
        ignore_conflicts=True,
    )
    changed = [_apply(event, gpus[event["gpu_uuid"]]) for event in fresh.values() if event["gpu_uuid"] in gpus]
    return max((event["sequence"] for event in events), default=0), any(changed)


def _apply(event: dict[str, Any], gpu: Gpu) -> bool:
    if event["kind"] == "gpu_lost":
        return _worsen(gpu, Gpu.Health.FATAL, LOST)
    if event["kind"] == "xid":
        number = event["data"].get("xid")
        health = (
            xid_health(number)
            if isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= HIGHEST_XID
            else None
        )
        return health is not None and _worsen(gpu, health, f"{XID}{number}")
    return False


def xid_health(xid: int) -> str | None:
    """The health of a card after this Xid; None where it is the program's own."""
    if xid in APPLICATION_XIDS:
        return None
    return Gpu.Health.FATAL if xid in FATAL_XIDS else Gpu.Health.DEGRADED


def _worsen(gpu: Gpu, health: str, reason: str) -> bool:
    if _RANK[Gpu.Health(health)] <= _RANK[Gpu.Health(gpu.health)]:
        return False
    gpu.health, gpu.health_reason = health, reason
    gpu.save(update_fields=["health", "health_reason"])
    return True


def record_software(*, machine: Machine, changes: dict[str, list[str]], at: datetime) -> None:
    """A new driver or CUDA version, as an inventory showed it: an event like those that agents tell."""
    if changes:
        name = uuid5(machine.public_id, f"{changes}:{machine.boot_id}")
        HealthEvent.objects.get_or_create(
            event_id=name,
            defaults={
                "machine": machine,
                "sequence": 0,
                "kind": "software_changed",
                "at": at,
                "received_at": at,
                "data": changes,
            },
        )


def record_samples(*, machine: Machine, samples: Sequence[dict[str, Any]], at: datetime) -> int:
    """Keep telemetry in one statement; a sample sent again is kept once. Returns how many of these are kept now.

    Left out: samples of no card of this machine's, older than a day, or from the future.
    """
    gpus = dict(Gpu.objects.present().filter(machine=machine).values_list("uuid", "pk"))
    rows = [
        Sample(
            machine=machine,
            gpu_id=gpus[sample["gpu_uuid"]],
            at=sample["at"],
            throttle_reasons=sample["throttle_reasons"] or [],
            **{name: sample[name] for name in _READINGS},
        )
        for sample in samples
        if sample["gpu_uuid"] in gpus and at - OLDEST_SAMPLE <= sample["at"] <= at + NEWEST_SAMPLE
    ]
    Sample.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def drop_old_samples(*, at: datetime) -> int:
    """Delete what is older than a week, in pieces that hold no lock for long. Returns how many."""
    dropped = 0
    while True:
        old = Sample.objects.filter(at__lt=at - KEEP_SAMPLES).values("pk")[:_DELETED_AT_ONCE]
        count, _ = Sample.objects.filter(pk__in=old).delete()
        dropped += count
        if count < _DELETED_AT_ONCE:
            return dropped


def last_samples(machine: Machine) -> dict[int, Sample]:
    """The newest sample of each card of ``machine`` by the card's key."""
    newest = Sample.objects.filter(gpu__in=machine.gpus.present()).order_by("gpu_id", "-at").distinct("gpu_id")
    return {sample.gpu_id: sample for sample in newest}

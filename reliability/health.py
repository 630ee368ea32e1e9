"""What machines tell about their cards: events that may take a card off the market.

Each event has a severity, by the tables below:

    application  the running program's own fault: says nothing about the card
    degraded     finish what runs, then reset or restart; measured again after it
    fatal        nothing more may run on it: off the market in the same request, that card and no other
    note         for the record

An Xid is NVIDIA's number for a driver error (docs.nvidia.com/deploy/xid-errors, whose first action decides: restart the
program, reset the card). One that is not listed is taken as degraded, since unknown is not healthy. A counter of the memory
(uncorrectable errors, rows to remap, pages to retire) speaks only by growing: a driver that is loaded anew starts it over,
and one that jumps by millions is no counter. A card that failed is offered again once the agent reports it well and a new
benchmark passes.

>>> severity_of("xid", {"xid": 31}), severity_of("xid", {"xid": 94}), severity_of("xid", {"xid": 79})
(('application', ''), ('degraded', 'xid:94'), ('fatal', 'xid:79'))
>>> severity_of("ecc", {"counter": "uncorrected", "before": 0, "after": 2})
('degraded', 'ecc')
>>> severity_of("ecc", {"counter": "uncorrected", "before": 7, "after": 0})
('note', '')
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeGuard
from uuid import uuid5

from django.db import transaction

from providers.inventory import ECC, LOST, PAGES, REMAP, REMAP_FAILED, XID
from providers.models import Gpu, Machine
from reliability import telemetry
from reliability.models import HealthEvent

Severity = HealthEvent.Severity

# Programs: engine exceptions, faults of their memory accesses, copy, video and image engines, time-outs of their contexts.
APPLICATION_XIDS = frozenset(
    {
        8,
        13,
        31,
        32,
        39,
        40,
        41,
        43,
        45,
        47,
        65,
        68,
        69,
        80,
        *range(82, 87),
        88,
        89,
        *range(96, 108),
        109,
        *range(126, 136),
        139,
    }
)
# Row remapping failed, NVLink, fallen off the bus, memory errors that were not contained, no start, time-outs of card and bus.
FATAL_XIDS = frozenset({64, 74, 79, 95, 140, 143, 158, 167})
HIGHEST_XID = 9_999  # what is above is no Xid
# Counters of the card's memory: what it is when they grow, and the reason as the provider reads it.
COUNTERS = {
    "uncorrected": (Severity.DEGRADED, ECC),
    "row_remap_pending": (Severity.DEGRADED, REMAP),
    "row_remap_failed": (Severity.FATAL, REMAP_FAILED),
    "pages_pending": (Severity.DEGRADED, PAGES),
}
MOST_GROWTH = 1_000_000
_RANK = {Gpu.Health.OK: 0, Gpu.Health.DEGRADED: 1, Gpu.Health.FATAL: 2}
_HEALTH = {Severity.DEGRADED: Gpu.Health.DEGRADED, Severity.FATAL: Gpu.Health.FATAL}


@transaction.atomic
def record_events(
    *, machine: Machine, events: Sequence[dict[str, Any]], at: datetime, sent_at: datetime | None = None
) -> tuple[int, bool]:
    """Keep the protocol's events, each once by its id. Returns the highest sequence kept, and whether a card's health changed.

    An event is kept whatever it says; what it says changes a card only the first time. ``sent_at`` is what the sender's
    clock said when it sent, by which its times are corrected.
    """
    Machine.objects.select_for_update(no_key=True).only("pk").get(pk=machine.pk)
    ids = [event["id"] for event in events]
    known = set(HealthEvent.objects.filter(event_id__in=ids).values_list("event_id", flat=True))
    gpus = {gpu.uuid: gpu for gpu in Gpu.objects.present().filter(machine=machine)}
    fresh = {event["id"]: event for event in events if event["id"] not in known}
    judged = {key: severity_of(event["kind"], event["data"]) for key, event in fresh.items()}
    HealthEvent.objects.bulk_create(
        [
            HealthEvent(
                event_id=key,
                machine=machine,
                gpu=gpus.get(event["gpu_uuid"]),
                sequence=event["sequence"],
                kind=event["kind"],
                severity=judged[key][0],
                at=min(telemetry.corrected(event["at"], sent_at=sent_at, received_at=at), at),
                received_at=at,
                data=event["data"],
            )
            for key, event in fresh.items()
        ],
        ignore_conflicts=True,
    )
    changed = [
        _worsen(gpus[event["gpu_uuid"]], *judged[key]) for key, event in fresh.items() if event["gpu_uuid"] in gpus
    ]
    return max((event["sequence"] for event in events), default=0), any(changed)


def severity_of(kind: str, data: dict[str, Any]) -> tuple[str, str]:
    """How grave an event is, and the reason that ``Gpu.health_reason`` holds; "" where the card's health stays as it is."""
    if kind == "gpu_lost":
        return Severity.FATAL.value, LOST
    if kind == "xid" and _whole(number := data.get("xid"), most=HIGHEST_XID):
        severity = xid_severity(number)
        return severity.value, "" if severity == Severity.APPLICATION else f"{XID}{number}"
    if kind == "ecc" and isinstance(data.get("counter"), str) and data["counter"] in COUNTERS:
        before, after = data.get("before"), data.get("after")
        if _whole(before) and _whole(after) and 0 < after - before <= MOST_GROWTH:
            severity, reason = COUNTERS[data["counter"]]
            return severity.value, reason
    if kind == "thermal":  # the clocks come back by themselves; how much it costs, a benchmark says
        return Severity.DEGRADED.value, ""
    return Severity.NOTE.value, ""


def xid_severity(xid: int) -> HealthEvent.Severity:
    if xid in APPLICATION_XIDS:
        return Severity.APPLICATION
    return Severity.FATAL if xid in FATAL_XIDS else Severity.DEGRADED


def _whole(value: object, *, most: int = 2**53) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _worsen(gpu: Gpu, severity: str, reason: str) -> bool:
    health = _HEALTH.get(Severity(severity)) if reason else None
    if health is None or _RANK[health] <= _RANK[Gpu.Health(gpu.health)]:
        return False
    gpu.health, gpu.health_reason = health, reason
    gpu.save(update_fields=["health", "health_reason"])
    return True


def last_event(gpu: Gpu) -> HealthEvent | None:
    """The newest event after which the card should be measured again (degraded or fatal); None where there was none."""
    grave = HealthEvent.objects.filter(gpu=gpu, severity__in=[Severity.DEGRADED, Severity.FATAL])
    return grave.order_by("-at", "-pk").first()


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

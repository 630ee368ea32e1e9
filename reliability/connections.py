"""Who is there: heartbeats become stretches of connection, silence becomes "offline" and then "lost".

    connected   heard from within the policy's offline time (45 s)
    offline     silent for longer; hidden from renters, not billed on. ``offline_since`` is the last proof of life
    lost        silent for the policy's lost time (10 min); its rentals end as of the last proof of life

A heartbeat is one UPDATE while nothing changes; rows of ``Connection`` are written at its ends only. A new boot id ends a
stretch too. The platform's own outage stops both clocks: ``watch`` leaves a mark each time it runs, and where the mark is
missing for longer than the offline time nobody's silence counts.
"""

from collections import defaultdict
from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Greatest

from gpunex.kit.spans import common, seconds
from gpunex.policy.models import Policy
from providers.models import Machine
from reliability import notices
from reliability.models import Connection, PlatformOutage, Watch

log = structlog.get_logger(__name__)


def beat(
    *,
    machine: Machine,
    boot_id: str,
    at: datetime,
    agent_version: str = "",
    nvml: str = "ok",
    clock_offset_ms: int | None = None,
    policy: Policy | None = None,
) -> bool:
    """A proof of life, received at ``at``. Whether offers may have changed by it: it came back, or its driver did.

    Beats that arrive out of order or twice never move ``last_seen_at`` back.
    """
    policy = policy or Policy.load()
    facts: dict[str, object] = {
        "agent_version": agent_version[:20] or machine.agent_version,
        "clock_offset_ms": clock_offset_ms,
    }
    steady = Machine.objects.filter(
        pk=machine.pk,
        retired_at=None,
        offline_since=None,
        connected_since__isnull=False,
        boot_id=boot_id,
        nvml=nvml,
        last_seen_at__gt=at - timedelta(seconds=policy.offline_seconds),
    )
    if steady.update(last_seen_at=Greatest("last_seen_at", at), **facts):
        return False
    return _arrive(machine, boot_id=boot_id, nvml=nvml, facts=facts, at=at, offline_seconds=policy.offline_seconds)


@transaction.atomic
def _arrive(
    machine: Machine, *, boot_id: str, nvml: str, facts: dict[str, object], at: datetime, offline_seconds: int
) -> bool:
    current = (
        Machine.objects.select_for_update(no_key=True, of=("self",))
        .select_related("provider__organisation")
        .get(pk=machine.pk)
    )
    if current.retired_at is not None:
        return False
    silent = current.last_seen_at is None or at - current.last_seen_at > timedelta(seconds=offline_seconds)
    reboot = current.boot_id != boot_id
    begins = silent or reboot or current.offline_since is not None or current.connected_since is None
    changed = begins or current.nvml != nvml
    was_lost = current.lost_at is not None
    last_seen_at = max(at, current.last_seen_at or at)
    if begins:
        _end_stretch(current, current.last_seen_at or at)
        Connection.objects.create(machine=current, boot_id=boot_id, started_at=last_seen_at)
        current.connected_since = last_seen_at
    current.offline_since = current.lost_at = None
    current.boot_id, current.nvml, current.last_seen_at = boot_id, nvml, last_seen_at
    for name, value in facts.items():
        setattr(current, name, value)
    current.save(
        update_fields=["boot_id", "nvml", "last_seen_at", "connected_since", "offline_since", "lost_at", *facts]
    )
    if was_lost:
        notices.tell_back(machine=current, at=at)
    return changed


def watch(*, at: datetime) -> dict[str, int]:
    """Find who has fallen silent. Returns how many went offline and how many are lost now. Late or twice is harmless."""
    policy = Policy.load()
    outage = _leave_mark(at, longest_gap=timedelta(seconds=policy.offline_seconds))
    if outage is not None:
        log.warning("platform_outage", since=outage.started_at.isoformat(), until=outage.ended_at.isoformat())
    return {"offline": _mark_offline(at, policy.offline_seconds), "lost": _mark_lost(at, policy.lost_seconds)}


@transaction.atomic
def _leave_mark(at: datetime, *, longest_gap: timedelta) -> PlatformOutage | None:
    mark, made = Watch.objects.select_for_update().get_or_create(pk=1, defaults={"at": at})
    before, mark.at = mark.at, max(mark.at, at)
    if made:
        return None
    mark.save(update_fields=["at"])
    if at - before <= longest_gap:
        return None
    return PlatformOutage.objects.create(started_at=before, ended_at=at)


def _mark_offline(at: datetime, offline_seconds: int) -> int:
    limit = at - timedelta(seconds=offline_seconds)
    if PlatformOutage.objects.filter(ended_at__gt=limit).exists():
        return 0  # they get the offline time to find us again
    silent = Machine.objects.filter(offline_since=None, connected_since__isnull=False).filter(
        Q(last_seen_at__lte=limit) | Q(retired_at__isnull=False)
    )
    count = 0
    for pk in list(silent.order_by("pk").values_list("pk", flat=True)):
        with transaction.atomic():
            machine = silent.select_for_update(no_key=True, skip_locked=True).filter(pk=pk).first()
            if machine is None:
                continue
            machine.offline_since = machine.last_seen_at or at
            _end_stretch(machine, machine.offline_since)
            machine.save(update_fields=["offline_since"])
            count += 1
    return count


def _mark_lost(at: datetime, lost_seconds: int) -> int:
    silent = Machine.objects.live().filter(
        lost_at=None, offline_since__isnull=False, last_seen_at__lte=at - timedelta(seconds=lost_seconds)
    )
    lost: dict[int, list[Machine]] = defaultdict(list)
    for pk in list(silent.order_by("pk").values_list("pk", flat=True)):
        with transaction.atomic():
            machine = (
                silent.select_for_update(no_key=True, skip_locked=True, of=("self",))
                .select_related("provider__organisation")
                .filter(pk=pk)
                .first()
            )
            if machine is None or silence(machine, at) < lost_seconds:
                continue
            machine.lost_at = at
            machine.save(update_fields=["lost_at"])
            lost[machine.provider_id].append(machine)
    for machines in lost.values():
        with transaction.atomic():
            notices.tell_lost(provider=machines[0].provider, machines=machines, at=at)
    return sum(map(len, lost.values()))


def silence(machine: Machine, at: datetime) -> float:
    """Seconds since the last proof of life, without the platform's own outages."""
    if machine.last_seen_at is None:
        return 0.0
    spans = [(machine.last_seen_at, at)]
    outages = PlatformOutage.objects.filter(ended_at__gt=machine.last_seen_at).values_list("started_at", "ended_at")
    return seconds(spans) - seconds(common(spans, outages))


def _end_stretch(machine: Machine, at: datetime) -> None:
    for connection in Connection.objects.select_for_update().filter(machine=machine, ended_at=None):
        connection.ended_at = max(at, connection.started_at)
        connection.save(update_fields=["ended_at"])

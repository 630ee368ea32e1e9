"""Who is there: heartbeats become stretches of connection, silence becomes "offline" and then "lost".

    connected   heard from within the policy's offline time (45 s)
    offline     silent for longer; hidden from renters, not billed on. ``offline_since`` is the last proof of life
    lost        silent for the policy's lost time (10 min); its rentals end as of the last proof of life
    unsettled   connected, but it broke off three times within 30 minutes: its offers wait until the first of the three
                is 30 minutes past, and its provider is told once a day, not with each break. Uptime counts each gap
                exactly as it was; rentals that run go on

A heartbeat is one UPDATE while nothing changes (``reliability.beats``); rows of ``Connection`` are written at its ends only.
A new boot id ends a stretch too. What counts is when a beat came, never what the host says the time is.

What lies between two stretches is a ``Gap``, told apart by what is known of it:

    platform    an outage of ours covers it
    reboot      another boot id after it
    journalled  the agent's journal says that it ran all the while: the network was down
    unknown     anything else: the machine was down, or the agent

All but the first count against uptime alike, since nobody could reach the machine; the kind tells its owner where to look.

The platform's own outages (``reliability.outages``) stop both clocks.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import batched
from typing import Any

import structlog
from django.db import transaction
from django.db.models import OuterRef, Q, Subquery, Value
from django.db.models.functions import Coalesce, Greatest

from gpunex.kit.spans import common, seconds
from gpunex.kit.time import iso_z
from gpunex.policy.models import Policy
from providers.models import Machine
from reliability import beats, notices, outages
from reliability.models import Connection, Gap, PlatformOutage

log = structlog.get_logger(__name__)

CHUNK = 500
BREAKS, WITHIN = 3, timedelta(minutes=30)
JOURNAL_SLACK = timedelta(seconds=60)  # a journal is written every few seconds, and beats come every ten
CLOCK_OFF_MS = 5_000  # from here on its owner is told


@dataclass(frozen=True, kw_only=True)
class Journal:
    """What an agent tells of a gap when it is back: from when to when it reached nobody, in its own time, and whether it ran."""

    since: datetime
    until: datetime
    boot_id: str
    ran: bool

    def as_json(self) -> dict[str, Any]:
        return {"from": iso_z(self.since), "to": iso_z(self.until), "boot_id": self.boot_id, "ran": self.ran}


def beat(
    *,
    machine: Machine,
    boot_id: str,
    at: datetime,
    agent_version: str = "",
    nvml: str = "ok",
    clock_offset_ms: int | None = None,
    journal: Journal | None = None,
    policy: Policy | None = None,
) -> bool:
    """A proof of life, received at ``at``. Whether offers may have changed by it: it came back, or its driver did.

    Beats that arrive out of order or twice never move ``last_seen_at`` back.
    """
    policy = policy or Policy.load()
    steady = beats.Beat(
        public_id=machine.public_id,
        secret_hash=machine.secret_hash,
        boot_id=boot_id,
        at=at,
        nvml=nvml,
        agent_version=agent_version[:20],
        offset_ms=clock_offset_ms,
    )
    if beats.keep([steady])[0] is not None:
        return False
    return _arrive(steady, pk=machine.pk, journal=journal, offline_seconds=policy.offline_seconds)


@transaction.atomic
def _arrive(beat: beats.Beat, *, pk: int, journal: Journal | None, offline_seconds: int) -> bool:
    current = (
        Machine.objects.select_for_update(no_key=True, of=("self",)).select_related("provider__organisation").get(pk=pk)
    )
    if current.retired_at is not None:
        return False
    before, at = current.last_seen_at, beat.at
    silent = before is None or at - before > timedelta(seconds=offline_seconds)
    reboot = current.boot_id != beat.boot_id
    begins = silent or reboot or current.offline_since is not None or current.connected_since is None
    changed = begins or current.nvml != beat.nvml
    was_lost = current.lost_at is not None
    current.last_seen_at = max(at, before or at)
    if begins:
        _end_stretch(current, before or at, noticed_at=max(at, before or at))
        Connection.objects.create(machine=current, boot_id=beat.boot_id, started_at=current.last_seen_at)
        if before is not None and current.connected_since is not None:
            _note_gap(current, since=before, boot_id=beat.boot_id, journal=journal)
        current.connected_since = current.last_seen_at
    current.offline_since = current.lost_at = None
    current.boot_id, current.nvml = beat.boot_id, beat.nvml
    current.agent_version = beat.agent_version or current.agent_version
    current.clock_offset_ms, current.clock_candidate_ms = beats.follow(
        current.clock_offset_ms, current.clock_candidate_ms, beat.offset_ms
    )
    current.save(
        update_fields=[
            "boot_id", "nvml", "last_seen_at", "connected_since", "offline_since", "lost_at", "unsettled_until",
            "agent_version", "clock_offset_ms", "clock_candidate_ms",
        ]
    )  # fmt: skip
    if was_lost:
        notices.tell_back(machine=current, at=at)
    return changed


def _note_gap(machine: Machine, *, since: datetime, boot_id: str, journal: Journal | None) -> None:
    """Keep the gap that ends now, and see whether it was one too many."""
    until = machine.last_seen_at or since
    kind = kind_of(
        since=since,
        until=until,
        reboot=machine.boot_id != boot_id,
        boot_id=boot_id,
        journal=journal,
        outages=list(PlatformOutage.objects.filter(ended_at__gt=since).values_list("started_at", "ended_at")),
    )
    Gap.objects.get_or_create(
        machine=machine,
        started_at=since,
        defaults={
            "ended_at": until,
            "kind": kind,
            "boot_id": boot_id,
            "evidence": journal.as_json() if journal else {},
        },
    )
    breaks = Gap.objects.filter(machine=machine, ended_at__gt=until - WITHIN).exclude(kind=Gap.Kind.PLATFORM)
    ends = list(breaks.order_by("-ended_at").values_list("ended_at", flat=True)[:BREAKS])
    if len(ends) == BREAKS:
        machine.unsettled_until = ends[-1] + WITHIN
        notices.tell_unsettled(machine=machine, at=until)


def kind_of(
    *,
    since: datetime,
    until: datetime,
    reboot: bool,
    boot_id: str,
    journal: Journal | None,
    outages: list[tuple[datetime, datetime]],
) -> Gap.Kind:
    """What a gap was, by the table above. The journal's own times say only how long it was: its clock may be anywhere."""
    length = until - since
    ours = timedelta(seconds=seconds(common([(since, until)], outages)))
    if ours and length - ours <= JOURNAL_SLACK:
        return Gap.Kind.PLATFORM
    if reboot:
        return Gap.Kind.REBOOT
    if (
        journal is not None
        and journal.ran
        and journal.boot_id == boot_id
        and abs((journal.until - journal.since) - length) <= JOURNAL_SLACK
    ):
        return Gap.Kind.JOURNALLED
    return Gap.Kind.UNKNOWN


def watch(*, at: datetime) -> dict[str, int]:
    """Find who has fallen silent. Returns how many went offline and how many are lost now. Late or twice is harmless."""
    policy = Policy.load()
    offline_seconds = policy.offline_seconds
    missed = outages.leave_mark(at=at, longest_gap=timedelta(seconds=offline_seconds))
    if missed is not None:
        log.warning("platform_outage", since=missed.started_at.isoformat(), until=missed.ended_at.isoformat())
    outages.watch_silence(at=at, offline_seconds=offline_seconds)
    return {"offline": _mark_offline(at, offline_seconds), "lost": _mark_lost(at, policy.lost_seconds)}


def tell_clocks(*, at: datetime) -> int:
    """Tell the owners of connected machines whose clock is off, once a week each. Returns how many are off."""
    off = list(clocks_off().filter(offline_since=None).select_related("provider__organisation").order_by("pk"))
    for machine in off:
        with transaction.atomic():
            notices.tell_clock(machine=machine, at=at)
    return len(off)


def clocks_off() -> Any:
    """Live machines whose clock is off by more than five seconds."""
    off = Q(clock_offset_ms__gt=CLOCK_OFF_MS) | Q(clock_offset_ms__lt=-CLOCK_OFF_MS)
    return Machine.objects.live().filter(off)


def _mark_offline(at: datetime, offline_seconds: int) -> int:
    limit = at - timedelta(seconds=offline_seconds)
    if PlatformOutage.objects.filter(ended_at__gt=limit).exists():
        return 0  # they get the offline time to find us again
    silent = Machine.objects.filter(offline_since=None, connected_since__isnull=False).filter(
        Q(last_seen_at__lte=limit) | Q(retired_at__isnull=False)
    )
    count = 0
    for keys in batched(silent.order_by("pk").values_list("pk", flat=True), CHUNK):
        with transaction.atomic():
            # Looked at again under the lock: a beat may have come. One whose row is busy has its turn with the next run.
            locked = silent.filter(pk__in=keys).order_by("pk").select_for_update(no_key=True, skip_locked=True)
            gone = list(locked.values_list("pk", flat=True))
            Machine.objects.filter(pk__in=gone).update(offline_since=Coalesce("last_seen_at", Value(at)))
            since = Machine.objects.filter(pk=OuterRef("machine")).values("offline_since")
            Connection.objects.filter(machine__in=gone, ended_at=None).update(
                ended_at=Greatest("started_at", Subquery(since)), closed_at=at
            )
            count += len(gone)
    return count


def _mark_lost(at: datetime, lost_seconds: int) -> int:
    silent = Machine.objects.live().filter(
        lost_at=None, offline_since__isnull=False, last_seen_at__lte=at - timedelta(seconds=lost_seconds)
    )
    lost: dict[int, list[Machine]] = defaultdict(list)
    for keys in batched(silent.order_by("pk").values_list("pk", flat=True), CHUNK):
        with transaction.atomic():
            rows = (
                silent.filter(pk__in=keys)
                .order_by("pk")
                .select_for_update(no_key=True, skip_locked=True, of=("self",))
                .select_related("provider__organisation")
            )
            known = list(rows)
            gone = [machine for machine, away in zip(known, silences(known, at), strict=True) if away >= lost_seconds]
            Machine.objects.filter(pk__in=[machine.pk for machine in gone]).update(lost_at=at)
            for machine in gone:
                machine.lost_at = at
                lost[machine.provider_id].append(machine)
    for machines in lost.values():
        with transaction.atomic():
            notices.tell_lost(provider=machines[0].provider, machines=machines, at=at)
    return sum(map(len, lost.values()))


def silence(machine: Machine, at: datetime) -> float:
    """Seconds since the last proof of life, without the platform's own outages."""
    return silences([machine], at)[0]


def silences(machines: Sequence[Machine], at: datetime) -> list[float]:
    """The same for each of many, in one query; 0 for one that was never heard."""
    heard = [machine.last_seen_at for machine in machines if machine.last_seen_at is not None]
    outages = list(
        PlatformOutage.objects.filter(ended_at__gt=min(heard, default=at)).values_list("started_at", "ended_at")
    )
    return [
        0.0
        if machine.last_seen_at is None
        else seconds(span := [(machine.last_seen_at, at)]) - seconds(common(span, outages))
        for machine in machines
    ]


def _end_stretch(machine: Machine, at: datetime, *, noticed_at: datetime) -> None:
    for connection in Connection.objects.select_for_update().filter(machine=machine, ended_at=None):
        connection.ended_at, connection.closed_at = max(at, connection.started_at), noticed_at
        connection.save(update_fields=["ended_at", "closed_at"])

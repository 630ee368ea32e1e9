"""Pasts of machines, made up: for the tests that hold two ways to the same score against each other."""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from gpunex.kit.secrets import encrypt
from providers.models import EnrolmentKey, Gpu, GpuVariant, Machine, MaintenanceWindow, Provider, Schedule, Workload
from providers.weeks import check_windows, windows_of_hours
from reliability.models import (
    Availability,
    Benchmark,
    Connection,
    Excuse,
    Incident,
    Outcome,
    PlatformOutage,
)

# Whole hours, half hours, three quarters; changes of an hour and of half an hour; north and south.
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC", "Africa/Cairo")
STATES = [state for state in Availability.State if state != Availability.State.AVAILABLE]
CAUSES = ("completed", "stopped", "exit_nonzero", "gpu_lost", "machine_lost", "host_restart", "image_missing")
DAY = timedelta(days=1)


def machines(provider: Provider, count: int, *, cards: int = 1, at: datetime) -> list[Machine]:
    """Hosts with nothing but their cards: no hours, no past."""
    key = EnrolmentKey.objects.create(
        provider=provider,
        kind=EnrolmentKey.Kind.API_KEY,
        name="past",
        prefix=f"gpxk_{uuid.uuid4().hex[:8]}",
        hash=uuid.uuid4().hex * 2,
        created_by=provider.organisation.created_by,
    )
    made = Machine.objects.bulk_create(
        [
            Machine(
                provider=provider,
                enrolled_with=key,
                name=f"host-{uuid.uuid4().hex[:8]}",
                fingerprint=uuid.uuid4().hex,
                tier=provider.tier,
                country="DE",
                secret_hash=uuid.uuid4().hex * 2,
                boot_id="boot-1",
                last_seen_at=at,
                connected_since=at - DAY,
                enrolled_at=at - 100 * DAY,
            )
            for _ in range(count)
        ]
    )
    variant = GpuVariant.objects.filter(model__slug="rtx-4090-24gb").first()
    assert variant is not None
    Gpu.objects.bulk_create(
        [
            Gpu(
                machine=machine,
                uuid=f"GPU-{uuid.uuid4()}",
                index=index,
                variant=variant,
                name=variant.nvml_names[0],
                admitted=True,
                benchmarked_at=at,
            )
            for machine in made
            for index in range(cards)
        ]
    )
    return made


def windows(source: Random) -> list[list[Any]]:
    """Hours of a week that may be declared: whole hours, or some to the minute."""
    if source.random() < 0.5:
        return windows_of_hours(source.sample(range(168), source.randint(1, 60)))
    found = []
    for day in source.sample(range(7), source.randint(1, 7)):
        edges = sorted(source.sample(range(24 * 60), 4))
        found += [
            [day, _clock(edges[0]), _clock(edges[1])],
            # The last window of a day may run over midnight, up to where the next day begins at the earliest.
            [day, _clock(edges[2]), "24:00" if source.random() < 0.5 else _clock(edges[3])],
        ]
    if source.random() < 0.3:
        found = [[day, "22:15", "06:45"] for day in range(7)]
    check_windows(found)
    return found


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


def random_past(machine: Machine, source: Random, *, at: datetime, days: int = 100) -> None:
    """Everything that may have happened, in any order, some of it unlikely, some of it found out late."""
    start = at - days * DAY

    def some(earliest: datetime = start, latest: datetime = at) -> datetime:
        return earliest + timedelta(microseconds=source.randrange(int((latest - earliest) / timedelta(microseconds=1))))

    def soon(after: datetime, hours: float = 30) -> datetime:
        return after + timedelta(seconds=source.uniform(0, hours * 3600))

    begun = start + timedelta(days=source.uniform(0, 60))
    versions = [begun, *sorted(some(begun) for _ in range(source.randint(0, 3)))]
    Schedule.objects.bulk_create(
        [
            Schedule(
                machine=machine,
                effective_from=effective + timedelta(hours=source.choice((0, 0, 30, 200))),
                created_at=effective,
                timezone=source.choice(ZONES),
                always=(always := source.random() < 0.3),
                windows=[] if always else windows(source),
            )
            for effective in versions
        ]
    )
    moment, links = soon(begun), []
    for _ in range(source.randint(1, 25)):
        until = soon(moment, source.choice((1, 40, 300)))
        closed = until + timedelta(seconds=source.choice((0, 10, 46, 600)))
        links.append(Connection(machine=machine, started_at=moment, ended_at=until, closed_at=closed))
        moment = until + timedelta(seconds=source.choice((0, 20, 60, 4000, 90_000)))
    if source.random() < 0.7:
        links.append(Connection(machine=machine, started_at=moment))
    if source.random() < 0.3:  # written before ends were noted as such
        for link in links:
            link.closed_at = None
    Connection.objects.bulk_create(links)
    for _ in range(source.randint(0, 4)):
        planned = some(begun)
        MaintenanceWindow.objects.create(
            machine=machine,
            starts_at=planned,
            ends_at=planned + timedelta(hours=source.uniform(0.5, 9)),
            declared_at=planned - timedelta(hours=source.choice((2, 24, 30, 400))),
            cancelled_at=planned - timedelta(hours=1) if source.random() < 0.2 else None,
        )
    for _ in range(source.randint(0, 2)):
        excused = some(begun)
        Excuse.objects.create(
            machine=machine, started_at=excused, ended_at=soon(excused), recorded_at=soon(excused, 500), reason="ours"
        )
    cards = list(machine.gpus.all())
    for card in cards:
        _random_card(card, source, begun=begun, some=some)
    for _ in range(source.randint(0, 12)):
        ended, cause = some(begun), source.choice(CAUSES)
        outcome = Outcome.objects.create(
            machine=machine,
            reference=uuid.uuid4(),
            at=ended,
            cause=cause,
            provider_fault=cause in ("gpu_lost", "machine_lost", "host_restart"),
            recorded_at=source.choice((ended, ended + timedelta(minutes=11))),
            cards=[card.pk for card in source.sample(cards, source.randint(0, len(cards)))],
        )
        if outcome.provider_fault:
            excused_at = soon(ended, 900) if source.random() < 0.3 else None
            Incident.objects.create(
                machine=machine, key=f"rental:{outcome.reference}", cause=cause, at=ended, reference=outcome.reference,
                excused_at=excused_at, excused_reason="ours" if excused_at else "",
            )  # fmt: skip


def _random_card(card: Gpu, source: Random, *, begun: datetime, some: Any) -> None:
    states = sorted(some(begun) for _ in range(source.choice((0, 0, 1, 4, 9))))
    Availability.objects.bulk_create(
        [
            Availability(
                gpu=card,
                at=moment,
                state=Availability.State.AVAILABLE if source.random() < 0.5 else source.choice(STATES),
            )
            for moment in states
        ]
    )
    runs(
        card,
        [(some(begun), source.uniform(60, 110), source.choice((None, 0.99, 0.8))) for _ in range(source.randint(0, 6))],
    )


def runs(card: Gpu, results: Sequence[tuple[datetime, float | None, float | None]]) -> None:
    """Accepted benchmark runs of a card: when, its performance, and its share under load."""
    spec = encrypt({})
    work = Workload.objects.bulk_create(
        [
            Workload(machine_id=card.machine_id, kind=Workload.Kind.BENCHMARK, spec=spec, gpu_uuids=[card.uuid])
            for _ in results
        ]
    )
    Benchmark.objects.bulk_create(
        [
            Benchmark(
                gpu=card,
                workload=workload,
                nonce="n",
                kernel_version="1",
                state=Benchmark.State.ACCEPTED,
                requested_at=at,
                received_at=at,
                performance=performance,
                details={} if sustained is None else {"sustained_ratio": sustained, "throttle_reasons": ["sw_thermal"]},
            )
            for workload, (at, performance, sustained) in zip(work, results, strict=True)
        ]
    )


def random_outages(source: Random, *, at: datetime, count: int = 3) -> None:
    for _ in range(count):
        start = at - timedelta(days=source.uniform(0, 95))
        end = start + timedelta(hours=source.uniform(0.1, 5))
        PlatformOutage.objects.create(
            started_at=start, ended_at=end, recorded_at=source.choice((None, start + timedelta(minutes=5), end))
        )


# Just after the clocks of the north were turned forward, and of the south back.
SPRING = datetime(2026, 4, 8, 9, 30, 11, 123_457, tzinfo=UTC)
AUTUMN = datetime(2026, 11, 10, 17, 5, 3, 999_999, tzinfo=UTC)

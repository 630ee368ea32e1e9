import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db import connection
from django.utils import timezone

from gpunex.kit.secrets import encrypt
from providers.models import Gpu, Machine, Schedule, Workload
from reliability import scores
from reliability.models import Benchmark, Connection, Outcome, Score
from tests.bench import rows
from tests.bench.measure import Measured, bench, lasts, queries_alone, seconds_of, undone

CONNECTIONS, JOBS, RUNS = 30, 60, 30


@bench("reliability")
def scoring(*, machines: int = 5000) -> Iterator[Measured]:
    """The scores of many machines, each with 90 days of connections, jobs and benchmark runs; a third by weekly hours."""
    at = timezone.now()
    owned = rows.machines(rows.provider(at=at), machines, gpus=1, at=at)
    _past(owned, at=at)
    _hours(owned)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")

    def refresh() -> None:
        assert scores.refresh(at=at) == machines

    with undone():
        bare = queries_alone(refresh)
    alone = seconds_of(bare)
    ours = seconds_of(refresh)
    assert Score.objects.filter(at=at).count() == machines
    yield lasts(f"score {machines} machines", ours, peer="reading the same rows", peer_seconds=alone, at_most=10)
    yield Measured(
        name="100,000 machines would take",
        value=round(100_000 * ours / machines, 1),
        unit="s",
        peer="reading the same rows",
        peer_value=round(100_000 * alone / machines, 1),
        ratio=round(ours / alone, 2),
        target="<= 120 s",
        ok=100_000 * ours / machines <= 120,
    )


def _hours(owned: list[Machine]) -> None:
    """Weekly hours for each third machine, in zones with clocks that change."""
    zones = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")
    for number, zone in enumerate(zones):
        for hour in range(3):
            Schedule.objects.filter(machine__in=owned[(number * 3 + hour) * 3 :: 36]).update(
                always=False,
                timezone=zone,
                windows=[[day, f"{18 + hour:02d}:00", "06:30"] for day in range(7)],
            )


def _past(owned: list[Machine], *, at: datetime) -> None:
    day = timedelta(days=1)
    Connection.objects.bulk_create(
        [
            Connection(
                machine=machine,
                boot_id="b",
                started_at=at - day * (number + 1),
                ended_at=at - day * number - timedelta(minutes=30) if number else None,
            )
            for machine in owned
            for number in range(CONNECTIONS)
        ],
        batch_size=rows.CHUNK,
    )
    Outcome.objects.bulk_create(
        [
            Outcome(
                machine=machine,
                reference=uuid.uuid4(),
                at=at - timedelta(hours=6 * number),
                recorded_at=at - timedelta(hours=6 * number),
                cause="gpu_lost" if number % 20 == 7 else "completed",
                provider_fault=number % 20 == 7,
            )
            for machine in owned
            for number in range(JOBS)
        ],
        batch_size=rows.CHUNK,
    )
    measured = [(card, number) for card in Gpu.objects.filter(machine__in=owned) for number in range(RUNS)]
    spec = encrypt({})
    work = Workload.objects.bulk_create(
        [
            Workload(machine_id=card.machine_id, kind=Workload.Kind.BENCHMARK, spec=spec, gpu_uuids=[card.uuid])
            for card, _ in measured
        ],
        batch_size=rows.CHUNK,
    )
    Benchmark.objects.bulk_create(
        [
            Benchmark(
                gpu=card,
                workload=workload,
                nonce="n",
                kernel_version="1",
                state=Benchmark.State.ACCEPTED,
                received_at=at - day * number,
                performance=98.0 - number % 5,
            )
            for (card, number), workload in zip(measured, work, strict=True)
        ],
        batch_size=rows.CHUNK,
    )

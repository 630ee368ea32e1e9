"""Weeks of past for the demonstration: connections, benchmarks, rentals, scores and first payouts.

Money is moved by the product's own rules only, with ``at`` in the past; rows that carry no money are written in bulk.
"""

import math
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import Max
from django.utils import timezone

from billing import metering, statements
from gpunex.accounts.models import Organisation, User
from gpunex.demo import bank, people
from gpunex.demo.market import RENTERS
from gpunex.kit.secrets import encrypt
from gpunex.kit.time import iso_z
from gpunex.policy.models import TierPolicy
from marketplace import lifecycle, listings, rentals
from marketplace.models import Job, Listing, Rental, RentalGpu, Request
from payouts import runs
from payouts.models import Payout
from providers.models import Gpu, GpuClaim, Machine, Provider, Workload, WorkloadLog
from reliability import incidents, scores
from reliability.models import Benchmark, Connection, Score

TASKS = (
    ("pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime", ["python", "train.py", "--epochs", "20"]),
    ("nvcr.io/nvidia/pytorch:25.09-py3", ["torchrun", "--nproc-per-node=gpu", "finetune.py"]),
    ("vllm/vllm-openai:v0.11.0", ["python", "batch_infer.py", "--input", "s3://prompts"]),
    ("linuxserver/blender:4.5.2", ["blender", "-b", "scene.blend", "-a"]),
    ("onerahmet/openai-whisper-asr-webservice:v1.9.1-gpu", ["python", "transcribe.py"]),
)
PAID_PROVIDERS = 8
RUNNING_NOW = 16


@dataclass(frozen=True)
class Stint:
    """One past rental: which GPUs, when, and how it ended."""

    gpus: tuple[Gpu, ...]
    start: datetime
    end: datetime
    cause: str


def write(*, days: int, at: datetime) -> None:
    source = random.Random(20261014)
    renters = [Organisation.objects.get(created_by__email=person.email) for person, _ in RENTERS]
    demo_renter = Organisation.objects.get(created_by__email=people.RENTER.email)
    machines = list(
        Machine.objects.live().filter(simulated=True).select_related("provider__organisation").order_by("name")
    )
    fees = {policy.tier: policy.fee_bps for policy in TierPolicy.objects.all()}
    past: list[tuple[Stint, Listing]] = []
    for machine in machines:
        began = at - timedelta(days=days) + timedelta(hours=source.uniform(0, 60))
        if not Connection.objects.filter(machine=machine, started_at__lt=at - timedelta(days=1)).exists():
            _backdate(machine, began)
            _connections(machine, began, source)
            _benchmarks(machine, began, source, at=at)
        for listing in Listing.objects.filter(machine=machine, price_micro__isnull=False).select_related(
            "gpu_model", "machine__provider"
        ):
            past += [(stint, listing) for stint in _stints(listing, began, source, at=at)]
    # In the order in which they ended, so that statements read as they would have been written.
    past.sort(key=lambda pair: pair[0].end)
    # Cut off the last time (kill -9): only what begins after all that was written, so that no GPU is rented twice.
    written = Rental.objects.filter(request__key__startswith="past-").aggregate(last=Max("ended_at"))["last"]
    for stint, listing in past:
        if written is None or stint.start > written + timedelta(minutes=1):
            renter = (
                demo_renter
                if source.random() < 0.04 and stint.end > at - timedelta(days=20)
                else source.choice(renters)
            )
            _rental(listing, renter, stint, fee_bps=fees[listing.tier], source=source)
    # Scored before there was a past: once more, week by week.
    Score.objects.filter(machine__in=machines).delete()
    for weeks_ago in (4, 3, 2, 1, 0):
        scores.refresh(at=at - timedelta(weeks=weeks_ago))
    listings.refresh(at=timezone.now())
    _run_some(renters, source)
    bank.open_accounts(at=timezone.now())
    _pay_some()
    bank.pay(at=timezone.now())
    statements.issue_months(at=timezone.now())


def _backdate(machine: Machine, began: datetime) -> None:
    Machine.objects.filter(pk=machine.pk).update(enrolled_at=began)
    machine.gpus.update(first_seen_at=began)
    machine.schedules.update(effective_from=began, created_at=began)
    Listing.objects.filter(machine=machine).update(created_at=began)


def _connections(machine: Machine, began: datetime, source: random.Random) -> None:
    """Connected since ``began`` but for a few outages; ends where the real connection begins."""
    current = Connection.objects.filter(machine=machine, ended_at=None).first()
    until = current.started_at if current else timezone.now()
    rows, start = [], began
    shaky = machine.tier == "community"
    for _ in range(source.choice((1, 2, 4) if shaky else (0, 0, 1))):
        end = start + (until - start) * source.uniform(0.1, 0.6)
        rows.append(Connection(machine=machine, started_at=start, ended_at=end))
        start = min(until, end + timedelta(minutes=source.uniform(8, 240 if shaky else 25)))
    rows.append(Connection(machine=machine, started_at=start, ended_at=until))
    Connection.objects.bulk_create(rows)


def _benchmarks(machine: Machine, began: datetime, source: random.Random, *, at: datetime) -> None:
    """Weekly runs before the real one, a little around its values."""
    real = list(Benchmark.objects.filter(gpu__machine=machine, state=Benchmark.State.ACCEPTED).select_related("gpu"))
    measures = (
        "fp16_tflops",
        "fp32_tflops",
        "tensor_tflops",
        "vram_read_gbps",
        "vram_write_gbps",
        "disk_read_mb_s",
        "disk_write_mb_s",
    )
    when = began + timedelta(minutes=12)
    while real and when < at - timedelta(days=3):
        workload = Workload.objects.create(
            machine=machine,
            kind=Workload.Kind.BENCHMARK,
            spec=encrypt({"suite": "gpu"}),
            gpu_uuids=[benchmark.gpu.uuid for benchmark in real],
            observed=Workload.Observed.FINISHED,
            wanted=Workload.Wanted.STOP,
            cause="completed",
            created_at=when,
            started_at=when,
            finished_at=when + timedelta(seconds=90),
        )
        rows = []
        for benchmark in real:
            drift = 1 + source.gauss(0, 0.004)
            values = {
                name: round(getattr(benchmark, name) * drift, 2)
                for name in measures
                if getattr(benchmark, name) is not None
            }
            rows.append(
                Benchmark(
                    gpu=benchmark.gpu,
                    workload=workload,
                    nonce=uuid.UUID(int=source.getrandbits(128)).hex,
                    kernel_version=benchmark.kernel_version,
                    state=Benchmark.State.ACCEPTED,
                    simulated=True,
                    requested_at=when,
                    received_at=when + timedelta(seconds=90),
                    latency_ms=benchmark.latency_ms,
                    download_mbps=benchmark.download_mbps,
                    upload_mbps=benchmark.upload_mbps,
                    performance=round(benchmark.performance * drift, 2) if benchmark.performance else None,
                    absolute=round(benchmark.absolute * drift, 2) if benchmark.absolute else None,
                    details=benchmark.details,
                    **values,
                )
            )
        Benchmark.objects.bulk_create(rows)
        when += timedelta(days=7)


def _stints(listing: Listing, began: datetime, source: random.Random, *, at: datetime) -> Iterator[Stint]:
    """Rentals one after another on the listing's GPUs, busier on working days, all over before now."""
    gpus = list(
        Gpu.objects.offerable().filter(machine=listing.machine, variant__model=listing.gpu_model).order_by("index")
    )
    if not gpus:
        return
    appetite = source.uniform(0.35, 0.85)
    when = began + timedelta(hours=source.uniform(1, 30))
    while True:
        hours = min(120.0, max(0.4, source.lognormvariate(3.1, 0.7)))
        end = when + timedelta(seconds=math.floor(hours * 3600))
        if when > at - timedelta(hours=2):
            return
        end = min(end, at - timedelta(seconds=source.randrange(1200, 3600)))
        count = min(len(gpus), source.choice((1, 1, 2, 2, 4, 8)))
        first = source.randrange(len(gpus) - count + 1)
        roll = source.random()
        cause = (
            "completed"
            if roll < 0.72
            else "stopped"
            if roll < 0.93
            else "exit_nonzero"
            if roll < 0.985
            else "host_restart"
        )
        yield Stint(tuple(gpus[first : first + count]), when, end, cause)
        when = end + timedelta(hours=hours * (1 - appetite) / appetite * source.uniform(0.5, 1.5) + 0.2)


@transaction.atomic
def _rental(listing: Listing, renter: Organisation, stint: Stint, *, fee_bps: int, source: random.Random) -> None:
    """A past rental whose money went through a meter of its own."""
    assert listing.price_micro is not None  # the demo prices each listing before its past begins
    image, command = source.choice(TASKS)
    machine, provider = listing.machine, listing.machine.provider
    start, end = stint.start, stint.end
    asked = start - timedelta(seconds=source.randrange(3, 14))
    fault = stint.cause in Rental.PROVIDER_CAUSES
    request = Request.objects.create(
        organisation=renter,
        created_by=renter.created_by,
        key=f"past-{uuid.UUID(int=source.getrandbits(128)).hex}",
        image=image,
        command=command,
        gpu_count=len(stint.gpus),
        gpu_model=listing.gpu_model,
        created_at=asked,
    )
    rental = Rental(
        request=request,
        organisation=renter,
        listing=listing,
        provider=provider,
        price_micro=listing.price_micro,
        fee_bps=fee_bps,
        tier=listing.tier,
        gpu_count=len(stint.gpus),
        state=Rental.State.ENDED,
        created_at=asked,
        running_at=start,
        ended_at=end,
        cause=stint.cause,
        provider_fault=fault,
    )
    meter = metering.open_meter(
        payer=renter,
        payee=provider.organisation,
        rate_micro_per_hour=listing.price_micro * len(stint.gpus),
        quantity=len(stint.gpus),
        fee_bps=fee_bps,
        reference=rental.public_id,
        labels=lifecycle.meter_labels(rental=rental, gpus=stint.gpus),
        at=start,
    )
    metering.prove(until={meter.pk: end})
    rental.meter = metering.close_meter(meter=meter, ended_at=end, at=end)
    rental.save()
    RentalGpu.objects.bulk_create(
        RentalGpu(rental=rental, gpu=gpu, position=index) for index, gpu in enumerate(stint.gpus)
    )
    GpuClaim.objects.bulk_create(
        GpuClaim(gpu=gpu, period=DateTimeTZRange(asked, end), kind=GpuClaim.Kind.RENTAL, reference=rental.public_id)
        for gpu in stint.gpus
    )
    workload = Workload.objects.create(
        machine=machine,
        kind=Workload.Kind.JOB,
        spec=encrypt({"image": image, "command": command, "env": {}}),
        gpu_uuids=[gpu.uuid for gpu in stint.gpus],
        wanted=Workload.Wanted.STOP,
        observed=Workload.Observed.FINISHED,
        observed_at=end,
        container_started_at=start,
        started_at=start,
        finished_at=end,
        exit_code={"completed": 0, "exit_nonzero": 1, "stopped": 143}.get(stint.cause),
        cause=stint.cause,
        created_at=asked,
    )
    Job.objects.create(rental=rental, workload=workload)
    text = _log(stint, source)
    WorkloadLog.objects.create(
        workload=workload, attempt=1, offset=0, length=len(text.encode()), text=text, received_at=end
    )
    incidents.record_outcome(
        machine=machine, reference=rental.public_id, cause=stint.cause, provider_fault=fault, at=end
    )
    if fault:
        incidents.record_incident(
            machine=machine,
            key=f"rental:{rental.public_id}",
            cause=stint.cause,
            at=end,
            reference=rental.public_id,
            evidence={"at": iso_z(end)},
        )


def _log(stint: Stint, source: random.Random) -> str:
    """What a past job printed; it says that it is made up, as the simulated engine does."""
    lines = ["[simulated] No GPU and no container stood behind this job: its output is made up."]
    loss = source.uniform(2.2, 3.4)
    for epoch in range(1, 21):
        loss *= source.uniform(0.86, 0.96)
        lines.append(f"epoch {epoch:>2}/20  loss {loss:.4f}")
    ending = {"completed": "done", "stopped": "interrupted", "exit_nonzero": "RuntimeError: non-finite loss, stopping"}
    return "\n".join([*lines, ending.get(stint.cause, "")]).rstrip() + "\n"


def _run_some(renters: list[Organisation], source: random.Random) -> None:
    """Rentals that run now, started through the product's own door; the simulated hosts run them."""
    at = timezone.now()
    open_now = list(Listing.objects.open(at).best_first().select_related("machine"))
    source.shuffle(open_now)
    for listing in open_now[:RUNNING_NOW]:
        renter = source.choice(renters)
        image, _ = source.choice(TASKS)
        rentals.start_rental(
            organisation=renter,
            by=renter.created_by,
            listing=listing,
            gpu_count=min(listing.gpus_free, source.choice((1, 2, 2, 4))),
            image=image,
            command=["sh", "-c", f"echo starting; sleep {source.randrange(6, 30) * 3600}; echo done"],
            environment={},
            stop_after_seconds=None,
            spend_at_most_micro=None,
            key=f"now-{listing.public_id}",
            expected_price_micro=listing.price_micro,
            at=at,
        )


def _pay_some() -> None:
    """First payouts, signed and sent on the development chain by the payout sweep."""
    admin = User.objects.get(email=people.ADMIN.email)
    shown = [people.PROVIDER.email, people.PROVIDER_AR.email]
    if Payout.objects.exists():
        return
    chosen = list(Provider.objects.filter(organisation__created_by__email__in=shown))
    chosen += list(
        Provider.objects.exclude(pk__in=[provider.pk for provider in chosen]).order_by("pk")[
            : PAID_PROVIDERS - len(chosen)
        ]
    )
    for provider in chosen:
        runs.pay_off_cycle(
            organisation=provider.organisation, by=admin, reason="First payout of the demonstration", at=timezone.now()
        )

"""Rows to measure with, many at a time."""

import itertools
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

from billing import ledger
from billing.ledger import Kind, Move
from billing.models import Account, Meter
from gpunex.accounts.models import Membership, Organisation, User
from marketplace.models import Listing
from providers.models import EnrolmentKey, Gpu, GpuModel, GpuVariant, Machine, Provider, Schedule

_numbers = itertools.count(1)
CHUNK = 2000
USDC = 1_000_000


def organisations(count: int, *, at: datetime) -> list[Organisation]:
    users = User.objects.bulk_create(
        [
            User(email=f"{uuid.uuid4().hex}@bench.gpunex.example", full_name=f"Person {next(_numbers)}", password="!")
            for _ in range(count)
        ],
        batch_size=CHUNK,
    )
    made = Organisation.objects.bulk_create(
        [Organisation(name=user.full_name, created_by=user, created_at=at) for user in users], batch_size=CHUNK
    )
    Membership.objects.bulk_create(
        [Membership(user=user, organisation=organisation) for user, organisation in zip(users, made, strict=True)],
        batch_size=CHUNK,
    )
    return made


def accounts(owners: Sequence[Organisation], kind: Kind) -> list[Account]:
    return Account.objects.bulk_create(
        [
            Account(code=f"{kind}:{owner.public_id}", kind=str(kind), organisation=owner, floor_micro=0)
            for owner in owners
        ],
        batch_size=CHUNK,
    )


def fund(owned: Sequence[Account], micro: int, *, at: datetime) -> None:
    """A deposit into each balance, through the ledger."""
    treasury = ledger.account(Kind.TREASURY)
    for batch in itertools.batched(owned, CHUNK):
        ledger.post_all(
            [
                ledger.Posting(
                    key=f"deposit:{uuid.uuid4()}", debit=treasury, credit=account, amount_micro=micro, kind=Move.DEPOSIT
                )
                for account in batch
            ],
            at=at,
        )


def meters(
    count: int, *, payers: Sequence[Organisation], payees: Sequence[Organisation], start: datetime, until: datetime
) -> list[Meter]:
    """Running meters, proved and funded until ``until``, none of it billed yet."""
    return Meter.objects.bulk_create(
        [
            Meter(
                payer=payers[number % len(payers)],
                payee=payees[number % len(payees)],
                reference=str(uuid.uuid4()),
                labels={
                    "rental": f"r-{number}",
                    "model": "H100 80GB",
                    "machine": "fra-1",
                    "gpus": [],
                    "image": "busybox",
                },
                rate_micro_per_hour=2_000_000 + number % 997,
                quantity=1,
                fee_bps=1000,
                started_at=start,
                proved_until=until,
                funded_until=until,
                settled_at=start,
            )
            for number in range(count)
        ],
        batch_size=CHUNK,
    )


def provider(*, at: datetime) -> Provider:
    [organisation] = organisations(1, at=at)
    return Provider.objects.create(organisation=organisation, tier="community", approved_at=at, commitment_months=3)


def machines(owner: Provider, count: int, *, gpus: int, at: datetime, slug: str = "rtx-4090-24gb") -> list[Machine]:
    """Connected hosts around the clock, their cards measured and admitted."""
    key = EnrolmentKey.objects.create(
        provider=owner,
        kind=EnrolmentKey.Kind.API_KEY,
        name="bench",
        prefix=f"gpxk_{next(_numbers)}",
        hash=uuid.uuid4().hex * 2,
        created_by=owner.organisation.created_by,
    )
    made = Machine.objects.bulk_create(
        [
            Machine(
                provider=owner,
                enrolled_with=key,
                name=f"host-{next(_numbers)}",
                fingerprint=uuid.uuid4().hex,
                tier=owner.tier,
                country="DE",
                city="Leipzig",
                secret_hash=uuid.uuid4().hex * 2,
                cuda_version="13.0",
                driver_version="580.95.05",
                boot_id="boot-1",
                last_seen_at=at,
                connected_since=at - timedelta(days=30),
                enrolled_at=at - timedelta(days=40),
            )
            for _ in range(count)
        ],
        batch_size=CHUNK,
    )
    Schedule.objects.bulk_create(
        [
            Schedule(
                machine=machine,
                effective_from=at - timedelta(days=40),
                created_at=at - timedelta(days=40),
                timezone="UTC",
                always=True,
            )
            for machine in made
        ],
        batch_size=CHUNK,
    )
    variant = GpuVariant.objects.filter(model__slug=slug).first()
    assert variant is not None
    Gpu.objects.bulk_create(
        [
            Gpu(
                machine=machine,
                uuid=f"GPU-{uuid.uuid4()}",
                index=index,
                variant=variant,
                name=variant.nvml_names[0],
                vram_mib=variant.vram_mib_least,
                admitted=True,
                performance=98.0,
                benchmarked_at=at - timedelta(hours=1),
                first_seen_at=at - timedelta(days=40),
            )
            for machine in made
            for index in range(gpus)
        ],
        batch_size=CHUNK,
    )
    return made


def listings(owned: Sequence[Machine], *, at: datetime) -> list[Listing]:
    """One offer a machine, over all models and a range of prices."""
    models = list(GpuModel.objects.all())
    return Listing.objects.bulk_create(
        [
            Listing(
                machine=machine,
                gpu_model=models[number % len(models)],
                price_micro=300_000 + number * 7919 % 2_000_000,
                state=Listing.State.OFFERED,
                tier=machine.tier,
                country=machine.country,
                city=machine.city,
                region="EU",
                gpus_total=8,
                gpus_free=number % 9,
                vram_gib=24,
                reliability=90 + number % 100 / 10,
                reliability_new=False,
                performance=95 + number % 50 / 10,
                rank=number * 31 % 1000 / 10,
                cuda_version="13.0",
                download_mbps=1000.0,
                upload_mbps=1000.0,
                disk_read_mb_s=3000.0,
                refreshed_at=at,
            )
            for number, machine in enumerate(owned)
        ],
        batch_size=CHUNK,
    )

"""A small market: hosts of several providers with cards that were measured and priced, and renters with money."""

import itertools
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from billing import ledger, metering
from billing.ledger import Kind, Move, Posting
from billing.models import Account
from gpunex.accounts.models import Organisation, User
from gpunex.accounts.organisations import open_personal
from marketplace import listings, pricing, rentals
from marketplace.models import Listing, Rental
from providers import workloads
from providers.models import EnrolmentKey, Gpu, GpuModel, GpuVariant, Machine, Provider, Schedule, Workload
from providers.workloads import Report

USDC = 1_000_000
_numbers = itertools.count(1)


def person(name: str = "someone", **fields: Any) -> User:
    return User.objects.create_user(
        f"{name}-{next(_numbers)}-{uuid.uuid4().hex[:6]}@example.org", full_name=name, **fields
    )


def renter_with(micro: int, *, at: datetime, name: str = "renter") -> Organisation:
    organisation = open_personal(user=person(name), at=at)
    if micro:
        fund(organisation, micro, at=at)
    return organisation


def fund(organisation: Organisation, micro: int, *, at: datetime) -> None:
    """Money as a deposit would bring it."""
    posting = Posting(
        key=f"deposit:{uuid.uuid4()}",
        debit=ledger.account(Kind.TREASURY),
        credit=ledger.account(Kind.RENTER_BALANCE, organisation=organisation),
        amount_micro=micro,
        kind=Move.DEPOSIT,
    )
    metering.move_and_fund(organisation=organisation, postings=[posting], at=at)


def provider(*, name: str = "Rawasi Compute", tier: str = "community", months: int = 3, at: datetime) -> Provider:
    organisation = open_personal(user=person(name), at=at)
    return Provider.objects.create(organisation=organisation, tier=tier, approved_at=at, commitment_months=months)


def machine(
    owner: Provider,
    *,
    at: datetime,
    gpus: int = 2,
    model: str = "l4-24gb",
    country: str = "DE",
    measured: bool = True,
    **fields: Any,
) -> Machine:
    """A connected host, around the clock, with cards that can be rented once a price is asked."""
    number = next(_numbers)
    key = EnrolmentKey.objects.create(
        provider=owner,
        kind=EnrolmentKey.Kind.API_KEY,
        name="test",
        prefix=f"gpxk_{number}",
        hash=uuid.uuid4().hex * 2,
        created_by=owner.organisation.created_by,
    )
    host = Machine.objects.create(
        **{
            "provider": owner,
            "enrolled_with": key,
            "name": f"fra-{number}",
            "fingerprint": uuid.uuid4().hex,
            "tier": owner.tier,
            "country": country,
            "city": "Frankfurt",
            "secret_hash": uuid.uuid4().hex * 2,
            "cuda_version": "12.8",
            "driver_version": "580.95.05",
            "last_seen_at": at,
            "connected_since": at,
            "enrolled_at": at,
            **fields,
        }
    )
    Schedule.objects.create(machine=host, effective_from=at - timedelta(days=30), timezone="UTC", always=True)
    variant = GpuVariant.objects.filter(model__slug=model).first()
    for index in range(gpus):
        Gpu.objects.create(
            machine=host,
            uuid=f"GPU-{uuid.uuid4()}",
            index=index,
            variant=variant,
            name=variant.nvml_names[0],
            vram_mib=variant.vram_mib_least,
            admitted=True,
            performance=98.0 if measured else None,
            benchmarked_at=at - timedelta(hours=1) if measured else None,
            first_seen_at=at,
        )
    return host


def offer(
    *, at: datetime, price: int = USDC, owner: Provider | None = None, model: str = "l4-24gb", **fields: Any
) -> Listing:
    """A listing that can be rented now."""
    owner = owner or provider(at=at)
    host = machine(owner, at=at, model=model, **fields)
    pricing.set_price(provider=owner, gpu_model=GpuModel.objects.get(slug=model), price_micro=price, by=None, at=at)
    listings.refresh(at=at, machines=[host])
    return Listing.objects.get(machine=host)


def rent(organisation: Organisation, listing: Listing, *, at: datetime, **changes: Any) -> Rental:
    wanted: dict[str, Any] = {
        "organisation": organisation,
        "by": organisation.created_by,
        "listing": listing,
        "gpu_count": 1,
        "image": "ubuntu:24.04",
        "command": ["nvidia-smi"],
        "environment": {},
        "stop_after_seconds": None,
        "spend_at_most_micro": None,
        "key": uuid.uuid4().hex,
        "expected_price_micro": listing.price_micro,
        "at": at,
    }
    return rentals.start_rental(**wanted | changes)


def report(rental: Rental, state: str, *, at: datetime, **fields: Any) -> Rental:
    """What the machine says, and what the marketplace makes of it, as the agent's door does."""
    workload = rental.job.workload
    said = workloads.report(
        machine=workload.machine,
        workload_id=workload.public_id,
        report=Report(attempt=workload.attempt, state=state, at=at, **fields),
        at=at,
    )
    rentals.heard(workload=said, at=at)
    return Rental.objects.get(pk=rental.pk)


def heartbeat(rental: Rental, *, at: datetime) -> None:
    workload = Workload.objects.get(job__rental=rental)
    Machine.objects.filter(pk=workload.machine_id).update(last_seen_at=at)
    workloads.prove(machine=workload.machine, running={workload.public_id: (workload.attempt, None)}, at=at)
    rentals.prove(at=at)


def run_for(rental: Rental, seconds: int, *, at: datetime) -> datetime:
    """Running from ``at`` on, and heard of until ``seconds`` later; the time it then is."""
    report(rental, "running", at=at)
    until = at + timedelta(seconds=seconds)
    heartbeat(rental, at=until)
    return until


def owned(organisation: Organisation, kind: Kind = Kind.RENTER_BALANCE) -> int:
    account = Account.objects.filter(code=f"{kind}:{organisation.public_id}").first()
    return account.balance_micro if account else 0


@pytest.fixture
def noon() -> datetime:
    """A Wednesday noon: no midnight and no period's end is near."""
    return datetime(2026, 10, 14, 12, 0, tzinfo=UTC)


@pytest.fixture
def renter(db: None, noon: datetime) -> Organisation:
    return renter_with(100 * USDC, at=noon - timedelta(hours=1))


@pytest.fixture
def listing(db: None, noon: datetime) -> Listing:
    return offer(at=noon)

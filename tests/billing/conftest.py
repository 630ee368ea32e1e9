"""A renter with money, and those who earn it."""

import itertools
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from billing import ledger, metering
from billing.ledger import Kind, Move, Posting
from billing.models import Account, Meter
from gpunex.accounts.models import Organisation, User
from gpunex.accounts.organisations import open_personal

_numbers = itertools.count(1)
USDC = 1_000_000


def person(name: str = "someone", **fields: object) -> User:
    return User.objects.create_user(
        f"{name}-{next(_numbers)}-{uuid.uuid4().hex[:6]}@example.org", None, full_name=name, **fields
    )


def organisation(name: str = "someone") -> Organisation:
    return open_personal(user=person(name), at=datetime.now(UTC))


def fund(org: Organisation, micro: int, *, at: datetime) -> None:
    """Money as a deposit would bring it."""
    metering.move_and_fund(
        organisation=org,
        postings=[
            Posting(
                key=f"deposit:{uuid.uuid4()}",
                debit=ledger.account(Kind.TREASURY),
                credit=ledger.account(Kind.RENTER_BALANCE, organisation=org),
                amount_micro=micro,
                kind=Move.DEPOSIT,
            )
        ],
        at=at,
    )


def start_meter(
    payer: Organisation,
    payee: Organisation,
    *,
    at: datetime,
    rate: int = 2_500_000,
    fee_bps: int = 800,
    quantity: int = 1,
) -> Meter:
    return metering.open_meter(
        payer=payer,
        payee=payee,
        rate_micro_per_hour=rate,
        quantity=quantity,
        fee_bps=fee_bps,
        reference=uuid.uuid4(),
        labels={
            "rental": "r-1",
            "model": "H100 80GB",
            "machine": "fra-1",
            "gpus": [{"id": "GPU-a", "index": 0}],
            "image": "busybox",
        },
        at=at,
    )


def owned(org: Organisation, kind: Kind = Kind.RENTER_BALANCE) -> int:
    return Account.objects.get(code=f"{kind}:{org.public_id}").balance_micro


@pytest.fixture
def noon() -> datetime:
    """A Wednesday noon: no midnight and no period's end is near."""
    return datetime(2026, 10, 14, 12, 0, tzinfo=UTC)


@pytest.fixture
def renter(db: None, noon: datetime) -> Organisation:
    org = organisation("renter")
    fund(org, 100 * USDC, at=noon - timedelta(hours=1))
    return org


@pytest.fixture
def provider(db: None) -> Organisation:
    return organisation("provider")


@pytest.fixture
def make_organisation(db: None) -> Callable[..., Organisation]:
    return organisation

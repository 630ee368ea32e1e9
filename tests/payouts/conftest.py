"""A provider who earned something, a treasury that holds it on chain, and administrators."""

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pytest_django import Settings
from solders.keypair import Keypair

from billing import deposits, ledger, metering, treasury
from billing.ledger import Kind, Move, Posting
from billing.models import Account
from gpunex.accounts.models import Organisation, User
from payouts import failpoints, usdc
from payouts.models import Payout, PayoutMethod
from tests import chainkit
from tests.billing.conftest import USDC, organisation, owned, person
from tests.wallets import connect_wallet

__all__ = ["USDC", "organisation", "owned", "person"]


def earn(org: Organisation, micro: int, *, at: datetime) -> None:
    """Earnings in the books and the same money in the treasury on chain, as deposit, sweep and charge would leave them."""
    _bring(org, micro, kind=Kind.PROVIDER_PAYABLE, at=at)
    Account.objects.filter(kind=Kind.PROVIDER_PAYABLE, organisation=org, created_at__gt=at).update(created_at=at)


def fill(org: Organisation, micro: int, *, at: datetime) -> None:
    """A prepaid balance in the books and the same money in the treasury on chain, as deposit and sweep would leave it."""
    _bring(org, micro, kind=Kind.RENTER_BALANCE, at=at)


def _bring(org: Organisation, micro: int, *, kind: str, at: datetime) -> None:
    chainkit.give(treasury.address(), micro)
    deposits.find_deposits(at=at)
    metering.move_and_fund(
        organisation=org,
        postings=[
            Posting(
                key=f"brought:{uuid.uuid4()}",
                debit=ledger.account(Kind.UNMATCHED),
                credit=ledger.account(kind, organisation=org),
                amount_micro=micro,
                kind=Move.ADJUSTMENT,
            )
        ],
        at=at,
    )


def connect(org: Organisation, *, at: datetime, key: Keypair | None = None) -> PayoutMethod:
    return connect_wallet(org, at=at, key=key)


def provider_with(micro: int, *, at: datetime, key: Keypair | None = None) -> Organisation:
    org = organisation("provider")
    earn(org, micro, at=at)
    connect(org, at=at, key=key)
    return org


def run_until_done(payout: Payout, *, at: datetime, most: int = 12) -> Payout:
    """Let the sweep pass again and again, its clock five seconds on each time."""
    for step in range(most):
        usdc.advance(at=at + timedelta(seconds=5 * step))
        payout.refresh_from_db()
        if payout.state in (Payout.State.PAID, Payout.State.FAILED, Payout.State.REVIEW):
            break
    return payout


@pytest.fixture(autouse=True)
def mended(devchain: object, settings: Settings, tmp_path: Path) -> Iterator[None]:
    settings.TREASURY_KEY_FILE = chainkit.open_treasury(tmp_path)
    yield
    failpoints.arm(None)
    chainkit.faults(reset=True)


@pytest.fixture
def at(db: None) -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def admin(db: None) -> User:
    return person("admin", is_staff=True, is_superuser=True)


@pytest.fixture
def second_admin(db: None) -> User:
    return person("second", is_staff=True, is_superuser=True)


@pytest.fixture
def provider(at: datetime) -> Organisation:
    return provider_with(30 * USDC, at=at)


@pytest.fixture
def wallet_of() -> Callable[[Organisation], str]:
    return lambda org: PayoutMethod.objects.get(organisation=org).address

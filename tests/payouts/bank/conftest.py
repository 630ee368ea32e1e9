"""Providers that are paid by bank, a rate, administrators, and what a bank would answer."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from billing import ledger
from billing.ledger import Kind, Move
from billing.models import Account
from gpunex.accounts.models import Organisation, User
from payouts import methods
from payouts.bank import details, rates
from payouts.models import Cadence, FxRate, PayoutMethod, PayoutPreference, Rail
from tests.billing.conftest import USDC, organisation, owned, person

__all__ = ["USDC", "organisation", "owned", "person"]

IBAN = "DE89370400440532013000"
IBANS = (
    "DE89370400440532013000",
    "NL91ABNA0417164300",
    "IE29AIBK93115212345678",
    "ES9121000418450200051332",
    "FR1420041010050500013M02606",
)
ROUTING = "021000021"


def sepa_account(
    org: Organisation, *, at: datetime, iban: str = IBAN, name: str = "Nour", bic: str = ""
) -> PayoutMethod:
    return methods.keep_method(
        organisation=org,
        rail=Rail.SEPA,
        by=org.created_by,
        at=at,
        details=details.sepa_details(name=name, iban=iban, bic=bic),
        masked=details.mask_iban(iban),
        country=iban[:2],
    )


def ach_account(
    org: Organisation, *, at: datetime, account: str = "000123456789", name: str = "Nour", holder: str = details.PERSON
) -> PayoutMethod:
    return methods.keep_method(
        organisation=org,
        rail=Rail.ACH,
        by=org.created_by,
        at=at,
        details=details.ach_details(
            name=name, holder=holder, routing=ROUTING, account=account, account_type=details.CHECKING
        ),
        masked=details.mask_account(account),
        country="US",
    )


def credit(org: Organisation, micro: int, *, at: datetime) -> None:
    ledger.post(
        key=str(uuid.uuid4()),
        debit=ledger.account(Kind.ADJUSTMENTS),
        credit=ledger.account(Kind.PROVIDER_PAYABLE, organisation=org),
        amount_micro=micro,
        kind=Move.ADJUSTMENT,
        at=at,
    )


def earner(
    micro: int, *, at: datetime, rail: str = Rail.SEPA, cadence: str = Cadence.WEEKLY, **account: Any
) -> Organisation:
    """Somebody who earned ``micro`` at ``at`` and is paid by bank."""
    org = organisation("provider")
    payable = ledger.account(Kind.PROVIDER_PAYABLE, organisation=org)
    Account.objects.filter(pk=payable.pk).update(created_at=at)
    credit(org, micro, at=at)
    (sepa_account if rail == Rail.SEPA else ach_account)(org, at=at, **account)
    PayoutPreference.objects.update_or_create(organisation=org, defaults={"cadence": cadence, "rail": rail})
    return org


def quote(currency: str, micro_per_unit: int, *, by: User, at: datetime, ago: timedelta = timedelta(hours=1)) -> FxRate:
    return rates.enter(
        currency=currency,
        micro_per_unit=micro_per_unit,
        source="Bank of Tests",
        quoted_at=at - ago,
        by=by,
        at=at,
        sure=True,
    )


@pytest.fixture
def at(db: None) -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def admin(db: None) -> User:
    return person("admin", is_staff=True, is_superuser=True)


@pytest.fixture
def second_admin(db: None) -> User:
    return person("second", is_staff=True, is_superuser=True)


@pytest.fixture(autouse=True)
def mended() -> None:
    """In place of the chain that the tests of other payouts need."""


@pytest.fixture
def payable() -> Callable[[Organisation], int]:
    return lambda org: owned(org, Kind.PROVIDER_PAYABLE)

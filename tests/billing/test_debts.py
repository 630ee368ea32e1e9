"""What a provider owes: noted once, taken from earnings oldest first, never more than is payable, and proved by the books."""

import uuid
from datetime import datetime

import pytest
from django.db import transaction
from django.urls import reverse

from billing import debts, ledger
from billing.ledger import Kind, Move
from billing.models import ProviderDebt, Transfer
from gpunex.accounts.models import Notice, Organisation
from providers.models import Provider

from .conftest import USDC, owned
from .test_views import client_of, text_of


def earn(provider: Organisation, micro: int, *, at: datetime) -> None:
    ledger.post(
        key=str(uuid.uuid4()),
        debit=ledger.account(Kind.ADJUSTMENTS),
        credit=ledger.account(Kind.PROVIDER_PAYABLE, organisation=provider),
        amount_micro=micro,
        kind=Move.ADJUSTMENT,
        at=at,
    )


def recover(provider: Organisation, *, limit: int, at: datetime) -> int:
    with transaction.atomic():
        return debts.recover(organisation=provider, at=at, limit_micro=limit)


@pytest.mark.spec("H1")
def test_a_debt_is_noted_once_and_its_owner_is_told(provider: Organisation, noon: datetime) -> None:
    first = debts.owe(organisation=provider, reference="rental-1", amount_micro=5 * USDC, at=noon)
    assert debts.owe(organisation=provider, reference="rental-1", amount_micro=5 * USDC, at=noon) == first
    assert debts.open_debt(provider) == 5 * USDC
    assert Notice.objects.filter(organisation=provider, event="debt_owed").count() == 1


def test_the_oldest_is_recovered_first_and_never_more_than_the_limit_or_the_earnings(
    provider: Organisation, noon: datetime
) -> None:
    first = debts.owe(organisation=provider, reference="r1", amount_micro=3 * USDC, at=noon)
    second = debts.owe(organisation=provider, reference="r2", amount_micro=4 * USDC, at=noon)
    assert recover(provider, limit=10 * USDC, at=noon) == 0
    earn(provider, 5 * USDC, at=noon)
    assert recover(provider, limit=2 * USDC, at=noon) == 2 * USDC
    assert recover(provider, limit=100 * USDC, at=noon) == 3 * USDC
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.state, first.closed_at, first.open_micro) == (ProviderDebt.State.RECOVERED, noon, 0)
    assert (second.state, second.open_micro) == (ProviderDebt.State.OPEN, 2 * USDC)
    assert owned(provider, Kind.PROVIDER_PAYABLE) == 0
    assert ledger.balance(ledger.account(Kind.CREDITS)) == 5 * USDC
    earn(provider, 9 * USDC, at=noon)
    assert recover(provider, limit=100 * USDC, at=noon) == 2 * USDC
    assert recover(provider, limit=100 * USDC, at=noon) == 0
    assert owned(provider, Kind.PROVIDER_PAYABLE) == 7 * USDC
    assert ledger.verify_books().problems == []
    assert [debt.reference for debt in debts.recent(provider)] == ["r2", "r1"]


def test_every_recovery_has_a_key_of_its_own_made_of_what_was_recovered_before(
    provider: Organisation, noon: datetime
) -> None:
    debt = debts.owe(organisation=provider, reference="r", amount_micro=10, at=noon)
    earn(provider, 10, at=noon)
    for _ in range(3):
        recover(provider, limit=3, at=noon)
    keys = set(Transfer.objects.filter(kind=Move.RECOVERY).values_list("key", flat=True))
    assert keys == {f"debt:{debt.public_id}:recovered_after:{done}" for done in (0, 3, 6)}


def test_a_debt_that_says_more_than_its_transfers_is_found(provider: Organisation, noon: datetime) -> None:
    debt = debts.owe(organisation=provider, reference="r", amount_micro=10, at=noon)
    ProviderDebt.objects.filter(pk=debt.pk).update(recovered_micro=4)
    assert any(str(debt.public_id) in problem for problem in ledger.verify_books().problems)


@pytest.mark.spec("H1")
def test_the_payouts_tab_says_what_is_still_owed(provider: Organisation, noon: datetime) -> None:
    Provider.objects.create(organisation=provider, tier="community", approved_at=noon, commitment_months=3)
    page = reverse("providers:payouts")
    client = client_of(provider)
    assert "taken from the next earnings" not in text_of(client.get(page).content)
    debts.owe(organisation=provider, reference=str(uuid.uuid4()), amount_micro=5 * USDC, at=noon)
    earn(provider, 2 * USDC, at=noon)
    recover(provider, limit=2 * USDC, at=noon)
    text = text_of(client.get(page).content)
    assert "3.00 USDC are taken from the next earnings" in text

"""The provider's Payouts tab: what is payable, kept, owed and on its way, and each payout with all that it can be looked up by."""

from datetime import datetime

import pytest
from django.urls import reverse

from billing import debts
from billing.models import Statement
from gpunex.accounts.models import Organisation, User
from payouts import returns, runs
from payouts.models import Payout
from providers.models import Provider
from tests.billing.test_views import client_of, text_of

from .conftest import USDC, connect, earn, fill, organisation, run_until_done


@pytest.fixture
def earner(at: datetime) -> Organisation:
    org = organisation("provider")
    Provider.objects.create(organisation=org, tier="community", approved_at=at, commitment_months=3)
    earn(org, 30 * USDC, at=at)
    connect(org, at=at)
    return org


@pytest.mark.spec("G2", "H2")
def test_each_payout_stands_with_state_transaction_fee_and_statement(
    earner: Organisation, admin: User, at: datetime
) -> None:
    payout = runs.pay_off_cycle(organisation=earner, by=admin, reason="x", at=at, amount_micro=12 * USDC)
    run_until_done(payout, at=at)
    page = client_of(earner).get(reverse("providers:payouts")).content
    shown, statement = text_of(page), Statement.objects.get(reference=str(payout.public_id))
    assert payout.attempts.get().signature in page.decode()
    for part in ("Paid, final on chain", "12.000000", "SOL", statement.full_number, "USDC on Solana"):
        assert part in shown, part
    assert reverse("billing:statement", args=[statement.public_id]) in page.decode()


@pytest.mark.spec("G2")
def test_what_is_owed_is_said_with_why_and_comes_off_the_next_payout(earner: Organisation, at: datetime) -> None:
    debts.owe(organisation=earner, reference="3a0d5f6e-rental", amount_micro=4 * USDC, at=at)
    shown = text_of(client_of(earner).get(reverse("providers:payouts")).content)
    assert "4.00 USDC are taken from the next earnings" in shown
    assert "26.00" in shown  # in the next payout so far


def test_a_return_of_balance_is_no_payout_of_earnings(earner: Organisation, at: datetime) -> None:
    fill(earner, 5 * USDC, at=at)
    returns.ask_back(organisation=earner, amount_micro=5 * USDC, by=earner.created_by, at=at, key="k")
    assert Payout.objects.count() == 1
    shown = text_of(client_of(earner).get(reverse("providers:payouts")).content)
    assert "No payout yet" in shown
    assert "5.000000" not in shown


def test_the_tab_of_many_payouts_asks_few_questions(
    earner: Organisation, admin: User, at: datetime, django_assert_max_num_queries: object
) -> None:
    for _ in range(4):
        runs.pay_off_cycle(organisation=earner, by=admin, reason="x", at=at, amount_micro=USDC)
    client = client_of(earner)
    client.get(reverse("providers:payouts"))
    with django_assert_max_num_queries(45):  # type: ignore[operator]
        client.get(reverse("providers:payouts"))

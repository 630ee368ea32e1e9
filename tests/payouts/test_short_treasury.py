"""A treasury that runs short: what lies on deposit addresses is brought in for the payout, be it dust."""

import uuid
from datetime import datetime, timedelta

import pytest

from billing import collecting, deposits, ledger, metering, treasury
from billing.ledger import Kind, Move, Posting
from gpunex.accounts.models import User
from payouts import books, runs, usdc
from payouts.models import Payout
from tests import chainkit
from tests.payouts.conftest import connect, organisation


@pytest.mark.spec("F2", "H2")
def test_money_left_on_deposit_addresses_is_brought_in_when_a_payout_needs_it(admin: User, at: datetime) -> None:
    """Three renters pay less than is ever collected by itself; what they paid is all that their provider earned."""
    provider = organisation("provider")
    connect(provider, at=at)
    earlier = at - timedelta(minutes=1)
    for number in range(3):
        renter = organisation(f"renter {number}")
        chainkit.give(deposits.address_for(renter, at=earlier).owner, 40_000)
        assert deposits.find_deposits(at=earlier + timedelta(seconds=number)) == 1
        metering.move_and_fund(
            organisation=renter,
            postings=[
                Posting(
                    key=f"earned:{uuid.uuid4()}",
                    debit=ledger.account(Kind.RENTER_BALANCE, organisation=renter),
                    credit=ledger.account(Kind.PROVIDER_PAYABLE, organisation=provider),
                    amount_micro=40_000,
                    kind=Move.ADJUSTMENT,
                )
            ],
            at=earlier,
        )
    assert collecting.sweep_deposits(at=at) == 0
    assert chainkit.held(treasury.address()) == 0
    payout = runs.pay_off_cycle(organisation=provider, by=admin, reason="ticket 4", at=at)
    assert payout.amount_micro == 120_000
    for step in range(6):
        usdc.advance(at=at + timedelta(seconds=5 * step))
    payout.refresh_from_db()
    assert payout.state == Payout.State.PAID
    assert chainkit.held(treasury.address()) == 0
    assert books.verify_books().problems == []

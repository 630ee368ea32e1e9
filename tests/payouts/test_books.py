"""The command that proves the books, from a deposit on chain to a payout on chain."""

import json
from datetime import datetime, timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from billing import collecting, deposits, metering
from billing.ledger import Kind
from billing.models import Account
from gpunex.accounts.models import User
from payouts import runs
from payouts.models import Payout
from tests import chainkit
from tests.billing.conftest import start_meter

from .conftest import USDC, connect, organisation, run_until_done


def verify(*options: str) -> str:
    out = StringIO()
    call_command("verify_books", *options, stdout=out)
    return out.getvalue()


@pytest.mark.spec("F2", "G1", "H2")
def test_the_books_balance_at_every_step_from_deposit_to_payout(at: datetime, admin: User) -> None:
    renter, provider = organisation("renter"), organisation("provider")
    connect(provider, at=at)
    address = deposits.address_for(renter, at=at)
    chainkit.give(address.owner, 25 * USDC)
    assert "25000000 to be credited" in verify()
    deposits.find_deposits(at=at)
    assert "drift: 0 micro-USDC" in verify()
    meter = start_meter(renter, provider, at=at - timedelta(hours=1), rate=1_234_567, fee_bps=1000)
    metering.close_meter(meter=meter, ended_at=at, at=at)
    collecting.sweep_deposits(at=at)
    assert "drift: 0 micro-USDC" in verify()
    payout = runs.pay_off_cycle(organisation=provider, by=admin, reason="check", at=at)
    assert payout.amount_micro == 1_234_567 - 123_456
    assert "drift: 0 micro-USDC" in verify()
    assert run_until_done(payout, at=at).state == Payout.State.PAID
    report = json.loads(verify("--json"))
    assert report["drift_micro"] == 0
    assert report["transfers"] == 5
    assert all(not check["off"] for check in report["checks"])
    assert chainkit.held(payout.destination) == 1_111_111


def test_a_damaged_book_ends_with_status_1_and_names_the_place(at: datetime) -> None:
    org = organisation("provider")
    connect(org, at=at)
    chainkit.give(deposits.address_for(org, at=at).owner, USDC)
    deposits.find_deposits(at=at)
    Account.objects.filter(kind=Kind.RENTER_BALANCE).update(balance_micro=USDC - 3)
    with pytest.raises(CommandError) as caught:
        verify()
    assert caught.value.returncode == 1
    assert "3 micro-USDC" in str(caught.value)


def test_without_the_chain_the_command_says_so_or_leaves_it_out(at: datetime) -> None:
    chainkit.faults(rpc_down=True)
    with pytest.raises(CommandError, match="could not be read"):
        verify()
    assert "drift: 0 micro-USDC" in verify("--ledger-only")

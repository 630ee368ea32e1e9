"""The command that proves the books, from a deposit on chain to a payout on chain."""

import json
from datetime import datetime, timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from billing import collecting, deposits, metering
from billing.ledger import Kind
from billing.models import Account
from gpunex.accounts.models import User
from payouts import returns, runs
from payouts.books import verify_books
from payouts.models import Attempt, Payout, PayoutRun
from tests import chainkit
from tests.billing.conftest import start_meter

from .conftest import USDC, connect, fill, organisation, provider_with, run_until_done


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


# --- each thing that must not be, made by hand, is found ---------------------------------------------------------------


@pytest.fixture
def paid(at: datetime, admin: User) -> Payout:
    org = provider_with(3 * USDC, at=at)
    payout = run_until_done(runs.pay_off_cycle(organisation=org, by=admin, reason="x", at=at), at=at)
    assert verify_books().problems == []
    return payout


def off() -> set[str]:
    return {check.name for check in verify_books().checks if check.off}


def test_a_payout_that_is_called_paid_and_is_not_is_found(at: datetime, admin: User) -> None:
    payout = runs.pay_off_cycle(organisation=provider_with(USDC, at=at), by=admin, reason="x", at=at)
    Payout.objects.filter(pk=payout.pk).update(state=Payout.State.PAID)
    assert off() == {"each payout's money is where its state says", "each paid payout is on chain once"}


def test_a_payout_that_is_called_failed_and_was_paid_is_found(paid: Payout) -> None:
    Payout.objects.update(state=Payout.State.FAILED)
    assert "each payout's money is where its state says" in off()
    Payout.objects.update(state=Payout.State.PAID)
    Attempt.objects.update(dead=True)
    assert off() == {"each paid payout is on chain once"}


def test_another_amount_than_the_statement_says_is_found(paid: Payout) -> None:
    Payout.objects.update(statement_sha256="0" * 64)
    assert off() == {"each payout's statement is there and says its amount"}


def test_what_left_a_run_that_nobody_cleared_is_found(paid: Payout) -> None:
    PayoutRun.objects.update(cleared_at=None)
    assert off() == {"nothing of a run that is not cleared has left"}


@pytest.mark.spec("G3")
def test_a_return_that_went_back_into_earnings_is_found(at: datetime) -> None:
    org = organisation("renter")
    connect(org, at=at)
    fill(org, 2 * USDC, at=at)
    payout = returns.ask_back(organisation=org, amount_micro=None, by=org.created_by, at=at, key="k")
    assert verify_books().problems == []
    PayoutRun.objects.update(kind=PayoutRun.Kind.OFF_CYCLE, reason="x")
    assert off() == {"each payout's money is where its state says"}
    PayoutRun.objects.update(kind=PayoutRun.Kind.RETURN)
    assert run_until_done(payout, at=at).state == Payout.State.PAID
    assert verify_books().problems == []


def test_the_proof_of_many_payouts_asks_as_few_questions_as_that_of_one(
    paid: Payout, at: datetime, admin: User
) -> None:
    with CaptureQueriesContext(connection) as one:
        verify_books()
    for _ in range(3):
        payout = runs.pay_off_cycle(organisation=provider_with(USDC, at=at), by=admin, reason="x", at=at)
        run_until_done(payout, at=at)
    with CaptureQueriesContext(connection) as many:
        assert verify_books().problems == []
    assert len(many) <= len(one)

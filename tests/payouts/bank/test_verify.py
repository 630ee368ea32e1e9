"""Proving a payout by bank: the cents, the file, and what the bank answered."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography.fernet import Fernet
from pytest_django import Settings

from gpunex.accounts.models import User
from payouts import runs, verify
from payouts.bank import files, imports
from payouts.models import BankTransfer, Cadence, Payout

from .conftest import USDC, earner, quote
from .replies import camt, entry, pain_002, status, tx

FIRST = datetime(2026, 11, 1, tzinfo=UTC)
MONDAY = FIRST + timedelta(days=1, hours=9)


@pytest.fixture
def handed_over(admin: User, second_admin: User) -> Payout:
    earner(100 * USDC + 1_234, at=FIRST - timedelta(days=20), cadence=Cadence.MONTHLY)
    quote("EUR", 1_085_000, by=admin, at=FIRST, ago=timedelta(minutes=10))
    runs.make_due(at=FIRST + timedelta(hours=1))
    payout = Payout.objects.get()
    file = files.make(run=payout.run, by=admin, at=MONDAY).file
    assert file is not None
    files.mark_exported(file=file, by=second_admin, at=MONDAY)
    return payout


@pytest.fixture
def settled(handed_over: Payout, admin: User) -> Payout:
    end_to_end_id = handed_over.bank_transfer.end_to_end_id
    answer = pain_002(status(end_to_end_id, "ACSC", amount="92.16"))
    imports.read_answer(data=answer, filename="answer.xml", by=admin, at=MONDAY + timedelta(days=1))
    return handed_over


def outcomes(payout: Payout) -> dict[str, str]:
    return {check.name: str(check.outcome) for check in verify.verify(Payout.objects.get(pk=payout.pk)).checks}


@pytest.mark.spec("H3")
def test_a_settled_payout_is_proved_by_its_cents_its_file_and_the_banks_answer(settled: Payout) -> None:
    assert outcomes(settled) == dict.fromkeys(("statement", "lines", "ledger", "bank"), "passed")


def test_a_payout_that_the_bank_has_is_not_called_wrong(handed_over: Payout) -> None:
    found = outcomes(handed_over)
    assert found.pop("bank") == "pending"
    assert set(found.values()) == {"passed"}


@pytest.mark.spec("H3")
def test_a_payout_that_came_back_is_proved_to_be_payable_again(settled: Payout, admin: User) -> None:
    transfer = BankTransfer.objects.get(payout=settled)
    back = entry("92.16", tx(transfer.end_to_end_id, "92.16", returned="AC04", words="closed"), credit=True)
    imports.read_answer(data=camt(back), filename="back.xml", by=admin, at=MONDAY + timedelta(days=4))
    assert Payout.objects.get().state == Payout.State.RETURNED
    assert set(outcomes(settled).values()) == {"passed"}


def test_a_payout_called_paid_that_no_bank_answered_is_found(handed_over: Payout) -> None:
    Payout.objects.update(state=Payout.State.PAID)
    assert (outcomes(handed_over)["bank"], outcomes(handed_over)["ledger"]) == ("failed", "failed")


def test_a_transfer_called_settled_without_the_banks_word_is_found(handed_over: Payout) -> None:
    Payout.objects.update(state=Payout.State.PAID)
    BankTransfer.objects.update(state=BankTransfer.State.SETTLED)
    found = {check.name: check for check in verify.verify(Payout.objects.get()).checks}
    assert found["bank"].outcome == verify.Outcome.FAILED
    assert "no answer of the bank" in found["bank"].detail


def test_cents_that_are_not_worth_the_amount_are_found(settled: Payout) -> None:
    Payout.objects.update(amount_micro=99_993_599)
    found = outcomes(settled)
    assert (found["bank"], found["ledger"], found["statement"]) == ("failed", "failed", "failed")


def test_a_file_that_cannot_be_read_proves_nothing(settled: Payout, settings: Settings) -> None:
    settings.FIELD_KEYS = [Fernet.generate_key().decode()]
    assert outcomes(settled)["bank"] == "failed"

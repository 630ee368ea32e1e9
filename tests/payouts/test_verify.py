"""Proving a payout: what was paid follows from the ledger, and what does not is found."""

import io
import json
import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from billing import treasury
from billing.models import Statement
from gpunex.accounts.models import Organisation, User
from gpunex.chain import faucet
from gpunex.chain.transfers import load_key, sign_transfer
from payouts import returns, runs, verify
from payouts.models import Attempt, Payout
from payouts.verify import Outcome
from tests import chainkit
from tests.billing.conftest import fund

from .conftest import USDC, earn, provider_with, run_until_done


def reserve(org: Organisation, admin: User, *, at: datetime, micro: int | None = None) -> Payout:
    return runs.pay_off_cycle(organisation=org, by=admin, reason="first payout", at=at, amount_micro=micro)


@pytest.fixture
def paid(provider: Organisation, admin: User, at: datetime) -> Payout:
    payout = run_until_done(reserve(provider, admin, at=at), at=at)
    assert payout.state == Payout.State.PAID
    return payout


def outcomes(payout: Payout) -> dict[str, str]:
    payout = Payout.objects.get(pk=payout.pk)
    return {check.name: str(check.outcome) for check in verify.verify(payout).checks}


def command(payout_id: object, *options: str) -> tuple[str, int]:
    """What ``manage.py verify_payout`` says, and its exit status."""
    out = io.StringIO()
    try:
        call_command("verify_payout", str(payout_id), *options, stdout=out)
    except CommandError as error:
        return f"{out.getvalue()}{error}", error.returncode
    return out.getvalue(), 0


@pytest.mark.spec("H2")
def test_a_paid_payout_is_proved_from_the_ledger_to_the_chain(paid: Payout) -> None:
    assert outcomes(paid) == dict.fromkeys(("statement", "lines", "ledger", "transaction", "once"), "passed")
    said, status = command(paid.public_id)
    assert status == 0
    assert "All checks passed." in said
    assert paid.memo == f"gpunex:{paid.public_id}:{paid.statement_sha256}"
    assert paid.memo in said
    report = json.loads(command(paid.public_id, "--json")[0])
    assert report["all_passed"] is True
    assert report["amount_micro"] == 30 * USDC


@pytest.mark.spec("H1")
def test_a_payout_of_the_cycle_is_proved_with_what_came_after_its_cut_off(at: datetime) -> None:
    org = provider_with(30 * USDC, at=at)
    cut_off = runs.next_period_end("weekly", at)
    earn(org, 4 * USDC, at=cut_off + timedelta(hours=1))
    runs.make_due(at=cut_off + timedelta(hours=2))
    payout = Payout.objects.get()
    assert payout.amount_micro == 30 * USDC
    statement = Statement.objects.get(reference=str(payout.public_id))
    assert (statement.body["later_micro"], statement.body["carried_micro"]) == (4 * USDC, 4 * USDC)
    payout = run_until_done(payout, at=cut_off + timedelta(hours=2))
    assert set(outcomes(payout).values()) == {"passed"}


@pytest.mark.spec("G3")
def test_a_return_of_balance_is_proved_by_a_statement_of_its_own(provider: Organisation, at: datetime) -> None:
    chainkit.give(treasury.address(), 9 * USDC)
    fund(provider, 9 * USDC, at=at)
    payout = returns.ask_back(
        organisation=provider, amount_micro=4 * USDC, by=provider.created_by, at=at, key=str(uuid.uuid4())
    )
    payout = run_until_done(payout, at=at)
    assert Statement.objects.get(reference=str(payout.public_id)).full_number == "B-000001"
    assert set(outcomes(payout).values()) == {"passed"}


def test_a_payout_that_waits_is_not_called_wrong(provider: Organisation, admin: User, at: datetime) -> None:
    payout = reserve(provider, admin, at=at)
    found = outcomes(payout)
    assert found.pop("transaction") == "pending"
    assert set(found.values()) == {"passed"}
    said, status = command(payout.public_id)
    assert status == 0
    assert "All checks passed" not in said


def test_a_payout_that_failed_is_proved_to_have_gone_back(provider: Organisation, admin: User, at: datetime) -> None:
    payout = reserve(provider, admin, at=at)
    chainkit.give(payout.destination, 1)
    assert settings.FAUCET_KEY_FILE is not None
    key = load_key(settings.FAUCET_KEY_FILE)
    faucet.set_frozen(treasury.rpc(), key, treasury.mint(), payout.destination, frozen=True)
    payout = run_until_done(payout, at=at)
    assert payout.state == Payout.State.FAILED
    assert set(outcomes(payout).values()) == {"passed"}


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"amount_micro": 31 * USDC}, "ledger"),
        ({"amount_micro": 29 * USDC}, "statement"),
        ({"destination": "11111111111111111111111111111112"}, "transaction"),
        ({"statement_sha256": "0" * 64}, "statement"),
        ({"statement_sha256": "0" * 64}, "transaction"),
        ({"state": "failed"}, "ledger"),
        ({"state": "failed"}, "transaction"),
        ({"state": "approved"}, "ledger"),
    ],
)
def test_a_payout_that_was_altered_is_found(paid: Payout, change: dict[str, Any], check: str) -> None:
    Payout.objects.filter(pk=paid.pk).update(**change)
    assert outcomes(paid)[check] == "failed"
    said, status = command(paid.public_id)
    assert status == 1
    assert "not proved" in said
    assert check in said


def test_a_payout_called_paid_that_is_not_on_chain_is_found(provider: Organisation, admin: User, at: datetime) -> None:
    payout = reserve(provider, admin, at=at)
    Payout.objects.filter(pk=payout.pk).update(state=Payout.State.PAID)
    found = outcomes(payout)
    assert (found["transaction"], found["ledger"]) == ("failed", "failed")


@pytest.mark.case("money-F1", "money-F8")
def test_a_payout_that_landed_twice_is_found(paid: Payout, at: datetime) -> None:
    """A second transaction with the same memo, by whoever holds the key: the one thing that must never be."""
    chainkit.give(treasury.address(), paid.amount_micro)
    blockhash, last_valid = treasury.rpc().get_latest_blockhash()
    signed = sign_transfer(
        key=treasury.key(),
        mint=treasury.mint(),
        destination_owner=paid.destination,
        amount_micro=paid.amount_micro,
        memo=paid.memo,
        blockhash=blockhash,
        last_valid_block_height=last_valid,
        cu_price_micro_lamports=2_000,
    )
    treasury.rpc().send_raw(signed.raw, preflight=True)
    Attempt.objects.create(
        payout=paid,
        number=2,
        raw=signed.raw,
        signature=signed.signature,
        blockhash=signed.blockhash,
        last_valid_block_height=signed.last_valid_block_height,
        signed_at=at,
        dead=True,
    )
    assert outcomes(paid)["once"] == "failed"
    said, status = command(paid.public_id)
    assert status == 1
    assert "2 of its transactions" in said
    assert "taken for dead" in said


def test_a_chain_that_does_not_answer_proves_nothing(paid: Payout) -> None:
    chainkit.faults(rpc_down=True)
    found = outcomes(paid)
    assert (found["transaction"], found["once"]) == (Outcome.UNKNOWN, Outcome.UNKNOWN)
    assert (found["statement"], found["lines"], found["ledger"]) == ("passed", "passed", "passed")
    assert command(paid.public_id)[1] == 1
    chainkit.faults(reset=True)
    assert command(paid.public_id)[1] == 0


@pytest.mark.parametrize("lie", ["failed", "empty"])
def test_a_node_that_lies_proves_nothing_for_or_against(paid: Payout, lie: str) -> None:
    chainkit.faults(lie=lie, only_path="/b")
    found = outcomes(paid)
    assert (found["transaction"], found["once"]) == (Outcome.UNKNOWN, Outcome.UNKNOWN)
    assert "different things" in command(paid.public_id)[0]


def test_a_payout_from_before_there_were_statements_is_not_blamed_for_it(paid: Payout) -> None:
    Payout.objects.filter(pk=paid.pk).update(public_id=uuid.uuid4(), statement_sha256="")
    assert outcomes(paid)["statement"] == Outcome.ABSENT


def test_a_statement_that_is_missing_is_found(paid: Payout) -> None:
    Payout.objects.filter(pk=paid.pk).update(public_id=uuid.uuid4())
    assert outcomes(paid)["statement"] == Outcome.FAILED


def test_an_unknown_id_is_said(db: None) -> None:
    said, status = command(uuid.uuid4())
    assert status == 1
    assert "There is no payout" in said

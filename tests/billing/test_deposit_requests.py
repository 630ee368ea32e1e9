"""Deposit requests on the development chain: a link that wallets can pay, and what becomes of every way to pay it."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings
from solders.keypair import Keypair

from billing import deposit_requests, deposits, references, treasury
from billing.models import Deposit, DepositAddress, DepositRequest, StrayPayment
from gpunex.accounts.models import Notice, Organisation
from gpunex.accounts.notices import in_words
from gpunex.chain import pay
from gpunex.chain.addresses import NotAnAddress
from gpunex.chain.pay import TransferRequest
from gpunex.chain.rpc import TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from gpunex.kit.money import parse_usdc
from gpunex.outbox.models import Message
from tests import chainkit

from .conftest import USDC, organisation, owned
from .test_ledger import together

pytestmark = pytest.mark.usefixtures("devchain")
State = DepositRequest.State


@pytest.fixture(autouse=True)
def mended(devchain: object, settings: Settings, tmp_path: Path) -> Iterator[None]:
    settings.TREASURY_KEY_FILE = chainkit.open_treasury(tmp_path)
    yield
    chainkit.faults(reset=True)


@pytest.fixture
def renting(db: None) -> Organisation:
    return organisation("depositor")


def ask(org: Organisation, micro: int = 10 * USDC, *, at: datetime) -> DepositRequest:
    return deposit_requests.ask(organisation=org, amount_micro=micro, by=org.created_by, at=at)


def read(request: DepositRequest, *, at: datetime) -> TransferRequest:
    """What a wallet app reads in the request's link."""
    wallet = deposits.address_for(request.organisation, at=at).owner
    return pay.read(deposit_requests.link(request, wallet=wallet))


def paid(request: DepositRequest, micro: int | None = None, *, at: datetime, key: Keypair | None = None) -> str:
    """Pay it from a wallet of somebody's: what was asked, or another amount."""
    wanted = read(request, at=at)
    amount = wanted.amount if micro is None else micro
    return pay.pay(treasury.rpc(), key or chainkit.purse(amount), replace(wanted, amount=amount))


def progress(request: DepositRequest, *, at: datetime) -> deposit_requests.Progress:
    row: Any = deposit_requests.with_received(DepositRequest.objects.filter(pk=request.pk)).get()
    return deposit_requests.progress(row, received_micro=row.received_micro, at=at)


# --- the request itself ----------------------------------------------------------------------------------------------


@pytest.mark.spec("F2")
def test_a_request_becomes_a_link_to_ones_own_address(renting: Organisation, now: datetime) -> None:
    request = ask(renting, 12_500_000, at=now)
    address = deposits.address_for(renting, at=now)
    link = deposit_requests.link(request, wallet=address.owner)
    assert link.startswith(f"solana:{address.owner}?amount=12.5&spl-token={treasury.mint()}&reference=")
    assert " " not in link
    assert "+" not in link
    read_again = pay.read(link)
    assert (read_again.wallet, read_again.amount, read_again.references) == (
        address.owner,
        12_500_000,
        (request.reference,),
    )
    assert read_again.label == "GPUnex"
    assert str(request.public_id)[:8] in read_again.message


@pytest.mark.spec("F2")
@pytest.mark.case("money-F20")
@pytest.mark.parametrize("text", ["2.01", "2.05", "4.02", "1.005", "4.1", "0.000001"])
def test_amounts_that_floats_get_wrong_arrive_as_they_were_typed(
    renting: Organisation, now: datetime, text: str
) -> None:
    request = ask(renting, parse_usdc(text), at=now)
    assert f"amount={text}&" in deposit_requests.link(request, wallet=deposits.address_for(renting, at=now).owner)
    paid(request, at=now)
    references.watch(at=now + timedelta(seconds=5))
    request.refresh_from_db()
    assert request.state == State.PAID
    assert owned(renting) == parse_usdc(text)


def test_each_request_has_a_reference_of_its_own(renting: Organisation, now: datetime) -> None:
    assert ask(renting, at=now).reference != ask(renting, at=now).reference


def test_nobody_piles_up_requests(renting: Organisation, now: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deposit_requests, "A_DAY_AT_MOST", 12)
    rows = [ask(renting, at=now) for _ in range(deposit_requests.OPEN_AT_MOST)]
    with pytest.raises(deposit_requests.TooManyRequests):
        ask(renting, at=now)
    for row in rows[:3]:
        deposit_requests.cancel(request=row, at=now)
    ask(renting, at=now)
    ask(renting, at=now)
    with pytest.raises(deposit_requests.TooManyRequestsToday):
        ask(renting, at=now)
    assert ask(organisation(), at=now).state == State.OPEN
    assert ask(renting, at=now + timedelta(days=1, minutes=1)).state == State.OPEN


def test_a_request_expires_and_is_cancelled_once(renting: Organisation, now: datetime) -> None:
    first, second = ask(renting, at=now), ask(renting, at=now)
    deposit_requests.cancel(request=first, at=now + timedelta(minutes=1))
    with pytest.raises(deposit_requests.RequestClosed):
        deposit_requests.cancel(request=first, at=now + timedelta(minutes=2))
    assert deposit_requests.expire(at=now + timedelta(minutes=59)) == 0
    assert deposit_requests.expire(at=now + timedelta(minutes=60)) == 1
    assert deposit_requests.expire(at=now + timedelta(minutes=61)) == 0
    second.refresh_from_db()
    assert second.state == State.EXPIRED
    with pytest.raises(deposit_requests.RequestClosed):
        deposit_requests.cancel(request=second, at=now + timedelta(minutes=62))


# --- ways to pay it --------------------------------------------------------------------------------------------------


@pytest.mark.spec("F2")
def test_the_exact_amount_pays_it_and_is_told(renting: Organisation, now: datetime) -> None:
    request = ask(renting, at=now)
    signature = paid(request, at=now)
    assert references.watch(at=now + timedelta(seconds=5)) == 1
    request.refresh_from_db()
    deposit = request.deposits.get()
    assert (request.state, deposit.signature, deposit.amount_micro) == (State.PAID, signature, 10 * USDC)
    assert not request.late
    assert owned(renting) == 10 * USDC
    assert Notice.objects.get(organisation=renting).event == "deposit_request_paid"
    assert "10.00 USDC" in Message.objects.get(event="deposit_request_paid").subject
    assert in_words(Notice.objects.get())["path"] == f"/balance/requests/{request.public_id}"
    assert progress(request, at=now).exact


def test_the_watch_on_the_address_alone_marks_the_request_too(renting: Organisation, now: datetime) -> None:
    request = ask(renting, at=now)
    paid(request, at=now)
    assert deposits.find_deposits(at=now) == 1
    request.refresh_from_db()
    assert request.state == State.PAID


def test_too_little_is_credited_and_the_request_says_so(renting: Organisation, now: datetime) -> None:
    request = ask(renting, at=now)
    paid(request, 4 * USDC, at=now)
    references.watch(at=now + timedelta(seconds=5))
    request.refresh_from_db()
    assert request.state == State.OPEN
    seen = progress(request, at=now)
    assert (seen.received_micro, seen.missing_micro, seen.open) == (4 * USDC, 6 * USDC, True)
    assert owned(renting) == 4 * USDC
    paid(request, 6 * USDC, at=now)
    references.watch(at=now + timedelta(seconds=11))
    request.refresh_from_db()
    assert request.state == State.PAID
    assert owned(renting) == 10 * USDC


def test_too_much_is_credited_whole(renting: Organisation, now: datetime) -> None:
    request = ask(renting, at=now)
    paid(request, 25 * USDC, at=now)
    references.watch(at=now + timedelta(seconds=5))
    request.refresh_from_db()
    assert request.state == State.PAID
    assert progress(request, at=now).received_micro == 25 * USDC
    assert owned(renting) == 25 * USDC


def test_paid_twice_is_credited_twice_and_shown(renting: Organisation, now: datetime) -> None:
    request = ask(renting, at=now)
    paid(request, at=now)
    references.watch(at=now + timedelta(seconds=5))
    paid(request, at=now)
    deposits.find_deposits(at=now + timedelta(seconds=8))
    assert owned(renting) == 20 * USDC
    assert request.deposits.count() == 2
    assert progress(request, at=now).received_micro == 20 * USDC


@pytest.mark.parametrize("how", ["expired", "cancelled"])
def test_a_late_payment_is_credited_and_called_late(renting: Organisation, now: datetime, how: str) -> None:
    request = ask(renting, at=now - timedelta(hours=2))
    if how == "cancelled":
        deposit_requests.cancel(request=request, at=now - timedelta(minutes=90))
    references.watch(at=now - timedelta(minutes=30))
    request.refresh_from_db()
    assert request.state == how
    paid(request, at=now)
    assert references.watch(at=now + timedelta(seconds=5)) == 1
    request.refresh_from_db()
    assert request.state == State.PAID
    assert request.late
    assert owned(renting) == 10 * USDC


def test_a_payment_in_time_that_is_seen_late_is_not_called_late(renting: Organisation, now: datetime) -> None:
    request = ask(renting, at=now)
    paid(request, at=now)
    # The nodes were away for two hours.
    assert references.watch(at=now + timedelta(hours=2)) == 1
    request.refresh_from_db()
    assert (request.state, request.late) == (State.PAID, False)


def test_without_its_reference_a_payment_is_credited_by_the_address(renting: Organisation, now: datetime) -> None:
    request = ask(renting, at=now)
    wanted = replace(read(request, at=now), references=())
    pay.pay(treasury.rpc(), chainkit.purse(wanted.amount), wanted)
    assert deposits.find_deposits(at=now) == 1
    request.refresh_from_db()
    assert (request.state, request.deposits.count()) == (State.OPEN, 0)
    assert owned(renting) == 10 * USDC


def test_a_reference_in_somebody_elses_payment_proves_nothing(renting: Organisation, now: datetime) -> None:
    request, other = ask(renting, at=now), organisation("other")
    theirs = replace(read(request, at=now), wallet=deposits.address_for(other, at=now).owner)
    pay.pay(treasury.rpc(), chainkit.purse(theirs.amount), theirs)
    elsewhere = replace(theirs, wallet=chainkit.wallet())
    pay.pay(treasury.rpc(), chainkit.purse(elsewhere.amount), elsewhere)
    assert references.watch(at=now + timedelta(seconds=5)) == 0
    assert deposits.find_deposits(at=now + timedelta(seconds=6)) == 1
    request.refresh_from_db()
    assert (request.state, request.deposits.count()) == (State.OPEN, 0)
    assert Deposit.objects.get().organisation == other
    assert owned(other) == 10 * USDC
    # And ones that name it again and again hide no real payment.
    paid(request, at=now)
    assert references.watch(at=now + timedelta(seconds=12)) == 1


def test_a_payment_to_the_treasury_itself_is_unmatched_whatever_it_names(renting: Organisation, now: datetime) -> None:
    request = ask(renting, at=now)
    wrong = replace(read(request, at=now), wallet=treasury.address())
    pay.pay(treasury.rpc(), chainkit.purse(wrong.amount), wrong)
    references.watch(at=now + timedelta(seconds=5))
    deposits.find_deposits(at=now + timedelta(seconds=6))
    deposit = Deposit.objects.get()
    assert (deposit.state, deposit.organisation, deposit.request) == (Deposit.State.UNMATCHED, None, None)


def test_of_two_references_in_one_payment_the_oldest_unpaid_request_counts(
    renting: Organisation, now: datetime
) -> None:
    first, second = ask(renting, at=now), ask(renting, at=now)
    both = replace(read(second, at=now), references=(second.reference, first.reference))
    pay.pay(treasury.rpc(), chainkit.purse(both.amount), both)
    references.watch(at=now + timedelta(seconds=5))
    assert (first.deposits.count(), second.deposits.count()) == (1, 0)
    assert owned(renting) == 10 * USDC


@pytest.mark.parametrize("program", [TOKEN_PROGRAM, TOKEN_2022_PROGRAM])
def test_another_token_is_listed_for_a_person_and_credits_nothing(
    renting: Organisation, now: datetime, program: str
) -> None:
    request, key = ask(renting, at=now), chainkit.purse()
    mint = chainkit.other_token(key, 7_000_000_000, program=program, decimals=9)
    signature = pay.pay(treasury.rpc(), key, replace(read(request, at=now), mint=mint, amount=7_000_000_000))
    assert references.watch(at=now + timedelta(seconds=5)) == 1
    assert references.watch(at=now + timedelta(seconds=11)) == 0
    stray = StrayPayment.objects.get()
    assert (stray.signature, stray.mint, stray.amount_raw, stray.decimals) == (signature, mint, 7_000_000_000, 9)
    assert (stray.sender, stray.organisation, stray.request) == (str(key.pubkey()), renting, request)
    assert not Deposit.objects.exists()
    assert Notice.objects.get(organisation=renting).event == "stray_arrived"
    request.refresh_from_db()
    assert request.state == State.OPEN


def test_somebody_who_names_a_reference_in_junk_fills_no_inbox(renting: Organisation, now: datetime) -> None:
    request, key = ask(renting, at=now), chainkit.purse()
    mint = chainkit.other_token(key, 100)
    for _ in range(4):
        pay.pay(treasury.rpc(), key, replace(read(request, at=now), mint=mint, amount=1))
    references.watch(at=now + timedelta(seconds=5))
    assert StrayPayment.objects.count() == 4
    assert Message.objects.filter(event="stray_arrived").count() == 1


# --- watching --------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("money-F22")
def test_both_watchers_at_once_credit_once(now: datetime) -> None:
    renting = organisation("depositor")
    request = ask(renting, at=now)
    paid(request, at=now)
    at = now + timedelta(seconds=5)
    outcomes = together(4, lambda number: references.watch(at=at) if number % 2 else deposits.find_deposits(at=at))
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert owned(renting) == 10 * USDC
    assert request.deposits.count() == 1
    request.refresh_from_db()
    assert request.state == State.PAID


@pytest.mark.django_db(transaction=True)
def test_cancelling_while_it_is_paid_ends_in_one_state(now: datetime) -> None:
    renting = organisation("depositor")
    request = ask(renting, at=now)
    paid(request, at=now)
    at = now + timedelta(seconds=5)
    together(
        2,
        lambda number: references.watch(at=at) if number else deposit_requests.cancel(request=request, at=at),
    )
    request.refresh_from_db()
    assert request.state == State.PAID
    assert owned(renting) == 10 * USDC


@pytest.mark.parametrize(
    "fault",
    [{"rpc_down": True}, {"rate_limit": 50}, {"hide_status_s": 60.0}, {"hide_status_s": 60.0, "only_path": "/b"}],
)
def test_no_trouble_of_the_nodes_loses_a_payment(
    renting: Organisation, now: datetime, fault: dict[str, object]
) -> None:
    request = ask(renting, at=now)
    paid(request, at=now)
    chainkit.faults(**fault)
    assert references.watch(at=now + timedelta(seconds=5)) == 0
    assert deposits.find_deposits(at=now + timedelta(seconds=5)) == 0
    assert not Deposit.objects.exists()
    chainkit.faults(reset=True)
    assert references.watch(at=now + timedelta(seconds=11)) == 1
    request.refresh_from_db()
    assert request.state == State.PAID


def test_open_requests_are_looked_for_often_and_old_ones_ever_less(renting: Organisation, now: datetime) -> None:
    request = ask(renting, at=now)
    looks: list[float] = []
    moment = now
    while moment < now + timedelta(days=35):
        if request in deposit_requests.due(at=moment, most=10):
            DepositRequest.objects.filter(pk=request.pk).update(looked_at=moment)
            looks.append((moment - now) / timedelta(hours=1))
        deposit_requests.expire(at=moment)
        moment += timedelta(seconds=30) if moment < now + timedelta(hours=1) else timedelta(minutes=20)
    in_the_hour = [hours for hours in looks if hours <= 1]
    first_day, first_week = ([hours for hours in looks if 1 < hours <= 1 + days * 24] for days in (1, 7))
    assert len(in_the_hour) >= 120
    assert 70 <= len(first_day) <= 73
    assert 140 <= len(first_week) - len(first_day) <= 145
    assert 20 <= len(looks) - len(in_the_hour) - len(first_week) <= 24
    assert max(looks) < 24 * 30 + 2


def test_open_requests_come_before_late_ones_and_one_bad_one_stops_nobody(
    renting: Organisation, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = [ask(organisation(), at=now - timedelta(hours=3)) for _ in range(3)]
    deposit_requests.expire(at=now)
    waiting = [ask(organisation(), at=now) for _ in range(3)]
    assert deposit_requests.due(at=now, most=4)[:3] == waiting
    paid(late[2], at=now)
    real = references._look_for

    def bad_first(request: DepositRequest, *, at: datetime) -> int:
        if request == waiting[0]:
            raise ValueError("a row that breaks")
        return real(request, at=at)

    monkeypatch.setattr(references, "_look_for", bad_first)
    assert references.watch(at=now + timedelta(seconds=5)) == 1
    late[2].refresh_from_db()
    assert late[2].state == State.PAID


def test_the_treasury_opens_the_account_for_a_first_request_once(
    renting: Organisation, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(renting, at=now)
    row = deposits.address_for(renting, at=now)
    deposits.address_for(organisation(), at=now)  # no request, no account
    assert treasury.rpc().get_account(row.token_account) is None
    assert references.open_accounts(at=now) == 1
    assert treasury.rpc().get_token_balance(row.token_account) == 0
    assert references.open_accounts(at=now) == 0
    monkeypatch.setattr(references, "OPENED_A_DAY", 1)
    other = organisation()
    ask(other, at=now)
    deposits.address_for(other, at=now)
    assert references.open_accounts(at=now) == 0
    assert DepositAddress.objects.exclude(opened_at=None).count() == 1


def test_the_test_wallet_pays_a_request_from_its_link_alone(renting: Organisation, now: datetime) -> None:
    request = ask(renting, 3_210_000, at=now)
    deposits.pay_with_test_wallet(request=request, at=now)
    references.watch(at=now + timedelta(seconds=5))
    request.refresh_from_db()
    assert request.state == State.PAID
    assert request.deposits.get().sender
    assert owned(renting) == 3_210_000


@pytest.mark.parametrize(
    "link",
    [
        "https://pay.example.org/",
        "solana:{wallet}?amount=1e3&spl-token={mint}",
        "solana:{wallet}?amount=.5&spl-token={mint}",
        "solana:{wallet}?amount=1.0000001&spl-token={mint}",
        "solana:{wallet}?amount=-1&spl-token={mint}",
        "solana:{wallet}?amount=1&amount=2&spl-token={mint}",
        "solana:nobody?amount=1&spl-token={mint}",
    ],
)
def test_our_own_reader_of_links_is_as_strict_as_a_wallet(link: str) -> None:
    with pytest.raises((ValueError, NotAnAddress)):
        pay.read(link.format(wallet=Keypair().pubkey(), mint=treasury.mint()))

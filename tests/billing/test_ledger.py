"""The books: one way to post, keys for ever, floors that hold, corrections by reversal."""

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

import pytest
from django.db import DatabaseError, connection, transaction

from billing import ledger
from billing.ledger import Kind, Move, Posting
from billing.models import Account, Transfer
from gpunex.accounts.models import Organisation

from .conftest import USDC, fund, organisation, owned, person


def together(count: int, act: Callable[[int], object]) -> list[object]:
    """Run ``act`` in ``count`` threads that start at one moment, each with a connection of its own."""
    barrier = threading.Barrier(count)

    def one(number: int) -> object:
        barrier.wait()
        try:
            return act(number)
        except Exception as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def many(count: int, act: Callable[[int], object], *, at_once: int = 50) -> list[object]:
    """As ``together``, of more than the server has connections for: ``at_once`` of them at any time."""

    def one(number: int) -> object:
        try:
            return act(number)
        except Exception as error:
            return error

    def some(first: int) -> list[object]:
        return [one(number) for number in range(first, count, at_once)]

    return [result for part in together(at_once, some) for result in cast("list[object]", part)]


def pay(renter: Organisation, provider: Organisation, micro: int, *, key: str, at: datetime) -> Transfer:
    return ledger.post(
        key=key,
        debit=ledger.account(Kind.RENTER_BALANCE, organisation=renter),
        credit=ledger.account(Kind.PROVIDER_PAYABLE, organisation=provider),
        amount_micro=micro,
        kind=Move.ADJUSTMENT,
        at=at,
    )


def test_a_transfer_moves_money_and_the_sum_stays_zero(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    pay(renter, provider, 30 * USDC, key="a", at=noon)
    assert owned(renter) == 70 * USDC
    assert owned(provider, Kind.PROVIDER_PAYABLE) == 30 * USDC
    assert ledger.balance(ledger.account(Kind.TREASURY)) == -100 * USDC
    assert ledger.verify_books().drift_micro == 0


@pytest.mark.case("money-F7", "money-F32")
def test_a_key_moves_money_once_and_returns_the_first_transfer(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    first = pay(renter, provider, USDC, key="same", at=noon)
    assert pay(renter, provider, USDC, key="same", at=noon) == first
    assert owned(renter) == 99 * USDC
    with pytest.raises(ledger.KeyReused):
        pay(renter, provider, 2 * USDC, key="same", at=noon)
    assert owned(renter) == 99 * USDC


@pytest.mark.case("money-F7")
def test_what_a_transfer_does_is_its_body_and_who_asked_when_and_why_is_not(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    body = {
        "key": "k",
        "debit": ledger.account(Kind.RENTER_BALANCE, organisation=renter),
        "credit": ledger.account(Kind.PROVIDER_PAYABLE, organisation=provider),
        "amount_micro": 5,
        "kind": Move.ADJUSTMENT,
        "reference": "r",
    }
    first = ledger.post(**body, at=noon, reason="first", data={"worker": 1})
    again = ledger.post(
        **body,
        at=noon + timedelta(milliseconds=3),
        effective_at=noon,
        actor=person("admin", is_staff=True),
        reason="again",
        data={"worker": 2},
    )
    assert (again, again.reason, again.data) == (first, "first", {"worker": 1})
    others = {
        "debit": ledger.account(Kind.ADJUSTMENTS),
        "credit": ledger.account(Kind.LOSS),
        "amount_micro": 6,
        "kind": Move.REFUND,
        "reference": "s",
    }
    for name, value in others.items():
        with pytest.raises(ledger.KeyReused):
            ledger.post(**body | {name: value}, at=noon)
    assert owned(renter) == 100 * USDC - 5


@pytest.mark.case("money-F11")
def test_a_key_whose_money_went_back_is_refused_and_not_taken_as_done(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    paid = pay(renter, provider, 10 * USDC, key="order", at=noon)
    ledger.reverse(transfer=paid, key="order:back", by=None, reason="rejected", at=noon)
    with pytest.raises(ledger.KeyReused, match="reversed since"):
        pay(renter, provider, 10 * USDC, key="order", at=noon)
    assert (owned(renter), owned(provider, Kind.PROVIDER_PAYABLE)) == (100 * USDC, 0)


@pytest.mark.case("money-F14")
def test_a_key_is_not_taken_by_a_write_that_failed(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        pay(renter, provider, USDC, key="counted", at=noon)
        raise RuntimeError("the disk is full")
    assert owned(renter) == 100 * USDC
    pay(renter, provider, USDC, key="counted", at=noon)
    assert owned(renter) == 99 * USDC


@pytest.mark.case("money-F26")
def test_a_caller_that_fails_after_the_posting_and_tries_twenty_times_is_charged_once(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    def charge_and_fail() -> None:
        pay(renter, provider, USDC, key="sale:1", at=noon)
        raise ConnectionError("the answer was lost")

    for _ in range(20):
        with pytest.raises(ConnectionError):
            charge_and_fail()
    assert owned(renter) == 99 * USDC
    assert Transfer.objects.filter(key="sale:1").count() == 1


def test_a_batch_is_made_whole_or_not_at_all(renter: Organisation, provider: Organisation, noon: datetime) -> None:
    balance = ledger.account(Kind.RENTER_BALANCE, organisation=renter)
    payable = ledger.account(Kind.PROVIDER_PAYABLE, organisation=provider)
    fee = ledger.account(Kind.FEE)
    postings = [
        Posting("a", balance, payable, 60 * USDC, Move.ADJUSTMENT),
        Posting("b", balance, fee, 41 * USDC, Move.ADJUSTMENT),
    ]
    with pytest.raises(ledger.NotEnoughMoney) as caught:
        ledger.post_all(postings, at=noon)
    assert (caught.value.needed_micro, caught.value.have_micro) == (101 * USDC, 100 * USDC)
    assert not Transfer.objects.filter(key__in="ab").exists()
    assert owned(renter) == 100 * USDC
    rows = ledger.post_all(
        [
            Posting("a", balance, payable, 60 * USDC, Move.ADJUSTMENT),
            Posting("b", payable, fee, 60 * USDC, Move.ADJUSTMENT),
        ],
        at=noon,
    )
    assert [row.key for row in rows] == ["a", "b"]
    assert rows[0].pk < rows[1].pk
    assert (owned(renter), owned(provider, Kind.PROVIDER_PAYABLE), ledger.balance(fee)) == (40 * USDC, 0, 60 * USDC)


def test_what_was_posted_is_what_is_read_back(renter: Organisation, provider: Organisation, noon: datetime) -> None:
    admin = person("admin", is_staff=True)
    row = ledger.post(
        key="all of it",
        debit=ledger.account(Kind.RENTER_BALANCE, organisation=renter),
        credit=ledger.account(Kind.PROVIDER_PAYABLE, organisation=provider),
        amount_micro=7,
        kind=Move.ADJUSTMENT,
        reference="r",
        actor=admin,
        reason="why “so”",
        data={"a": [1, None, "٣"]},
        effective_at=noon - timedelta(days=1),
        at=noon,
    )
    names = [field.attname for field in Transfer._meta.concrete_fields]
    stored = Transfer.objects.get(key="all of it")
    assert [getattr(row, name) for name in names] == [getattr(stored, name) for name in names]


@pytest.mark.case("money-F32")
def test_equal_fees_of_one_order_are_told_apart_by_their_line(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    """Five equal fees under one reference: each has its own key, so none is lost; one key twice is one line."""
    for line in range(5):
        pay(renter, provider, 250_000, key=f"order-7:fee:{line}", at=noon)
    pay(renter, provider, 250_000, key="order-7:fee:4", at=noon)
    assert owned(provider, Kind.PROVIDER_PAYABLE) == 5 * 250_000


@pytest.mark.case("money-F32")
def test_a_repeated_key_within_one_call_counts_once(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    posting = Posting(
        key="line",
        debit=ledger.account(Kind.RENTER_BALANCE, organisation=renter),
        credit=ledger.account(Kind.PROVIDER_PAYABLE, organisation=provider),
        amount_micro=5,
        kind=Move.ADJUSTMENT,
    )
    assert len({row.pk for row in ledger.post_all([posting, posting], at=noon)}) == 1
    assert owned(provider, Kind.PROVIDER_PAYABLE) == 5
    with pytest.raises(ledger.KeyReused):
        ledger.post_all([replace(posting, key="new"), replace(posting, key="new", amount_micro=6)], at=noon)


def test_an_overdraft_is_refused_by_name_and_writes_nothing(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    with pytest.raises(ledger.NotEnoughMoney) as caught:
        pay(renter, provider, 101 * USDC, key="too much", at=noon)
    assert (caught.value.needed_micro, caught.value.have_micro) == (101 * USDC, 100 * USDC)
    assert "101.00" in str(caught.value)
    assert not Transfer.objects.filter(key="too much").exists()
    assert owned(renter) == 100 * USDC


def test_the_database_itself_holds_the_floor(renter: Organisation) -> None:
    with pytest.raises(DatabaseError, match="account_not_below_floor"), transaction.atomic():
        Account.objects.filter(code=f"{Kind.RENTER_BALANCE}:{renter.public_id}").update(balance_micro=-1)


def test_transfers_are_append_only(renter: Organisation) -> None:
    row = Transfer.objects.get()
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        Transfer.objects.filter(pk=row.pk).update(amount_micro=1)
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        Transfer.objects.filter(pk=row.pk).delete()


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("money-F27")
def test_of_a_hundred_withdrawals_at_once_exactly_one_wins(noon: datetime) -> None:
    renter, provider = organisation("renter"), organisation("provider")
    fund(renter, 100, at=noon)
    results = many(100, lambda number: pay(renter, provider, 80, key=f"w{number}", at=noon))
    assert sum(isinstance(result, Transfer) for result in results) == 1
    assert sum(isinstance(result, ledger.NotEnoughMoney) for result in results) == 99
    assert (owned(renter), owned(provider, Kind.PROVIDER_PAYABLE)) == (20, 80)
    assert ledger.verify_books().problems == []


@pytest.mark.case("money-F29")
def test_a_stale_row_passed_in_decides_nothing(renter: Organisation, provider: Organisation, noon: datetime) -> None:
    stale = ledger.account(Kind.RENTER_BALANCE, organisation=renter)
    payable = ledger.account(Kind.PROVIDER_PAYABLE, organisation=provider)
    for number in range(2):
        ledger.post(
            key=f"half:{number}", debit=stale, credit=payable, amount_micro=50 * USDC, kind=Move.ADJUSTMENT, at=noon
        )
    assert stale.balance_micro == 100 * USDC  # what it was when it was read
    with pytest.raises(ledger.NotEnoughMoney):
        ledger.post(key="more", debit=stale, credit=payable, amount_micro=1, kind=Move.ADJUSTMENT, at=noon)
    assert owned(renter) == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("money-F28")
def test_fifty_threads_that_add_one_make_fifty(noon: datetime) -> None:
    renter, provider = organisation("renter"), organisation("provider")
    fund(renter, 100, at=noon)
    results = together(50, lambda number: pay(renter, provider, 1, key=f"one:{number}", at=noon))
    assert not [result for result in results if isinstance(result, Exception)]
    assert owned(provider, Kind.PROVIDER_PAYABLE) == 50
    assert ledger.verify_books().problems == []


@pytest.mark.django_db(transaction=True)
def test_transfers_in_opposite_directions_at_once_never_lock_each_other_out(noon: datetime) -> None:
    accounts = [ledger.account(Kind.RENTER_BALANCE, organisation=organisation(f"o{number}")) for number in range(4)]
    for account in accounts:
        fund(account.organisation, 1000, at=noon)

    def act(number: int) -> None:
        for turn in range(15):
            a, b = accounts[(number + turn) % 4], accounts[(number * 3 + turn + 1) % 4]
            if a != b:
                pair = [
                    Posting(f"{number}:{turn}:{way}", x, y, 1, Move.ADJUSTMENT)
                    for way, (x, y) in enumerate([(a, b), (b, a)])
                ]
                ledger.post_all(pair if number % 2 else pair[::-1], at=noon)

    assert not [result for result in together(8, act) if result is not None]
    assert ledger.verify_books().problems == []


@pytest.mark.django_db(transaction=True)
def test_transfers_of_an_account_are_numbered_as_they_took_effect(noon: datetime) -> None:
    """A payout reads "all up to here" by id: a smaller id must never turn up later."""
    renter, provider = organisation("renter"), organisation("provider")
    fund(renter, 1000, at=noon)
    payable = ledger.account(Kind.PROVIDER_PAYABLE, organisation=provider)
    seen: list[tuple[int, int]] = []

    def act(number: int) -> None:
        for turn in range(10):
            row = pay(renter, provider, 1, key=f"{number}:{turn}", at=noon)
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT max(id), (SELECT balance_micro FROM billing_account WHERE id = %s) FROM billing_transfer WHERE credit_id = %s",
                    [payable.pk, payable.pk],
                )
                seen.append(cursor.fetchone())
            assert seen[-1][0] >= row.pk

    assert not [result for result in together(6, act) if result is not None]
    ids = list(Transfer.objects.filter(credit=payable).order_by("pk").values_list("pk", flat=True))
    assert {(ids[balance - 1], balance) for _id, balance in seen} == set(seen)


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("money-F22")
def test_one_key_from_many_threads_at_once_is_one_transfer(noon: datetime) -> None:
    renter, provider = organisation("renter"), organisation("provider")
    fund(renter, 100, at=noon)
    results = together(8, lambda _number: pay(renter, provider, 10, key="deposit", at=noon))
    assert {result.pk for result in results} == {results[0].pk}
    assert owned(renter) == 90


@pytest.mark.django_db(transaction=True)
def test_one_key_between_two_accounts_without_a_row_lock_is_one_transfer(noon: datetime) -> None:
    treasury, unmatched = ledger.account(Kind.TREASURY), ledger.account(Kind.UNMATCHED)

    def act(_number: int) -> Transfer:
        return ledger.post(key="hot", debit=treasury, credit=unmatched, amount_micro=7, kind=Move.UNMATCHED, at=noon)

    assert len({result.pk for result in together(8, act)}) == 1
    assert ledger.balance(unmatched) == 7


def test_a_reversal_moves_the_amount_back_once(renter: Organisation, provider: Organisation, noon: datetime) -> None:
    admin = person("admin")
    paid = pay(renter, provider, 10 * USDC, key="p", at=noon)
    with pytest.raises(ledger.ReasonMissing):
        ledger.reverse(transfer=paid, key="r", by=admin, reason=" ", at=noon)
    back = ledger.reverse(transfer=paid, key="r", by=admin, reason="wrong rental", at=noon)
    assert (back.reverses, back.actor, back.reason) == (paid, admin, "wrong rental")
    assert owned(renter) == 100 * USDC
    with pytest.raises(ledger.AlreadyReversed):
        ledger.reverse(transfer=paid, key="other", by=admin, reason="again", at=noon)
    assert owned(renter) == 100 * USDC


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("money-F31")
def test_two_reversals_at_once_give_the_money_back_once(noon: datetime) -> None:
    renter, provider = organisation("renter"), organisation("provider")
    fund(renter, 100, at=noon)
    paid = pay(renter, provider, 10, key="p", at=noon)
    results = together(
        4, lambda number: ledger.reverse(transfer=paid, key=f"r{number}", by=None, reason="race", at=noon)
    )
    assert sum(isinstance(result, Transfer) for result in results) == 1
    assert sum(isinstance(result, ledger.AlreadyReversed) for result in results) == 3
    assert owned(renter) == 100


def test_a_platform_account_may_be_negative_and_is_the_sum_of_its_transfers(noon: datetime, db: None) -> None:
    loss, adjustments = ledger.account(Kind.LOSS), ledger.account(Kind.ADJUSTMENTS)
    ledger.post(
        key=str(uuid.uuid4()),
        debit=loss,
        credit=adjustments,
        amount_micro=3,
        kind=Move.ADJUSTMENT,
        at=noon,
        reason="test",
    )
    assert (ledger.balance(loss), ledger.balance(adjustments)) == (-3, 3)

"""The books: one way to post, keys for ever, floors that hold, corrections by reversal."""

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

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
@pytest.mark.case("money-F27", "money-F29")
def test_of_many_withdrawals_at_once_exactly_one_wins(noon: datetime) -> None:
    renter, provider = organisation("renter"), organisation("provider")
    fund(renter, 100, at=noon)
    results = together(12, lambda number: pay(renter, provider, 80, key=f"w{number}", at=noon))
    assert sum(isinstance(result, Transfer) for result in results) == 1
    assert sum(isinstance(result, ledger.NotEnoughMoney) for result in results) == 11
    assert owned(renter) == 20


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("money-F28")
def test_no_update_is_lost_among_many_threads(noon: datetime) -> None:
    renter, provider = organisation("renter"), organisation("provider")
    fund(renter, 100, at=noon)
    results = together(12, lambda number: [pay(renter, provider, 1, key=f"{number}:{i}", at=noon) for i in range(4)])
    assert not [result for result in results if isinstance(result, Exception)]
    assert owned(provider, Kind.PROVIDER_PAYABLE) == 48
    assert ledger.verify_books().drift_micro == 0


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


def test_a_damaged_balance_is_found(renter: Organisation, noon: datetime) -> None:
    Account.objects.filter(code=f"{Kind.RENTER_BALANCE}:{renter.public_id}").update(balance_micro=100 * USDC + 1)
    report = ledger.verify_books()
    assert report.drift_micro == 1
    assert any(str(renter.public_id) in problem for problem in report.problems)

"""A deadlock costs a second, not the operation."""

import threading
from datetime import datetime

import pytest
from django.db import OperationalError, connection, transaction

from billing import ledger
from billing.ledger import Kind
from billing.models import Account
from gpunex.kit.conflicts import retrying
from tests.billing.conftest import fund, organisation


def locked_in_order(*accounts: Account, barrier: threading.Barrier) -> None:
    with transaction.atomic():
        for account in accounts:
            Account.objects.select_for_update().get(pk=account.pk)
            try:
                # Both hold their first row before either asks for its second; later tries find nobody to wait for.
                barrier.wait(timeout=2)
            except threading.BrokenBarrierError:
                pass


@pytest.mark.django_db(transaction=True)
def test_both_sides_of_a_deadlock_come_through(now: datetime) -> None:
    organisations = [organisation("a"), organisation("b")]
    for org in organisations:
        fund(org, 1, at=now)
    first, second = (ledger.account(Kind.RENTER_BALANCE, organisation=org) for org in organisations)
    barrier = threading.Barrier(2)
    failures: list[Exception] = []

    def act(*accounts: Account) -> None:
        try:
            retrying(locked_in_order)(*accounts, barrier=barrier)
        except Exception as error:
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=act, args=pair) for pair in ((first, second), (second, first))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_any_other_failure_is_not_tried_again(db: None) -> None:
    tries = []

    def fails() -> None:
        tries.append(1)
        raise OperationalError("the server is away")

    with pytest.raises(OperationalError):
        retrying(fails)()
    assert len(tries) == 1

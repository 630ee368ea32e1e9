"""Bringing deposits into the treasury: what is worth it, and not a speck more than that, unless payouts need it."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pytest_django import Settings
from solders.keypair import Keypair

from billing import collecting, deposits, treasury
from billing.models import Deposit, DepositAddress
from gpunex.accounts.models import Notice, Organisation
from gpunex.chain import faucet
from gpunex.outbox.models import Message
from gpunex.policy.models import Policy
from payouts import books
from tests import chainkit

from .conftest import USDC, organisation, owned

pytestmark = pytest.mark.usefixtures("devchain")


@pytest.fixture(autouse=True)
def mended(devchain: object, settings: Settings, tmp_path: Path) -> Iterator[None]:
    settings.TREASURY_KEY_FILE = chainkit.open_treasury(tmp_path)
    yield
    chainkit.faults(reset=True)


@pytest.fixture
def depositor(db: None) -> Organisation:
    return organisation("depositor")


def arrive(org: Organisation, micro: int, *, at: datetime) -> DepositAddress:
    """A deposit that is credited."""
    row = deposits.address_for(org, at=at)
    chainkit.give(row.owner, micro)
    assert deposits.find_deposits(at=at) == 1
    return row


def test_a_deposit_is_collected_and_that_is_not_taken_for_a_deposit(depositor: Organisation, now: datetime) -> None:
    before = chainkit.held(treasury.address())
    row = arrive(depositor, 4 * USDC, at=now)
    assert collecting.sweep_deposits(at=now) == 1
    assert chainkit.held(row.owner) == 0
    assert chainkit.held(treasury.address()) == before + 4 * USDC
    assert collecting.sweep_deposits(at=now) == 0
    assert Deposit.objects.get(organisation=depositor).swept_at == now
    assert deposits.find_deposits(at=now + timedelta(minutes=11)) == 0
    assert owned(depositor) == 4 * USDC


def test_less_than_the_policy_says_stays_for_some_days(depositor: Organisation, now: datetime) -> None:
    policy = Policy.load()
    policy.deposit_sweep_micro = 2 * USDC
    policy.save()
    row = arrive(depositor, 1_999_999, at=now)
    assert collecting.sweep_deposits(at=now) == 0
    assert collecting.sweep_deposits(at=now + timedelta(days=2, hours=23)) == 0
    assert collecting.sweep_deposits(at=now + timedelta(days=3)) == 1
    assert chainkit.held(row.owner) == 0


def test_small_deposits_add_up_until_they_are_worth_it(depositor: Organisation, now: datetime) -> None:
    row = arrive(depositor, 600_000, at=now)
    assert collecting.sweep_deposits(at=now) == 0
    arrive(depositor, 400_000, at=now + timedelta(seconds=3))
    assert collecting.sweep_deposits(at=now + timedelta(seconds=4)) == 1
    assert chainkit.held(row.owner) == 0
    collecting.sweep_deposits(at=now + timedelta(seconds=5))
    assert not Deposit.objects.filter(swept_at=None).exists()


def test_dust_is_never_collected_for_its_own_sake(depositor: Organisation, now: datetime) -> None:
    row = arrive(depositor, collecting.WORTH_IT_MICRO - 1, at=now)
    assert collecting.sweep_deposits(at=now + timedelta(days=300)) == 0
    assert chainkit.held(row.owner) == collecting.WORTH_IT_MICRO - 1


def test_a_treasury_that_runs_short_gets_everything_the_largest_first(
    db: None, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "AT_ONCE", 2)
    rows = {micro: arrive(organisation(), micro, at=now) for micro in (5, 900_000, 70_000)}
    assert collecting.collect_all(at=now) == 2
    assert [chainkit.held(rows[micro].owner) for micro in (5, 70_000, 900_000)] == [5, 0, 0]
    assert collecting.collect_all(at=now + timedelta(seconds=2)) == 1
    assert collecting.collect_all(at=now + timedelta(seconds=4)) == 0
    assert chainkit.held(treasury.address()) == 970_005


def test_a_collection_that_was_lost_is_signed_again(depositor: Organisation, now: datetime) -> None:
    row = arrive(depositor, USDC, at=now)
    chainkit.faults(drop=1)
    collecting.sweep_deposits(at=now)
    assert collecting.sweep_deposits(at=now + timedelta(seconds=30)) == 0
    assert collecting.sweep_deposits(at=now + timedelta(minutes=4)) == 1
    assert chainkit.held(row.owner) == 0


def test_silent_nodes_change_nothing(depositor: Organisation, now: datetime) -> None:
    row = arrive(depositor, USDC, at=now)
    chainkit.faults(rpc_down=True)
    assert collecting.sweep_deposits(at=now) == 0
    assert collecting.collect_all(at=now) == 0
    chainkit.faults(reset=True)
    assert Deposit.objects.get().swept_signature == ""
    assert collecting.sweep_deposits(at=now) == 1
    assert chainkit.held(row.owner) == 0


@pytest.mark.spec("F2")
def test_two_hundred_specks_of_dust_cost_nearly_nothing(depositor: Organisation, now: datetime) -> None:
    """Somebody sends specks by the hundred: all are credited, nobody gets a mail, nothing is collected, and books and chain agree."""
    row, key = deposits.address_for(depositor, at=now), Keypair()
    faucet.give_sol(treasury.rpc(), str(key.pubkey()), 1_000_000_000)
    chainkit.give(str(key.pubkey()), 200)
    for _ in range(200):
        faucet.send_usdc(treasury.rpc(), key, treasury.mint(), row.owner, 1)
    looks = [deposits.find_deposits(at=now + timedelta(seconds=3 * step)) for step in range(3)]
    assert (sum(looks), max(looks)) == (200, deposits.READ_A_LOOK)
    assert owned(depositor) == 200
    assert Notice.objects.filter(organisation=depositor).count() == 200
    assert not Message.objects.exists()
    sol = treasury.rpc().get_balance(treasury.address())
    assert [collecting.sweep_deposits(at=now + timedelta(days=days)) for days in (0, 4, 40)] == [0, 0, 0]
    assert treasury.rpc().get_balance(treasury.address()) == sol
    assert books.verify_books().problems == []
    # One transaction takes all of them along, should payouts need it.
    assert collecting.collect_all(at=now + timedelta(days=41)) == 1
    assert chainkit.held(treasury.address()) == 200
    assert collecting.collect_all(at=now + timedelta(days=41, seconds=3)) == 0
    assert books.verify_books().problems == []


def test_a_mail_tells_of_a_cent_and_the_page_of_less(depositor: Organisation, now: datetime) -> None:
    arrive(depositor, deposits.MAILED_FROM_MICRO - 1, at=now)
    assert (Notice.objects.count(), Message.objects.count()) == (1, 0)
    arrive(depositor, deposits.MAILED_FROM_MICRO, at=now + timedelta(seconds=3))
    assert (Notice.objects.count(), Message.objects.count()) == (2, 1)

"""What comes to a deposit address and is not USDC: listed for a person, never booked."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pytest_django import Settings
from solders.keypair import Keypair

from billing import deposits, ledger, strays, treasury
from billing.models import Deposit, DepositAddress, StrayPayment, Transfer
from gpunex.accounts.models import Notice, Organisation
from gpunex.chain import faucet, pay
from gpunex.chain.pay import TransferRequest
from gpunex.chain.rpc import TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from tests import chainkit

from .conftest import USDC, organisation, person

pytestmark = pytest.mark.usefixtures("devchain")


@pytest.fixture(autouse=True)
def mended(devchain: object, settings: Settings, tmp_path: Path) -> Iterator[None]:
    settings.TREASURY_KEY_FILE = chainkit.open_treasury(tmp_path)
    yield
    chainkit.faults(reset=True)


@pytest.fixture
def owner(db: None) -> Organisation:
    return organisation("depositor")


def send(key: Keypair, mint: str, amount: int, *, to: str) -> str:
    return pay.pay(treasury.rpc(), key, TransferRequest(wallet=to, amount=amount, mint=mint))


@pytest.mark.spec("F2")
@pytest.mark.parametrize("program", [TOKEN_PROGRAM, TOKEN_2022_PROGRAM])
def test_another_token_sent_to_the_address_is_listed_once(owner: Organisation, now: datetime, program: str) -> None:
    row, key = deposits.address_for(owner, at=now), chainkit.purse()
    mint = chainkit.other_token(key, 500, program=program, decimals=2)
    first = send(key, mint, 120, to=row.owner)
    booked = Transfer.objects.count()
    assert strays.find_strays(at=now) == 1
    stray = StrayPayment.objects.get()
    assert (stray.signature, stray.mint, stray.amount_raw, stray.decimals) == (first, mint, 120, 2)
    assert (stray.sender, stray.organisation, stray.request) == (str(key.pubkey()), owner, None)
    assert strays.find_strays(at=now + timedelta(hours=23)) == 0
    send(key, mint, 30, to=row.owner)
    assert strays.find_strays(at=now + timedelta(hours=24)) == 1
    assert strays.find_strays(at=now + timedelta(hours=48)) == 0
    assert sorted(StrayPayment.objects.values_list("amount_raw", flat=True)) == [30, 120]
    # Nothing is booked for it, and a stranger's gift is no reason to write to anybody.
    assert (Transfer.objects.count(), Deposit.objects.count(), Notice.objects.count()) == (booked, 0, 0)


def test_usdc_that_arrives_as_it_should_and_sol_are_no_strays(owner: Organisation, now: datetime) -> None:
    row = deposits.address_for(owner, at=now)
    chainkit.give(row.owner, 5 * USDC)
    faucet.give_sol(treasury.rpc(), row.owner, 50_000_000)
    assert strays.find_strays(at=now) == 0
    assert deposits.find_deposits(at=now) == 1


def test_each_address_has_its_turn_a_day_those_in_use_first(
    db: None, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strays, "ADDRESSES_A_SWEEP", 2)
    rows = [deposits.address_for(organisation(), at=now - timedelta(days=30)) for _ in range(4)]
    DepositAddress.objects.filter(pk=rows[3].pk).update(wanted_at=now)
    looked = []
    for minute in range(3):
        at = now + timedelta(minutes=minute)
        strays.find_strays(at=at)
        looked.append(set(DepositAddress.objects.filter(strays_looked_at=at)))
    assert looked == [{rows[3], rows[0]}, {rows[1], rows[2]}, set()]


def test_junk_by_the_hundred_costs_a_bounded_look(
    owner: Organisation, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strays, "TRANSACTIONS_A_LOOK", 3)
    row, key = deposits.address_for(owner, at=now), chainkit.purse()
    mint = chainkit.other_token(key, 100)
    signatures = [send(key, mint, 1, to=row.owner) for _ in range(7)]
    assert strays.find_strays(at=now) == 3
    assert set(StrayPayment.objects.values_list("signature", flat=True)) == set(signatures[:3])  # the oldest first
    assert [strays.find_strays(at=now + timedelta(days=days)) for days in (1, 2, 3)] == [3, 1, 0]


def test_silent_nodes_and_one_nodes_word_list_nothing_and_lose_nothing(owner: Organisation, now: datetime) -> None:
    row, key = deposits.address_for(owner, at=now), chainkit.purse()
    mint = chainkit.other_token(key, 100)
    send(key, mint, 100, to=row.owner)
    chainkit.faults(rpc_down=True)
    assert strays.find_strays(at=now) == 0
    assert DepositAddress.objects.get(pk=row.pk).strays_looked_at is None
    chainkit.faults(reset=True, hide_status_s=60, only_path="/b")
    assert strays.find_strays(at=now) == 0
    chainkit.faults(reset=True)
    assert strays.find_strays(at=now + timedelta(days=1)) == 1


def test_nodes_that_tell_different_amounts_are_not_believed(owner: Organisation, now: datetime) -> None:
    row, key = deposits.address_for(owner, at=now), chainkit.purse()
    mint = chainkit.other_token(key, 100)
    tx = treasury.rpc().get_transaction(send(key, mint, 100, to=row.owner))
    assert tx is not None
    lied = {**tx, "meta": {**tx["meta"], "postTokenBalances": []}}
    with pytest.raises(deposits.NotToldAlike):
        strays.note(row, "signature", [tx, lied], at=now)
    assert not StrayPayment.objects.exists()


def test_dealing_with_one_needs_a_note_and_happens_once(owner: Organisation, now: datetime) -> None:
    row, key, admin = deposits.address_for(owner, at=now), chainkit.purse(), person("admin")
    mint = chainkit.other_token(key, 100)
    send(key, mint, 100, to=row.owner)
    strays.find_strays(at=now)
    stray = StrayPayment.objects.get()
    with pytest.raises(ledger.ReasonMissing):
        strays.deal_with(stray=stray, by=admin, note=" ", at=now)
    strays.deal_with(stray=stray, by=admin, note="sent back", at=now)
    with pytest.raises(strays.AlreadyDealtWith):
        strays.deal_with(stray=stray, by=admin, note="again", at=now)
    stray.refresh_from_db()
    assert (stray.state, stray.handled_by, stray.note) == (StrayPayment.State.HANDLED, admin, "sent back")


def test_a_mixed_bag_is_credited_and_listed(owner: Organisation, now: datetime) -> None:
    row, key = deposits.address_for(owner, at=now), chainkit.purse(3 * USDC)
    mint = chainkit.other_token(key, 100)
    send(key, mint, 100, to=row.owner)
    send(key, treasury.mint(), 3 * USDC, to=row.owner)
    assert (strays.find_strays(at=now), deposits.find_deposits(at=now)) == (1, 1)
    assert StrayPayment.objects.get().token_account != row.token_account

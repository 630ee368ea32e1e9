"""Deposits on the development chain: credited once, at finality, to whom they belong."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pytest_django import Settings
from solders.keypair import Keypair

from billing import deposits, ledger, metering, treasury
from billing.ledger import Kind
from billing.models import Deposit, DepositAddress, Transfer
from gpunex.accounts.models import Notice, Organisation
from gpunex.chain import faucet
from gpunex.chain.rpc import Rpc, RpcError
from gpunex.outbox.models import Message
from tests import chainkit

from .conftest import USDC, organisation, owned, person, start_meter
from .test_ledger import together

pytestmark = pytest.mark.usefixtures("devchain")


@pytest.fixture
def depositor(db: None) -> Organisation:
    return organisation("depositor")


@pytest.fixture(autouse=True)
def mended(devchain: object, settings: Settings, tmp_path: Path) -> Iterator[None]:
    settings.TREASURY_KEY_FILE = chainkit.open_treasury(tmp_path)
    yield
    chainkit.faults(reset=True)


@pytest.mark.spec("F2")
def test_an_address_is_ones_own_and_stays_the_same(depositor: Organisation, now: datetime) -> None:
    first = deposits.address_for(depositor, at=now)
    again = deposits.address_for(depositor, at=now + timedelta(days=400))
    other = deposits.address_for(organisation(), at=now)
    assert (first.owner, first.token_account) == (again.owner, again.token_account)
    assert first.owner != other.owner
    assert first.owner == str(treasury.deposit_key(depositor).pubkey())


@pytest.mark.spec("F2")
def test_a_deposit_is_credited_once_and_told(depositor: Organisation, now: datetime) -> None:
    row = deposits.address_for(depositor, at=now)
    signature = chainkit.give(row.owner, 12_345_678)
    assert deposits.find_deposits(at=now) == 1
    assert deposits.find_deposits(at=now + timedelta(seconds=3)) == 0
    deposit = Deposit.objects.get(organisation=depositor)
    assert (deposit.signature, deposit.amount_micro, deposit.state) == (signature, 12_345_678, Deposit.State.CREDITED)
    assert owned(depositor) == 12_345_678
    assert Notice.objects.filter(organisation=depositor, event="deposit_credited").count() == 1
    assert Message.objects.filter(event="deposit_credited").count() == 1


def test_two_equal_deposits_are_two(depositor: Organisation, now: datetime) -> None:
    row = deposits.address_for(depositor, at=now)
    chainkit.give(row.owner, USDC)
    deposits.find_deposits(at=now)
    chainkit.give(row.owner, USDC)
    chainkit.give(row.owner, USDC)
    assert deposits.find_deposits(at=now + timedelta(seconds=3)) == 2
    assert owned(depositor) == 3 * USDC


def test_a_senders_wallet_is_kept(depositor: Organisation, now: datetime) -> None:
    sender = Keypair()
    chainkit.give(str(sender.pubkey()), 5 * USDC)
    faucet.give_sol(treasury.rpc(), str(sender.pubkey()), 100_000_000)
    row = deposits.address_for(depositor, at=now)
    faucet.send_usdc(treasury.rpc(), sender, treasury.mint(), row.owner, 2 * USDC)
    deposits.find_deposits(at=now)
    assert Deposit.objects.get(organisation=depositor).sender == str(sender.pubkey())


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("money-F22")
def test_two_watchers_at_once_credit_once(now: datetime) -> None:
    depositor = organisation("depositor")
    row = deposits.address_for(depositor, at=now)
    chainkit.give(row.owner, 7 * USDC)
    assert not [
        result for result in together(4, lambda _n: deposits.find_deposits(at=now)) if isinstance(result, Exception)
    ]
    assert owned(depositor) == 7 * USDC
    assert Deposit.objects.filter(organisation=depositor).count() == 1


def test_a_row_that_a_node_left_out_is_found_by_the_rescan(depositor: Organisation, now: datetime) -> None:
    row = deposits.address_for(depositor, at=now)
    chainkit.give(row.owner, USDC)
    newest = chainkit.give(row.owner, 2 * USDC)
    # As after a node that listed only the newest: the cursor is past both, the first was never seen.
    DepositAddress.objects.filter(pk=row.pk).update(cursor=newest, scanned_at=now, rescanned_at=now)
    assert deposits.find_deposits(at=now + timedelta(seconds=5)) == 0
    assert deposits.find_deposits(at=now + timedelta(minutes=10)) == 2
    assert owned(depositor) == 3 * USDC


def test_nothing_is_credited_or_skipped_while_the_nodes_are_silent(depositor: Organisation, now: datetime) -> None:
    row = deposits.address_for(depositor, at=now)
    chainkit.give(row.owner, USDC)
    chainkit.faults(rpc_down=True)
    assert deposits.find_deposits(at=now) == 0
    row.refresh_from_db()
    assert row.cursor == ""
    chainkit.faults(reset=True)
    assert deposits.find_deposits(at=now) == 1


def test_another_token_and_a_failed_transfer_are_not_credited(depositor: Organisation, now: datetime) -> None:
    row = deposits.address_for(depositor, at=now)
    faucet.give_sol(treasury.rpc(), row.owner, 50_000_000)
    deposits.find_deposits(at=now)
    assert not Deposit.objects.filter(organisation=depositor).exists()


def test_money_sent_to_the_treasury_itself_is_listed_as_unmatched_and_can_be_given(
    depositor: Organisation, now: datetime
) -> None:
    signature = chainkit.give(treasury.address(), 9 * USDC)
    deposits.find_deposits(at=now + timedelta(seconds=3))
    deposit = Deposit.objects.get()
    assert (deposit.signature, deposit.state, deposit.organisation) == (signature, Deposit.State.UNMATCHED, None)
    with pytest.raises(ledger.ReasonMissing):
        deposits.give_unmatched(deposit=deposit, organisation=depositor, by=person("admin"), reason="", at=now)
    deposits.give_unmatched(deposit=deposit, organisation=depositor, by=person("admin"), reason="ticket 12", at=now)
    with pytest.raises(deposits.NotUnmatched):
        deposits.give_unmatched(deposit=deposit, organisation=depositor, by=person("admin"), reason="ticket 12", at=now)
    assert owned(depositor) == 9 * USDC


def test_a_deposit_is_swept_and_the_sweep_is_not_taken_for_a_deposit(depositor: Organisation, now: datetime) -> None:
    before, booked = chainkit.held(treasury.address()), Transfer.objects.count()
    row = deposits.address_for(depositor, at=now)
    chainkit.give(row.owner, 4 * USDC)
    deposits.find_deposits(at=now)
    assert deposits.sweep_deposits(at=now) == 1
    assert chainkit.held(row.owner) == 0
    assert chainkit.held(treasury.address()) == before + 4 * USDC
    assert deposits.sweep_deposits(at=now) == 0
    assert Deposit.objects.get(organisation=depositor).swept_at == now
    deposits.find_deposits(at=now + timedelta(minutes=11))
    assert Transfer.objects.count() == booked + 1
    assert owned(depositor) == 4 * USDC


def test_a_sweep_that_was_lost_is_signed_again(depositor: Organisation, now: datetime) -> None:
    row = deposits.address_for(depositor, at=now)
    chainkit.give(row.owner, USDC)
    deposits.find_deposits(at=now)
    chainkit.faults(drop=1)
    deposits.sweep_deposits(at=now)
    assert deposits.sweep_deposits(at=now + timedelta(seconds=30)) == 0
    assert deposits.sweep_deposits(at=now + timedelta(minutes=4)) == 1
    assert chainkit.held(row.owner) == 0


def test_many_addresses_take_turns(now: datetime, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deposits, "OTHERS_A_SWEEP", 3)
    rows = [deposits.address_for(organisation(), at=now - timedelta(hours=1)) for _ in range(7)]
    chainkit.give(rows[6].owner, USDC)
    found = [deposits.find_deposits(at=now + timedelta(seconds=3 * step)) for step in range(3)]
    assert found == [0, 0, 1]
    assert not DepositAddress.objects.filter(scanned_at=None).exists()
    watched = rows[2]
    deposits.address_for(watched.organisation, at=now)
    assert deposits._turn(now)[1] == watched


@pytest.mark.spec("F2")
def test_a_deposit_prolongs_a_running_rental(depositor: Organisation, now: datetime) -> None:
    row = deposits.address_for(depositor, at=now)
    chainkit.give(row.owner, 10 * USDC)
    deposits.find_deposits(at=now)
    meter = start_meter(depositor, organisation(), at=now, rate=5 * USDC)
    assert meter.funded_until == now + timedelta(hours=2)
    chainkit.give(row.owner, 5 * USDC)
    deposits.find_deposits(at=now + timedelta(seconds=3))
    meter.refresh_from_db()
    assert meter.funded_until == now + timedelta(hours=3)
    assert metering.position(depositor, at=now).posted_micro == 15 * USDC


def test_the_treasury_is_negative_by_what_came_in(depositor: Organisation, now: datetime) -> None:
    before = ledger.balance(ledger.account(Kind.TREASURY))
    chainkit.give(deposits.address_for(depositor, at=now).owner, USDC)
    deposits.find_deposits(at=now + timedelta(seconds=3))
    assert ledger.balance(ledger.account(Kind.TREASURY)) == before - USDC


def test_one_nodes_word_makes_no_money(depositor: Organisation, now: datetime) -> None:
    row = deposits.address_for(depositor, at=now)
    chainkit.give(row.owner, USDC)
    chainkit.faults(hide_status_s=60, only_path="/b")
    assert deposits.find_deposits(at=now) == 0
    row.refresh_from_db()
    assert row.cursor == ""
    assert not Deposit.objects.exists()
    chainkit.faults(reset=True)
    assert deposits.find_deposits(at=now + timedelta(seconds=3)) == 1
    assert owned(depositor) == USDC


def test_a_transaction_that_cannot_be_read_holds_up_no_other(
    depositor: Organisation, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = deposits.address_for(depositor, at=now)
    first = chainkit.give(row.owner, USDC)
    chainkit.give(row.owner, 2 * USDC)
    ask = Rpc.get_transaction

    def ask_but(rpc: Rpc, signature: str, *, node: int | None = None) -> object:
        # As nodes answer for a transaction of a newer version than they were asked for.
        if signature == first:
            raise RpcError(-32015, "Transaction version (1) is not supported")
        return ask(rpc, signature, node=node)

    with monkeypatch.context() as patched:
        patched.setattr(Rpc, "get_transaction", ask_but)
        assert deposits.find_deposits(at=now) == 1
    assert owned(depositor) == 2 * USDC
    assert deposits.find_deposits(at=now + timedelta(seconds=3)) == 1  # the cursor did not leave it behind
    assert owned(depositor) == 3 * USDC

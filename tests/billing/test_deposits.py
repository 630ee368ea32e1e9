"""Deposits on the development chain: credited once, at finality, to whom they belong."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pytest_django import Settings
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from spl.token.constants import TOKEN_PROGRAM_ID
from spl.token.instructions import transfer_checked
from spl.token.models import TransferCheckedParams

from billing import deposits, ledger, metering, treasury
from billing.ledger import Kind
from billing.models import Deposit, DepositAddress
from gpunex.accounts.models import Notice, Organisation
from gpunex.chain import faucet, pay
from gpunex.chain.addresses import ata
from gpunex.chain.rpc import Rpc, RpcError
from gpunex.chain.transfers import sign, sign_transfer
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


@pytest.mark.parametrize("memo", ["for org 7", "a\x00b\x1b[31m\u202e" + "ن" * 300])
def test_what_an_admin_needs_is_kept_whatever_a_stranger_writes(db: None, now: datetime, memo: str) -> None:
    """A memo is a stranger's text; PostgreSQL refuses one with a null, and then the money could never be credited."""
    key = chainkit.purse(3 * USDC)
    faucet.send_usdc(treasury.rpc(), key, treasury.mint(), treasury.address(), 3 * USDC, memo=memo)
    assert deposits.find_deposits(at=now) == 1
    kept = Deposit.objects.get().transfer.data
    assert kept["sender"] == str(key.pubkey())
    assert kept["memo"].isprintable()
    assert kept["memo"].startswith(memo[:1])
    assert datetime.fromisoformat(kept["block_at"]) <= now


@pytest.mark.case("money-F20")
@pytest.mark.parametrize("micro", [2_010_000, 2_050_000, 4_020_000, 1_005_000, 4_100_000, 1])
def test_amounts_are_credited_to_the_micro(depositor: Organisation, now: datetime, micro: int) -> None:
    chainkit.give(deposits.address_for(depositor, at=now).owner, micro)
    deposits.find_deposits(at=now)
    assert owned(depositor) == micro


@pytest.mark.case("money-F40")
def test_a_transfer_that_failed_on_chain_credits_nothing(depositor: Organisation, now: datetime) -> None:
    """It landed, it names our account, and it has an error: nothing moved."""
    row, key = deposits.address_for(depositor, at=now), chainkit.purse(USDC)
    chainkit.give(row.owner, 1)
    blockhash, last = treasury.rpc().get_latest_blockhash()
    signed = sign_transfer(
        key=key,
        mint=treasury.mint(),
        destination_owner=row.owner,
        amount_micro=9 * USDC,  # more than it has
        memo="too much",
        blockhash=blockhash,
        last_valid_block_height=last,
        cu_price_micro_lamports=0,
    )
    treasury.rpc().send_raw(signed.raw, preflight=False)
    listed = treasury.rpc().get_signatures_for_address(row.token_account)
    assert [entry["err"] is not None for entry in listed if entry["signature"] == signed.signature] == [True]
    assert deposits.find_deposits(at=now) == 1
    assert owned(depositor) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("money-F14")
def test_a_crash_in_the_middle_of_crediting_loses_nothing_and_doubles_nothing(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What marks a deposit as seen is written with the money, or neither is."""
    depositor = organisation("depositor")
    chainkit.give(deposits.address_for(depositor, at=now).owner, USDC)

    def dies(*_args: object, **_more: object) -> None:
        raise RuntimeError("the last line before the commit")

    with monkeypatch.context() as patched:
        patched.setattr(deposits, "notify", dies)
        assert deposits.find_deposits(at=now) == 0
    assert not Deposit.objects.exists()
    assert ledger.balance(ledger.account(Kind.RENTER_BALANCE, organisation=depositor)) == 0
    assert deposits.find_deposits(at=now + timedelta(seconds=3)) == 1
    assert deposits.find_deposits(at=now + timedelta(minutes=20)) == 0
    assert owned(depositor) == USDC


@pytest.mark.case("money-F42")
def test_a_node_that_is_overrun_is_asked_again_later(depositor: Organisation, now: datetime) -> None:
    chainkit.give(deposits.address_for(depositor, at=now).owner, USDC)
    chainkit.faults(rate_limit=40, retry_after_s=1)
    assert deposits.find_deposits(at=now) == 0
    chainkit.faults(reset=True)
    assert deposits.find_deposits(at=now + timedelta(seconds=3)) == 1


def test_more_than_a_page_of_signatures_is_read_to_the_last_one_seen(
    depositor: Organisation, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deposits, "PAGE", 3)
    row = deposits.address_for(depositor, at=now)
    for count in (8, 7):
        for _ in range(count):
            chainkit.give(row.owner, USDC)
        assert deposits.find_deposits(at=now) == count
    assert owned(depositor) == 15 * USDC


def test_an_account_that_is_named_by_the_hundred_delays_its_owner_and_nobody_else(
    depositor: Organisation, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transactions that name it and bring nothing, then a real deposit behind them."""
    monkeypatch.setattr(deposits, "READ_A_LOOK", 4)
    monkeypatch.setattr(deposits, "READ_A_SWEEP", 5)
    row, other = deposits.address_for(depositor, at=now), deposits.address_for(organisation("other"), at=now)
    key = chainkit.purse(10)
    for _ in range(9):
        named = pay.TransferRequest(chainkit.wallet(), 1, treasury.mint(), references=(row.token_account,))
        pay.pay(treasury.rpc(), key, named)
    chainkit.give(row.owner, USDC)
    chainkit.give(other.owner, USDC)
    found = [deposits.find_deposits(at=now + timedelta(seconds=3 * step)) for step in range(4)]
    assert found == [1, 0, 1, 0]
    assert (owned(other.organisation), owned(depositor)) == (USDC, USDC)
    # The hour is read again, bounded too, and comes to an end.
    assert deposits.find_deposits(at=now + timedelta(minutes=11)) == 0
    row.refresh_from_db()
    assert row.rescanned_at == now + timedelta(minutes=11)


def test_what_cannot_be_read_keeps_the_cursor_before_it(
    depositor: Organisation, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = deposits.address_for(depositor, at=now)
    first, second, third = (chainkit.give(row.owner, micro) for micro in (1, 2, 4))
    real = deposits.told_by_nodes

    def not_the_second(signature: str) -> object:
        if signature == second:
            raise deposits.NotToldAlike(signature)
        return real(signature)

    with monkeypatch.context() as patched:
        patched.setattr(deposits, "told_by_nodes", not_the_second)
        assert deposits.find_deposits(at=now) == 2
    row.refresh_from_db()
    assert (row.cursor, third in row.cursor) == (first, False)
    assert deposits.find_deposits(at=now + timedelta(seconds=3)) == 1
    row.refresh_from_db()
    assert row.cursor == third


def test_one_transaction_that_pays_two_of_us_credits_each_and_one_that_pays_twice_the_sum(
    depositor: Organisation, now: datetime
) -> None:
    other, key = organisation("other"), chainkit.purse(10 * USDC)
    here, there = (deposits.address_for(org, at=now) for org in (depositor, other))
    chainkit.give(here.owner, 1)
    chainkit.give(there.owner, 1)
    assert deposits.find_deposits(at=now) == 2

    def part(row: DepositAddress, micro: int) -> Instruction:
        return transfer_checked(
            TransferCheckedParams(
                program_id=TOKEN_PROGRAM_ID,
                source=Pubkey.from_string(ata(str(key.pubkey()), treasury.mint())),
                mint=Pubkey.from_string(treasury.mint()),
                dest=Pubkey.from_string(row.token_account),
                owner=key.pubkey(),
                amount=micro,
                decimals=6,
            )
        )

    blockhash, last = treasury.rpc().get_latest_blockhash()
    signed = sign(
        payer=key,
        instructions=[part(here, 1 * USDC), part(there, 3 * USDC), part(here, 2 * USDC)],
        blockhash=blockhash,
        last_valid_block_height=last,
    )
    treasury.rpc().send_raw(signed.raw, preflight=True)
    assert deposits.find_deposits(at=now + timedelta(seconds=3)) == 2
    assert (owned(depositor), owned(other)) == (3 * USDC + 1, 3 * USDC + 1)
    assert Deposit.objects.filter(signature=signed.signature).count() == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("money-F22")
def test_two_administrators_give_one_deposit_to_one_owner(now: datetime) -> None:
    chainkit.give(treasury.address(), 9 * USDC)
    deposits.find_deposits(at=now)
    deposit, owners, admin = Deposit.objects.get(), [organisation("a"), organisation("b")], person("admin")
    outcomes = together(
        2,
        lambda number: deposits.give_unmatched(
            deposit=deposit, organisation=owners[number], by=admin, reason="both are sure", at=now
        ),
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Deposit", "NotUnmatched"]
    balances = [ledger.balance(ledger.account(Kind.RENTER_BALANCE, organisation=owner)) for owner in owners]
    assert sorted(balances) == [0, 9 * USDC]
    assert ledger.balance(ledger.account(Kind.UNMATCHED)) == 0


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

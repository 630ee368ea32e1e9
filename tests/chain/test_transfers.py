"""Transfers that are signed, sent to a real token program, and read back."""

import base64
import copy
import json
import uuid
from pathlib import Path

import pytest
from solders.keypair import Keypair
from solders.transaction import VersionedTransaction

from gpunex.chain import faucet
from gpunex.chain.addresses import ata, derive_deposit_owner
from gpunex.chain.rpc import RpcError
from gpunex.chain.transfers import (
    KeyFileRefused,
    incoming,
    load_key,
    memo_of,
    outgoing_matches,
    sign_sweep,
    sign_transfer,
    token_delta,
)
from tests.chain.running import USDC, RunningChain, new_wallet


@pytest.mark.spec("H2")
@pytest.mark.case("money-F37")
def test_a_payout_opens_the_wallets_account_and_is_recognised_again(chain: RunningChain) -> None:
    wallet = new_wallet()
    signed = chain.payout(wallet, 12_345_678, "gpunex:payout-1")

    assert chain.rpc.send_raw(signed.raw, preflight=True) == signed.signature

    assert chain.balance(wallet) == 12_345_678
    [status] = chain.rpc.get_signature_statuses([signed.signature])
    assert status is not None
    assert (status["err"], status["confirmationStatus"]) == (None, "finalized")
    transaction = chain.rpc.get_transaction(signed.signature)
    assert transaction is not None
    assert memo_of(transaction) == "gpunex:payout-1"
    assert outgoing_matches(transaction, wallet, chain.mint, 12_345_678, "gpunex:payout-1")
    treasury = str(chain.treasury.pubkey())
    assert token_delta(transaction, ata(treasury, chain.mint), chain.mint) == -12_345_678
    assert transaction["meta"]["fee"] == 5_400  # a signature, and 80,000 units at 5,000 micro-lamports


def test_a_payout_that_differs_in_anything_does_not_match(chain: RunningChain) -> None:
    wallet, other = new_wallet(), new_wallet()
    signed = chain.payout(wallet, USDC, "gpunex:payout-2")
    chain.rpc.send_raw(signed.raw, preflight=True)
    transaction = chain.rpc.get_transaction(signed.signature)
    assert transaction is not None

    assert outgoing_matches(transaction, wallet, chain.mint, USDC, "gpunex:payout-2")
    assert not outgoing_matches(transaction, other, chain.mint, USDC, "gpunex:payout-2")
    assert not outgoing_matches(transaction, wallet, other, USDC, "gpunex:payout-2")
    assert not outgoing_matches(transaction, wallet, chain.mint, USDC + 1, "gpunex:payout-2")
    assert not outgoing_matches(transaction, wallet, chain.mint, USDC, "gpunex:payout-3")
    failed = copy.deepcopy(transaction)
    failed["meta"]["err"] = {"InstructionError": [3, {"Custom": 1}]}
    assert not outgoing_matches(failed, wallet, chain.mint, USDC, "gpunex:payout-2")


def test_signing_is_repeatable_and_the_signature_is_the_transactions_own(chain: RunningChain) -> None:
    at = chain.rpc.get_latest_blockhash()
    wallet = new_wallet()
    first, again = (chain.payout(wallet, USDC, "gpunex:same", at) for _ in range(2))
    assert first == again
    assert str(VersionedTransaction.from_bytes(first.raw).signatures[0]) == first.signature
    assert (first.blockhash, first.last_valid_block_height) == at
    assert len(first.raw) <= 1232


@pytest.mark.spec("F2")
def test_a_deposit_is_read_from_the_transaction_and_swept_into_the_treasury(chain: RunningChain) -> None:
    renter = Keypair()
    faucet.give_sol(chain.rpc, str(renter.pubkey()), 50_000_000)
    chain.fund(str(renter.pubkey()), 100 * USDC)
    deposit = derive_deposit_owner(bytes(32), uuid.uuid4())
    account = ata(str(deposit.pubkey()), chain.mint)

    sent = faucet.send_usdc(chain.rpc, renter, chain.mint, str(deposit.pubkey()), 25 * USDC)

    [row] = chain.rpc.get_signatures_for_address(account)
    assert (row["signature"], row["err"]) == (sent, None)
    transaction = chain.rpc.get_transaction(sent)
    assert transaction is not None
    assert incoming(transaction, account, chain.mint) == 25 * USDC
    assert incoming(transaction, ata(str(renter.pubkey()), chain.mint), chain.mint) == 0

    before = chain.balance(str(chain.treasury.pubkey()))
    assert before is not None
    blockhash, last = chain.rpc.get_latest_blockhash()
    sweep = sign_sweep(
        owner_key=deposit,
        treasury_key=chain.treasury,
        mint=chain.mint,
        amount_micro=25 * USDC,
        memo="gpunex:sweep-1",
        blockhash=blockhash,
        last_valid_block_height=last,
        cu_price_micro_lamports=0,
    )
    chain.rpc.send_raw(sweep.raw, preflight=True)

    assert chain.balance(str(chain.treasury.pubkey())) == before + 25 * USDC
    assert chain.balance(str(deposit.pubkey())) == 0
    assert chain.rpc.get_balance(str(deposit.pubkey())) == 0  # it never needed SOL of its own
    swept = chain.rpc.get_transaction(sweep.signature)
    assert swept is not None
    assert incoming(swept, account, chain.mint) == 0


def test_a_deposit_sent_to_the_token_account_itself_arrives_there(chain: RunningChain) -> None:
    owner = new_wallet()
    chain.fund(owner, USDC)
    faucet.give(chain.rpc, chain.faucet, chain.mint, ata(owner, chain.mint), 2 * USDC)
    assert chain.balance(owner) == 3 * USDC


@pytest.mark.case("money-F40")
def test_a_transfer_that_failed_on_chain_brought_nothing(chain: RunningChain) -> None:
    wallet = new_wallet()
    too_much = chain.payout(wallet, 10**15, "gpunex:too-much")
    chain.rpc.send_raw(too_much.raw, preflight=False)
    [status] = chain.rpc.get_signature_statuses([too_much.signature])
    assert status is not None
    assert status["err"] == {"InstructionError": [3, {"Custom": 1}]}
    transaction = chain.rpc.get_transaction(too_much.signature)
    assert transaction is not None
    assert incoming(transaction, ata(wallet, chain.mint), chain.mint) == 0
    assert not outgoing_matches(transaction, wallet, chain.mint, 10**15, "gpunex:too-much")
    assert chain.balance(wallet) is None


def test_a_deposit_of_another_mint_counts_for_nothing(chain: RunningChain) -> None:
    wallet = new_wallet()
    signature = chain.fund(wallet, USDC)
    transaction = chain.rpc.get_transaction(signature)
    assert transaction is not None
    assert incoming(transaction, ata(wallet, chain.mint), "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v") == 0


def test_accounts_loaded_from_a_lookup_table_are_counted_too(chain: RunningChain) -> None:
    signature = chain.fund(new_wallet(), USDC)
    transaction = copy.deepcopy(chain.rpc.get_transaction(signature))
    assert transaction is not None
    own = len(VersionedTransaction.from_bytes(base64.b64decode(transaction["transaction"][0])).message.account_keys)
    transaction["meta"]["loadedAddresses"] = {"writable": ["A", "B"], "readonly": ["C"]}
    amount = {"amount": "5", "decimals": 6, "uiAmount": None, "uiAmountString": "0.000005"}
    transaction["meta"]["preTokenBalances"] = None
    transaction["meta"]["postTokenBalances"] = [{"accountIndex": own + 1, "mint": chain.mint, "uiTokenAmount": amount}]
    assert incoming(transaction, "B", chain.mint) == 5


@pytest.mark.parametrize("amount", [0, -1])
def test_a_transfer_of_nothing_cannot_be_signed(amount: int) -> None:
    with pytest.raises(ValueError):
        _signed(amount=amount, memo="m")


@pytest.mark.case("money-F8")
def test_a_transfer_without_a_memo_cannot_be_signed() -> None:
    with pytest.raises(ValueError):
        _signed(amount=1, memo="")


def _signed(*, amount: int, memo: str) -> None:
    sign_transfer(
        key=Keypair(),
        mint=new_wallet(),
        destination_owner=new_wallet(),
        amount_micro=amount,
        memo=memo,
        blockhash=new_wallet(),
        last_valid_block_height=1,
        cu_price_micro_lamports=0,
    )


def test_a_transfer_with_other_decimals_than_the_mints_moves_nothing(chain: RunningChain) -> None:
    """TransferChecked names the decimals, so a wrong mint in the settings cannot move a thousand times too much."""
    wrong_mint = "So11111111111111111111111111111111111111112"
    blockhash, last = chain.rpc.get_latest_blockhash()
    signed = sign_transfer(
        key=chain.treasury,
        mint=wrong_mint,
        destination_owner=new_wallet(),
        amount_micro=1,
        memo="gpunex:wrong",
        blockhash=blockhash,
        last_valid_block_height=last,
        cu_price_micro_lamports=0,
    )
    with pytest.raises(RpcError):
        chain.rpc.send_raw(signed.raw, preflight=True)


def test_a_key_is_read_from_a_private_file(tmp_path: Path) -> None:
    key, path = Keypair(), tmp_path / "key.json"
    path.write_text(json.dumps(list(bytes(key))))
    path.chmod(0o600)
    assert load_key(path) == key


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o666, 0o700])
def test_a_key_that_others_might_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key.json"
    path.write_text(json.dumps(list(bytes(Keypair()))))
    path.chmod(mode)
    with pytest.raises(KeyFileRefused, match="0600"):
        load_key(path)


@pytest.mark.parametrize("content", ["", "[]", "[1, 2]", "{}", "7", '"key"', "[256]", "[1.5]", json.dumps([1] * 64)])
def test_a_file_without_a_key_is_refused_and_not_quoted(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key.json"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(KeyFileRefused) as caught:
        load_key(path)
    assert str(caught.value) == f"{path}: not a solana-keygen key file"


def test_a_missing_key_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(KeyFileRefused):
            load_key(path)

"""The development chain keeps Solana's promises."""

import base64
import threading
import time
from typing import Any

import httpx
import pytest
from solders.keypair import Keypair

from gpunex.chain import faucet
from gpunex.chain.addresses import ata
from gpunex.chain.rpc import Rpc, RpcError
from tests.chain.running import USDC, RunningChain, new_wallet

LIFE = 150


# -- a transaction's life ------------------------------------------------------------------------------------------------


@pytest.mark.case("money-F1")
def test_sending_the_same_bytes_again_is_one_transfer(chain: RunningChain) -> None:
    wallet = new_wallet()
    signed = chain.payout(wallet, USDC, "gpunex:once")
    chain.rpc.send_raw(signed.raw, preflight=True)

    assert chain.rpc.send_raw(signed.raw, preflight=False) == signed.signature
    with pytest.raises(RpcError) as caught:
        chain.rpc.send_raw(signed.raw, preflight=True)

    assert caught.value.code == -32002
    assert caught.value.transaction_error == "AlreadyProcessed"
    assert chain.balance(wallet) == USDC
    assert len(chain.rpc.get_signatures_for_address(ata(wallet, chain.mint))) == 1


@pytest.mark.case("money-F8")
def test_two_equal_payouts_on_one_blockhash_both_land(chain: RunningChain) -> None:
    wallet, at = new_wallet(), chain.rpc.get_latest_blockhash()
    first, second = (chain.payout(wallet, USDC, f"gpunex:{name}", at) for name in ("a", "b"))
    assert first.signature != second.signature
    for signed in (first, second):
        chain.rpc.send_raw(signed.raw, preflight=True)
    assert chain.balance(wallet) == 2 * USDC


def test_a_blockhash_is_good_for_150_blocks(chain: RunningChain) -> None:
    wallet = new_wallet()
    signed = chain.payout(wallet, USDC, "gpunex:in-time")
    chain.faults(advance_blocks=LIFE - 10)
    assert chain.rpc.call("isBlockhashValid", signed.blockhash)["value"] is True
    chain.rpc.send_raw(signed.raw, preflight=True)
    assert chain.balance(wallet) == USDC


def test_after_150_blocks_a_transaction_can_never_land(chain: RunningChain) -> None:
    wallet = new_wallet()
    signed = chain.payout(wallet, USDC, "gpunex:too-late")
    chain.faults(advance_blocks=LIFE + 1)

    assert min(chain.rpc.get_block_heights()) > signed.last_valid_block_height
    assert chain.rpc.call("isBlockhashValid", signed.blockhash)["value"] is False
    with pytest.raises(RpcError) as caught:
        chain.rpc.send_raw(signed.raw, preflight=True)
    assert caught.value.transaction_error == "BlockhashNotFound"
    chain.rpc.send_raw(signed.raw, preflight=False)

    assert chain.rpc.get_signature_statuses([signed.signature]) == [None]
    assert chain.balance(wallet) is None


@pytest.mark.case("money-F3", "money-F6")
def test_what_landed_is_found_in_history_long_after_the_recent_cache_forgot_it(chain: RunningChain) -> None:
    signed = chain.payout(new_wallet(), USDC, "gpunex:long-ago")
    chain.rpc.send_raw(signed.raw, preflight=True)
    chain.faults(advance_blocks=LIFE + 1)

    assert chain.rpc.get_signature_statuses([signed.signature], history=False) == [None]
    [status] = chain.rpc.get_signature_statuses([signed.signature])
    assert status is not None
    assert status["err"] is None
    # A node refuses the bytes either way; its refusal is no evidence that nothing was paid.
    with pytest.raises(RpcError):
        chain.rpc.send_raw(signed.raw, preflight=True)


@pytest.mark.case("money-F36")
def test_a_frozen_account_is_a_typed_failure_that_moves_nothing(chain: RunningChain) -> None:
    wallet = new_wallet()
    chain.fund(wallet, USDC)
    faucet.set_frozen(chain.rpc, chain.faucet, chain.mint, wallet, frozen=True)
    signed = chain.payout(wallet, USDC, "gpunex:frozen")

    with pytest.raises(RpcError) as caught:
        chain.rpc.send_raw(signed.raw, preflight=True)
    assert caught.value.transaction_error == {"InstructionError": [3, {"Custom": 0x11}]}
    assert caught.value.message.endswith("custom program error: 0x11")
    assert chain.rpc.get_signature_statuses([signed.signature]) == [None]

    treasury = str(chain.treasury.pubkey())
    lamports = chain.rpc.get_balance(treasury)
    chain.rpc.send_raw(signed.raw, preflight=False)
    [status] = chain.rpc.get_signature_statuses([signed.signature])
    assert status is not None
    assert status["err"] == {"InstructionError": [3, {"Custom": 0x11}]}
    assert chain.balance(wallet) == USDC
    assert lamports - chain.rpc.get_balance(treasury) == 5_400  # a failure costs its fee, as on mainnet

    faucet.set_frozen(chain.rpc, chain.faucet, chain.mint, wallet, frozen=False)
    chain.rpc.send_raw(chain.payout(wallet, USDC, "gpunex:thawed").raw, preflight=True)
    assert chain.balance(wallet) == 2 * USDC


def test_a_wallet_without_sol_cannot_pay_a_fee(chain: RunningChain) -> None:
    renter = Keypair()
    chain.fund(str(renter.pubkey()), USDC)
    with pytest.raises(RpcError) as caught:
        faucet.send_usdc(chain.rpc, renter, chain.mint, new_wallet(), USDC)
    assert caught.value.transaction_error == "AccountNotFound"


def test_only_the_issuer_mints(chain: RunningChain) -> None:
    thief = Keypair()
    faucet.give_sol(chain.rpc, str(thief.pubkey()), 1_000_000_000)
    with pytest.raises(RpcError):
        faucet.give(chain.rpc, thief, chain.mint, str(thief.pubkey()), USDC)


def test_a_tampered_transaction_is_refused(chain: RunningChain) -> None:
    signed = chain.payout(new_wallet(), USDC, "gpunex:mine")
    tampered = signed.raw.replace(b"gpunex:mine", b"gpunex:hers")
    for preflight in (True, False):
        with pytest.raises(RpcError) as caught:
            chain.rpc.send_raw(tampered, preflight=preflight)
        assert caught.value.code == -32003


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\x01" * 100, b"\xff" * 1232, b"\x00" * 1233])
def test_what_is_not_a_transaction_is_refused(chain: RunningChain, raw: bytes) -> None:
    with pytest.raises(RpcError) as caught:
        chain.rpc.send_raw(raw, preflight=False)
    assert caught.value.code == -32602


def test_two_equal_gifts_are_two(chain: RunningChain) -> None:
    wallet = new_wallet()
    for _ in range(2):
        chain.fund(wallet, USDC)
        faucet.give_sol(chain.rpc, wallet, 2_000_000)
    assert chain.balance(wallet) == 2 * USDC
    assert chain.rpc.get_balance(wallet) == 4_000_000


# -- what it tells -------------------------------------------------------------------------------------------------------


def test_history_pages_backwards_to_the_cursor(chain: RunningChain) -> None:
    wallet = new_wallet()
    account = ata(wallet, chain.mint)
    sent = [chain.fund(wallet, USDC) for _ in range(7)]

    def signatures(**options: Any) -> list[str]:
        return [row["signature"] for row in chain.rpc.get_signatures_for_address(account, **options)]

    assert signatures() == sent[::-1]
    assert signatures(limit=3) == [sent[6], sent[5], sent[4]]
    assert signatures(limit=3, before=sent[4]) == [sent[3], sent[2], sent[1]]
    assert signatures(limit=3, before=sent[4], until=sent[2]) == [sent[3]]
    assert signatures(until=sent[6]) == []
    assert signatures(before=sent[0]) == []


def test_the_slot_is_far_from_the_height(chain: RunningChain) -> None:
    assert chain.rpc.call("getSlot") - chain.rpc.call("getBlockHeight") == 22_000_000


def test_blocks_pass_with_time_alone(chain: RunningChain) -> None:
    before = chain.rpc.get_block_heights()[0]
    deadline = time.monotonic() + 10
    while chain.rpc.get_block_heights()[0] == before:
        assert time.monotonic() < deadline, "no block in ten seconds"


@pytest.mark.case("money-F45")
def test_the_price_of_an_account_may_change(fresh_chain: RunningChain) -> None:
    assert fresh_chain.rpc.rent_exempt_minimum(165) == 2_039_280
    fresh_chain.faults(rent_lamports_per_byte=2_575)
    assert fresh_chain.rpc.rent_exempt_minimum(165) == 754_475
    fresh_chain.kill()
    fresh_chain.start()
    assert fresh_chain.rpc.rent_exempt_minimum(165) == 754_475


def test_the_other_readings_have_solanas_forms(chain: RunningChain) -> None:
    treasury = str(chain.treasury.pubkey())
    account = ata(treasury, chain.mint)
    assert chain.rpc.call("getHealth") == "ok"
    assert chain.rpc.call("getVersion")["solana-core"]
    assert chain.rpc.recent_priority_fee([account]) == 0
    amount = chain.rpc.call("getTokenAccountBalance", account)["value"]
    assert (int(amount["amount"]), amount["decimals"]) == (chain.balance(treasury), 6)
    some = chain.rpc.call("getMultipleAccounts", [account, new_wallet()], {"encoding": "base64"})["value"]
    assert some[0]["space"] == 165
    assert some[1] is None
    signed = chain.payout(new_wallet(), USDC, "gpunex:simulated")
    encoded = base64.b64encode(signed.raw).decode()
    simulated = chain.rpc.call("simulateTransaction", encoded, {"encoding": "base64"})["value"]
    assert simulated["err"] is None
    assert 0 < simulated["unitsConsumed"] < 80_000
    assert chain.rpc.get_signature_statuses([signed.signature]) == [None]


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("getMagic", [], -32601),
        ("__init__", [], -32601),
        ("getBalance", [], -32602),
        ("getBalance", ["not an address"], -32602),
        ("getBalance", [7], -32602),
        ("getTokenAccountBalance", ["11111111111111111111111111111111"], -32602),
        ("getTransaction", ["x"], -32602),
        ("getSignatureStatuses", [["x"] * 257], -32602),
        ("getSignaturesForAddress", ["11111111111111111111111111111111", {"limit": 1001}], -32602),
        ("sendTransaction", ["AQ=="], -32602),
        ("sendTransaction", ["!", {"encoding": "base64"}], -32602),
        ("requestAirdrop", ["11111111111111111111111111111111", -5], -32602),
        ("requestAirdrop", ["11111111111111111111111111111111", 2**63], -32002),
    ],
)
def test_a_wrong_call_is_refused_with_its_code(chain: RunningChain, method: str, params: list[Any], code: int) -> None:
    with pytest.raises(RpcError) as caught:
        chain.rpc.call(method, *params)
    assert caught.value.code == code


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b'{"method": 5}', b'{"method": "getSlot", "params": {}}'])
def test_a_body_that_is_no_call_is_answered_with_an_error(chain: RunningChain, body: bytes) -> None:
    answer = httpx.post(chain.url, content=body, trust_env=False)
    assert answer.status_code == 200
    assert answer.json()["error"]["code"] in {-32700, -32600, -32601, -32602}


def test_a_batch_is_answered_in_order(chain: RunningChain) -> None:
    calls = [{"jsonrpc": "2.0", "id": n, "method": method} for n, method in enumerate(("getHealth", "nope"))]
    first, second = httpx.post(chain.url, json=calls, trust_env=False).json()
    assert (first["id"], first["result"]) == (0, "ok")
    assert (second["id"], second["error"]["code"]) == (1, -32601)


def test_many_callers_at_once_lose_nothing(chain: RunningChain) -> None:
    wallet, callers, each = new_wallet(), 8, 10
    failures: list[BaseException] = []

    def pay(caller: int) -> None:
        try:
            with Rpc([chain.url]) as rpc:
                at = rpc.get_latest_blockhash()
                for n in range(each):
                    rpc.send_raw(chain.payout(wallet, USDC, f"gpunex:{caller}-{n}", at).raw, preflight=n % 2 == 0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=pay, args=(caller,)) for caller in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert chain.balance(wallet) == callers * each * USDC

"""Nothing that the development chain answered is lost when it is killed."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from solders.keypair import Keypair

from gpunex.chain import devchain, faucet
from gpunex.chain.addresses import ata
from gpunex.chain.rpc import TOKEN_PROGRAM, Rpc, RpcUnavailable
from gpunex.chain.transfers import load_key
from tests.chain.running import USDC, RunningChain, free_port, new_wallet


def test_a_killed_chain_comes_back_with_every_balance_and_all_history(fresh_chain: RunningChain) -> None:
    treasury, wallet, renter = str(fresh_chain.treasury.pubkey()), new_wallet(), Keypair()
    fresh_chain.fund(treasury, 500 * USDC)
    fresh_chain.fund(str(renter.pubkey()), 50 * USDC)
    faucet.give_sol(fresh_chain.rpc, str(renter.pubkey()), 1_000_000_000)
    faucet.send_usdc(fresh_chain.rpc, renter, fresh_chain.mint, treasury, 7 * USDC)
    paid = fresh_chain.payout(wallet, 12 * USDC, "gpunex:before")
    fresh_chain.rpc.send_raw(paid.raw, preflight=True)
    failed = fresh_chain.payout(wallet, 10**15, "gpunex:failed")
    fresh_chain.rpc.send_raw(failed.raw, preflight=False)
    in_flight = fresh_chain.payout(wallet, 3 * USDC, "gpunex:in-flight")

    def state() -> dict[str, Any]:
        rpc = fresh_chain.rpc
        addresses = [treasury, wallet, str(renter.pubkey()), str(fresh_chain.faucet.pubkey())]
        rows = rpc.get_signatures_for_address(treasury)
        return {
            "genesis": rpc.genesis_hash(),
            "mint": fresh_chain.mint,
            "lamports": [rpc.get_balance(address) for address in addresses],
            "usdc": [fresh_chain.balance(address) for address in addresses],
            "holdings": [rpc.get_token_holdings(address, TOKEN_PROGRAM) for address in addresses],
            "rows": rows,
            "transactions": [rpc.get_transaction(row["signature"]) for row in rows],
            "statuses": rpc.get_signature_statuses([paid.signature, failed.signature, in_flight.signature]),
        }

    before, height = state(), fresh_chain.rpc.get_block_heights()[0]
    fresh_chain.kill()
    fresh_chain.start()

    assert state() == before
    assert before["usdc"][:3] == [495 * USDC, 12 * USDC, 43 * USDC]
    assert fresh_chain.rpc.get_block_heights()[0] >= height
    # What was signed before still lands once, and what landed still lands no second time.
    fresh_chain.rpc.send_raw(in_flight.raw, preflight=True)
    fresh_chain.rpc.send_raw(paid.raw, preflight=False)
    assert fresh_chain.balance(wallet) == 15 * USDC


def test_blocks_that_a_test_let_pass_stay_passed(fresh_chain: RunningChain) -> None:
    signed = fresh_chain.payout(new_wallet(), USDC, "gpunex:expired")
    fresh_chain.faults(advance_blocks=1_000)
    fresh_chain.kill()
    fresh_chain.start()
    assert fresh_chain.rpc.get_block_heights()[0] > signed.last_valid_block_height


def test_kills_in_the_middle_of_payments_lose_nothing_that_was_answered(fresh_chain: RunningChain) -> None:
    treasury = str(fresh_chain.treasury.pubkey())
    fresh_chain.fund(treasury, 1_000 * USDC)
    answered: set[str] = set()
    for round_ in range(3):
        wallet = new_wallet()
        going = threading.Event()

        def pay(round_: int = round_, wallet: str = wallet, going: threading.Event = going) -> None:
            with Rpc([fresh_chain.url]) as rpc:
                at = rpc.get_latest_blockhash()
                for n in range(100_000):
                    signed = fresh_chain.payout(wallet, 1, f"gpunex:{round_}-{n}", at)
                    try:
                        answered.add(rpc.send_raw(signed.raw, preflight=False))
                    except RpcUnavailable:
                        return
                    if n == 20:
                        going.set()

        payer = threading.Thread(target=pay)
        payer.start()
        assert going.wait(30)
        fresh_chain.kill()
        payer.join()
        fresh_chain.start()
        landed = [row["signature"] for row in fresh_chain.rpc.get_signatures_for_address(ata(wallet, fresh_chain.mint))]
        assert fresh_chain.balance(wallet) == len(landed)
        # At most the last one, unanswered, is there besides.
        mine = [signature for signature in answered if signature in set(landed)]
        assert len(landed) - len(mine) in {0, 1}
    assert None not in fresh_chain.rpc.get_signature_statuses(sorted(answered))


@pytest.mark.parametrize("torn", [b"\x00", b"0badc0de {", b'0badc0de {"kind":"tx"}\n'])
def test_a_torn_last_record_is_dropped(fresh_chain: RunningChain, torn: bytes) -> None:
    wallet = new_wallet()
    fresh_chain.fund(wallet, USDC)
    fresh_chain.kill()
    journal = fresh_chain.data / "journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + torn)
    fresh_chain.start()
    assert fresh_chain.balance(wallet) == USDC
    fresh_chain.fund(wallet, USDC)
    assert journal.read_bytes().startswith(whole)
    fresh_chain.kill()
    fresh_chain.start()
    assert fresh_chain.balance(wallet) == 2 * USDC


def test_a_half_written_last_record_is_as_if_never_sent(fresh_chain: RunningChain) -> None:
    wallet = new_wallet()
    fresh_chain.fund(wallet, USDC)
    fresh_chain.fund(wallet, USDC)
    fresh_chain.kill()
    journal = fresh_chain.data / "journal"
    journal.write_bytes(journal.read_bytes()[:-40])
    fresh_chain.start()
    assert fresh_chain.balance(wallet) == USDC


def test_damage_in_the_middle_is_not_passed_over(fresh_chain: RunningChain) -> None:
    fresh_chain.fund(new_wallet(), USDC)
    fresh_chain.kill()
    journal = fresh_chain.data / "journal"
    content = bytearray(journal.read_bytes())
    content[len(content) // 2] ^= 1
    journal.write_bytes(content)
    refused(fresh_chain, "damaged")


def test_a_lost_key_file_is_not_made_again(fresh_chain: RunningChain) -> None:
    fresh_chain.kill()
    (fresh_chain.data / "treasury.json").unlink()
    refused(fresh_chain, "missing, though the chain has begun")


def test_a_second_process_on_the_same_data_is_refused(fresh_chain: RunningChain) -> None:
    other = devchain.spawn(fresh_chain.data, free_port())
    assert other.wait(timeout=20) == 1
    assert "in use by another process" in (fresh_chain.data / "devchain.log").read_text()
    assert fresh_chain.rpc.is_healthy()


def test_a_taken_port_is_said_and_ends_it(fresh_chain: RunningChain, tmp_path: Path) -> None:
    other = devchain.spawn(tmp_path / "other", fresh_chain.port)
    assert other.wait(timeout=20) == 1
    assert f"cannot use port {fresh_chain.port}" in (tmp_path / "other" / "devchain.log").read_text()


def test_a_first_start_that_was_killed_is_finished_by_the_next(fresh_chain: RunningChain) -> None:
    genesis = (fresh_chain.data / "journal").read_bytes().split(b"\n")[0] + b"\n"
    fresh_chain.kill()
    for kept in (b"", genesis[:30], genesis):
        (fresh_chain.data / "journal").write_bytes(kept)
        (fresh_chain.data / "chain.json").unlink()
        fresh_chain.start()
        assert fresh_chain.balance(str(fresh_chain.treasury.pubkey())) == 0
        fresh_chain.kill()


def test_sigterm_ends_it_cleanly(fresh_chain: RunningChain) -> None:
    assert fresh_chain.stop() == 0
    assert "Traceback" not in (fresh_chain.data / "devchain.log").read_text()


def test_it_leaves_private_keys_and_says_where(fresh_chain: RunningChain) -> None:
    facts = json.loads((fresh_chain.data / "chain.json").read_text())
    for name in ("treasury", "faucet"):
        key = load_key(facts[f"{name}_key_file"])
        assert str(key.pubkey()) == facts[name]
    assert facts["genesis_hash"] == fresh_chain.rpc.genesis_hash()
    mint = fresh_chain.rpc.get_account(facts["mint"])
    assert mint is not None
    assert mint.data[44] == 6  # decimals
    assert fresh_chain.rpc.get_balance(facts["treasury"]) >= 1_000_000_000
    assert (fresh_chain.data / "journal").stat().st_mode & 0o077 == 0


def refused(chain: RunningChain, why: str) -> None:
    process = devchain.spawn(chain.data, chain.port)
    assert process.wait(timeout=20) == 1
    assert why in (chain.data / "devchain.log").read_text()


@pytest.mark.soak
def test_ten_thousand_transactions_are_replayed_within_five_seconds(fresh_chain: RunningChain) -> None:
    treasury = str(fresh_chain.treasury.pubkey())
    fresh_chain.fund(treasury, 1_000 * USDC)
    wallets = [new_wallet() for _ in range(500)]
    for n in range(10_000):
        if n % 200 == 0:
            at = fresh_chain.rpc.get_latest_blockhash()
        fresh_chain.rpc.send_raw(fresh_chain.payout(wallets[n % 500], 1, f"gpunex:{n}", at).raw, preflight=False)
    fresh_chain.kill()
    began = time.monotonic()
    fresh_chain.start()
    assert time.monotonic() - began < 5
    assert sum(fresh_chain.balance(wallet) or 0 for wallet in wallets) == 10_000

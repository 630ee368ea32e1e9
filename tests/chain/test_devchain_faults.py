"""What the development chain does wrong when told to, and a client's view of it."""

from typing import Any

import httpx
import pytest

from gpunex.chain.rpc import Rpc, RpcUnavailable
from tests.chain.running import USDC, RunningChain, new_wallet

LIFE = 150


def test_a_dropped_send_is_acknowledged_and_never_lands(chain: RunningChain) -> None:
    wallet = new_wallet()
    chain.faults(drop=1)
    signed = chain.payout(wallet, USDC, "gpunex:dropped")
    assert chain.rpc.send_raw(signed.raw, preflight=True) == signed.signature
    assert chain.rpc.get_signature_statuses([signed.signature]) == [None]
    chain.rpc.send_raw(signed.raw, preflight=False)
    assert chain.balance(wallet) == USDC


@pytest.mark.case("money-F2")
def test_a_send_may_land_though_its_answer_is_lost(chain: RunningChain) -> None:
    wallet = new_wallet()
    chain.faults(timeout_after_land=1)
    signed = chain.payout(wallet, USDC, "gpunex:unanswered")
    with pytest.raises(RpcUnavailable):
        chain.rpc.send_raw(signed.raw, preflight=True)
    assert chain.balance(wallet) == USDC


@pytest.mark.case("money-F4")
def test_a_held_send_lands_when_released(chain: RunningChain) -> None:
    wallet = new_wallet()
    chain.faults(hold=2)
    late, too_late = (chain.payout(wallet, USDC, f"gpunex:{name}") for name in ("late", "too-late"))
    chain.rpc.send_raw(late.raw, preflight=True)
    assert chain.balance(wallet) is None
    chain.faults(advance_blocks=LIFE - 10, release=True)
    assert chain.balance(wallet) == USDC
    chain.rpc.send_raw(too_late.raw, preflight=True)
    chain.faults(advance_blocks=LIFE, release=True)
    assert chain.balance(wallet) == USDC


def test_a_hidden_status_is_hidden_for_a_while_only(chain: RunningChain) -> None:
    signed = chain.payout(new_wallet(), USDC, "gpunex:hidden")
    chain.rpc.send_raw(signed.raw, preflight=True)
    chain.faults(hide_status_s=600)
    assert chain.rpc.get_signature_statuses([signed.signature]) == [None]
    assert chain.rpc.get_transaction(signed.signature) is None
    chain.faults(hide_status_s=0)
    assert chain.rpc.get_signature_statuses([signed.signature]) != [None]


@pytest.mark.case("money-F5")
def test_one_of_two_nodes_may_give_its_slot_as_height(chain: RunningChain) -> None:
    chain.faults(height_as_slot=True, only_path="/b")
    with Rpc([f"{chain.url}/a", f"{chain.url}/b"]) as rpc:
        honest, wrong = rpc.get_block_heights()
    assert wrong - honest > 21_000_000


@pytest.mark.case("money-F42")
def test_a_rate_limit_says_when_to_come_back(chain: RunningChain) -> None:
    chain.faults(rate_limit=1, retry_after_s=9)
    with pytest.raises(RpcUnavailable) as caught:
        chain.rpc.get_latest_blockhash()
    assert caught.value.retry_after_s == 9
    chain.rpc.wake()  # the nine seconds are over
    chain.rpc.get_latest_blockhash()


def test_a_node_that_is_down_is_covered_by_another(chain: RunningChain) -> None:
    chain.faults(rpc_down=True, only_path="/a")
    with Rpc([f"{chain.url}/a", f"{chain.url}/b"]) as rpc:
        rpc.get_latest_blockhash()
        assert len(rpc.get_block_heights()) == 1
        chain.faults(only_path="")
        with pytest.raises(RpcUnavailable):
            rpc.get_latest_blockhash()


@pytest.mark.parametrize("wanted", [{"drp": 1}, {"drop": "1"}, {"drop": True}, {"advance_blocks": -1}, {"rpc_down": 1}])
def test_an_unknown_fault_changes_nothing(chain: RunningChain, wanted: dict[str, Any]) -> None:
    before = httpx.get(f"{chain.url}/faults", trust_env=False).json()
    answer = httpx.post(f"{chain.url}/faults", json={"hold": 5, **wanted}, trust_env=False)
    assert answer.status_code == 400
    assert httpx.get(f"{chain.url}/faults", trust_env=False).json() == before

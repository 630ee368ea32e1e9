"""Solana Pay: links that wallets read, payments that carry their reference, and what a transaction brought to whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.keypair import Keypair

from gpunex.chain import faucet, pay
from gpunex.chain.pay import TransferRequest
from gpunex.chain.rpc import TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from gpunex.chain.transfers import account_keys, memo_of, token_gains, token_payer
from tests.chain.running import USDC, RunningChain, new_wallet


@given(
    amount=st.integers(min_value=1, max_value=2**63 - 1),
    label=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    message=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    decimals=st.sampled_from([0, 2, 6, 9]),
)
def test_what_a_link_says_is_read_as_it_was_meant(amount: int, label: str, message: str, decimals: int) -> None:
    request = TransferRequest(
        wallet=new_wallet(),
        amount=amount,
        mint=new_wallet(),
        references=(new_wallet(), new_wallet()),
        label=label,
        message=message,
    )
    link = pay.link(request, decimals=decimals)
    assert link.isascii()
    assert not set(link) & set(" +\"'<>")
    amount_text = link.split("amount=")[1].split("&")[0]
    assert "e" not in amount_text.lower()
    assert not amount_text.startswith(".")
    assert "." not in amount_text or amount_text[-1] not in "0."
    assert pay.read(link, decimals=decimals) == request


@pytest.mark.parametrize("program", [TOKEN_PROGRAM, TOKEN_2022_PROGRAM])
def test_a_payment_carries_its_reference_and_is_found_by_it(chain: RunningChain, program: str) -> None:
    payer, wallet, reference = Keypair(), new_wallet(), new_wallet()
    faucet.give_sol(chain.rpc, str(payer.pubkey()), 100_000_000)
    mint = faucet.open_mint(chain.rpc, chain.faucet, decimals=3, program=program)
    faucet.give(chain.rpc, chain.faucet, mint, str(payer.pubkey()), 5_000, program=program)
    signature = pay.pay(chain.rpc, payer, TransferRequest(wallet, 1_234, mint, references=(reference,), memo="order 7"))
    assert [row["signature"] for row in chain.rpc.get_signatures_for_address(reference)] == [signature]
    tx = chain.rpc.get_transaction(signature)
    assert tx is not None
    assert reference in account_keys(tx)
    assert memo_of(tx) == "order 7"
    (gain,) = token_gains(tx, wallet)
    assert (gain.mint, gain.amount, gain.decimals) == (mint, 1_234, 3)
    assert token_gains(tx, str(payer.pubkey())) == []
    assert token_payer(tx, mint) == str(payer.pubkey())
    (holding,) = chain.rpc.get_token_holdings(wallet, program)
    assert (holding.account, holding.mint, holding.amount) == (gain.account, mint, 1_234)
    other = TOKEN_2022_PROGRAM if program == TOKEN_PROGRAM else TOKEN_PROGRAM
    assert chain.rpc.get_token_holdings(wallet, other) == []


def test_two_equal_payments_are_two(chain: RunningChain) -> None:
    payer, wallet = Keypair(), new_wallet()
    faucet.give_sol(chain.rpc, str(payer.pubkey()), 100_000_000)
    chain.fund(str(payer.pubkey()), 2 * USDC)
    request = TransferRequest(wallet, USDC, chain.mint, references=(new_wallet(),))
    assert pay.pay(chain.rpc, payer, request) != pay.pay(chain.rpc, payer, request)
    assert chain.balance(wallet) == 2 * USDC

"""The session's development chain, as tests of money use it: wallets, gifts, faults."""

from typing import Any
from urllib.parse import urlsplit

import httpx
from django.conf import settings
from solders.keypair import Keypair

from billing import treasury
from gpunex.chain import faucet
from gpunex.chain.addresses import ata
from gpunex.chain.transfers import load_key


def wallet() -> str:
    return str(Keypair().pubkey())


def give(destination: str, micro: int) -> str:
    """USDC from nothing to a wallet."""
    return faucet.give(treasury.rpc(), load_key(settings.FAUCET_KEY_FILE), treasury.mint(), destination, micro)


def held(owner: str) -> int:
    """Micro-USDC in a wallet's token account on chain."""
    return treasury.rpc().get_token_balance(ata(owner, treasury.mint())) or 0


def faults(**wanted: Any) -> None:
    """What the chain does wrong from now on; two nodes are told apart by ``only_path`` "/a" and "/b"."""
    chain = urlsplit(settings.SOLANA_RPC_URLS[0])
    httpx.post(f"{chain.scheme}://{chain.netloc}/faults", json=wanted, trust_env=False).raise_for_status()

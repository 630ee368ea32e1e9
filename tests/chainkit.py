"""The session's development chain, as tests of money use it: wallets, gifts, faults, and a treasury of the test's own."""

import json
import os
from pathlib import Path
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


def open_treasury(folder: Path) -> Path:
    """A new treasury with SOL, hence new deposit addresses: the key file to set as TREASURY_KEY_FILE.

    The chain keeps what earlier tests did while the database forgets it; with a purse of its own a test's books agree with the chain.
    """
    path = folder / "treasury.json"
    key = Keypair()
    path.touch(mode=0o600)
    path.write_text(json.dumps(list(bytes(key))))
    os.chmod(path, 0o600)
    faucet.give_sol(treasury.rpc(), str(key.pubkey()), 10_000_000_000)
    return path

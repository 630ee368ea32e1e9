"""The session's development chain, as tests of money use it: wallets, gifts, faults, and a treasury of the test's own."""

import json
import os
import secrets
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from django.conf import settings
from solders.keypair import Keypair

from billing import treasury
from gpunex.chain import faucet
from gpunex.chain.addresses import ata
from gpunex.chain.rpc import TOKEN_PROGRAM
from gpunex.chain.transfers import load_key


def wallet() -> str:
    return str(Keypair().pubkey())


def give(destination: str, micro: int) -> str:
    """USDC from nothing to a wallet."""
    return faucet.give(treasury.rpc(), load_key(settings.FAUCET_KEY_FILE), treasury.mint(), destination, micro)


def held(owner: str) -> int:
    """Micro-USDC in a wallet's token account on chain."""
    return treasury.rpc().get_token_balance(ata(owner, treasury.mint())) or 0


def purse(micro: int = 0) -> Keypair:
    """A wallet that can pay: SOL for fees, and USDC."""
    key = Keypair()
    faucet.give_sol(treasury.rpc(), str(key.pubkey()), 100_000_000)
    if micro:
        give(str(key.pubkey()), micro)
    return key


def other_token(key: Keypair, amount: int, *, program: str = TOKEN_PROGRAM, decimals: int = 9) -> str:
    """Another token than USDC, ``amount`` smallest units of it in the wallet of ``key``; its mint."""
    rpc, issuer = treasury.rpc(), load_key(settings.FAUCET_KEY_FILE)
    mint = faucet.open_mint(rpc, issuer, decimals=decimals, program=program)
    faucet.give(rpc, issuer, mint, str(key.pubkey()), amount, program=program)
    return mint


def faults(**wanted: Any) -> None:
    """What the chain does wrong from now on; two nodes are told apart by ``only_path`` "/a" and "/b"."""
    chain = urlsplit(settings.SOLANA_RPC_URLS[0])
    if wanted.get("reset"):
        treasury.rpc().wake()
    _client().post(f"{chain.scheme}://{chain.netloc}/faults", json=wanted).raise_for_status()


@cache
def _client() -> httpx.Client:
    """Kept: making one reads the system's certificates, which takes longer than a payout."""
    return httpx.Client(trust_env=False)


def open_treasury(folder: Path, *, lamports: int = 10_000_000_000) -> Path:
    """A new treasury with SOL, hence new deposit addresses: the key file to set as TREASURY_KEY_FILE.

    The chain keeps what earlier tests did while the database forgets it; with a purse of its own a test's books agree with the chain.
    """
    path = folder / f"treasury_{secrets.token_hex(4)}.json"
    key = Keypair()
    path.touch(mode=0o600)
    path.write_text(json.dumps(list(bytes(key))))
    os.chmod(path, 0o600)
    faucet.give_sol(treasury.rpc(), str(key.pubkey()), lamports)
    return path

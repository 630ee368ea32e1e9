"""A development chain in a process of its own, as the tests drive it."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, create_account
from spl.token.constants import ACCOUNT_LEN, TOKEN_PROGRAM_ID
from spl.token.instructions import initialize_account3
from spl.token.models import InitializeAccount3Params

from gpunex.chain import devchain, faucet
from gpunex.chain.addresses import ata
from gpunex.chain.rpc import Rpc
from gpunex.chain.transfers import SignedTransfer, load_key, sign, sign_transfer

USDC = 1_000_000


@dataclass
class RunningChain:
    data: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    rpc: Rpc = field(init=False)

    def __post_init__(self) -> None:
        self.rpc = Rpc([self.url])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = devchain.spawn(self.data, self.port)
        devchain.wait_ready(self.url, timeout_s=30)
        self.mint: str = json.loads((self.data / "chain.json").read_text())["mint"]
        self.treasury = load_key(self.data / "treasury.json")
        self.faucet = load_key(self.data / "faucet.json")

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout=10)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def faults(self, **wanted: Any) -> dict[str, Any]:
        answer = httpx.post(f"{self.url}/faults", json=wanted, trust_env=False)
        answer.raise_for_status()
        shown: dict[str, Any] = answer.json()
        return shown

    def balance(self, owner: str) -> int | None:
        """Micro-USDC of a wallet; None if it has no token account."""
        return self.rpc.get_token_balance(ata(owner, self.mint))

    def fund(self, owner: str, micro: int) -> str:
        return faucet.give(self.rpc, self.faucet, self.mint, owner, micro)

    def payout(self, owner: str, micro: int, memo: str, at: tuple[str, int] | None = None) -> SignedTransfer:
        """A signed transfer from the treasury; nothing is sent."""
        blockhash, last = at or self.rpc.get_latest_blockhash()
        return sign_transfer(
            key=self.treasury,
            mint=self.mint,
            destination_owner=owner,
            amount_micro=micro,
            memo=memo,
            blockhash=blockhash,
            last_valid_block_height=last,
            cu_price_micro_lamports=5_000,
        )

    def send(self, payer: Keypair, instructions: Sequence[Instruction], *others: Keypair) -> str:
        blockhash, last = self.rpc.get_latest_blockhash()
        signed = sign(
            payer=payer, instructions=instructions, blockhash=blockhash, last_valid_block_height=last, others=others
        )
        return self.rpc.send_raw(signed.raw, preflight=True)

    def open_token_account(self, account: Keypair, owner: str) -> None:
        """A token account that is not an associated one: its address is a key, so it lies on the curve."""
        opened = CreateAccountParams(
            from_pubkey=self.faucet.pubkey(),
            to_pubkey=account.pubkey(),
            lamports=self.rpc.rent_exempt_minimum(ACCOUNT_LEN),
            space=ACCOUNT_LEN,
            owner=TOKEN_PROGRAM_ID,
        )
        initialised = InitializeAccount3Params(
            program_id=TOKEN_PROGRAM_ID,
            account=account.pubkey(),
            mint=Pubkey.from_string(self.mint),
            owner=Pubkey.from_string(owner),
        )
        self.send(self.faucet, [create_account(opened), initialize_account3(initialised)], account)


def new_wallet() -> str:
    return str(Keypair().pubkey())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

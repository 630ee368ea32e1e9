"""The development chain: real SPL-token programs (LiteSVM) behind Solana's JSON-RPC, for the embedded mode and the tests.

It keeps what a payer has to get right: signatures, the 150-block life of a blockhash, one landing a signature, fees, failed
transactions, history. What it does not have: other validators, forks (everything is finalized at once), durable nonces, a fee market.

Every accepted transaction is in a journal on disk before it is answered; a start replays the journal, so a killed chain comes back
with every balance and all history. ``python -m gpunex.chain.devchain --data DIR --port N`` runs it; faults for tests are switched by
``POST /faults`` (see ``faults``).
"""

import subprocess
import sys
import time
from pathlib import Path

from gpunex.chain.rpc import Rpc

_PROJECT = Path(__file__).resolve().parents[3]


def spawn(data: Path, port: int) -> subprocess.Popen[bytes]:
    """Start the chain on 127.0.0.1 with its state in ``data``; it says what it does in ``data/devchain.log``.

    It has a session of its own, so that Ctrl-C at a terminal reaches only the launcher, which ends it with SIGTERM.
    """
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(data / "devchain.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "gpunex.chain.devchain", "--data", str(data.resolve()), "--port", str(port)],
            cwd=_PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def wait_ready(url: str, timeout_s: float) -> None:
    """Return once the chain at ``url`` answers getHealth; raises TimeoutError if it does not in time."""
    deadline = time.monotonic() + timeout_s
    with Rpc([url], timeout_s=2.0) as rpc:
        while not rpc.is_healthy():
            if time.monotonic() >= deadline:
                raise TimeoutError(f"the development chain at {url} did not answer within {timeout_s:g} s")
            time.sleep(0.05)

"""The development chain as a child process, and what it tells about itself in ``chain.json`` of its folder."""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

from gpunex.embedded.processes import Child, EmbeddedError, spawn, wait_until

FACTS = "chain.json"
_CODE = Path(__file__).resolve().parents[2]


class Chain:
    """``data`` holds its blocks and keys; the process runs as the launcher, whose environment it needs."""

    def __init__(self, *, data: Path, port: int, log: Path, pid_file: Path) -> None:
        self.data = data
        self.port = port
        self.log = log
        self.pid_file = pid_file
        self._child: Child | None = None

    @property
    def url(self) -> str:
        return chain_url(self.port)

    def launch(self) -> Child:
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._child = spawn(
            "chain",
            [sys.executable, "-m", "gpunex.chain.devchain", "--data", str(self.data), "--port", str(self.port)],
            log=self.log,
            pid_file=self.pid_file,
            marker=str(self.data),
            cwd=_CODE,
        )
        return self._child

    def wait(self, *, seconds: float = 60) -> Child:
        if self._child is None:
            raise RuntimeError("launch() comes before wait()")
        if not wait_until(self._healthy, child=self._child, seconds=seconds):
            self._child.stop()
            raise EmbeddedError(
                f"The development chain did not start; the end of {self.log} says:\n{self._child.last_words()}"
            )
        return self._child

    def _healthy(self) -> bool:
        question = urllib.request.Request(  # noqa: S310  the address is ours
            self.url,
            data=json.dumps({"jsonrpc": "2.0", "id": 1, "method": "getHealth"}).encode(),
            headers={"Content-Type": "application/json"},
        )
        # No proxy of the environment may stand between this machine and itself.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(question, timeout=5) as answer:
                healthy = json.load(answer).get("result") == "ok"
        except (urllib.error.URLError, OSError, ValueError):
            return False
        return healthy and (self.data / FACTS).exists()


def chain_url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def chain_facts(data: Path) -> dict[str, str]:
    """Genesis hash and addresses (mint, treasury, faucet) of the chain; empty before its first start."""
    try:
        facts = json.loads((data / FACTS).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return {str(name): str(value) for name, value in facts.items()}


def chain_variables(data: Path) -> dict[str, str]:
    """What ``gpunex.settings`` wants to know of the chain; empty before its first start."""
    facts = chain_facts(data)
    if not facts:
        return {}
    return {
        "USDC_MINT": facts["mint"],
        "SOLANA_GENESIS_HASH": facts["genesis_hash"],
        "TREASURY_KEY_FILE": str(data / "treasury.json"),
        "FAUCET_KEY_FILE": str(data / "faucet.json"),
    }

"""One development chain for this folder's tests, and one of its own for a test that kills it.

Not the session's: these tests let blocks pass and switch faults on.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chain.running import USDC, RunningChain, free_port


@pytest.fixture(scope="package")
def package_chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningChain]:
    running = RunningChain(tmp_path_factory.mktemp("devchain"), free_port())
    running.start()
    running.fund(str(running.treasury.pubkey()), 1_000_000 * USDC)
    yield running
    running.rpc.close()
    running.stop()


@pytest.fixture
def chain(package_chain: RunningChain) -> Iterator[RunningChain]:
    """A funded chain that behaves; what a test switched on is switched off after it."""
    yield package_chain
    package_chain.faults(reset=True)


@pytest.fixture
def fresh_chain(tmp_path: Path) -> Iterator[RunningChain]:
    """A chain to kill and start again; its treasury is empty."""
    running = RunningChain(tmp_path / "devchain", free_port())
    running.start()
    yield running
    running.rpc.close()
    if running.is_running:
        running.kill()

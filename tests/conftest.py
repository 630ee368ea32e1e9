import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from gpunex.embedded.chain import chain_facts
from gpunex.embedded.cluster import Cluster
from tests import ids
from tests.platform import Platform, running_platform
from tests.services import cluster_key

# Whole stories take longest and need a platform of their own: they come when everything smaller has passed.
LAST = ("ui", "journeys")
# The same examples each time, but for the soak. Explaining a failure traces every line of every example: ten times the time.
settings.register_profile(
    "gpunex",
    derandomize="GPUNEX_SOAK" not in os.environ,
    deadline=None,
    phases=[phase for phase in Phase if phase is not Phase.explain],
)
settings.load_profile("gpunex")
# Run by a Python of its own, beside another library: it is a program, not a module of ours.
collect_ignore = ["bench/hordak_peer.py"]


@dataclass(frozen=True)
class Devchain:
    """The session's development chain: its address, its mint, and the key files of treasury and faucet."""

    url: str
    mint: str
    genesis_hash: str
    treasury: str
    treasury_key_file: Path
    faucet_key_file: Path


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Cluster:
    """The running services of this session."""
    return pytestconfig.stash[cluster_key]


@pytest.fixture(scope="session")
def devchain(cluster: Cluster) -> Devchain:
    facts = chain_facts(cluster.chain_dir)
    return Devchain(
        url=cluster.chain_url,
        mint=facts["mint"],
        genesis_hash=facts["genesis_hash"],
        treasury=facts["treasury"],
        treasury_key_file=cluster.chain_dir / "treasury.json",
        faucet_key_file=cluster.chain_dir / "faucet.json",
    )


@pytest.fixture(scope="session")
def platform(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The whole platform, running, for the tests that go through its doors from outside."""
    yield from running_platform(cluster, tmp_path_factory.mktemp("platform"))


@pytest.fixture
def committed(transactional_db: None) -> None:
    """For tests whose threads or processes must see what was written: the rows of the migrations, which their flush takes."""
    from tests.hosts import seed_again  # models: Django is set up by now

    seed_again()


@pytest.fixture
def now() -> datetime:
    return datetime.now(UTC)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--ids", action="store_true", help="list the requirements and cases with their tests, and run nothing"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ids.refuse_unknown(items)
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    folder = item.path.parent.name
    return LAST.index(folder) + 1 if folder in LAST and "tests" in item.path.parts else 0


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    if session.config.getoption("--ids"):
        session.config.stash[_ids_key] = ids.listing(session.items)
        session.items.clear()
    return (yield)


_ids_key = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(_ids_key, []):
        terminalreporter.write_line(line)
    skipped: dict[str, int] = {}
    for report in terminalreporter.getreports("skipped"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        skipped[reason] = skipped.get(reason, 0) + 1
    for reason, count in sorted(skipped.items()):
        terminalreporter.write_line(f"skipped {count}: {reason}", yellow=True)

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from providers.models import Provider
from tests import hosts
from tests.agent.conftest import AgentProcess
from tests.server import Server, live_server_process

ENTRIES = [{"model": "rtx-4090-24gb", "quantity": 8}, {"model": "l4-24gb", "quantity": 8}]


@pytest.fixture
def provider(committed: None, now: datetime) -> Provider:
    return hosts.approved(at=now, entries=ENTRIES)


@pytest.fixture
def live(committed: None, tmp_path: Path) -> Iterator[Server]:
    with live_server_process(tmp_path) as running:
        yield running


@pytest.fixture
def agents(live: Server, tmp_path: Path) -> Iterator[Callable[[str], AgentProcess]]:
    """Makes agent processes that know the live server; those that still run at the end are ended."""
    made: list[AgentProcess] = []

    def make(name: str = "host") -> AgentProcess:
        made.append(AgentProcess(url=live.url, state=tmp_path / name, log=tmp_path / f"{name}.log"))
        return made[-1]

    yield make
    for agent in made:
        if agent.child is not None and agent.child.poll() is None:
            agent.kill()

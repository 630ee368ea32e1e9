"""Whether the agent ran while nobody heard it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.clock import Clock
from agent.journal import HOLE_S, Journal
from agent.state import SAMPLES_SCHEMA, Database

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Running(Clock):
    """A host whose boot clock the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 1000.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)


@pytest.fixture
def host() -> Running:
    return Running()


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "s.sqlite3", schema=SAMPLES_SCHEMA, durable=False)


def journal(host: Running, database: Database, boot_id: str = "boot-1") -> Journal:
    return Journal(database=database, boot_id=boot_id, clock=host, now=lambda: host.seconds)


def run(host: Running, notes: Journal, seconds: int) -> None:
    for _ in range(0, seconds, 10):
        host.seconds += 10
        notes.tick()


def gap(notes: Journal) -> dict[str, Any] | None:
    return notes.gap(longer_than_s=30)


@pytest.mark.spec("B4", "I1")
def test_an_agent_that_ran_through_says_so_with_the_length(host: Running, database: Database) -> None:
    notes = journal(host, database)
    assert gap(notes) is None
    notes.tick()
    notes.heard()
    run(host, notes, 30)
    assert gap(notes) is None
    run(host, notes, 600)
    told = gap(notes)
    assert told is not None
    assert (told["ran"], told["boot_id"]) == (True, "boot-1")
    length = datetime.fromisoformat(told["to"]) - datetime.fromisoformat(told["from"])
    assert length == timedelta(seconds=630)
    notes.heard()
    assert gap(notes) is None


def test_an_agent_that_was_stopped_leaves_a_hole(host: Running, database: Database) -> None:
    notes = journal(host, database)
    notes.heard()
    run(host, notes, 60)
    host.seconds += HOLE_S + 15
    again = journal(host, database)
    run(host, again, 60)
    told = gap(again)
    assert told is not None
    assert told["ran"] is False


def test_an_agent_that_was_restarted_at_once_ran(host: Running, database: Database) -> None:
    notes = journal(host, database)
    notes.heard()
    run(host, notes, 60)
    again = journal(host, database)
    run(host, again, 60)
    told = gap(again)
    assert told is not None
    assert told["ran"] is True


def test_a_host_that_slept_did_not_run(host: Running, database: Database) -> None:
    notes = journal(host, database)
    notes.heard()
    run(host, notes, 30)
    host.seconds += 3600
    notes.tick()
    told = gap(notes)
    assert told is not None
    assert told["ran"] is False


def test_another_boot_did_not_run_through(host: Running, database: Database) -> None:
    notes = journal(host, database)
    host.seconds = 90_000.0
    notes.heard()
    host.seconds = 20.0  # since the new boot
    after = journal(host, database, "boot-2")
    run(host, after, 20)
    told = gap(after)
    assert told is not None
    assert (told["ran"], told["boot_id"]) == (False, "boot-2")
    assert told["from"] <= told["to"]

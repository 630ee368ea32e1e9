"""What the agent keeps on disk: who it is (a 0600 file) and one SQLite database (WAL, fully synchronous).

Everything that must survive a kill or a power cut is written here before it is acted upon.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS workloads (
    id TEXT NOT NULL, attempt INTEGER NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, wanted TEXT NOT NULL,
    stop_at TEXT, gpu_uuids TEXT NOT NULL, spec TEXT NOT NULL, accepted_at TEXT NOT NULL, boot_id TEXT NOT NULL,
    container_id TEXT, container_started_at TEXT, finished_at TEXT, exit_code INTEGER, cause TEXT, message TEXT,
    progress REAL, stop_cause TEXT, kill_now INTEGER NOT NULL DEFAULT 0, sequence INTEGER NOT NULL DEFAULT 0,
    log_offset INTEGER NOT NULL DEFAULT 0, log_cursor TEXT NOT NULL DEFAULT '', log_seen INTEGER NOT NULL DEFAULT 0,
    log_skip INTEGER NOT NULL DEFAULT 0, log_done INTEGER NOT NULL DEFAULT 0, cleaned INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (id, attempt));
CREATE TABLE IF NOT EXISTS outbox (
    number INTEGER PRIMARY KEY AUTOINCREMENT, stream TEXT NOT NULL, path TEXT NOT NULL, body TEXT NOT NULL,
    queued_at REAL NOT NULL, parked TEXT);
CREATE INDEX IF NOT EXISTS outbox_stream ON outbox (stream, number);
CREATE TABLE IF NOT EXISTS events (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, body TEXT NOT NULL, parked TEXT);
CREATE TABLE IF NOT EXISTS gpus (uuid TEXT PRIMARY KEY, facts TEXT NOT NULL, health TEXT NOT NULL, reason TEXT NOT NULL,
    boot_id TEXT NOT NULL, driver_version TEXT NOT NULL, present INTEGER NOT NULL);
"""
SAMPLES_SCHEMA = """
CREATE TABLE IF NOT EXISTS samples (number INTEGER PRIMARY KEY AUTOINCREMENT, taken_at REAL NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS journal (
    number INTEGER PRIMARY KEY AUTOINCREMENT, boot_id TEXT NOT NULL, begun REAL NOT NULL, last REAL NOT NULL);
CREATE TABLE IF NOT EXISTS heard (id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, boot_s REAL NOT NULL, at TEXT NOT NULL);
"""
BLOCK = 1000  # numbers reserved at a time


class StateDirBusy(Exception):
    """Another agent uses this state directory."""


@dataclass(frozen=True)
class Identity:
    """Who this machine is to the platform. `secret` is the whole bearer string; `key_sha256` tells a new key from the old."""

    machine_id: str
    name: str
    secret: str
    url: str
    fingerprint: str
    key_sha256: str
    heartbeat_s: float = 10
    telemetry_s: float = 30


def write_private(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace a file in one step, readable by its owner only, and on disk when this returns if `durable`."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".new")  # mkstemp makes it 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if not durable:
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class StateDir:
    """The agent's folder; held by a lock for as long as the process lives, so that two agents never share one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock_file = open(path / "lock", "w")  # noqa: SIM115 (open until the process ends)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StateDirBusy(f"another agent is running with the state directory {path}") from error

    def close(self) -> None:
        self._lock_file.close()

    def identity(self) -> Identity | None:
        try:
            data = json.loads((self.path / "identity.json").read_text())
        except (FileNotFoundError, ValueError):
            return None
        known = {field.name for field in fields(Identity)}
        try:
            return Identity(**{key: value for key, value in data.items() if key in known})
        except TypeError:
            return None

    def keep_identity(self, identity: Identity) -> None:
        write_private(self.path / "identity.json", json.dumps(asdict(identity), indent=1))

    def forget_identity(self) -> None:
        (self.path / "identity.json").unlink(missing_ok=True)


class Database:
    """One SQLite connection for all threads; `change()` is a transaction and the only way to write.

    What is `durable` is on disk when a change ends; the rest survives a kill, and a power cut may take its last moments.
    """

    def __init__(self, path: Path, *, schema: str = SCHEMA, durable: bool = True) -> None:
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        self._connection.executescript(schema)
        self._depth = 0
        self._reserved: dict[str, tuple[int, int]] = {}

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """All or nothing; nested calls join the outer transaction."""
        with self._lock:
            if self._depth:
                yield self._connection
                return
            self._connection.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            else:
                self._connection.execute("COMMIT")
            finally:
                self._depth -= 1

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def get_meta(self, key: str) -> str | None:
        found = self.rows("SELECT value FROM meta WHERE key = ?", key)
        return found[0]["value"] if found else None

    def set_meta(self, key: str, value: str) -> None:
        with self.change() as connection:
            connection.execute(
                "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value)
            )

    def next_number(self, key: str) -> int:
        """A higher number each time, for ever, also over restarts; these leave gaps."""
        with self._lock:
            following, end = self._reserved.get(key, (0, 0))
            if following >= end:
                following = int(self.get_meta(key) or 0) + 1
                end = following + BLOCK
                self.set_meta(key, str(end))
            self._reserved[key] = (following + 1, end)
            return following

    def close(self) -> None:
        with self._lock:
            self._connection.close()

"""The states of a workload on this machine, the transitions that exist, and the words for how one ends.

Every transition is one database transaction: the row, and the report that tells the platform, or neither.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent.clock import iso, parse_time
from agent.outbox import Outbox
from agent.state import Database

ACCEPTED, PULLING, CREATING, RUNNING, STOPPING, FINISHED = (
    "accepted",
    "pulling",
    "creating",
    "running",
    "stopping",
    "finished",
)

ALLOWED: dict[str | None, frozenset[str]] = {
    None: frozenset({ACCEPTED}),
    ACCEPTED: frozenset({PULLING, RUNNING, FINISHED}),  # a benchmark has nothing to pull
    PULLING: frozenset({CREATING, FINISHED}),
    CREATING: frozenset({RUNNING, STOPPING, FINISHED}),
    RUNNING: frozenset({STOPPING, FINISHED}),
    STOPPING: frozenset({FINISHED}),
    FINISHED: frozenset(),
}

RENTER_CAUSES = frozenset(
    {
        "completed",
        "exit_nonzero",
        "oom",
        "stopped",
        "deadline",
        "image_missing",
        "image_denied",
        "image_invalid",
        "cuda_too_old",
        "spec_invalid",
    }
)
PROVIDER_CAUSES = frozenset(
    {"gpu_lost", "docker_failed", "disk_full", "host_restart", "agent_shutdown", "gpu_unavailable"}
)
CAUSES = RENTER_CAUSES | PROVIDER_CAUSES | {"busy"}


class ForbiddenTransition(Exception):
    """A workload cannot go from where it is to there."""


@dataclass(frozen=True)
class Workload:
    """One attempt at one workload, as this machine remembers it. Times are the platform's."""

    id: str
    attempt: int
    kind: str
    state: str
    wanted: str
    stop_at: datetime | None
    gpu_uuids: tuple[str, ...]
    spec: dict[str, Any]
    accepted_at: datetime
    boot_id: str
    container_id: str | None
    container_started_at: datetime | None
    finished_at: datetime | None
    exit_code: int | None
    cause: str | None
    message: str | None
    progress: float | None
    stop_cause: str | None
    kill_now: bool
    sequence: int
    log_offset: int
    log_cursor: str
    log_seen: int
    log_skip: int
    log_done: bool
    cleaned: bool

    @property
    def key(self) -> tuple[str, int]:
        return self.id, self.attempt

    @property
    def stream(self) -> str:
        return f"workload:{self.id}"

    @property
    def live(self) -> bool:
        return self.state != FINISHED

    def reason_to_stop(self, now: datetime) -> str | None:
        """Why it must end now: what was asked, or its own deadline, which counts without any word from the platform."""
        if self.stop_cause:
            return self.stop_cause
        if self.wanted == "stop":
            return "stopped"
        if self.stop_at is not None and self.stop_at <= now:
            return "deadline"
        return None


def _workload(row: sqlite3.Row) -> Workload:
    values = dict(row)
    for key in ("stop_at", "accepted_at", "container_started_at", "finished_at"):
        values[key] = parse_time(values[key])
    for key in ("kill_now", "log_done", "cleaned"):
        values[key] = bool(values[key])
    values["gpu_uuids"] = tuple(json.loads(values["gpu_uuids"]))
    values["spec"] = json.loads(values["spec"])
    return Workload(**values)


class Workloads:
    """The rows, and the only door through which they change state."""

    def __init__(self, *, database: Database, outbox: Outbox) -> None:
        self._database, self._outbox = database, outbox

    def all(self) -> list[Workload]:
        return [
            _workload(row) for row in self._database.rows("SELECT * FROM workloads ORDER BY accepted_at, id, attempt")
        ]

    def live(self) -> list[Workload]:
        return [workload for workload in self.all() if workload.live]

    def get(self, workload_id: str, attempt: int) -> Workload | None:
        rows = self._database.rows("SELECT * FROM workloads WHERE id = ? AND attempt = ?", workload_id, attempt)
        return _workload(rows[0]) if rows else None

    def newest(self, workload_id: str) -> Workload | None:
        rows = self._database.rows("SELECT * FROM workloads WHERE id = ? ORDER BY attempt DESC LIMIT 1", workload_id)
        return _workload(rows[0]) if rows else None

    def accept(self, assignment: dict[str, Any], *, at: datetime, boot_id: str) -> Workload:
        """Remember an assignment before anything is done about it, and say so. Known ones come back as they are."""
        with self._database.change() as connection:
            known = self.get(assignment["id"], assignment["attempt"])
            if known is not None:
                return known
            connection.execute(
                "INSERT INTO workloads (id, attempt, kind, state, wanted, stop_at, gpu_uuids, spec, accepted_at, boot_id) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    assignment["id"], assignment["attempt"], assignment["kind"], ACCEPTED, assignment["wanted"],
                    assignment.get("stop_at"), json.dumps(assignment["gpu_uuids"]), json.dumps(assignment.get("spec") or {}),
                    iso(at), boot_id,
                ),
            )  # fmt: skip
            return self._report(assignment["id"], assignment["attempt"], at=at)

    def move(self, workload: Workload, to: str, *, at: datetime, **facts: Any) -> Workload:
        """One transition with what became known by it. Raises ForbiddenTransition; then nothing is written."""
        if to == FINISHED and facts.get("cause") not in CAUSES:
            raise ForbiddenTransition(f"finished without a known cause: {facts.get('cause')!r}")
        with self._database.change():
            now = self.get(*workload.key)
            if now is None or to not in ALLOWED[now.state]:
                raise ForbiddenTransition(f"{workload.id} cannot go from {now.state if now else 'nothing'} to {to}")
            if to == FINISHED:
                facts.setdefault("finished_at", at)
            self._set(workload.key, state=to, **facts)
            return self._report(*workload.key, at=at)

    def note(self, workload: Workload, **facts: Any) -> None:
        """Keep facts that are no transition and that the platform need not hear."""
        self._set(workload.key, **facts)

    def progress(self, workload: Workload, fraction: float | None, *, at: datetime) -> None:
        """Say how far a pull has come."""
        with self._database.change():
            now = self.get(*workload.key)
            if now is not None and now.state == PULLING:
                self._set(workload.key, progress=fraction)
                self._report(*workload.key, at=at)

    def queue_result(self, workload: Workload, body: dict[str, Any]) -> None:
        """A benchmark's result goes out before the report that it finished."""
        self._outbox.add(stream=workload.stream, path=f"workloads/{workload.id}/result", body=body)

    def forget(self, workload: Workload) -> None:
        with self._database.change() as connection:
            connection.execute("DELETE FROM workloads WHERE id = ? AND attempt = ?", workload.key)

    def _set(self, key: tuple[str, int], **facts: Any) -> None:
        values = {name: iso(value) if isinstance(value, datetime) else value for name, value in facts.items()}
        columns = ", ".join(f"{name} = ?" for name in values)
        with self._database.change() as connection:
            connection.execute(f"UPDATE workloads SET {columns} WHERE id = ? AND attempt = ?", (*values.values(), *key))  # noqa: S608

    def _report(self, workload_id: str, attempt: int, *, at: datetime) -> Workload:
        """Number and queue what the row says now; the caller's transaction holds both."""
        with self._database.change() as connection:
            connection.execute(
                "UPDATE workloads SET sequence = sequence + 1 WHERE id = ? AND attempt = ?", (workload_id, attempt)
            )
            workload = self.get(workload_id, attempt)
            assert workload is not None
            self._outbox.add(
                stream=workload.stream,
                path=f"workloads/{workload_id}/report",
                body={
                    "attempt": attempt,
                    "sequence": workload.sequence,
                    "state": workload.state,
                    "at": iso(at),
                    "container_started_at": iso(workload.container_started_at),
                    "finished_at": iso(workload.finished_at),
                    "exit_code": workload.exit_code,
                    "cause": workload.cause,
                    "message": workload.message,
                    "progress": workload.progress,
                },
            )
            return workload

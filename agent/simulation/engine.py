"""A simulated container engine. Its containers are rows in the state directory and functions of the time.

So they outlive the agent as Docker's do: killed and started again, the agent finds them running, or ended meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent.clock import iso, parse_time
from agent.engine import (
    LABEL_ATTEMPT,
    LABEL_GPUS,
    LABEL_KIND,
    LABEL_MACHINE,
    LABEL_WORKLOAD,
    Cancelled,
    Container,
    ContainerPlan,
    EngineDown,
    EngineError,
    ImageDenied,
    ImageMissing,
    LogLine,
    Progress,
    PullCancelled,
)
from agent.simulation.script import JOB_SECONDS, interpret

SCHEMA = """CREATE TABLE IF NOT EXISTS containers (
    id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, image TEXT NOT NULL, labels TEXT NOT NULL, command TEXT NOT NULL,
    env TEXT NOT NULL, created_at TEXT NOT NULL, started_at TEXT, lines TEXT, ends_at TEXT, exit_code INTEGER, oom INTEGER NOT NULL DEFAULT 0)"""
TERMINATED, KILLED = 143, 137
PULL_SECONDS = 1.5


def _wall() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Load:
    """What a card does: busy or not, and for how many seconds it has been so (None: always)."""

    busy: bool
    since_s: float | None


class SimulatedEngine:
    """Looks like Docker to the agent. `gpu_names` are the cards by UUID, for what ``nvidia-smi`` prints."""

    simulated = True

    def __init__(
        self,
        path: Path,
        *,
        gpu_names: dict[str, str],
        faults: dict[str, float] | None = None,
        now: Callable[[], datetime] = _wall,
        job_seconds: float = JOB_SECONDS,
        pull_seconds: float = PULL_SECONDS,
    ) -> None:
        self._machine_id, self._gpu_names, self._now = "", gpu_names, now
        self._faults = faults if faults is not None else {}
        self._job_seconds, self._pull_seconds = job_seconds, pull_seconds
        self._lock = threading.RLock()
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
        self._database.row_factory = sqlite3.Row
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute(SCHEMA)

    def use_machine(self, machine_id: str) -> None:
        self._machine_id = machine_id

    def versions(self) -> dict[str, str | None]:
        return {"docker_version": "28.5.1", "runc_version": "1.3.3", "toolkit_version": "1.18.2"}

    def refuses_jobs(self) -> str | None:
        return None

    def pull(self, image: str, *, progress: Progress, cancelled: Cancelled) -> str:
        """Takes a moment. A repository named missing… does not exist, one named private… may not be read."""
        self._answer()
        repository = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
        if repository.startswith("missing"):
            raise ImageMissing(f"{image}: no such image in its registry")
        if repository.startswith("private"):
            raise ImageDenied(f"{image}: the registry does not let everybody read it")
        pause = threading.Event()
        for step in range(1, 6):
            if cancelled():
                raise PullCancelled
            pause.wait(self._pull_seconds / 5)
            progress(step / 5)
        if "@" in image:
            return image
        return f"{image.rpartition(':')[0] or image}@sha256:{hashlib.sha256(image.encode()).hexdigest()}"

    def create(self, plan: ContainerPlan) -> str:
        self._answer()
        with self._lock:
            found = self._database.execute("SELECT id FROM containers WHERE name = ?", (plan.name,)).fetchone()
            if found:
                return str(found["id"])
            container_id = hashlib.sha256(f"{self._machine_id}:{plan.name}:{self._now()}".encode()).hexdigest()
            self._database.execute(
                "INSERT INTO containers (id, name, image, labels, command, env, created_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    container_id, plan.name, plan.image, json.dumps(plan.labels), json.dumps(plan.config.get("command")),
                    json.dumps(plan.config.get("environment") or {}), iso(self._now()),
                ),
            )  # fmt: skip
            return container_id

    def start(self, container_id: str) -> None:
        self._answer()
        if "start" in self._faults:
            raise EngineError("could not select device driver with capabilities: [[gpu]] (simulated)")
        with self._lock:
            row = self._row(container_id)
            if row is None:
                raise EngineError("no such container")
            if row["started_at"]:
                return
            labels = json.loads(row["labels"])
            gpus = [self._gpu_names.get(uuid, uuid) for uuid in labels[LABEL_GPUS].split(",")]
            plan = interpret(
                json.loads(row["command"]),
                env=json.loads(row["env"]),
                gpus=gpus,
                seed=container_id,
                job_seconds=self._job_seconds,
            )
            ends_after_s, exit_code, oom = plan.ends_after_s, plan.exit_code, 0
            if "oom" in self._faults and self._faults["oom"] < ends_after_s:
                ends_after_s, exit_code, oom = self._faults["oom"], KILLED, 1
            started = self._now()
            self._database.execute(
                "UPDATE containers SET started_at = ?, lines = ?, ends_at = ?, exit_code = ?, oom = ? WHERE id = ?",
                (
                    iso(started),
                    json.dumps(plan.lines),
                    iso(started + timedelta(seconds=ends_after_s)),
                    exit_code,
                    oom,
                    container_id,
                ),
            )

    def containers(self) -> list[Container]:
        self._answer()
        with self._lock:
            rows = self._database.execute("SELECT * FROM containers ORDER BY created_at").fetchall()
        return [self._see(row) for row in rows if json.loads(row["labels"]).get(LABEL_MACHINE) == self._machine_id]

    def stop(self, container_id: str, *, grace_s: int) -> None:
        self._answer()
        with self._lock:
            row = self._row(container_id)
            if row is None or not row["started_at"] or self._ended(row):
                return
            ends_at = self._now() + timedelta(seconds=min(0.2, grace_s))
            already = parse_time(row["ends_at"])
            if already is None or ends_at < already:  # a second stop does not put the end off
                self._database.execute(
                    "UPDATE containers SET ends_at = ?, exit_code = ?, oom = 0 WHERE id = ?",
                    (iso(ends_at), TERMINATED if grace_s else KILLED, container_id),
                )

    def remove(self, container_id: str) -> None:
        self._answer()
        with self._lock:
            self._database.execute("DELETE FROM containers WHERE id = ?", (container_id,))

    def logs(self, container_id: str, *, since: str) -> Iterator[LogLine]:
        self._answer()
        with self._lock:
            row = self._row(container_id)
        if row is None or not row["started_at"]:
            return
        started, ends_at = parse_time(row["started_at"]), parse_time(row["ends_at"])
        assert started is not None
        assert ends_at is not None
        until = min(self._now(), ends_at)
        for second, text in json.loads(row["lines"]):
            at = started + timedelta(seconds=second)
            stamp = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            if at <= until and stamp >= since:
                yield LogLine(at=stamp, text=text)

    def load(self, gpu_uuid: str) -> Load:
        """What the containers do to a card: for its simulated heat, clocks and memory."""
        now, idle_since = self._now(), None
        with self._lock:
            rows = self._database.execute(
                "SELECT labels, started_at, ends_at FROM containers WHERE started_at IS NOT NULL"
            ).fetchall()
        for row in rows:
            if gpu_uuid not in json.loads(row["labels"])[LABEL_GPUS].split(","):
                continue
            started, ends_at = parse_time(row["started_at"]), parse_time(row["ends_at"])
            assert started is not None
            assert ends_at is not None
            if started <= now < ends_at:
                return Load(busy=True, since_s=(now - started).total_seconds())
            idle_since = max(idle_since or ends_at, ends_at)
        return Load(busy=False, since_s=(now - idle_since).total_seconds() if idle_since else None)

    def lost_gpus(self) -> set[str]:
        """The cards that the fault ``gpu_lost`` has taken: the first of each job that has run long enough."""
        if "gpu_lost" not in self._faults:
            return set()
        with self._lock:
            rows = self._database.execute(
                "SELECT labels, started_at FROM containers WHERE started_at IS NOT NULL"
            ).fetchall()
        lost = set()
        for row in rows:
            started = parse_time(row["started_at"])
            if started is not None and (self._now() - started).total_seconds() >= self._faults["gpu_lost"]:
                lost.add(json.loads(row["labels"])[LABEL_GPUS].split(",")[0])
        return lost

    def _answer(self) -> None:
        if "docker" in self._faults:
            raise EngineDown("the engine does not answer (simulated)")

    def _row(self, container_id: str) -> sqlite3.Row | None:
        found: sqlite3.Row | None = self._database.execute(
            "SELECT * FROM containers WHERE id = ?", (container_id,)
        ).fetchone()
        return found

    def _ended(self, row: sqlite3.Row) -> bool:
        ends_at = parse_time(row["ends_at"])
        return ends_at is not None and ends_at <= self._now()

    def _see(self, row: sqlite3.Row) -> Container:
        labels = json.loads(row["labels"])
        ended = self._ended(row)
        return Container(
            id=row["id"],
            workload_id=labels[LABEL_WORKLOAD],
            attempt=int(labels[LABEL_ATTEMPT]),
            kind=labels[LABEL_KIND],
            state="exited" if ended else "running" if row["started_at"] else "created",
            created_at=parse_time(row["created_at"]),
            started_at=parse_time(row["started_at"]),
            finished_at=parse_time(row["ends_at"]) if ended else None,
            exit_code=row["exit_code"] if ended else None,
            oom_killed=bool(row["oom"]) if ended else False,
            gpu_uuids=tuple(labels[LABEL_GPUS].split(",")),
        )

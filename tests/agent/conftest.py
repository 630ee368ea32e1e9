import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.clock import Clock
from agent.jobs import Jobs
from agent.lifecycle import Workload, Workloads
from agent.outbox import Outbox
from agent.simulation.engine import SimulatedEngine
from agent.spec import Share
from agent.state import SAMPLES_SCHEMA, Database
from agent.work import BenchmarkCancelled, Host, Work
from tests.agent.peer import Peer

ROOT = Path(__file__).resolve().parent.parent.parent
GPUS = [f"GPU-{number:08d}-0000-0000-0000-000000000000" for number in range(4)]
MACHINE = "5d0d8f0e-0000-4000-8000-000000000001"
WORKLOAD = "11111111-1111-4111-8111-111111111111"


class SetClock(Clock):
    """A clock that stands still until told."""

    def __init__(self) -> None:
        super().__init__()
        self.moment = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def now(self) -> datetime:
        return self.moment

    def forward(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)


@dataclass
class Cards:
    """Which cards are well: what the inventory answers in the running agent."""

    gone: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)

    def problem(self, uuid: str) -> str | None:
        return None if uuid in GPUS and uuid not in self.gone else "no longer answering"

    def lost(self, uuid: str) -> bool:
        return uuid in self.gone

    def in_use(self, uuid: str) -> bool:
        return uuid in self.used


class HeldBenchmarks:
    """Benchmarks that end when the test says so."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.runs: list[str] = []

    def run(self, workload: Workload, *, cancelled: Callable[[], bool]) -> dict[str, Any]:
        self.runs.append(workload.id)
        while not self.go.wait(0.01):
            if cancelled():
                raise BenchmarkCancelled
        return {"attempt": workload.attempt, "nonce": workload.spec["nonce"]}


class Rig:
    """The agent's middle, in this process: real rows, real queue, simulated engine, a clock that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = SetClock()
        self.cards, self.benchmarks = Cards(), HeldBenchmarks()
        self.boot_id = "boot-1"
        self.faults: dict[str, float] = {}
        self.start()

    def start(self) -> None:
        """Begin, or begin again after a kill: everything that is not on disk is new."""
        self.database = Database(self.folder / "agent.sqlite3")
        self.samples = Database(self.folder / "samples.sqlite3", schema=SAMPLES_SCHEMA, durable=False)
        self.outbox = Outbox(self.database, self.samples)
        self.workloads = Workloads(database=self.database, outbox=self.outbox)
        self.engine = SimulatedEngine(
            self.folder / "engine.sqlite3",
            gpu_names=dict.fromkeys(GPUS, "NVIDIA L4"),
            faults=self.faults,
            now=self.clock.now,
            pull_seconds=0,
        )
        self.engine.use_machine(MACHINE)
        nudged = threading.Event()
        self.work = Work(
            workloads=self.workloads,
            engine=self.engine,
            gpus=self.cards,
            benchmarks=self.benchmarks,
            host=Host(
                machine_id=MACHINE,
                boot_id=self.boot_id,
                share=lambda _: Share(memory_mib=8192, cpus=4, shm_max_mib=4096),
                disk_free_gib=lambda: 500.0,
            ),
            clock=self.clock,
            nudge=nudged.set,
        )
        self.jobs = Jobs(
            database=self.database,
            workloads=self.workloads,
            outbox=self.outbox,
            engine=self.engine,
            gpus=self.cards,
            work=self.work,
            clock=self.clock,
            boot_id=self.boot_id,
            nudged=nudged,
        )

    def settle(self) -> None:
        """Reconcile until the steps that began have ended, and once more to see what they did."""
        self.jobs.reconcile()
        self.work.wait(10)
        self.jobs.reconcile()

    def assign(self, **changes: Any) -> str:
        self.jobs.assigned([assignment(**changes)])
        self.settle()
        return str(changes.get("id", WORKLOAD))

    def row(self, workload_id: str = WORKLOAD) -> Workload:
        found = self.workloads.newest(workload_id)
        assert found is not None
        return found

    def reports(self, workload_id: str = WORKLOAD) -> list[dict[str, Any]]:
        """The bodies queued for the platform, oldest first."""
        rows = self.database.rows(
            "SELECT body FROM outbox WHERE path = ? ORDER BY number", f"workloads/{workload_id}/report"
        )
        return [json.loads(row["body"]) for row in rows]

    def states(self, workload_id: str = WORKLOAD) -> list[str]:
        said: list[str] = []
        for body in self.reports(workload_id):
            if not said or said[-1] != body["state"]:
                said.append(body["state"])
        return said


def assignment(**changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "id": WORKLOAD,
        "kind": "job",
        "attempt": 1,
        "wanted": "run",
        "stop_at": None,
        "gpu_uuids": GPUS[:1],
        "spec": {
            "image": "ubuntu:24.04",
            "command": ["sh", "-c", "echo hello; sleep 10; exit 3"],
            "env": {},
            "shm_mib": 512,
        },
    }
    return whole | changes


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.benchmarks.go.set()
    rig.work.wait(10)


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


class AgentProcess:
    """The real program, as a child process, with simulated cards."""

    def __init__(self, *, url: str, state: Path, log: Path) -> None:
        self.url, self.state, self.log = url, state, log
        self.child: subprocess.Popen[bytes] | None = None

    def start(
        self, *, key: str | None = "gpxe_good", simulate: str = "l4x2", options: list[str] | None = None, **env: str
    ) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUNEX_")}
        environment |= {"GPUNEX_SAMPLE_S": "0.5", "GPUNEX_SIM_BENCHMARK_S": "0.2", **env}
        if key is not None:
            environment["GPUNEX_API_KEY"] = key
        command = [sys.executable, "-m", "agent", "--url", self.url, "--state", str(self.state), "--simulate", simulate]
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                [*command, "--name", "test-host", *(options or [])], cwd=ROOT, env=environment, stdout=log, stderr=log
            )

    def kill(self) -> None:
        assert self.child is not None
        self.child.kill()
        self.child.wait(10)

    def terminate(self) -> int:
        assert self.child is not None
        self.child.terminate()
        return self.child.wait(10)

    def wait(self) -> int:
        assert self.child is not None
        return self.child.wait(20)

    def said(self) -> str:
        return self.log.read_text()


@pytest.fixture
def agent(peer: Peer, tmp_path: Path) -> Iterator[AgentProcess]:
    process = AgentProcess(url=peer.url, state=tmp_path / "state", log=tmp_path / "agent.log")
    yield process
    if process.child is not None and process.child.poll() is None:
        process.kill()

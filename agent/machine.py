"""Puts the parts together: the real driver and Docker, or the simulated ones, under the same agent."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from agent.clock import Clock
from agent.daemon import SAMPLE_S, Daemon
from agent.driver import Driver
from agent.engine import Engine, EngineError
from agent.enrol import enrol, key_mark
from agent.host import HostFacts, boot_id, disk_gib, fingerprint, machine_source, read_facts
from agent.inventory import Inventory
from agent.jobs import Jobs
from agent.journal import Journal
from agent.lifecycle import Workloads
from agent.logs import LogShipper
from agent.outbox import Outbox
from agent.platform import Platform, Refused, Unreachable
from agent.simulation.benchmark import SECONDS as SIMULATED_BENCHMARK_S
from agent.simulation.benchmark import SimulatedBenchmarks
from agent.simulation.driver import SimulatedDriver, gpu_uuids
from agent.simulation.engine import SimulatedEngine
from agent.simulation.host import simulated_facts
from agent.simulation.profiles import Card
from agent.simulation.script import JOB_SECONDS
from agent.spec import Share, share_of_host
from agent.state import SAMPLES_SCHEMA, Database, Identity, StateDir
from agent.work import Benchmarks, Host, Work

log = logging.getLogger("gpunex.machine")


class NoEngine(Exception):
    """There is no container engine that can be used."""


@dataclass(frozen=True)
class Options:
    """What the operator chose. `given` is None for all cards."""

    url: str
    key: str | None
    hostname: str
    given: frozenset[str] | None = None
    simulate: tuple[Card, int] | None = None
    seed: str | None = None
    faults: dict[str, float] = field(default_factory=dict)
    agent_image: str | None = None
    unsafe_development: bool = False  # jobs without an egress table, images from private registries


class Machine:
    """This host, as far as the agent is concerned. `open_machine` makes it."""

    def __init__(
        self,
        *,
        options: Options,
        state: StateDir,
        database: Database,
        engine: Engine,
        driver: Driver,
        mark: str,
        seed: str,
    ) -> None:
        self._options, self._state, self._database, self._engine, self._driver = (
            options,
            state,
            database,
            engine,
            driver,
        )
        self._mark, self._seed, self._boot_id = mark, seed, boot_id()
        self._clock = Clock(float(database.get_meta("clock_offset_s") or 0))
        self._samples = Database(state.path / "samples.sqlite3", schema=SAMPLES_SCHEMA, durable=False)
        self._outbox = Outbox(database, self._samples)
        self._known = state.identity()
        self._platform = Platform(options.url, clock=self._clock, secret=self._known.secret if self._known else None)
        self._facts_lock = threading.Lock()
        self._versions: tuple[float, dict[str, str | None]] | None = None
        self._inventory = Inventory(
            database=database,
            outbox=self._outbox,
            driver=driver,
            clock=self._clock,
            boot_id=self._boot_id,
            given=options.given,
            host_facts=self._host_facts,
        )

    def identify(self, stop: threading.Event) -> Identity | None:
        """The identity on disk; or a new one with the key, if there is none or the operator brought another key.

        None without a key, or when `stop` came first. Waits for the driver: a machine is not enrolled without its cards.
        """
        known, key = self._known, self._options.key
        if known is not None and known.url == self._options.url and (key is None or key_mark(key) == known.key_sha256):
            return known
        if key is None:
            return None
        told = False
        while self._inventory.look() is None or not self._inventory.uuids():
            if not told:
                log.warning("waiting for the NVIDIA driver to show a GPU")
                told = True
            if stop.wait(5):
                return None
        same_platform = known is not None and known.url == self._options.url
        identity = enrol(
            state=self._state,
            platform=self._platform,
            url=self._options.url,
            key=key,
            fingerprint=self._mark,
            boot_id=self._boot_id,
            simulated=self._driver.simulated,
            hostname=self._options.hostname,
            inventory=self._inventory.as_json,
            machine_id=known.machine_id if known and same_platform else None,
            stop=stop,
        )
        if identity is not None:
            self._platform.use_secret(identity.secret)
        return identity

    def daemon(self, identity: Identity, stop: threading.Event) -> Daemon:
        workloads = Workloads(database=self._database, outbox=self._outbox)
        engine = self._engine
        engine.use_machine(identity.machine_id)
        nudged = threading.Event()
        work = Work(
            workloads=workloads,
            engine=engine,
            gpus=self._inventory,
            benchmarks=self._benchmarks(identity),
            host=Host(
                machine_id=identity.machine_id,
                boot_id=self._boot_id,
                share=self._share,
                disk_free_gib=lambda: disk_gib(self._state.path)[1],
                allow_private_registry=self._options.unsafe_development,
            ),
            clock=self._clock,
            nudge=nudged.set,
        )
        jobs = Jobs(
            database=self._database,
            workloads=workloads,
            outbox=self._outbox,
            engine=engine,
            gpus=self._inventory,
            work=work,
            clock=self._clock,
            boot_id=self._boot_id,
            nudged=nudged,
        )
        return Daemon(
            identity=identity,
            state=self._state,
            database=self._database,
            platform=self._platform,
            outbox=self._outbox,
            inventory=self._inventory,
            jobs=jobs,
            logs=LogShipper(workloads=workloads, engine=engine, platform=self._platform),
            journal=Journal(database=self._samples, boot_id=self._boot_id, clock=self._clock),
            clock=self._clock,
            boot_id=self._boot_id,
            stop=stop,
            sample_s=float(os.environ.get("GPUNEX_SAMPLE_S", SAMPLE_S)),
        )

    def uninstall(self) -> int:
        """Stop and remove this machine's containers, tell the platform, forget who we are. 1 if the platform was not told."""
        if self._known is None:
            log.info("this machine is not enrolled")
            return 0
        self._engine.use_machine(self._known.machine_id)
        try:
            for container in self._engine.containers():
                self._engine.stop(container.id, grace_s=10)
                self._engine.remove(container.id)
        except EngineError as error:
            log.warning("containers could not be removed: %s", error)
        try:
            self._platform.uninstall()
        except Refused as refusal:
            log.info("the platform says: %s", refusal)
        except Unreachable as error:
            log.warning("the platform could not be told (%s); it will see the machine as lost", error)
            self._state.forget_identity()
            return 1
        self._state.forget_identity()
        log.info("machine %s is retired", self._known.name)
        return 0

    def close(self) -> None:
        self._driver.close()
        self._platform.close()
        self._database.close()
        self._samples.close()

    def _benchmarks(self, identity: Identity) -> Benchmarks:
        if self._options.simulate:
            seconds = float(os.environ.get("GPUNEX_SIM_BENCHMARK_S", SIMULATED_BENCHMARK_S))
            return SimulatedBenchmarks(
                card=self._options.simulate[0], platform=self._platform, seed=self._seed, seconds=seconds
            )
        from agent.benchmark import RealBenchmarks

        return RealBenchmarks(
            engine=self._engine,
            platform=self._platform,
            image=self._options.agent_image,
            machine_id=identity.machine_id,
            share=self._share,
            disk_folder=self._state.path,
        )

    def _host_facts(self, driver_version: str | None, cuda_version: str | None) -> HostFacts:
        with self._facts_lock:
            now = time.monotonic()
            if self._versions is None or now - self._versions[0] > 300:
                self._versions = (now, self._engine.versions())
        facts = read_facts(
            hostname=self._options.hostname,
            disk_of=self._state.path,
            versions=self._versions[1],
            driver_version=driver_version,
            cuda_version=cuda_version,
        )
        if self._options.simulate:
            card, count = self._options.simulate
            return simulated_facts(facts, card=card, count=count, seed=self._seed)
        return facts

    def _share(self, gpus_given: int) -> Share:
        facts: Any = self._host_facts(None, None)
        return share_of_host(
            memory_mib=facts.memory_mib or 4096,
            cpu_cores=facts.cpu_cores or 1,
            gpus_total=max(1, len(self._inventory.uuids())),
            gpus_given=gpus_given,
        )


def open_machine(options: Options, state: StateDir) -> Machine:
    """Raises NoEngine."""
    database = Database(state.path / "agent.sqlite3")
    if options.simulate:
        return _simulated(options, state, database)
    from agent.docker_engine import DockerEngine
    from agent.watch import WatchedDriver

    try:
        engine = DockerEngine.connect(state_path=state.path, unsafe_development=options.unsafe_development)
    except EngineError as error:
        raise NoEngine(f"No Docker engine: {error}") from error
    mark = database.get_meta("fingerprint") or fingerprint(
        machine_source() or engine.engine_id() or secrets.token_hex(16)
    )
    database.set_meta("fingerprint", mark)
    return Machine(
        options=options, state=state, database=database, engine=engine, driver=WatchedDriver(), mark=mark, seed=""
    )


def _simulated(options: Options, state: StateDir, database: Database) -> Machine:
    assert options.simulate is not None
    card, count = options.simulate
    seed = options.seed or database.get_meta("simulation_seed") or secrets.token_hex(16)
    database.set_meta("simulation_seed", seed)
    uuids = gpu_uuids(seed, count)
    engine = SimulatedEngine(
        state.path / "simulated-engine.sqlite3",
        gpu_names=dict.fromkeys(uuids, card.name),
        faults=options.faults,
        job_seconds=float(os.environ.get("GPUNEX_SIM_JOB_S", JOB_SECONDS)),
    )
    driver = SimulatedDriver(card=card, uuids=uuids, engine=engine, hung="nvml" in options.faults)
    return Machine(
        options=options, state=state, database=database, engine=engine, driver=driver, mark=fingerprint(seed), seed=seed
    )

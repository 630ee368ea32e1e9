"""Which cards this machine has, had and may give, and in which health: kept over restarts of the agent.

NVML is the only truth about what is there. A card that stops answering stays in the inventory with its last facts and
fatal health. Health gets better only with a new boot or a new driver: restarting the agent repairs nothing.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from agent.clock import Clock
from agent.driver import COUNTERS, HEAT, MOST_GROWTH, Driver, DriverAbsent, DriverHung, Gpu, Reading, Sample, xid_health
from agent.host import HostFacts
from agent.outbox import Outbox
from agent.state import Database

log = logging.getLogger("gpunex.inventory")

BUSY_MIB = 500  # memory in use above which a card is not idle
HOT_S, COOL_S = 60.0, 600.0  # heat for so long is told, once until it has been gone for so long
RANK = {"ok": 0, "degraded": 1, "fatal": 2}


class Inventory:
    """Looks at the driver and remembers. `given` is None for all cards, else the UUIDs the provider gives."""

    def __init__(
        self,
        *,
        database: Database,
        outbox: Outbox,
        driver: Driver,
        clock: Clock,
        boot_id: str,
        given: frozenset[str] | None,
        host_facts: Callable[[str | None, str | None], HostFacts],
    ) -> None:
        self._database, self._outbox, self._driver, self._clock = database, outbox, driver, clock
        self._boot_id, self._given, self._host_facts = boot_id, given, host_facts
        self._lock, self._look_lock = threading.Lock(), threading.Lock()
        self._reading: Reading | None = None
        self._used_mib: dict[str, int | None] = {}
        self._hot: dict[str, Heat] = {}
        self.nvml = "absent"

    def look(self) -> Reading | None:
        """One look at the driver; None while it does not answer, and then the last good picture stays."""
        with self._look_lock:  # one question at a time: the driver's process answers in order
            return self._look()

    def as_json(self) -> dict[str, Any]:
        """The Inventory of the contract."""
        with self._lock:
            reading = self._reading
        driver_version = reading.driver_version if reading else self._database.get_meta("driver_version")
        cuda_version = reading.cuda_version if reading else None
        gpus = []
        for row in self._database.rows("SELECT * FROM gpus ORDER BY json_extract(facts, '$.index'), uuid"):
            facts = json.loads(row["facts"])
            name = facts["name"] or "unnamed NVIDIA GPU"  # the contract wants one; a card without is still a card
            gpus.append({**facts, "name": name, "health": row["health"], "given": self._is_given(row["uuid"])})
        return {"host": self._host_facts(driver_version, cuda_version).as_json(), "gpus": gpus}

    def uuids(self) -> list[str]:
        return [row["uuid"] for row in self._database.rows("SELECT uuid FROM gpus")]

    def given_count(self) -> int:
        return sum(self._is_given(uuid) for uuid in self.uuids())

    def problem(self, uuid: str) -> str | None:
        rows = self._database.rows("SELECT health, reason, present, facts FROM gpus WHERE uuid = ?", uuid)
        if not rows:
            return "this machine has no such GPU"
        if not self._is_given(uuid):
            return "not given to the platform by its owner"
        if not rows[0]["present"]:
            return "no longer answering"
        if rows[0]["health"] == "fatal":
            return rows[0]["reason"] or "failed"
        if json.loads(rows[0]["facts"]).get("mig_enabled"):
            return "in MIG mode, which is not supported"
        return None

    def lost(self, uuid: str) -> bool:
        rows = self._database.rows("SELECT present, health FROM gpus WHERE uuid = ?", uuid)
        return not rows or not rows[0]["present"] or rows[0]["health"] == "fatal"

    def in_use(self, uuid: str) -> bool:
        """Does something hold memory on the card? What was seen a moment ago may be over, so a yes is looked at again."""
        return self._holds_memory(uuid) and (self.look() is None or self._holds_memory(uuid))

    def _look(self) -> Reading | None:
        try:
            reading = self._driver.read()
        except DriverHung as error:
            self._change_state("hung", str(error))
            return None
        except DriverAbsent as error:
            self._change_state("absent", str(error))
            return None
        self._change_state("ok", "")
        with self._lock:
            self._reading = reading
            self._used_mib = {sample.gpu_uuid: sample.memory_used_mib for sample in reading.samples}
        self._remember(reading)
        return reading

    def _holds_memory(self, uuid: str) -> bool:
        with self._lock:
            used = self._used_mib.get(uuid)
        return used is not None and used > BUSY_MIB

    def _is_given(self, uuid: str) -> bool:
        return self._given is None or uuid in self._given

    def _change_state(self, state: str, why: str) -> None:
        if state != self.nvml:
            (log.info if state == "ok" else log.error)("the NVIDIA driver is %s%s", state, f": {why}" if why else "")
        self.nvml = state

    def _remember(self, reading: Reading) -> None:
        """Merge a good reading into what is known; each change is an event in the same transaction."""
        now = self._clock.now()
        version = reading.driver_version or ""
        with self._database.change() as connection:
            before = self._database.get_meta("driver_version")
            if version and version != before:
                if before is not None:
                    self._outbox.event("driver_changed", at=now, data={"before": before, "after": version})
                self._database.set_meta("driver_version", version)
            known = {row["uuid"]: row for row in self._database.rows("SELECT * FROM gpus")}
            for gpu in reading.gpus:
                self._remember_gpu(gpu, known.get(gpu.uuid), version)
            present = {gpu.uuid for gpu in reading.gpus}
            for uuid, row in known.items():
                if uuid not in present and row["present"]:
                    log.error("GPU %s is no longer answering", uuid)
                    self._outbox.event(
                        "gpu_lost", at=now, gpu_uuid=uuid, data={"present": len(present), "known": len(known)}
                    )
                    connection.execute(
                        "UPDATE gpus SET present = 0, health = 'fatal', reason = 'no longer answering' WHERE uuid = ?",
                        (uuid,),
                    )
            for xid in reading.xids:
                self._xid(xid.get("gpu_uuid"), int(xid["xid"]))
            for sample in reading.samples:
                self._count(sample, loaded=f"{self._boot_id}:{version}")
                self._feel(sample)

    def _remember_gpu(self, gpu: Gpu, row: Any, driver_version: str) -> None:
        facts = json.dumps(asdict(gpu))
        with self._database.change() as connection:
            if row is None:
                connection.execute(
                    "INSERT INTO gpus VALUES (?, ?, 'ok', '', ?, ?, 1)",
                    (gpu.uuid, facts, self._boot_id, driver_version),
                )
                return
            if not row["present"]:
                log.info("GPU %s answers again", gpu.uuid)
                self._outbox.event("gpu_back", at=self._clock.now(), gpu_uuid=gpu.uuid)
            repaired = row["boot_id"] != self._boot_id or row["driver_version"] != driver_version
            health, reason = ("ok", "") if repaired else (row["health"], row["reason"])
            if row["present"] and not repaired and row["facts"] == facts:
                return
            connection.execute(
                "UPDATE gpus SET facts = ?, health = ?, reason = ?, boot_id = ?, driver_version = ?, present = 1 WHERE uuid = ?",
                (facts, health, reason, self._boot_id, driver_version, gpu.uuid),
            )

    def _count(self, sample: Sample, *, loaded: str) -> None:
        """Counters that have grown are events; what is broken still after a restart (``loaded`` anew) is one again."""
        key = f"counters:{sample.gpu_uuid}"
        known: dict[str, Any] = json.loads(self._database.get_meta(key) or "{}")
        if known.get("loaded") != loaded:
            known = {"loaded": loaded}
        now = {name: value for name, value in sample.counters().items() if value is not None}
        if all(known.get(name, 0) == value for name, value in now.items()):
            return
        with self._database.change():
            for name, after in now.items():
                before = known.get(name, 0)
                if not 0 < after - before <= MOST_GROWTH:
                    continue
                data = {"counter": name, "before": before, "after": after}
                self._outbox.event("ecc", at=self._clock.now(), gpu_uuid=sample.gpu_uuid, data=data)
                self._worsen(sample.gpu_uuid, COUNTERS[name], f"{name} {after}")
            self._database.set_meta(key, json.dumps(known | now))

    def _feel(self, sample: Sample) -> None:
        """Heat that holds the clocks back for a minute is an event."""
        heat = self._hot.setdefault(sample.gpu_uuid, Heat())
        if seconds := heat.felt(hot=bool(HEAT.intersection(sample.throttle_reasons or ())), now=time.monotonic()):
            data = {"seconds": round(seconds), "temperature_c": sample.temperature_c}
            self._outbox.event("thermal", at=self._clock.now(), gpu_uuid=sample.gpu_uuid, data=data)

    def _xid(self, uuid: str | None, xid: int) -> None:
        self._outbox.event("xid", at=self._clock.now(), gpu_uuid=uuid, data={"xid": xid})
        health = xid_health(xid)
        if health is not None and uuid is not None:
            self._worsen(uuid, health, f"Xid {xid}")

    def _worsen(self, uuid: str, health: str, reason: str) -> None:
        with self._database.change() as connection:
            rows = self._database.rows("SELECT health FROM gpus WHERE uuid = ?", uuid)
            if rows and RANK[health] > RANK[rows[0]["health"]]:
                log.error("GPU %s: %s, now %s", uuid, reason, health)
                connection.execute("UPDATE gpus SET health = ?, reason = ? WHERE uuid = ?", (health, reason, uuid))


@dataclass
class Heat:
    """For how long one card has been too hot, and whether that was told.

    >>> heat = Heat()
    >>> [heat.felt(hot=True, now=second) for second in (0, 30, 60, 65)]
    [None, None, 60, None]
    """

    since: float | None = None
    cool_since: float | None = None
    told: bool = False

    def felt(self, *, hot: bool, now: float) -> float | None:
        """One more look. The seconds it has been hot for, when that is to be told."""
        if not hot:
            self.cool_since = now if self.cool_since is None else self.cool_since
            self.since = None
            self.told &= now - self.cool_since < COOL_S
            return None
        self.cool_since = None
        self.since = now if self.since is None else self.since
        if self.told or now - self.since < HOT_S:
            return None
        self.told = True
        return now - self.since

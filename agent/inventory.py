"""Which cards this machine has, had and may give, and in which health: kept over restarts of the agent.

NVML is the only truth about what is there. A card that stops answering stays in the inventory with its last facts and
fatal health. Health gets better only with a new boot or a new driver: restarting the agent repairs nothing.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from agent.clock import Clock
from agent.driver import Driver, DriverAbsent, DriverHung, Gpu, Reading, xid_health
from agent.host import HostFacts
from agent.outbox import Outbox
from agent.state import Database

log = logging.getLogger("gpunex.inventory")

BUSY_MIB = 500  # memory in use above which a card is not idle
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

    def _xid(self, uuid: str | None, xid: int) -> None:
        self._outbox.event("xid", at=self._clock.now(), gpu_uuid=uuid, data={"xid": xid})
        health = xid_health(xid)
        if health is None or uuid is None:
            return
        with self._database.change() as connection:
            rows = self._database.rows("SELECT health FROM gpus WHERE uuid = ?", uuid)
            if rows and RANK[health] > RANK[rows[0]["health"]]:
                log.error("GPU %s: Xid %s, now %s", uuid, xid, health)
                connection.execute(
                    "UPDATE gpus SET health = ?, reason = ? WHERE uuid = ?", (health, f"Xid {xid}", uuid)
                )

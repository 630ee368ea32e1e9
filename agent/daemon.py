"""The agent at work: independent loops that share the database, so that none can hold up another."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from agent import __version__
from agent.clock import Clock, boot_seconds, iso
from agent.inventory import Inventory
from agent.jobs import Jobs
from agent.journal import Journal
from agent.logs import LogShipper
from agent.outbox import Outbox, Sender
from agent.platform import Backoff, Platform, Refused, Unreachable
from agent.state import Database, Identity, StateDir, write_private

log = logging.getLogger("gpunex.agent")

POLL_WAIT_S = 25
SAMPLE_S = 5.0
INVENTORY_S = 300.0
VOLATILE = ("disk_free_gib",)  # changes all the time and is no news
TELL_SKEW_S = 5.0  # as the platform tells
GAP_BEATS = 3  # as many beats without an answer are worth telling


class Daemon:
    """Runs until `stop` is set. Ending it never ends a job."""

    def __init__(
        self,
        *,
        identity: Identity,
        state: StateDir,
        database: Database,
        platform: Platform,
        outbox: Outbox,
        inventory: Inventory,
        jobs: Jobs,
        logs: LogShipper,
        journal: Journal,
        clock: Clock,
        boot_id: str,
        stop: threading.Event,
        sample_s: float = SAMPLE_S,
    ) -> None:
        self._identity, self._state, self._database, self._platform = identity, state, database, platform
        self._outbox, self._inventory, self._jobs, self._logs, self._clock = outbox, inventory, jobs, logs, clock
        self._journal, self._boot_id, self._sample_s = journal, boot_id, sample_s
        self._stop = stop
        self._sender = Sender(outbox=outbox, platform=platform, answered=jobs.answered, disowned=jobs.disowned)
        self._told: dict[str, float] = {}

    def run(self) -> None:
        """Start every loop and wait for `stop`."""
        self._note_boot()
        self._journal.begin()
        loops: list[tuple[str, Callable[[threading.Event], None]]] = [
            ("heartbeat", self._heartbeats),
            ("assignments", self._assignments),
            ("reconcile", self._jobs.run),
            ("outbox", self._sender.run),
            ("logs", self._logs.run),
            ("driver", self._driver),
            ("telemetry", self._telemetry),
        ]
        threads = [threading.Thread(target=loop, args=(self._stop,), name=name, daemon=True) for name, loop in loops]
        for thread in threads:
            thread.start()
        self._stop.wait()
        log.info("ending; jobs go on running")
        self._jobs.nudge()
        self._outbox.wake.set()
        deadline = time.monotonic() + 3
        for thread in threads:
            if thread.name != "assignments":  # it waits in a request, and holds nothing that could be lost
                thread.join(max(0.0, deadline - time.monotonic()))
        self._database.set_meta("clock_offset_s", str(self._clock.offset_s))

    def _note_boot(self) -> None:
        if self._database.get_meta("boot_id") != self._boot_id:
            self._outbox.event("boot", at=self._clock.now(), data={"boot_id": self._boot_id})
            self._database.set_meta("boot_id", self._boot_id)

    def _heartbeats(self, stop: threading.Event) -> None:
        """Proof of life. Depends on nothing that can hang: not on the driver, nor on the container engine."""
        interval_s, backoff = self._identity.heartbeat_s, Backoff()
        while not stop.is_set():
            begun = time.monotonic()
            wait_s = interval_s
            try:
                self._journal.tick()
                answer = self._platform.heartbeat(self._heartbeat(interval_s))
                self._journal.heard()
                interval_s = _between(answer.get("interval_s"), 1, 60, interval_s)
                backoff.success()
                self._accepted(answer)
                wait_s = interval_s - (time.monotonic() - begun)
            except Unreachable as error:
                wait_s = min(interval_s, backoff.failure())
                self._tell("heartbeat", f"the platform cannot be reached ({error}); jobs go on, trying again")
            except Refused as refusal:
                wait_s = self._refused(refusal, interval_s)
            except Exception:
                log.exception("heartbeat")
            stop.wait(max(0.2, wait_s))

    def _heartbeat(self, interval_s: float) -> dict[str, Any]:
        gap = self._journal.gap(longer_than_s=GAP_BEATS * interval_s)
        body = {} if gap is None else {"gap": gap}
        return body | {
            "boot_id": self._boot_id,
            "sequence": self._database.next_number("heartbeat"),
            "agent_version": __version__,
            "sent_at": iso(datetime.now(UTC)),
            "workloads": self._jobs.for_heartbeat(),
            "nvml": self._inventory.nvml,
        }

    def _accepted(self, answer: dict[str, Any]) -> None:
        """Leave a mark for the installer and the container's health check."""
        self._told.pop("heartbeat", None)
        if abs(self._clock.offset_s) > TELL_SKEW_S:
            self._tell(
                "skew",
                f"this machine's clock is off by {-self._clock.offset_s:.0f} s; set it (timedatectl set-ntp true)",
                every_s=3600,
            )
        identity = self._identity
        status = {
            "machine_id": identity.machine_id,
            "name": identity.name,
            "url": identity.url,
            "agent_version": __version__,
            "last_heartbeat_at": iso(datetime.now(UTC)),
            "boot_id": self._boot_id,
            "drain": bool(answer.get("drain")),
        }
        write_private(self._state.path / "status.json", json.dumps(status), durable=False)

    def _refused(self, refusal: Refused, interval_s: float) -> float:
        """A 401 is told and waited on; only the operator, with a new key, enrols a machine again."""
        if refusal.code in ("revoked", "secret_unknown"):
            self._tell(
                "revoked",
                "the platform no longer accepts this machine's secret. Its jobs end at their deadlines. "
                "To connect it again, run the installer with a new key from the dashboard",
            )
            return 60.0
        self._tell(refusal.code, f"heartbeat refused ({refusal.code}): {refusal.detail}")
        return max(interval_s, refusal.retry_after_s or 0.0)

    def _tell(self, topic: str, message: str, *, every_s: float = 300.0) -> None:
        """Log a lasting trouble now and then, not every ten seconds."""
        now = time.monotonic()
        if now - self._told.get(topic, -every_s) >= every_s:
            self._told[topic] = now
            log.warning("%s", message)

    def _assignments(self, stop: threading.Event) -> None:
        """The long poll. The first one does not wait: after a restart the whole wish is wanted at once."""
        revision, wait_s, backoff = 0, 0, Backoff()
        while not stop.is_set():
            try:
                answer = self._platform.assignments(after=revision, wait_s=wait_s)
                if stop.is_set():
                    return
                workloads, newest = answer.get("workloads"), answer.get("revision")
                if not isinstance(workloads, list) or not isinstance(newest, int):
                    raise Unreachable("the platform's list of workloads is not one")
                self._jobs.assigned(workloads)
                revision, wait_s = newest, POLL_WAIT_S
                backoff.success()
            except Unreachable:
                stop.wait(backoff.failure())
            except Refused as refusal:
                stop.wait(max(refusal.retry_after_s or 0, 30.0 if refusal.status == 401 else backoff.failure()))
            except Exception:
                log.exception("assignments")
                stop.wait(backoff.failure())

    def _driver(self, stop: threading.Event) -> None:
        """Samples each few seconds; the inventory on change and now and then."""
        sent: Any = None
        sent_at = -INVENTORY_S
        backoff, retry_at = Backoff(), 0.0
        while not stop.is_set():
            try:
                self._sample()
                body = self._inventory.as_json()
                now = time.monotonic()
                if (_lasting(body) != sent or now - sent_at >= INVENTORY_S) and now >= retry_at:
                    try:
                        self._send_inventory(body)
                        sent, sent_at = _lasting(body), now
                        backoff.success()
                    except (Unreachable, Refused) as error:
                        retry_at = now + max(backoff.failure(), getattr(error, "retry_after_s", None) or 0)
            except Exception:
                log.exception("driver")
            stop.wait(self._sample_s)

    def _sample(self) -> None:
        reading = self._inventory.look()
        if reading is None:
            return
        at = iso(self._clock.now())
        # Also by the boot clock: should the time prove wrong before they are sent, theirs is worked out anew.
        taken = {"at": at, "boot": [self._boot_id, boot_seconds()]}
        samples = [{**asdict(sample), **taken} for sample in reading.samples]
        if samples:
            self._outbox.samples(samples, taken_at=time.time())
        if reading.lost:
            self._jobs.nudge()

    def _send_inventory(self, body: dict[str, Any]) -> None:
        answer = self._platform.inventory(body)
        for rejected in answer.get("rejected") or []:
            uuid, code = rejected.get("uuid"), rejected.get("code")
            self._tell(
                f"{code}:{uuid}", f"GPU {uuid} was not accepted ({code}): {rejected.get('detail')}", every_s=3600
            )

    def _telemetry(self, stop: threading.Event) -> None:
        backoff, wait_s = Backoff(), min(self._identity.telemetry_s, 2 * self._sample_s)
        while not stop.wait(wait_s):
            wait_s = self._identity.telemetry_s
            try:
                self._outbox.trim_samples(time.time())
                while batch := self._outbox.take_samples():
                    self._send_samples(batch)
                    if len(batch) < 500:
                        break
                backoff.success()
            except (Unreachable, Refused) as error:
                stop.wait(max(backoff.failure(), getattr(error, "retry_after_s", None) or 0))
            except Exception:
                log.exception("telemetry")

    def _send_samples(self, batch: list[tuple[int, dict[str, Any]]]) -> None:
        numbers = [number for number, _ in batch]
        try:
            self._platform.telemetry([self._timed(sample) for _, sample in batch])
        except Refused as refusal:
            if refusal.status in (401, 429):
                raise
            log.error("the platform refused telemetry (%s: %s); dropped", refusal.code, refusal.detail)
        self._outbox.forget_samples(numbers)

    def _timed(self, sample: dict[str, Any]) -> dict[str, Any]:
        """A stored sample with its time in the platform's time as far as it is known now."""
        boot_id, boot_s = sample.pop("boot", ("", 0.0))
        if boot_id == self._boot_id:
            sample["at"] = iso(self._clock.now() - timedelta(seconds=boot_seconds() - boot_s))
        return sample


def _lasting(inventory: dict[str, Any]) -> dict[str, Any]:
    """An inventory without what changes all the time."""
    host = {key: value for key, value in inventory["host"].items() if key not in VOLATILE}
    return {"host": host, "gpus": inventory["gpus"]}


def _between(value: object, low: float, high: float, otherwise: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return otherwise
    return min(high, max(low, float(value)))

"""Reconcile: make what runs here what the platform wants, whatever happened in between.

Three pictures are laid over one another, by workload and attempt: the platform's assignments (desired state, the last ones
are kept on disk), the containers that carry this machine's label, and our own rows. Each combination has one answer:

=========  =========  ====  ==========================================================================
assigned   container  row   what happens
=========  =========  ====  ==========================================================================
yes        no         no    a row is written, then the container is brought up
yes        yes        no    the state was lost: the container is adopted
any        no         yes   not started yet: bring up, or end; was running: ended by a reboot or the engine
any        yes        yes   follow it; stop it when asked, at its deadline, or when its GPU is lost
no         no         yes   ended for the platform: end it here too
no         yes        no    an orphan of ours: removed after a grace; other containers are never touched
=========  =========  ====  ==========================================================================

A row that has ended is never run again, however often it is assigned; only a higher attempt is new.
"""

from __future__ import annotations

import json
import logging
import threading
from datetime import datetime, timedelta
from typing import Any

from agent.clock import Clock, iso, parse_time
from agent.engine import Container, Engine, EngineDown, EngineError
from agent.lifecycle import ACCEPTED, CREATING, PULLING, RUNNING, STOPPING, ForbiddenTransition, Workload, Workloads
from agent.outbox import Outbox
from agent.platform import Refused
from agent.state import Database
from agent.work import Gpus, Work

log = logging.getLogger("gpunex.jobs")

ORPHAN_GRACE = timedelta(minutes=2)
GPU_WAIT = timedelta(seconds=60)  # for a card whose last job is still being stopped
ENGINE_WAIT = timedelta(minutes=2)
KEEP_LOGS = timedelta(hours=24)  # an ended container is kept so long for logs the platform does not take
KEEP_ROWS = timedelta(days=1)
SIGNALLED = frozenset({137, 143, 255})  # how a container looks that the host's end took with it


def ending(workload: Workload, container: Container, *, boot_id: str) -> tuple[str, str | None]:
    """The cause, and a message, for a container that has ended."""
    code = container.exit_code
    if workload.stop_cause:
        return workload.stop_cause, None
    if container.oom_killed:
        return "oom", "the container used more memory than its share of the host"
    if code in SIGNALLED and boot_id != workload.boot_id:
        return "host_restart", "the host restarted while it ran"
    if container.started_at is None:
        return "docker_failed", container.error or "the container never started"
    if code == 0:
        return "completed", None
    return "exit_nonzero", container.error or None


class Jobs:
    """The reconcile loop and the doors to it: `assigned`, `answered`, `disowned` may be called from any thread."""

    def __init__(
        self,
        *,
        database: Database,
        workloads: Workloads,
        outbox: Outbox,
        engine: Engine,
        gpus: Gpus,
        work: Work,
        clock: Clock,
        boot_id: str,
        nudged: threading.Event,
    ) -> None:
        self._database, self._workloads, self._outbox, self._engine = database, workloads, outbox, engine
        self._gpus, self._work, self._clock = gpus, work, clock
        self._boot_id, self._nudged = boot_id, nudged
        self._desired: list[dict[str, Any]] = json.loads(database.get_meta("desired") or "[]")
        self._fresh = False  # has the platform said since our start what it wants?
        self._engine_down_since: datetime | None = None

    def nudge(self) -> None:
        self._nudged.set()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._nudged.clear()
            try:
                self.reconcile()
            except Exception:  # one bad round must not end the loop that enforces deadlines
                log.exception("reconcile failed")
            self._nudged.wait(1.0 if self._workloads.live() else 5.0)

    def assigned(self, desired: list[dict[str, Any]]) -> None:
        """The platform's whole list, as just received."""
        fit = [item for item in desired if _fit(item)]
        if len(fit) < len(desired):
            log.error("%s assignments were not understood and are left out", len(desired) - len(fit))
        self._database.set_meta("desired", json.dumps(fit))
        self._desired, self._fresh = fit, True
        self.nudge()

    def answered(self, path: str, sent: dict[str, Any], answer: dict[str, Any]) -> None:
        """The platform's answer to a report may bring a new wish or deadline."""
        workload = self._workloads.get(path.split("/")[1], sent["attempt"]) if path.endswith("/report") else None
        if workload is not None and workload.live:
            self._follow(
                workload, wanted=answer.get("wanted"), stop_at=answer.get("stop_at"), has_deadline="stop_at" in answer
            )
            self.nudge()

    def disowned(self, path: str, sent: dict[str, Any], refusal: Refused) -> None:
        """The platform no longer knows this attempt: its container is killed at once."""
        workload = self._workloads.get(path.split("/")[1], sent["attempt"])
        if workload is not None and workload.live:
            log.warning("workload %s attempt %s is not ours any more (%s)", workload.id, workload.attempt, refusal.code)
            self._workloads.note(workload, stop_cause="stopped", kill_now=1)
            self.nudge()

    def for_heartbeat(self) -> list[dict[str, Any]]:
        return [
            {
                "id": row.id,
                "attempt": row.attempt,
                "state": row.state,
                "container_started_at": iso(row.container_started_at),
            }
            for row in self._workloads.live()
        ]

    def reconcile(self) -> None:
        now = self._clock.now()
        containers = self._look(now)
        found = {(container.workload_id, container.attempt): container for container in containers or []}
        self._take_assignments(now)
        for workload in self._workloads.all():
            try:
                self._tend(workload, found.get(workload.key), now, engine_up=containers is not None)
            except (EngineError, ForbiddenTransition) as error:
                log.warning("workload %s: %s", workload.id, error)
            except Exception:  # one bad row never stops the rest
                log.exception("workload %s", workload.id)
        if containers is not None and self._fresh:
            self._remove_orphans(containers)

    def _look(self, now: datetime) -> list[Container] | None:
        """All containers of ours, or None while the engine is down; both changes are told as events."""
        try:
            containers = self._engine.containers()
        except EngineDown as error:
            if self._engine_down_since is None:
                self._engine_down_since = now
                log.error("the container engine does not answer: %s", error)
                self._outbox.event("docker_down", at=now, data={"detail": str(error)[:300]})
            return None
        if self._engine_down_since is not None:
            self._outbox.event("docker_up", at=now, data={"down_since": iso(self._engine_down_since)})
            self._engine_down_since = None
        return containers

    def _take_assignments(self, now: datetime) -> None:
        desired = self._desired
        for item in desired:
            newest = self._workloads.newest(item["id"])
            if newest is not None and newest.attempt > item["attempt"]:
                continue
            if newest is not None and newest.attempt == item["attempt"]:
                if newest.live:
                    self._follow(newest, wanted=item["wanted"], stop_at=item.get("stop_at"))
                continue
            if newest is not None and newest.live:
                self._workloads.note(newest, stop_cause="stopped", kill_now=1)
            self._workloads.accept(item, at=now, boot_id=self._boot_id)
        if self._fresh and desired is self._desired:
            known = {(item["id"], item["attempt"]) for item in desired}
            for workload in self._workloads.live():
                if workload.key not in known and not workload.stop_cause:
                    log.info("workload %s is no longer wanted by the platform", workload.id)
                    self._workloads.note(workload, stop_cause="stopped")

    def _follow(self, workload: Workload, *, wanted: Any, stop_at: Any, has_deadline: bool = True) -> None:
        """Take over the platform's wish. A stop once asked for stays asked for."""
        if wanted == "stop" and workload.wanted != "stop":
            self._workloads.note(workload, wanted="stop")
        deadline = parse_time(stop_at) if isinstance(stop_at, str) else None
        if has_deadline and deadline != workload.stop_at:
            self._workloads.note(workload, stop_at=deadline)

    def _tend(self, workload: Workload, container: Container | None, now: datetime, *, engine_up: bool) -> None:
        if not workload.live:
            self._clean_up(workload, container, now, engine_up=engine_up)
        elif self._work.busy(workload.key):
            return  # that step asks by itself whether it is still wanted
        elif workload.kind == "benchmark":
            self._tend_benchmark(workload, now)
        elif not engine_up:
            self._wait_for_engine(workload, now)
        elif container is None:
            self._tend_missing(workload, now)
        elif container.state == "exited":
            self._ended(workload, container)
        elif container.state == "running":
            self._tend_running(workload, container, now)
        else:
            self._start_or_end(workload, now)

    def _tend_benchmark(self, workload: Workload, now: datetime) -> None:
        if workload.state == ACCEPTED:
            self._start_or_end(workload, now)
        elif workload.boot_id != self._boot_id:
            self._work.finish(workload, "host_restart", "the host restarted during the benchmark")
        else:
            self._work.finish(workload, "agent_shutdown", "the agent restarted during the benchmark")

    def _wait_for_engine(self, workload: Workload, now: datetime) -> None:
        """Nothing can be seen. What runs may go on running; what has not started is not waited for for ever."""
        down_since = self._engine_down_since or now
        if workload.state in (ACCEPTED, PULLING, CREATING):
            reason = workload.reason_to_stop(now)
            if reason and workload.state != CREATING:
                self._work.finish(workload, reason)
            elif now - max(down_since, workload.accepted_at) > ENGINE_WAIT:
                self._work.finish(workload, "docker_failed", "the container engine does not answer")

    def _tend_missing(self, workload: Workload, now: datetime) -> None:
        if workload.state in (ACCEPTED, PULLING, CREATING):
            self._start_or_end(workload, now)
        elif workload.stop_cause:
            self._work.finish(workload, workload.stop_cause)
        elif workload.boot_id != self._boot_id:
            self._work.finish(workload, "host_restart", "the host restarted while it ran")
        else:
            self._work.finish(workload, "docker_failed", "the container was removed from outside the agent")

    def _start_or_end(self, workload: Workload, now: datetime) -> None:
        reason = workload.reason_to_stop(now)
        if reason:
            self._work.finish(workload, reason)
            return
        problems = [f"{uuid}: {problem}" for uuid in workload.gpu_uuids if (problem := self._gpus.problem(uuid))]
        if problems:
            self._work.finish(workload, "gpu_unavailable", "; ".join(problems))
            return
        held = self._held_by_others(workload)
        if not held:
            if workload.kind == "benchmark":
                self._work.benchmark(workload)
            else:
                self._work.bring_up(workload)
        elif workload.kind == "benchmark":
            self._work.finish(workload, "busy", "the GPU is in use")
        elif now - workload.accepted_at > GPU_WAIT:
            self._work.finish(workload, "gpu_unavailable", f"in use by another workload: {', '.join(sorted(held))}")

    def _held_by_others(self, workload: Workload) -> set[str]:
        """The cards it was given that another workload has not let go of."""
        held: set[str] = set()
        for other in self._workloads.live():
            if other.key != workload.key and (other.state != ACCEPTED or self._work.busy(other.key)):
                held |= set(other.gpu_uuids)
        return held & set(workload.gpu_uuids)

    def _tend_running(self, workload: Workload, container: Container, now: datetime) -> None:
        workload = self._seen_started(workload, container)
        reason, message = workload.reason_to_stop(now), None
        if reason is None:
            lost = [uuid for uuid in workload.gpu_uuids if self._gpus.lost(uuid)]
            if lost:
                reason, message = "gpu_lost", f"no longer answering: {', '.join(lost)}"
        if reason is None:
            return
        if workload.state == RUNNING:
            workload = self._workloads.move(workload, STOPPING, at=now, stop_cause=reason, message=message)
        self._work.stop(workload, container)

    def _seen_started(self, workload: Workload, container: Container) -> Workload:
        """Move to running with the start the engine tells, in platform time. Kept once: a later clock must not move it."""
        if workload.state in (RUNNING, STOPPING) or container.started_at is None:
            return workload
        at = self._clock.now()
        if workload.state == PULLING:  # killed between the pull and our note that the container existed
            workload = self._workloads.move(workload, CREATING, at=at)
        started_at = self._clock.from_local(container.started_at)
        return self._workloads.move(
            workload, RUNNING, at=at, container_id=container.id, container_started_at=started_at
        )

    def _ended(self, workload: Workload, container: Container) -> None:
        workload = self._seen_started(workload, container)
        if workload.state == RUNNING and not workload.stop_cause:
            cause, message = ending(workload, container, boot_id=self._boot_id)
        else:
            cause, message = (
                workload.stop_cause or ending(workload, container, boot_id=self._boot_id)[0],
                workload.message,
            )
        finished_at = self._clock.from_local(container.finished_at)
        if finished_at and workload.container_started_at:
            finished_at = max(finished_at, workload.container_started_at)
        facts: dict[str, Any] = {"exit_code": container.exit_code, "container_id": container.id}
        if finished_at:
            facts["finished_at"] = finished_at
        self._work.finish(workload, cause, message, **facts)

    def _clean_up(self, workload: Workload, container: Container | None, now: datetime, *, engine_up: bool) -> None:
        """Remove an ended container once its log is with the platform; forget the row once nobody can ask for it."""
        if not engine_up:
            return
        ended_for = now - (workload.finished_at or now)
        if container is not None and (workload.log_done or workload.kind == "benchmark" or ended_for > KEEP_LOGS):
            self._engine.remove(container.id)
        if container is None and not workload.cleaned:
            self._workloads.note(workload, cleaned=1)
        assigned = any(item["id"] == workload.id for item in self._desired)
        if (
            workload.cleaned
            and self._fresh
            and not assigned
            and ended_for > KEEP_ROWS
            and not self._outbox.waiting(workload.stream)
        ):
            self._workloads.forget(workload)

    def _remove_orphans(self, containers: list[Container]) -> None:
        """Containers with our label that nothing of ours explains. The engine lists no others, so none is touched."""
        for container in containers:
            if self._workloads.get(container.workload_id, container.attempt) is not None:
                continue
            created_at = self._clock.from_local(container.created_at)
            if created_at is None or self._clock.now() - created_at > ORPHAN_GRACE:
                log.warning("removing container %s of unknown workload %s", container.id[:12], container.workload_id)
                self._engine.remove(container.id)


def _fit(item: Any) -> bool:
    """Does this look like an assignment? The spec itself is the validator's business."""
    return (
        isinstance(item, dict)
        and isinstance(item.get("id"), str)
        and isinstance(item.get("attempt"), int)
        and item.get("kind") in ("job", "benchmark")
        and item.get("wanted") in ("run", "stop")
        and isinstance(item.get("gpu_uuids"), list)
        and all(isinstance(uuid, str) for uuid in item["gpu_uuids"])
        and isinstance(item.get("spec"), dict | None)
    )

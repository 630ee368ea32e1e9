"""The slow steps of a workload, each in a thread of its own: pull, create and start; stop; run a benchmark.

A step never decides whether a workload is wanted; it asks (`reason_to_stop`) and ends the row with the one cause that fits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from agent.clock import Clock
from agent.engine import Container, DiskFull, Engine, EngineDown, EngineError, PullCancelled, RenterError
from agent.lifecycle import ACCEPTED, CREATING, FINISHED, PULLING, RUNNING, ForbiddenTransition, Workload, Workloads
from agent.spec import STOP_GRACE_S, Share, SpecInvalid, job_plan

log = logging.getLogger("gpunex.work")

DISK_FLOOR_GIB = 5.0
PROGRESS_STEP = 0.05
MESSAGE_MAX = 2000  # registries and runtimes can be talkative


class Gpus(Protocol):
    """What the cards are good for now."""

    def problem(self, uuid: str) -> str | None:
        """Why nothing may run on this card, or None."""
        ...

    def lost(self, uuid: str) -> bool:
        """Has the card stopped answering?"""
        ...

    def in_use(self, uuid: str) -> bool:
        """Does something hold memory on the card? (False where the driver does not say.)"""
        ...


class BenchmarkCancelled(Exception):
    """The benchmark is no longer wanted."""


class BenchmarkFailed(Exception):
    """The benchmark could not be run; the message is for the provider."""


class Benchmarks(Protocol):
    def run(self, workload: Workload, *, cancelled: Callable[[], bool]) -> dict[str, Any]:
        """Measure; returns the body of the result. Raises BenchmarkCancelled, BenchmarkFailed."""
        ...


@dataclass(frozen=True)
class Host:
    """What the steps need to know of the machine."""

    machine_id: str
    boot_id: str
    share: Callable[[int], Share]  # for so many cards
    disk_free_gib: Callable[[], float | None]
    allow_private_registry: bool = False


class Work:
    """Starts the steps and knows which are under way."""

    def __init__(
        self,
        *,
        workloads: Workloads,
        engine: Engine,
        gpus: Gpus,
        benchmarks: Benchmarks,
        host: Host,
        clock: Clock,
        nudge: Callable[[], None],
    ) -> None:
        self._workloads, self._engine, self._gpus, self._benchmarks = workloads, engine, gpus, benchmarks
        self._host, self._clock, self._nudge = host, clock, nudge
        self._threads: dict[tuple[str, int], threading.Thread] = {}

    def busy(self, key: tuple[str, int]) -> bool:
        thread = self._threads.get(key)
        return thread is not None and thread.is_alive()

    def bring_up(self, workload: Workload) -> None:
        self._begin(workload, self._bring_up)

    def benchmark(self, workload: Workload) -> None:
        self._begin(workload, self._benchmark)

    def stop(self, workload: Workload, container: Container) -> None:
        grace_s = 0 if workload.kill_now else STOP_GRACE_S
        self._begin(workload, lambda _: self._engine.stop(container.id, grace_s=grace_s))

    def wait(self, timeout_s: float) -> None:
        """Give the steps under way a moment to end. None is cut short: a step is taken up again at the next start."""
        for thread in list(self._threads.values()):
            thread.join(timeout_s)

    def finish(
        self, workload: Workload, cause: str, message: str | None = None, *, at: datetime | None = None, **facts: Any
    ) -> None:
        """End a workload, once. Ended meanwhile by someone else is fine."""
        message = message[:MESSAGE_MAX] if message else None
        try:
            self._workloads.move(workload, FINISHED, at=at or self._clock.now(), cause=cause, message=message, **facts)
        except ForbiddenTransition:
            log.debug("%s had already ended", workload.id)
            return
        log.info(
            "workload %s attempt %s finished: %s%s",
            workload.id,
            workload.attempt,
            cause,
            f" ({message})" if message else "",
        )
        self._nudge()

    def _begin(self, workload: Workload, step: Callable[[Workload], None]) -> None:
        if self.busy(workload.key):
            return
        self._threads = {key: thread for key, thread in self._threads.items() if thread.is_alive()}
        thread = threading.Thread(
            target=self._guard, args=(workload, step), name=f"work-{workload.id[:8]}", daemon=True
        )
        self._threads[workload.key] = thread
        thread.start()

    def _guard(self, workload: Workload, step: Callable[[Workload], None]) -> None:
        """Every way a step can fail, and the cause it is. A step that failed but may be tried again waits for the next round."""
        try:
            step(workload)
            self._nudge()
        except SpecInvalid as error:
            self.finish(workload, error.cause, str(error))
        except RenterError as error:
            self.finish(workload, error.cause, str(error))
        except (PullCancelled, BenchmarkCancelled):
            self.finish(workload, self._reason(workload) or "stopped")
        except BenchmarkFailed as error:
            self.finish(workload, "gpu_unavailable", str(error))
        except DiskFull as error:
            self.finish(workload, "disk_full", str(error))
        except EngineDown as error:
            log.warning(
                "the container engine does not answer: %s", error
            )  # reconcile takes it up again, or gives up in time
        except EngineError as error:
            self._engine_failed(workload, error)
        except ForbiddenTransition as error:
            log.info("%s", error)
        except Exception as error:
            log.exception("a step of workload %s failed", workload.id)
            self.finish(workload, "docker_failed", f"the agent failed: {error}")

    def _engine_failed(self, workload: Workload, error: EngineError) -> None:
        now = self._workloads.get(*workload.key)
        if now is not None and now.state in (ACCEPTED, PULLING, CREATING):
            self.finish(workload, "docker_failed", str(error))
        else:  # a stop that failed is tried again by the next reconcile
            log.warning("workload %s: %s", workload.id, error)

    def _reason(self, workload: Workload) -> str | None:
        now = self._workloads.get(*workload.key)
        return "stopped" if now is None else now.reason_to_stop(self._clock.now())

    def _bring_up(self, workload: Workload) -> None:
        """Pull, create, start. Everything here may have been done before by an agent that was killed; then it is found done."""
        refused = self._engine.refuses_jobs()
        if refused:
            raise EngineError(refused)
        free_gib = self._host.disk_free_gib()
        if free_gib is not None and free_gib < DISK_FLOOR_GIB:
            raise DiskFull(f"{free_gib:.1f} GiB are free; jobs need {DISK_FLOOR_GIB:.0f}")
        plan = job_plan(
            workload.spec,
            workload_id=workload.id,
            attempt=workload.attempt,
            machine_id=self._host.machine_id,
            gpu_uuids=workload.gpu_uuids,
            share=self._host.share(len(workload.gpu_uuids)),
            allow_private_registry=self._host.allow_private_registry,
        )
        if workload.state == ACCEPTED:
            workload = self._workloads.move(workload, PULLING, at=self._clock.now(), progress=0.0)
        image = self._pull(workload, plan.image)
        if workload.state == PULLING:
            workload = self._workloads.move(workload, CREATING, at=self._clock.now(), progress=1.0)
        container_id = self._engine.create(type(plan)(**{**vars(plan), "image": image}))
        self._workloads.note(workload, container_id=container_id, boot_id=self._host.boot_id)
        reason = self._reason(workload)
        if reason:  # the last moment at which not starting is possible
            self._engine.remove(container_id)
            self.finish(workload, reason)
            return
        self._engine.start(container_id)

    def _pull(self, workload: Workload, image: str) -> str:
        said = 0.0

        def progress(fraction: float | None) -> None:
            nonlocal said
            if fraction is not None and fraction >= said + PROGRESS_STEP:
                said = fraction
                self._workloads.progress(workload, round(min(1.0, fraction), 2), at=self._clock.now())

        return self._engine.pull(image, progress=progress, cancelled=lambda: self._reason(workload) is not None)

    def _benchmark(self, workload: Workload) -> None:
        if any(self._gpus.in_use(uuid) for uuid in workload.gpu_uuids):
            self.finish(workload, "busy", "something uses the GPU's memory")
            return
        workload = self._workloads.move(workload, RUNNING, at=self._clock.now())
        result = self._benchmarks.run(workload, cancelled=lambda: self._reason(workload) is not None)
        self._workloads.queue_result(workload, result)
        self.finish(workload, "completed", exit_code=0)

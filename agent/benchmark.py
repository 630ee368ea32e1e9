"""A whole benchmark on a real machine: the cards in a container of the agent's own image, then the network and the disk.

The container takes the same way as a renter's job, so a benchmark also proves that jobs can run. Without an image (an
agent that runs outside a container, in development) the cards are measured by a child process.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agent import disk, network
from agent.engine import Container, Engine, EngineError
from agent.lifecycle import Workload
from agent.platform import Platform
from agent.results import result_body
from agent.spec import Share, benchmark_plan
from agent.work import BenchmarkCancelled, BenchmarkFailed

log = logging.getLogger("gpunex.benchmark")

SECONDS = 30.0
SECONDS_MAX = 60.0
LIMIT_S_PER_GPU = 180.0


class RealBenchmarks:
    def __init__(
        self,
        *,
        engine: Engine,
        platform: Platform,
        image: str | None,
        machine_id: str,
        share: Callable[[int], Share],
        disk_folder: Path,
    ) -> None:
        self._engine, self._platform, self._image = engine, platform, image
        self._machine_id, self._share, self._disk_folder = machine_id, share, disk_folder

    def run(self, workload: Workload, *, cancelled: Callable[[], bool]) -> dict[str, Any]:
        uuids = sorted(workload.gpu_uuids)
        wanted_s = workload.spec.get("seconds")
        seconds = min(SECONDS_MAX, float(wanted_s)) if isinstance(wanted_s, int | float) and wanted_s > 0 else SECONDS
        measure = self._in_container if self._image else self._in_process
        gpus = read_figures(measure(workload, uuids, seconds, cancelled), uuids)
        return result_body(
            attempt=workload.attempt,
            nonce=str(workload.spec.get("nonce") or ""),
            uuids=uuids,
            simulated=False,
            gpus=gpus,
            network=network.measure(self._platform, cancelled=cancelled),
            disk=disk.measure(self._disk_folder, cancelled=cancelled),
        )

    def _in_container(
        self, workload: Workload, uuids: list[str], seconds: float, cancelled: Callable[[], bool]
    ) -> Iterator[str]:
        assert self._image is not None
        plan = benchmark_plan(
            image=self._image,
            command=["python", "-m", "agent.measure", "--seconds", str(seconds), *uuids],
            workload_id=workload.id,
            attempt=workload.attempt,
            machine_id=self._machine_id,
            gpu_uuids=tuple(uuids),
            share=self._share(len(uuids)),
        )
        container_id = None
        try:
            container_id = self._engine.create(plan)
            self._engine.start(container_id)
            self._wait(container_id, limit_s=LIMIT_S_PER_GPU * len(uuids), cancelled=cancelled)
            yield from [line.text for line in self._engine.logs(container_id, since="")]
        except EngineError as error:
            raise BenchmarkFailed(f"the benchmark's container: {error}") from error
        finally:
            if container_id:
                self._engine.remove(container_id)

    def _wait(self, container_id: str, *, limit_s: float, cancelled: Callable[[], bool]) -> Container:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if cancelled():
                raise BenchmarkCancelled
            found = next((one for one in self._engine.containers() if one.id == container_id), None)
            if found is None:
                raise BenchmarkFailed("the benchmark's container was removed")
            if found.state == "exited":
                return found
            time.sleep(0.5)
        raise BenchmarkFailed(f"the benchmark took longer than {limit_s:.0f} s")

    def _in_process(
        self, _: Workload, uuids: list[str], seconds: float, cancelled: Callable[[], bool]
    ) -> Iterator[str]:
        command = [sys.executable, "-m", "agent.measure", "--seconds", str(seconds), *uuids]
        root = str(Path(__file__).resolve().parent.parent)
        child = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        deadline = time.monotonic() + LIMIT_S_PER_GPU * len(uuids)
        try:
            while child.poll() is None:
                if cancelled():
                    raise BenchmarkCancelled
                if time.monotonic() > deadline:
                    raise BenchmarkFailed("the benchmark did not end in time")
                time.sleep(0.2)
            assert child.stdout is not None
            yield from child.stdout.read().splitlines()
        finally:
            if child.poll() is None:
                child.kill()


def read_figures(lines: Iterator[str] | list[str], uuids: list[str]) -> list[dict[str, Any]]:
    """The figures of every card, in the order asked for. Raises BenchmarkFailed with what the measurement said."""
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            figures = json.loads(line)
        except ValueError:
            continue
        if isinstance(figures, dict) and "error" in figures:
            raise BenchmarkFailed(str(figures["error"]))
        if isinstance(figures, dict) and isinstance(figures.get("uuid"), str):
            found[figures["uuid"]] = figures
    missing = [uuid for uuid in uuids if uuid not in found]
    if missing:
        raise BenchmarkFailed(f"no figures for {', '.join(missing)}")
    return [found[uuid] for uuid in uuids]

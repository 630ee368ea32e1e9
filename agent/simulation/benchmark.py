"""A short benchmark with plausible figures: the vendor's, times a share that is the card's own and hardly changes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from agent.lifecycle import Workload
from agent.network import latency_ms
from agent.platform import Platform
from agent.results import result_body
from agent.simulation.profiles import HOPPER_MMA_SHARE, Card
from agent.work import BenchmarkCancelled

SECONDS = 3.0


class SimulatedBenchmarks:
    """Takes a few seconds a card, and cancels like the real one. Latency is measured for real; all else is made up."""

    def __init__(self, *, card: Card, platform: Platform, seed: str, seconds: float = SECONDS) -> None:
        self._card, self._platform, self._seed, self._seconds = card, platform, seed, seconds

    def run(self, workload: Workload, *, cancelled: Callable[[], bool]) -> dict[str, Any]:
        uuids = sorted(workload.gpu_uuids)
        wanted_s = workload.spec.get("seconds")
        seconds = min(self._seconds, float(wanted_s)) if isinstance(wanted_s, int | float) else self._seconds
        pause = threading.Event()
        for _ in range(10):
            if cancelled():
                raise BenchmarkCancelled
            pause.wait(seconds / 10)
        nonce = str(workload.spec.get("nonce") or "")
        return result_body(
            attempt=workload.attempt,
            nonce=nonce,
            uuids=uuids,
            simulated=True,
            gpus=[self._gpu(uuid, nonce) for uuid in uuids],
            network=self._network(),
            disk=self._disk(),
        )

    def _gpu(self, uuid: str, nonce: str) -> dict[str, Any]:
        card = self._card
        own = random.Random(f"quality:{uuid}").uniform(0.95, 0.99)  # one card is a little better than the next
        run = random.Random(f"{uuid}:{nonce}")

        def rate(peak: float, share: float = 1.0) -> float:
            return round(peak * share * min(1.01, max(0.92, own * run.uniform(0.985, 1.015))), 2)

        tensor_share = HOPPER_MMA_SHARE if card.compute_capability == "9.0" else 1.0
        return {
            "uuid": uuid,
            "fp16_tflops": rate(card.fp16_tflops),
            "fp32_tflops": rate(card.fp32_tflops),
            "tensor_tflops": rate(card.tensor_tflops, tensor_share),
            "vram_read_gbps": rate(card.vram_gbps, 0.97),
            "vram_write_gbps": rate(card.vram_gbps, 0.96),
            "vram_copy_gbps": rate(card.vram_gbps, 0.95),
            "sm_clock_mhz": int(card.max_sm_clock_mhz * run.uniform(0.92, 0.98)),
            "memory_clock_mhz": card.max_memory_clock_mhz,
            "temperature_c": run.randint(58, 71),
            "power_w": round(card.power_limit_w * run.uniform(0.86, 0.97), 1),
            "throttle_reasons": [],
            "sustained_ratio": round(run.uniform(0.965, 0.995), 4),
        }

    def _network(self) -> dict[str, float | None]:
        rng = random.Random(f"network:{self._seed}")
        small = self._card.name.startswith("NVIDIA GeForce")  # at home or in an office; the others stand in datacenters
        line = rng.choice((500, 1000)) if small else rng.choice((2500, 10_000))
        return {
            "latency_ms": latency_ms(self._platform, pings=5),
            "download_mbps": round(line * rng.uniform(0.88, 0.95), 1),
            "upload_mbps": round(line * rng.uniform(0.6 if small else 0.85, 0.93), 1),
        }

    def _disk(self) -> dict[str, float | None]:
        rng = random.Random(f"disk:{self._seed}")
        read = rng.choice((3200, 5100, 6800)) * rng.uniform(0.95, 1.02)
        return {
            "read_mb_s": round(read, 1),
            "write_mb_s": round(read * rng.uniform(0.55, 0.85), 1),
            "random_read_iops": float(round(read * rng.uniform(55, 90))),
        }

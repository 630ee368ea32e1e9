"""A simulated driver: cards whose heat, power and clocks follow what the simulated engine runs on them."""

from __future__ import annotations

import math
import random
import time
import uuid
from collections.abc import Callable

from agent.driver import DriverHung, Gpu, Reading, Sample
from agent.simulation.engine import SimulatedEngine
from agent.simulation.profiles import Card

DRIVER_VERSION, CUDA_VERSION = "580.95.05", "13.0"
WARM_UP_S = 45.0  # time constant of heating up and cooling down
AMBIENT_C, SPREAD_C = 31.0, 41.0


def gpu_uuids(seed: str, count: int) -> list[str]:
    """Always the same UUIDs for the same seed."""
    space = uuid.uuid5(uuid.NAMESPACE_URL, f"gpunex-simulation:{seed}")
    return [f"GPU-{uuid.uuid5(space, str(index))}" for index in range(count)]


class SimulatedDriver:
    simulated = True

    def __init__(
        self,
        *,
        card: Card,
        uuids: list[str],
        engine: SimulatedEngine,
        hung: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._card, self._uuids, self._engine, self._hung, self._now = card, uuids, engine, hung, now

    def read(self) -> Reading:
        if self._hung:
            raise DriverHung("the driver does not answer (simulated)")
        lost = self._engine.lost_gpus()
        present = [(index, name) for index, name in enumerate(self._uuids) if name not in lost]
        return Reading(
            driver_version=DRIVER_VERSION,
            cuda_version=CUDA_VERSION,
            gpus=[self._gpu(index, name) for index, name in present],
            samples=[self._sample(name) for _, name in present],
            lost=sorted(lost),
            xids=[],
        )

    def close(self) -> None:
        """Nothing is held."""

    def _gpu(self, index: int, name: str) -> Gpu:
        card = self._card
        return Gpu(
            uuid=name, index=index, name=card.name, vram_mib=card.vram_mib, pci_bus_id=f"00000000:{0x17 + index * 0x11:02X}:00.0",
            compute_capability=card.compute_capability, cores=card.cores, memory_bus_bits=card.memory_bus_bits,
            max_sm_clock_mhz=card.max_sm_clock_mhz, max_memory_clock_mhz=card.max_memory_clock_mhz,
            power_limit_w=card.power_limit_w, pcie_generation=card.pcie_generation, pcie_width=16,
            ecc_enabled=card.ecc, mig_enabled=False if card.ecc else None,
        )  # fmt: skip

    def _sample(self, name: str) -> Sample:
        """Heat rises and falls exponentially with the load; the rest follows from it, with a little noise."""
        card, load = self._card, self._engine.load(name)
        rng = random.Random(f"{name}:{int(self._now() // 5)}")
        approach = 1.0 if load.since_s is None else 1 - math.exp(-load.since_s / WARM_UP_S)
        warmth = approach if load.busy else (0.0 if load.since_s is None else 1 - approach)
        utilization = rng.randint(91, 100) if load.busy else 0
        power = card.idle_power_w + (card.power_limit_w * 0.88 - card.idle_power_w) * (0.9 + 0.1 * warmth) * (
            utilization / 100
        )
        return Sample(
            gpu_uuid=name,
            temperature_c=round(AMBIENT_C + SPREAD_C * warmth + rng.uniform(-1, 1)),
            power_w=round(power * rng.uniform(0.98, 1.02), 1),
            utilization_pct=utilization,
            memory_used_mib=int(card.vram_mib * rng.uniform(0.71, 0.73)) if load.busy else 2,
            memory_total_mib=card.vram_mib,
            sm_clock_mhz=int(card.max_sm_clock_mhz * rng.uniform(0.9, 0.97)) if load.busy else 210,
            memory_clock_mhz=card.max_memory_clock_mhz if load.busy else 405,
            fan_pct=(round(30 + 40 * warmth) if card.fan else None),
            throttle_reasons=[] if load.busy else ["gpu_idle"],
            ecc_uncorrected=0 if card.ecc else None,
        )

"""Measures cards: ``python -m agent.measure --seconds 30 GPU-…``; one JSON line a card. Needs the driver, and nothing else.

Each kernel is first run on a small input whose exact result is known; a card that computes wrongly gets no figures. Then
the length of a run is set to about a quarter of a second, the card warmed up, and the median of five runs taken.
The FLOP of a launch are counted from the kernels' text (see kernels/): a fused multiply-add is two.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent.cuda import BLOCK, Cuda, CudaError, Device
from agent.driver import DriverAbsent, Sample

BLOCKS_PER_SM = 16
TARGET_S = 0.25
WARM_UP_S = 2.0
REPEATS = 5
MAX_BUFFER_BYTES = 1 << 30
WARP = 32
ONE_FP16X2, MINUS_ONE_FP16X2 = 0x3C003C00, 0xBC00BC00


class Wrong(Exception):
    """A card computed something that is not so."""


@dataclass(frozen=True)
class Rate:
    """A kernel to time: its arguments for so many rounds, and the work (FLOP or bytes) of one round of a whole launch."""

    kernel: ctypes.c_void_p
    arguments: Callable[[int], list[Any]]
    work_per_round: float


def fma32_sum(thread: int, rounds: int) -> float:
    """What kernels/fma32.ptx leaves for a thread when a = b = 1: eight chains, each grown by 8 a round.

    >>> fma32_sum(3, 16)
    1076.0
    """
    return float(sum(thread % 256 + chain + 8 * rounds for chain in range(8)))


def read_sum(value: int, rounds: int) -> int:
    """What kernels/memory.ptx's vread leaves: 16 words a round, modulo 2^32."""
    return value * 16 * rounds % 2**32


class Card:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._blocks = device.sms * BLOCKS_PER_SM
        self._threads = self._blocks * BLOCK

    def measure(self, *, seconds: float, sample: Callable[[], Sample | None]) -> dict[str, Any]:
        """All rates, in TFLOPS and GB/s, and how well the card holds its tensor rate for `seconds`."""
        out = self._device.allocate(4 * self._threads)
        try:
            self._check_fma32(out)
            self._check_fma16(out)
            fp32, fp16, tensor = self._fma32(out), self._fma16(out), self._tensor(out)
            figures: dict[str, Any] = {
                "fp32_tflops": self._median_rate(fp32) / 1e12,
                "fp16_tflops": self._median_rate(fp16) / 1e12,
            }
            peak = self._median_rate(tensor)
            figures["tensor_tflops"] = peak / 1e12
            figures |= self._memory(out)
            held, during = self._sustain(tensor, seconds=seconds, sample=sample)
        finally:
            self._device.free(out)
        figures = {name: round(value, 2) for name, value in figures.items()}
        return {
            **figures,
            "sm_clock_mhz": during.sm_clock_mhz if during else None,
            "memory_clock_mhz": during.memory_clock_mhz if during else None,
            "temperature_c": during.temperature_c if during else None,
            "power_w": during.power_w if during else None,
            "throttle_reasons": (during.throttle_reasons if during else None) or [],
            "sustained_ratio": round(held / peak, 4),
        }

    def _fma32(self, out: ctypes.c_uint64) -> Rate:
        minus, one = ctypes.c_float(-1.0), ctypes.c_float(1.0)
        return Rate(
            kernel=self._device.kernel("fma32", "fma32"),
            arguments=lambda rounds: [
                out,
                ctypes.c_uint32(rounds),
                minus,
                one,
            ],  # x becomes 1 - x: bits keep moving, values stay
            work_per_round=128.0 * self._threads,
        )

    def _fma16(self, out: ctypes.c_uint64) -> Rate:
        return Rate(
            kernel=self._device.kernel("fma16", "fma16"),
            arguments=lambda rounds: [
                out,
                ctypes.c_uint32(rounds),
                ctypes.c_uint32(MINUS_ONE_FP16X2),
                ctypes.c_uint32(ONE_FP16X2),
            ],
            work_per_round=256.0 * self._threads,
        )

    def _tensor(self, out: ctypes.c_uint64) -> Rate:
        ampere = self._device.compute_capability >= (8, 0)
        kernel = self._device.kernel("mma_sm80" if ampere else "mma_sm75", "mma")
        depth, flop = (16, 4096.0) if ampere else (8, 2048.0)
        self._check(
            kernel,
            [out, ctypes.c_uint32(2), ctypes.c_uint32(ONE_FP16X2), ctypes.c_uint32(ONE_FP16X2)],
            out,
            "f",
            32.0 * depth * 4 * 2,
        )
        return Rate(
            kernel=kernel,
            arguments=lambda rounds: [
                out,
                ctypes.c_uint32(rounds),
                ctypes.c_uint32(ONE_FP16X2),
                ctypes.c_uint32(ONE_FP16X2),
            ],
            work_per_round=32 * flop * self._threads / WARP,
        )

    def _check_fma32(self, out: ctypes.c_uint64) -> None:
        kernel, one = self._device.kernel("fma32", "fma32"), ctypes.c_float(1.0)
        self._device.launch(kernel, blocks=self._blocks, arguments=[out, ctypes.c_uint32(16), one, one])
        found = struct.unpack(f"{BLOCK}f", self._device.read(out, 4 * BLOCK))
        if list(found) != [fma32_sum(thread, 16) for thread in range(BLOCK)]:
            raise Wrong("FP32 results are not what they must be")

    def _check_fma16(self, out: ctypes.c_uint64) -> None:
        kernel, one = self._device.kernel("fma16", "fma16"), ctypes.c_uint32(ONE_FP16X2)
        both_halves = struct.unpack("<H", struct.pack("<e", 8.0 * 8 * 4))[0] * 0x10001
        self._check(kernel, [out, ctypes.c_uint32(4), one, one], out, "I", both_halves)

    def _check(
        self, kernel: ctypes.c_void_p, arguments: list[Any], out: ctypes.c_uint64, code: str, expected: float
    ) -> None:
        self._device.launch(kernel, blocks=self._blocks, arguments=arguments)
        found = struct.unpack(f"{BLOCK}{code}", self._device.read(out, 4 * BLOCK))
        if any(value != expected for value in found):
            raise Wrong(f"results are {found[0]} and must be {expected}")

    def _memory(self, out: ctypes.c_uint64) -> dict[str, float]:
        """Read, write and copy rates in GB/s over buffers well beyond the L2 cache; a copy moves each byte twice."""
        round_bytes = 64 * self._threads
        wanted = max(4 * self._device.l2_bytes, MAX_BUFFER_BYTES // 2)
        rounds = max(1, min(wanted, self._device.free_bytes() // 8) // round_bytes)
        size = rounds * round_bytes
        source, target = self._device.allocate(size), self._device.allocate(size)
        try:
            number = ctypes.c_uint32(rounds)
            write = self._device.kernel("memory", "vwrite"), [source, ctypes.c_uint32(7), number]
            read = self._device.kernel("memory", "vread"), [source, out, number]
            copy = self._device.kernel("memory", "vcopy"), [source, target, number]
            self._device.launch(write[0], blocks=self._blocks, arguments=write[1])
            self._device.launch(copy[0], blocks=self._blocks, arguments=copy[1])
            self._check(read[0], [target, out, number], out, "I", read_sum(7, rounds))
            return {
                "vram_read_gbps": self._bandwidth(*read, moved=size),
                "vram_write_gbps": self._bandwidth(*write, moved=size),
                "vram_copy_gbps": self._bandwidth(*copy, moved=2 * size),
            }
        finally:
            self._device.free(source)
            self._device.free(target)

    def _bandwidth(self, kernel: ctypes.c_void_p, arguments: list[Any], *, moved: int) -> float:
        once = max(1e-6, self._device.seconds(kernel, blocks=self._blocks, arguments=arguments))
        launches = max(4, min(1000, round(TARGET_S / once)))
        times = [
            self._device.seconds(kernel, blocks=self._blocks, arguments=arguments, launches=launches)
            for _ in range(REPEATS)
        ]
        return moved * launches / statistics.median(times) / 1e9

    def _median_rate(self, rate: Rate) -> float:
        """Work a second: length set to the target, warmed up, median of the repeats."""
        rounds = self._calibrate(rate)
        warm_until = time.monotonic() + WARM_UP_S
        while time.monotonic() < warm_until:
            self._run(rate, rounds)
        return statistics.median(self._run(rate, rounds) for _ in range(REPEATS))

    def _calibrate(self, rate: Rate) -> int:
        rounds = 64
        while True:
            took = self._device.seconds(rate.kernel, blocks=self._blocks, arguments=rate.arguments(rounds))
            if took >= TARGET_S / 4 or rounds >= 1 << 26:
                return max(1, min(1 << 28, round(rounds * TARGET_S / max(took, 1e-6))))
            rounds *= 4

    def _run(self, rate: Rate, rounds: int) -> float:
        took = self._device.seconds(rate.kernel, blocks=self._blocks, arguments=rate.arguments(rounds))
        return rate.work_per_round * rounds / max(took, 1e-9)

    def _sustain(
        self, rate: Rate, *, seconds: float, sample: Callable[[], Sample | None]
    ) -> tuple[float, Sample | None]:
        """The mean rate in the last third of a long run, and how the card was near its end."""
        rounds = self._calibrate(rate)
        rates: list[float] = []
        begun, during = time.monotonic(), None
        while (passed := time.monotonic() - begun) < seconds or not rates:
            rates.append(self._run(rate, rounds))
            if passed > seconds * 0.8 and during is None:
                self._device.launch(rate.kernel, blocks=self._blocks, arguments=rate.arguments(rounds))
                during = sample()  # while that launch keeps the card busy
        return statistics.mean(rates[-max(1, len(rates) // 3) :]), during


def sampler(uuid: str) -> Callable[[], Sample | None]:
    """Clocks, heat and power through NVML, where it is there."""
    try:
        from agent.nvml import Nvml

        nvml = Nvml()
    except (ImportError, DriverAbsent):
        return lambda: None
    return lambda: next((found for found in nvml.read().samples if found.gpu_uuid == uuid), None)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m agent.measure", description="Measures GPUs.")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the sustained run of each card")
    parser.add_argument("uuids", nargs="+", metavar="UUID")
    given = parser.parse_args()
    try:
        cuda = Cuda()
        for uuid in given.uuids:
            with cuda.device_by_uuid(uuid) as device:
                print(
                    json.dumps({"uuid": uuid, **Card(device).measure(seconds=given.seconds, sample=sampler(uuid))}),
                    flush=True,
                )
    except (CudaError, Wrong) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

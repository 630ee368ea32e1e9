"""Readings from NVML through nvidia-ml-py. Every field stands alone: what a card does not report is None, and never 0.

Runs in the child process (`python -m agent.nvml`): one JSON line in, one JSON line out, see `agent.watch`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import pynvml

from agent.driver import DriverAbsent, Gpu, Reading, Sample

THROTTLE = {
    0x1: "gpu_idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
EVENT_WAIT_MS = 5000


class CardLost(Exception):
    """The card does not answer any more."""


def check_binding() -> None:
    """`pynvml` is also the name of an unrelated package that shadows the official one; refuse to read through that."""
    try:
        importlib.metadata.distribution("nvidia-ml-py")
    except importlib.metadata.PackageNotFoundError as error:
        raise DriverAbsent("the pynvml module here is not nvidia-ml-py") from error


def _text(value: str | bytes | None) -> str | None:
    """Old bindings return bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _field[T](read: Callable[[], T]) -> T | None:
    """One value, or None where the card or the driver does not know it. Raises CardLost."""
    try:
        return read()
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise CardLost from error
        return None
    except (AttributeError, ValueError, OverflowError, TypeError):  # a symbol the library lacks, a value it cannot hold
        return None


def name(handle: Any) -> str | None:
    """Product name, as ``nvidia-smi --query-gpu=name``."""
    return _text(_field(lambda: pynvml.nvmlDeviceGetName(handle)))


def memory(handle: Any) -> tuple[int | None, int | None]:
    """(used, total) in MiB, the driver's reserve not counted as used where the v2 call exists.

    On unified-memory parts NVML does not say: (None, None).
    """
    info = _field(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2))
    if info is None:
        info = _field(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    return (None, None) if info is None else (int(info.used) >> 20, int(info.total) >> 20)


def temperature(handle: Any) -> int | None:
    """Core temperature in °C, as ``temperature.gpu``."""
    return _field(lambda: int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)))


def power_draw(handle: Any) -> float | None:
    """Board power now in watts, as ``power.draw``."""
    return _field(lambda: round(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000, 1))


def power_limit(handle: Any) -> int | None:
    """The limit that is enforced now, in watts, as ``enforced.power.limit``."""
    return _field(lambda: round(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000))


def utilization(handle: Any) -> int | None:
    """Percent of time with a kernel running, as ``utilization.gpu``; None under MIG."""
    return _field(lambda: int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))


def throttle_reasons(handle: Any) -> list[str] | None:
    """Why the clocks are not at their highest, as ``clocks_event_reasons.active``; [] when nothing holds them."""
    bits = _field(lambda: int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)))
    if bits is None:
        bits = _field(lambda: int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
    return None if bits is None else [word for bit, word in THROTTLE.items() if bits & bit]


def clock(handle: Any, kind: int) -> int | None:
    """MHz now, as ``clocks.sm`` and ``clocks.mem``."""
    return _field(lambda: int(pynvml.nvmlDeviceGetClockInfo(handle, kind)))


def max_clock(handle: Any, kind: int) -> int | None:
    """The highest MHz, as ``clocks.max.sm`` and ``clocks.max.mem``."""
    return _field(lambda: int(pynvml.nvmlDeviceGetMaxClockInfo(handle, kind)))


def fan(handle: Any) -> int | None:
    """Percent of the fan's range, as ``fan.speed``; None on cards without one."""
    return _field(lambda: int(pynvml.nvmlDeviceGetFanSpeed(handle)))


def ecc_uncorrected(handle: Any) -> int | None:
    """Uncorrectable memory errors since the driver was loaded, as ``ecc.errors.uncorrected.volatile.total``."""
    return _field(
        lambda: int(
            pynvml.nvmlDeviceGetTotalEccErrors(
                handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
            )
        )
    )


def remapped_rows(handle: Any) -> tuple[int | None, int | None]:
    """Whether rows wait to be remapped, and whether remapping failed (1 or 0), as ``remapped_rows.pending``, ``.failure``."""
    found = _field(lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
    return (int(bool(found[2])), int(bool(found[3]))) if found else (None, None)


def pages_pending(handle: Any) -> int | None:
    """Whether pages wait to be retired (1 or 0), as ``retired_pages.pending``."""
    return _field(lambda: int(bool(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))))


def compute_capability(handle: Any) -> str | None:
    found = _field(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    return f"{found[0]}.{found[1]}" if found else None


def cores(handle: Any) -> int | None:
    """CUDA cores; from NVML, which has no such call on old drivers."""
    return _field(lambda: int(pynvml.nvmlDeviceGetNumGpuCores(handle)))


def pci_bus_id(handle: Any) -> str | None:
    """As ``pci.bus_id``."""
    return _text(_field(lambda: pynvml.nvmlDeviceGetPciInfo(handle).busId))


def ecc_enabled(handle: Any) -> bool | None:
    found = _field(lambda: pynvml.nvmlDeviceGetEccMode(handle))
    return bool(found[0]) if found else None


def mig_enabled(handle: Any) -> bool | None:
    """None on cards that cannot be partitioned."""
    found = _field(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    return bool(found[0]) if found else None


def gpu_facts(handle: Any, *, uuid: str, index: int) -> Gpu:
    return Gpu(
        uuid=uuid,
        index=index,
        name=name(handle),
        vram_mib=memory(handle)[1],
        pci_bus_id=pci_bus_id(handle),
        compute_capability=compute_capability(handle),
        cores=cores(handle),
        memory_bus_bits=_field(lambda: int(pynvml.nvmlDeviceGetMemoryBusWidth(handle))),
        max_sm_clock_mhz=max_clock(handle, pynvml.NVML_CLOCK_SM),
        max_memory_clock_mhz=max_clock(handle, pynvml.NVML_CLOCK_MEM),
        power_limit_w=power_limit(handle),
        pcie_generation=_field(lambda: int(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))),
        pcie_width=_field(lambda: int(pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))),
        ecc_enabled=ecc_enabled(handle),
        mig_enabled=mig_enabled(handle),
    )


def gpu_sample(handle: Any, *, uuid: str) -> Sample:
    used, total = memory(handle)
    remap_pending, remap_failed = remapped_rows(handle)
    return Sample(
        gpu_uuid=uuid,
        temperature_c=temperature(handle),
        power_w=power_draw(handle),
        utilization_pct=utilization(handle),
        memory_used_mib=used,
        memory_total_mib=total,
        sm_clock_mhz=clock(handle, pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=clock(handle, pynvml.NVML_CLOCK_MEM),
        fan_pct=fan(handle),
        throttle_reasons=throttle_reasons(handle),
        ecc_uncorrected=ecc_uncorrected(handle),
        row_remap_pending=remap_pending,
        row_remap_failed=remap_failed,
        pages_pending=pages_pending(handle),
    )


class Nvml:
    """An open NVML. Cards are read one by one: one that is lost hides no other."""

    def __init__(self) -> None:
        """Raises DriverAbsent with what to do about it."""
        check_binding()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise DriverAbsent(_absent(error)) from error
        self._xids: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def read(self) -> Reading:
        gpus, samples, lost = [], [], []
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise DriverAbsent(_absent(error)) from error
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = _text(pynvml.nvmlDeviceGetUUID(handle)) or ""
                gpus.append(gpu_facts(handle, uuid=uuid, index=index))
                samples.append(gpu_sample(handle, uuid=uuid))
            except (pynvml.NVMLError, CardLost):
                lost.append(str(index))
        with self._lock:
            xids, self._xids = self._xids, []
        return Reading(
            driver_version=_text(_field(pynvml.nvmlSystemGetDriverVersion)),
            cuda_version=self._cuda_version(),
            gpus=gpus[: len(samples)],
            samples=samples,
            lost=lost,
            xids=xids,
        )

    def listen(self) -> None:
        """Collect Xids until NVML goes away. For a thread of its own: the wait blocks."""
        try:
            events = pynvml.nvmlEventSetCreate()
            for index in range(pynvml.nvmlDeviceGetCount()):
                with contextlib.suppress(pynvml.NVMLError):  # a card without event support hides no other
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        except (pynvml.NVMLError, AttributeError):
            return
        while True:
            try:
                event = pynvml.nvmlEventSetWait_v2(events, EVENT_WAIT_MS)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    return
                continue
            try:
                uuid = _text(pynvml.nvmlDeviceGetUUID(event.device))
            except pynvml.NVMLError:
                uuid = None
            with self._lock:
                self._xids.append({"gpu_uuid": uuid, "xid": int(event.eventData)})

    @staticmethod
    def _cuda_version() -> str | None:
        """The newest CUDA the driver supports, as nvidia-smi's head line."""
        number = _field(lambda: int(pynvml.nvmlSystemGetCudaDriverVersion_v2()))
        return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _absent(error: Any) -> str:
    if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "the NVIDIA driver was updated and the old one is still loaded: reboot the host"
    if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "libnvidia-ml.so.1 is not here: install the NVIDIA driver, or start the agent with its GPU request"
    if error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return "the NVIDIA kernel driver is not loaded"
    return f"NVML: {error}"


def serve() -> None:
    """Answer each line on stdin with a reading, or with why there is none, until stdin closes."""
    nvml: Nvml | None = None
    for _ in sys.stdin:
        try:
            if nvml is None:
                nvml = Nvml()
                threading.Thread(target=nvml.listen, daemon=True).start()
            answer: dict[str, Any] = {"reading": nvml.read().as_json()}
        except DriverAbsent as error:
            nvml, answer = None, {"absent": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()

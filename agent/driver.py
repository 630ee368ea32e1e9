"""What the agent reads of the cards. Each value has its unit in its name; None means the card or driver does not say.

The real readings (`agent.nvml`) run in a child process that is watched (`WatchedDriver`): a driver call can hang for ever,
and must then stop neither the heartbeat nor the jobs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

# The job's own fault: NVIDIA's catalogue says to restart the program, or to ignore them.
APPLICATION_XIDS = frozenset(
    {
        8,
        13,
        31,
        32,
        39,
        40,
        41,
        43,
        45,
        47,
        65,
        68,
        69,
        80,
        *range(82, 87),
        88,
        89,
        *range(96, 108),
        109,
        *range(126, 136),
        139,
    }
)
FATAL_XIDS = frozenset({64, 74, 79, 95, 140, 143, 158, 167})  # nothing more may run on it
# Counters of the card's memory, and its health once they grow. A new driver starts them over; a jump of millions is none.
COUNTERS = {
    "uncorrected": "degraded", "row_remap_pending": "degraded", "row_remap_failed": "fatal", "pages_pending": "degraded",
}  # fmt: skip
MOST_GROWTH = 1_000_000
HEAT = frozenset({"hw_thermal_slowdown", "sw_thermal_slowdown"})


class DriverHung(Exception):
    """The driver did not answer in time."""


class DriverAbsent(Exception):
    """There is no usable driver; the message says why."""


@dataclass(frozen=True)
class Gpu:
    """A card's lasting facts, and its health as NVML alone shows it."""

    uuid: str
    index: int
    name: str | None
    vram_mib: int | None
    pci_bus_id: str | None
    compute_capability: str | None
    cores: int | None
    memory_bus_bits: int | None
    max_sm_clock_mhz: int | None
    max_memory_clock_mhz: int | None
    power_limit_w: int | None
    pcie_generation: int | None
    pcie_width: int | None
    ecc_enabled: bool | None
    mig_enabled: bool | None


@dataclass(frozen=True)
class Sample:
    """One card at one moment. `memory_used_mib` leaves the driver's own reserve out, where the driver can tell."""

    gpu_uuid: str
    temperature_c: int | None = None
    power_w: float | None = None
    utilization_pct: int | None = None
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    fan_pct: int | None = None
    throttle_reasons: list[str] | None = None
    ecc_uncorrected: int | None = None
    row_remap_pending: int | None = None  # 1 where a row of the memory waits for a restart to be replaced
    row_remap_failed: int | None = None  # 1 where one could not be
    pages_pending: int | None = None  # 1 where pages wait to be taken out of use, on cards that retire pages

    def counters(self) -> dict[str, int | None]:
        """What only grows while the card is well looked after, by the names of ``COUNTERS``."""
        return {
            "uncorrected": self.ecc_uncorrected,
            "row_remap_pending": self.row_remap_pending,
            "row_remap_failed": self.row_remap_failed,
            "pages_pending": self.pages_pending,
        }


@dataclass(frozen=True)
class Reading:
    """All that one look at the driver shows. `lost` are UUIDs or positions of cards that are there but do not answer."""

    driver_version: str | None
    cuda_version: str | None
    gpus: list[Gpu] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    xids: list[dict[str, Any]] = field(default_factory=list)  # since the last look: {"gpu_uuid", "xid"}

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Reading:
        return cls(
            driver_version=data["driver_version"],
            cuda_version=data["cuda_version"],
            gpus=[Gpu(**gpu) for gpu in data["gpus"]],
            samples=[Sample(**sample) for sample in data["samples"]],
            lost=list(data["lost"]),
            xids=list(data["xids"]),
        )


class Driver(Protocol):
    simulated: bool

    def read(self) -> Reading:
        """Look once. Raises DriverHung or DriverAbsent."""
        ...

    def close(self) -> None: ...


def xid_health(xid: int) -> str | None:
    """The health a card has after an Xid: None where it is the application's, else degraded or fatal.

    An Xid that is not in the tables is taken as degraded: unknown is not healthy.
    """
    if xid in APPLICATION_XIDS:
        return None
    return "fatal" if xid in FATAL_XIDS else "degraded"

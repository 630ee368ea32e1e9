"""What the agent reads of the cards. Each value has its unit in its name; None means the card or driver does not say.

The real readings (`agent.nvml`) run in a child process that is watched (`WatchedDriver`): a driver call can hang for ever,
and must then stop neither the heartbeat nor the jobs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})  # the job's own fault
DEGRADED_XIDS = frozenset({48, 63, 94, 119, 120})  # finish what runs, then reset or reboot
FATAL_XIDS = frozenset({64, 74, 79, 95})  # nothing more may run on it


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

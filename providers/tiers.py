"""Which tier a machine is offered as: its provider's, or community where it is below the enterprise floor.

The host's facts are judged at enrolment and with each inventory, what benchmarks measure with each benchmark; both
verdicts are kept on the machine, and either one is enough. The fee of a rental is that of the tier it is offered as.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from django.utils.translation import gettext_lazy as _

from gpunex.policy.models import Tier, TierPolicy
from providers.models import Gpu, GpuModel, Machine
from providers.schedules import in_force

MIB_A_GIB = 1024
# A host of "512 GB" reports some less to its system: firmware and kernel keep a part.
MEMORY_TOLERANCE = 0.94

TEXTS = {
    "gpu_class": _("Enterprise is for datacenter and workstation GPUs."),
    "cpu_cores": _("CPU cores: %(have)s, of %(needed)s needed for its GPUs."),
    "memory": _("Memory: %(have)s GiB, of %(needed)s GiB needed for its GPUs."),
    "disk_free": _("Free disk: %(have)s GiB, of %(needed)s GiB needed."),
    "ups": _("The application names no UPS."),
    "always_available": _("Its schedule is not around the clock."),
    "download": _("Download: %(have)s Mbps, of %(needed)s Mbps needed."),
    "upload": _("Upload: %(have)s Mbps, of %(needed)s Mbps needed."),
    "disk_read": _("SSD read: %(have)s MB/s, of %(needed)s MB/s needed."),
}


@dataclass(frozen=True)
class Shortfall:
    """One floor that is missed. ``have`` and ``needed`` are in the unit that the code's text names."""

    code: str
    have: float | None = None
    needed: float | None = None

    def __str__(self) -> str:
        return str(TEXTS[self.code]) % {"have": _whole(self.have), "needed": _whole(self.needed)}


@dataclass(frozen=True)
class Measured:
    """What benchmarks say about the machine itself; None where it was not measured, which misses nothing."""

    download_mbps: float | None = None
    upload_mbps: float | None = None
    disk_read_mb_s: float | None = None


def host_shortfalls(*, machine: Machine, gpus: Sequence[Gpu], floor: TierPolicy) -> list[Shortfall]:
    """Where the host's reported facts miss ``floor``. A fact that is not known misses nothing."""
    host, count = machine.host, len(gpus)
    memory = max(floor.memory_gb_per_gpu * count, sum(gpu.vram_mib or 0 for gpu in gpus) / MIB_A_GIB)
    found = [
        _least("cpu_cores", host.get("cpu_cores"), floor.cpu_cores_per_gpu * count),
        _least("memory", _gib(host.get("memory_mib")), memory, tolerance=MEMORY_TOLERANCE),
        _least("disk_free", host.get("disk_free_gib"), floor.ssd_free_gb),
    ]
    if floor.tier == Tier.ENTERPRISE and any(
        gpu.variant is None or gpu.variant.model.klass == GpuModel.Klass.CONSUMER for gpu in gpus
    ):
        found.append(Shortfall("gpu_class"))
    if floor.ups_required and not machine.ups:
        found.append(Shortfall("ups"))
    return [shortfall for shortfall in found if shortfall is not None]


def measured_shortfalls(*, measured: Measured, floor: TierPolicy) -> list[Shortfall]:
    """Where what was measured misses ``floor``."""
    found = [
        _least("download", measured.download_mbps, floor.network_mbps),
        _least("upload", measured.upload_mbps, floor.network_mbps),
        _least("disk_read", measured.disk_read_mb_s, floor.ssd_read_mb_s),
    ]
    return [shortfall for shortfall in found if shortfall is not None]


def judge_host(*, machine: Machine, at: datetime) -> None:
    """Set the machine's tier by the host's facts as they are now. Does not save."""
    reasons: list[Shortfall] = []
    if machine.provider.tier == Tier.ENTERPRISE:
        floor = TierPolicy.of(Tier.ENTERPRISE)
        gpus = list(machine.gpus.present().filter(given=True).select_related("variant__model"))
        reasons = host_shortfalls(machine=machine, gpus=gpus, floor=floor)
        schedule = in_force(machine, at) if machine.pk else None
        if floor.always_available and schedule is not None and not schedule.always:
            reasons.append(Shortfall("always_available"))
    _judged(machine, "host", reasons)


def judge_measured(*, machine: Machine, measured: Measured) -> None:
    """Set the machine's tier by what benchmarks say. Does not save."""
    reasons: list[Shortfall] = []
    if machine.provider.tier == Tier.ENTERPRISE:
        reasons = measured_shortfalls(measured=measured, floor=TierPolicy.of(Tier.ENTERPRISE))
    _judged(machine, "measured", reasons)


def reasons_of(machine: Machine) -> list[Shortfall]:
    """Why the machine is offered below its provider's tier, to be shown; none where it is not."""
    return [Shortfall(**reason) for part in ("host", "measured") for reason in machine.tier_reasons.get(part, [])]


def _judged(machine: Machine, part: str, reasons: list[Shortfall]) -> None:
    machine.tier_reasons = {**machine.tier_reasons, part: [asdict(reason) for reason in reasons]}
    below = any(machine.tier_reasons.values())
    machine.tier = Tier.COMMUNITY if below else machine.provider.tier


def _least(code: str, have: float | None, needed: float, *, tolerance: float = 1.0) -> Shortfall | None:
    if have is None or have >= needed * tolerance:
        return None
    return Shortfall(code, have=round(float(have), 1), needed=round(float(needed), 1))


def _gib(mib: float | None) -> float | None:
    return None if mib is None else mib / MIB_A_GIB


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"

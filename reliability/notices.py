"""What a provider is told about its machines. Each key holds an hour or a run, so that flapping tells nothing twice."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.utils.translation import gettext_lazy as _

from gpunex.accounts.notices import Event, notify
from gpunex.kit import show
from gpunex.policy.models import Policy
from providers.models import Gpu, Machine, Provider

MACHINES_LOST = Event(
    name="machines_lost",
    subject=_("No longer heard from: %(machines)s"),
    paragraphs=(
        _(
            "We have heard nothing from %(machines)s since %(since_at)s. Rentals on it have ended, and its GPUs are off the market "
            "until it answers again."
        ),
        _(
            "Check that the host is on and reaches the internet, and that docker ps lists gpunex-agent as Up. "
            "It connects by itself; nothing has to be done here."
        ),
    ),
    action=_("Open the machines"),
    path="/provider/machines",
    state="bad",
)
MACHINES_BACK = Event(
    name="machines_back",
    subject=_("Connected again: %(machines)s"),
    paragraphs=(_("%(machines)s answers again since %(since_at)s. Its GPUs are offered as before."),),
    action=_("Open the machines"),
    path="/provider/machines",
    state="ok",
)
MACHINE_UNSETTLED = Event(
    name="machine_unsettled",
    subject=_("%(machine)s keeps losing its connection"),
    paragraphs=(
        _(
            "%(machine)s broke off at least %(breaks)s times within %(minutes)s minutes. So that renters don't see its offers come and "
            "go, they wait until it has been steady again. Running rentals go on."
        ),
        _(
            "Its page shows each gap and what we know of it: look at the network of the host if the agent ran through, at power, heat "
            "and the driver if the host restarted. Nothing has to be done here: the offers come back by themselves."
        ),
    ),
    action=_("Open the machines"),
    path="/provider/machines",
    state="warn",
)
CLOCK_OFF = Event(
    name="clock_off",
    subject=_("The clock of %(machine)s is off by %(seconds)s seconds"),
    paragraphs=(
        _(
            "The clock of %(machine)s differs from ours by %(seconds)s seconds. We correct what it reports, but certificates, image "
            "pulls and the logs of your renters depend on the right time."
        ),
        _("Run this on the host: sudo timedatectl set-ntp true. Then see that timedatectl says it is synchronised."),
    ),
    action=_("Open the machines"),
    path="/provider/machines",
    state="warn",
)
GPU_DELISTED = Event(
    name="gpu_delisted",
    subject=_("Off the market: %(gpu)s"),
    paragraphs=(
        _(
            "%(gpu)s measured %(performance)s %% of what its model should, the median of two runs. The floor of its tier is %(floor)s %%."
        ),
        _(
            "Look for heat (dust, fans, airflow), a power limit set too low, a second program on the GPU, and a PCIe link narrower than "
            "its slot. We measure it again by ourselves and list it as soon as it passes; running rentals go on."
        ),
    ),
    action=_("See the benchmarks"),
    path="/provider/benchmarks",
    state="bad",
)
MACHINE_DELISTED = Event(
    name="machine_delisted",
    subject=_("Off the market: %(machine)s"),
    paragraphs=(
        _("The network or the SSD of %(machine)s is below the floor of its tier."),
        _(
            "Measured, the median of two runs: download %(download)s Mbps, upload %(upload)s Mbps, SSD read %(disk)s MB/s. Needed: "
            "%(network_floor)s Mbps each way, %(disk_floor)s MB/s."
        ),
        _(
            "All its GPUs are off the market until a benchmark passes. Check the line for other traffic and the disk for other load; "
            "Docker's data has to lie on an SSD. We measure again by ourselves; running rentals go on."
        ),
    ),
    action=_("See the benchmarks"),
    path="/provider/benchmarks",
    state="bad",
)
OUTDATED = Event(
    name="software_delisted",
    subject=_("Off the market until updated: %(machine)s"),
    paragraphs=(
        _(
            "%(machine)s runs software that is too old to run customers' work safely. Found: CUDA %(cuda)s (by the driver), Docker "
            "%(docker)s, NVIDIA Container Toolkit %(toolkit)s, runc %(runc)s."
        ),
        _(
            "Needed at least: CUDA %(cuda_least)s, Docker %(docker_least)s, NVIDIA Container Toolkit %(toolkit_least)s, runc "
            "%(runc_least)s."
        ),
        _(
            "Update the host. The agent reports the new versions within five minutes, and its GPUs are offered again by themselves; "
            "running rentals go on. If your distribution has carried the fixes back into its own build, write to us."
        ),
    ),
    action=_("See the benchmarks"),
    path="/provider/benchmarks",
    state="bad",
)
UPTIME_DELISTED = Event(
    name="uptime_delisted",
    subject=_("Off the market for its uptime: %(machine)s"),
    paragraphs=(
        _(
            "%(machine)s was connected %(share)s of its declared time in the last 30 days. The floor of its tier is %(floor)s."
        ),
        _(
            "Keep it connected: its GPUs are offered again by themselves as soon as the figure of the last 7 days is above the floor. "
            "Declare only hours that it is there, and announce maintenance beforehand. Running rentals go on."
        ),
    ),
    action=_("See the performance"),
    path="/provider/performance",
    state="bad",
)
UPTIME_LOW = Event(
    name="uptime_low",
    subject=_("Low uptime: %(machine)s"),
    paragraphs=(
        _("%(machine)s was connected %(share)s of its declared time so far. The floor of its tier is %(floor)s."),
        _(
            "Until 72 declared hours are behind it this is only a warning; after that its GPUs would be off the market until the last "
            "7 days are above the floor. Declare only hours that it is there, and announce maintenance beforehand."
        ),
    ),
    action=_("See the performance"),
    path="/provider/performance",
    state="warn",
)
CASE_ANSWERED = Event(
    name="case_answered",
    subject=_("Our answer: %(subject)s"),
    paragraphs=("%(text)s", _("Answer on the page of the case; mail to this address is not read.")),
    action=_("Open the case"),
    path="/support/{case}",
)
CASE_OPENED = Event(
    name="case_opened",
    subject=_("New case: %(subject)s"),
    paragraphs=(_("%(organisation)s wrote to us. It waits in the queue."),),
    action=_("Open the case"),
    path="/admin/reliability/case/{id}/change/",
)
RELISTED = Event(
    name="relisted",
    subject=_("Offered again: %(gpus)s"),
    paragraphs=(_("Nothing is below a floor any more, and these are back on the market: %(gpus)s."),),
    action=_("See the benchmarks"),
    path="/provider/benchmarks",
    state="ok",
)


def tell_lost(*, provider: Provider, machines: Sequence[Machine], at: datetime) -> None:
    """One notice for all that went at once, at most one an hour."""
    since = min(machine.offline_since or at for machine in machines)
    _tell(
        provider,
        MACHINES_LOST,
        f"machines-lost:{provider.public_id}:{at:%Y%m%d%H}",
        at,
        machines=_names(machines),
        since_at=since.isoformat(),
    )


def tell_back(*, machine: Machine, at: datetime) -> None:
    """Only for a machine that was told as lost; at most once an hour each."""
    key = f"machine-back:{machine.public_id}:{at:%Y%m%d%H}"
    _tell(machine.provider, MACHINES_BACK, key, at, machines=machine.name, since_at=at.isoformat())


def tell_unsettled(*, machine: Machine, at: datetime) -> None:
    """Once a day, however often it breaks off."""
    key = f"machine-unsettled:{machine.public_id}:{at:%Y%m%d}"
    _tell(machine.provider, MACHINE_UNSETTLED, key, at, machine=machine.name, breaks="3", minutes="30")


def tell_clock(*, machine: Machine, at: datetime) -> None:
    """Once a calendar week."""
    key = f"clock-off:{machine.public_id}:{at:%G%V}"
    off = abs(machine.clock_offset_ms or 0) // 1000
    _tell(machine.provider, CLOCK_OFF, key, at, machine=machine.name, seconds=f"{off:,}")


def tell_gpu_delisted(*, gpu: Gpu, performance: float, floor: float, episode: int, at: datetime) -> None:
    """Once an episode, as everything below."""
    key = f"gpu-delisted:{gpu.public_id}:{episode}"
    figures = {"performance": f"{performance:.1f}", "floor": f"{floor:.0f}"}
    _tell(gpu.machine.provider, GPU_DELISTED, key, at, gpu=_gpu(gpu), **figures)


def tell_machine_delisted(*, machine: Machine, reason: dict[str, Any], episode: int, at: datetime) -> None:
    measured, floors = reason["measured"], reason["floors"]
    _tell(
        machine.provider,
        MACHINE_DELISTED,
        f"machine-delisted:{machine.public_id}:{episode}",
        at,
        machine=machine.name,
        download=_figure(measured["download_mbps"]),
        upload=_figure(measured["upload_mbps"]),
        disk=_figure(measured["disk_read_mb_s"]),
        network_floor=_figure(floors["network_mbps"]),
        disk_floor=_figure(floors["ssd_read_mb_s"]),
    )


def tell_outdated(*, machine: Machine, policy: Policy, episode: int, at: datetime) -> None:
    host = machine.host or {}
    _tell(
        machine.provider,
        OUTDATED,
        f"software-delisted:{machine.public_id}:{episode}",
        at,
        machine=machine.name,
        cuda=machine.cuda_version or NOTHING,
        docker=host.get("docker_version") or NOTHING,
        toolkit=host.get("toolkit_version") or NOTHING,
        runc=host.get("runc_version") or NOTHING,
        cuda_least=policy.cuda_least,
        docker_least=policy.docker_least,
        toolkit_least=policy.toolkit_least,
        runc_least=" / ".join(policy.runc_least.split()),
    )


def tell_uptime_delisted(*, machine: Machine, share: float, floor: float, episode: int, at: datetime) -> None:
    key = f"uptime-delisted:{machine.public_id}:{episode}"
    _tell(
        machine.provider, UPTIME_DELISTED, key, at, machine=machine.name, share=_percent(share), floor=_percent(floor)
    )


def tell_uptime_low(*, machine: Machine, share: float, floor: float, at: datetime) -> None:
    """Once a machine: it can only be new once."""
    key = f"uptime-low:{machine.public_id}"
    _tell(machine.provider, UPTIME_LOW, key, at, machine=machine.name, share=_percent(share), floor=_percent(floor))


def tell_relisted(*, machine: Machine, gpus: Sequence[Gpu], at: datetime) -> None:
    """Once a change: the same cards can't come back twice in one moment."""
    key = f"relisted:{machine.public_id}:{at.isoformat()}"
    _tell(machine.provider, RELISTED, key, at, gpus=", ".join(_gpu(gpu) for gpu in gpus))


NOTHING = "–"


def _figure(value: float | None) -> str:
    return NOTHING if value is None else show.cut(value)


def _percent(share: float) -> str:
    return f"{show.cut(100 * share, 1)} %"


def _tell(provider: Provider, event: Event, key: str, at: datetime, **data: str) -> None:
    notify(organisation=provider.organisation, event=event, key=key, at=at, data=data)


def _names(machines: Sequence[Machine]) -> str:
    names = sorted(machine.name for machine in machines)
    return ", ".join(names[:5]) + (f" (+{len(names) - 5})" if len(names) > 5 else "")


def _gpu(gpu: Gpu) -> str:
    return f"{gpu.machine.name} · {gpu.variant.name if gpu.variant else gpu.name} #{gpu.index}"

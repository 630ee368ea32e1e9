"""What a provider is told about its machines. Each key holds an hour or a run, so that flapping tells nothing twice."""

from collections.abc import Sequence
from datetime import datetime

from django.utils.translation import gettext_lazy as _

from gpunex.accounts.notices import Event, notify
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
        _("The network or the disk of %(machine)s is below the floor of its tier, the median of two runs:"),
        "%(shortfalls)s",
        _(
            "All its GPUs are off the market until a benchmark passes. Check the line for other traffic and the disk for other load; "
            "Docker's data has to lie on an SSD. We measure again by ourselves; running rentals go on."
        ),
    ),
    action=_("See the benchmarks"),
    path="/provider/benchmarks",
    state="bad",
)
RELISTED = Event(
    name="relisted",
    subject=_("Offered again: %(gpus)s"),
    paragraphs=(_("The last benchmark passed, and %(gpus)s is back on the market."),),
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


def tell_gpu_delisted(*, gpu: Gpu, performance: float, floor: float, run: str, at: datetime) -> None:
    key = f"gpu-delisted:{gpu.public_id}:{run}"
    _tell(
        gpu.machine.provider,
        GPU_DELISTED,
        key,
        at,
        gpu=_gpu(gpu),
        performance=f"{performance:.1f}",
        floor=f"{floor:.0f}",
    )


def tell_machine_delisted(*, machine: Machine, shortfalls: Sequence[str], run: str, at: datetime) -> None:
    key = f"machine-delisted:{machine.public_id}:{run}"
    _tell(machine.provider, MACHINE_DELISTED, key, at, machine=machine.name, shortfalls=" ".join(shortfalls))


def tell_relisted(*, machine: Machine, gpus: Sequence[Gpu], run: str, at: datetime) -> None:
    key = f"relisted:{machine.public_id}:{run}"
    _tell(machine.provider, RELISTED, key, at, gpus=", ".join(_gpu(gpu) for gpu in gpus))


def _tell(provider: Provider, event: Event, key: str, at: datetime, **data: str) -> None:
    notify(organisation=provider.organisation, event=event, key=key, at=at, data=data)


def _names(machines: Sequence[Machine]) -> str:
    names = sorted(machine.name for machine in machines)
    return ", ".join(names[:5]) + (f" (+{len(names) - 5})" if len(names) > 5 else "")


def _gpu(gpu: Gpu) -> str:
    return f"{gpu.machine.name} · {gpu.variant.name if gpu.variant else gpu.name} #{gpu.index}"

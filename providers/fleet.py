"""How a provider's GPUs stand now: one word each, the same in gauges, tables and warnings. Reading only.

The first that applies:

    kept        the provider does not give the card to the platform
    offline     nothing was heard of its machine for the offline time
    failed      the card's health is fatal
    rented      a rental holds it
    measuring   a benchmark holds it
    unadmitted  not in the catalogue, or beyond the approved model and quantity: an admin has to admit it
    delisted    below a floor of its tier
    waiting     never measured
    hidden      kept from renters by somebody's decision or by the schedule (``Hidden`` says which)
    unpriced    the provider asks no price for its model
    free        can be rented
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from django.conf import settings
from django.db import models
from django.db.models import Prefetch
from django.utils.translation import gettext_lazy as _

from providers import maintenance
from providers.models import Gpu, GpuClaim, GpuModel, Machine, MaintenanceWindow, Provider, Schedule
from providers.schedules import declared


class Standing(models.TextChoices):
    KEPT = "kept", _("kept by you")
    OFFLINE = "offline", _("offline")
    FAILED = "failed", _("failed")
    RENTED = "rented", _("rented")
    MEASURING = "measuring", _("being measured")
    UNADMITTED = "unadmitted", _("waiting for admission")
    DELISTED = "delisted", _("delisted")
    WAITING = "waiting", _("waiting for its first benchmark")
    HIDDEN = "hidden", _("hidden")
    UNPRICED = "unpriced", _("no price")
    FREE = "free", _("free")


class Hidden(models.TextChoices):
    """Why a sound card of a connected machine is not offered."""

    PAUSED = "paused", _("paused by our team")
    HUNG = "hung", _("the driver does not answer")
    UNSETTLED = "unsettled", _("its connection keeps breaking")
    SIMULATED = "simulated", _("simulated machines are not offered here")
    DRAINING = "draining", _("draining")
    MAINTENANCE = "maintenance", _("planned maintenance runs")
    PROVIDER = "provider", _("hidden by you")
    HOURS = "hours", _("outside its hours")


@dataclass(frozen=True)
class Card:
    gpu: Gpu
    standing: Standing

    @property
    def model(self) -> GpuModel | None:
        return self.gpu.variant.model if self.gpu.variant else None

    @property
    def model_name(self) -> str:
        return self.gpu.variant.model.name if self.gpu.variant else self.gpu.name


@dataclass(frozen=True)
class Host:
    """A machine with its present cards, in the order of their index."""

    machine: Machine
    connected: bool
    schedule: Schedule | None  # the version in force
    hidden: Hidden | None
    cards: Sequence[Card]

    @cached_property
    def counts(self) -> Counter[Standing]:
        return Counter(card.standing for card in self.cards)

    @property
    def given(self) -> int:
        """Cards that the platform may use."""
        return len(self.cards) - self.counts[Standing.KEPT]

    @cached_property
    def models(self) -> dict[str, int]:
        """How many given cards of each model, by name; where none is given, all of them."""
        given = [card for card in self.cards if card.standing != Standing.KEPT] or self.cards
        return dict(Counter(card.model_name for card in given))


@dataclass(frozen=True)
class Fleet:
    hosts: Sequence[Host]

    @cached_property
    def counts(self) -> Counter[Standing]:
        return sum((host.counts for host in self.hosts), Counter())

    @property
    def given(self) -> int:
        return sum(host.given for host in self.hosts)

    @cached_property
    def models(self) -> dict[int, GpuModel]:
        """The models of given, catalogued cards, by pk."""
        return {
            card.model.pk: card.model
            for host in self.hosts
            for card in host.cards
            if card.model is not None and card.standing != Standing.KEPT
        }

    @cached_property
    def offline_since(self) -> datetime | None:
        """Since when the machine that went silent first has been away; None where none is, or none was ever heard of."""
        return min(
            (h.machine.last_seen_at for h in self.hosts if not h.connected and h.machine.last_seen_at), default=None
        )


def read(
    *,
    provider: Provider,
    offline_seconds: int,
    at: datetime,
    priced: Collection[int] | None = None,
    retired: bool = False,
) -> Fleet:
    """The provider's live machines by name, or the ``retired`` ones; a fixed number of queries.

    ``priced``: pks of the models that the provider asks a price for; None leaves prices out of the judgement.
    """
    found = Machine.objects.filter(provider=provider, retired_at__isnull=not retired)
    planned = MaintenanceWindow.objects.filter(cancelled_at=None, starts_at__lte=at, ends_at__gt=at)
    cards = Gpu.objects.present().select_related("variant__model").defer("facts").order_by("index", "pk")
    machines = list(
        found.defer("host")
        .prefetch_related("schedules", Prefetch("maintenance", queryset=planned), Prefetch("gpus", queryset=cards))
        .order_by("name", "pk")
    )
    claims = dict(GpuClaim.objects.current(at).filter(lane=0, gpu__machine__in=machines).values_list("gpu_id", "kind"))
    return Fleet([_host(machine, claims, priced, offline_seconds, at) for machine in machines])


def _host(
    machine: Machine, claims: dict[int, str], priced: Collection[int] | None, offline_seconds: int, at: datetime
) -> Host:
    connected = machine.is_connected(at, offline_seconds)
    schedule = version_at(machine.schedules.all(), at)
    hidden = _hidden(machine, schedule, at)
    cards = [
        Card(gpu, _standing(gpu, claims.get(gpu.pk), connected=connected, hidden=hidden, priced=priced))
        for gpu in machine.gpus.all()
    ]
    return Host(machine, connected, schedule, hidden, cards)


def version_at(versions: Iterable[Schedule], at: datetime) -> Schedule | None:
    """Of one machine's versions, the one in force at ``at``."""
    begun = [version for version in versions if version.effective_from <= at]
    return max(begun, key=lambda version: (version.effective_from, version.pk), default=None)


def _hidden(machine: Machine, schedule: Schedule | None, at: datetime) -> Hidden | None:
    if machine.paused_at is not None:
        return Hidden.PAUSED
    if machine.nvml == "hung":
        return Hidden.HUNG
    if machine.is_unsettled(at):
        return Hidden.UNSETTLED
    if machine.simulated and not settings.SIMULATED_MACHINES_IN_MARKET:
        return Hidden.SIMULATED
    if machine.draining:
        return Hidden.DRAINING
    if machine.hidden_at is not None:
        return Hidden.PROVIDER
    if maintenance.begun(maintenance.first_of(machine.maintenance.all(), at), at):
        return Hidden.MAINTENANCE
    return None if schedule is not None and declared(schedule, at) else Hidden.HOURS


def _standing(
    gpu: Gpu, claim: str | None, *, connected: bool, hidden: Hidden | None, priced: Collection[int] | None
) -> Standing:
    if not gpu.given:
        return Standing.KEPT
    if not connected:
        return Standing.OFFLINE
    if gpu.health == Gpu.Health.FATAL:
        return Standing.FAILED
    if claim is not None:
        return Standing.MEASURING if claim == GpuClaim.Kind.BENCHMARK else Standing.RENTED
    if gpu.variant is None or not gpu.admitted:
        return Standing.UNADMITTED
    if gpu.delisted_at is not None:
        return Standing.DELISTED
    if gpu.benchmarked_at is None:
        return Standing.WAITING
    if hidden is not None:
        return Standing.HIDDEN
    if priced is not None and gpu.variant.model_id not in priced:
        return Standing.UNPRICED
    return Standing.FREE

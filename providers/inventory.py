"""Which GPUs a machine has: what its agent reports, made into rows, matched with the catalogue and the approved entry.

- A card is known by its UUID, never by its place. One UUID lives on one machine: a report of a UUID that another live
  machine holds is refused for that card alone. Only a card of one's own that has moved here from a machine that is lost
  is taken over.
- A card that is no longer reported is gone (``removed_at``). Back again, or well again after it had failed, it needs a new
  benchmark before it is offered.
- ``admitted``: the model is the approved entry's, and the entry has room. Everything else is connected and measured, and
  waits for an admin. What was admitted stays so, unless another card took its place while it was gone, or it says that it is
  another model now: no card turns into another, so what was measured and admitted under its UUID was not this one.
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from gpunex.kit.refusals import Refusal
from providers import tiers
from providers.claims import constraint_of
from providers.models import Application, ApplicationEntry, EnrolmentKey, Gpu, GpuVariant, Machine

Health = Gpu.Health
# What Gpu.health_reason holds; an Xid is followed by its number.
MIG, LOST, XID = "mig", "lost", "xid:"
ECC, REMAP, REMAP_FAILED, PAGES = "ecc", "remap", "remap_failed", "pages"


class UuidTaken(Refusal):
    code = "uuid_taken"
    message = _(
        "Another machine that is still connected to the platform has the GPU %(uuid)s. "
        "If the card moved, retire that machine in the provider dashboard first."
    )


@dataclass(frozen=True)
class Rejected:
    uuid: str
    refusal: Refusal


@dataclass
class Taken:
    """What came of a report: the cards that were refused, and what changed since the last one."""

    rejected: list[Rejected] = field(default_factory=list)
    accepted: int = 0
    appeared: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    software: dict[str, list[str]] = field(default_factory=dict)  # {"driver": [before, after], "cuda": […]}


@transaction.atomic
def take(*, machine: Machine, inventory: dict[str, Any], at: datetime, key: EnrolmentKey | None = None) -> Taken:
    """Make ``inventory`` (the protocol's, validated) the truth about ``machine``. The same report again changes nothing.

    ``key``: at enrolment, the key whose application comes first when the machine is tied to an approved entry.
    """
    machine = (
        Machine.objects.select_for_update(no_key=True, of=("self",))
        .select_related("provider", "entry")
        .get(pk=machine.pk)
    )
    taken = Taken()
    _host(machine, inventory["host"], taken)
    variants = list(GpuVariant.objects.select_related("model"))
    known = {gpu.uuid: gpu for gpu in Gpu.objects.filter(machine=machine).order_by("pk")}  # of a UUID's lives, the last
    for facts in inventory["gpus"]:
        try:
            _gpu(machine, facts, known.get(facts["uuid"]), variants, taken, at)
        except UuidTaken as refusal:
            taken.rejected.append(Rejected(facts["uuid"], refusal))
    reported = {facts["uuid"] for facts in inventory["gpus"]}
    for gpu in known.values():
        if gpu.removed_at is None and gpu.uuid not in reported:
            gpu.removed_at = at
            gpu.save(update_fields=["removed_at"])
            taken.gone.append(gpu.uuid)
    _tie_to_entry(machine, key)
    _admit(machine)
    tiers.judge_host(machine=machine, at=at)
    machine.save(update_fields=[
        "host", "driver_version", "cuda_version", "entry", "country", "city", "datacenter_region", "ups", "tier", "tier_reasons",
    ])  # fmt: skip
    return taken


def card_uuid(text: str) -> str:
    """A card's UUID as it is kept: two reports of one card that differ in case are of one card.

    >>> card_uuid("GPU-8D0F4C5E-ABCD")
    'GPU-8d0f4c5e-abcd'
    """
    prefix, dash, rest = text.partition("-")
    return prefix + dash + rest.lower()


def variant_of(name: str, vram_mib: int | None, variants: list[GpuVariant]) -> GpuVariant | None:
    """The catalogue's card of this NVML name and memory; None for one that the catalogue does not know."""
    if vram_mib is None:
        return None
    return next(
        (v for v in variants if name in v.nvml_names and v.vram_mib_least <= vram_mib <= v.vram_mib_most),
        None,
    )


def health_in_words(gpu: Gpu) -> str:
    """Why the card is not well, in the active language; "" where nothing is known."""
    if gpu.health_reason == MIG:
        return gettext("MIG mode is on. Turn it off (nvidia-smi -mig 0) to offer this GPU.")
    if gpu.health_reason == LOST:
        return gettext("It no longer answers. Restart the host; if it stays away, reseat or replace the card.")
    if gpu.health_reason == ECC:
        return gettext(
            "Its memory had errors that could not be corrected. Restart the host; a new benchmark follows by itself."
        )
    if gpu.health_reason == REMAP:
        return gettext("Rows of its memory wait to be replaced by spare ones. Restart the host; that does it.")
    if gpu.health_reason == REMAP_FAILED:
        return gettext("A broken row of its memory could not be replaced. The card has to be replaced.")
    if gpu.health_reason == PAGES:
        return gettext("Pages of its memory wait to be taken out of use. Restart the host; that does it.")
    if gpu.health_reason.startswith(XID):
        return gettext("The driver reported Xid %(number)s. Restart the host; a new benchmark follows by itself.") % {
            "number": gpu.health_reason.removeprefix(XID)
        }
    return ""


def _host(machine: Machine, host: dict[str, Any], taken: Taken) -> None:
    for name, key in (("driver", "driver_version"), ("cuda", "cuda_version")):
        before, after = getattr(machine, key), host.get(key)
        if after and after != before:
            if before:
                taken.software[name] = [before, after]
            setattr(machine, key, after)
    machine.host = host


def _gpu(
    machine: Machine, facts: dict[str, Any], gpu: Gpu | None, variants: list[GpuVariant], taken: Taken, at: datetime
) -> None:
    if gpu is None or gpu.removed_at is not None:
        _make_room(machine, facts["uuid"], at)
        taken.appeared.append(facts["uuid"])
    health, reason = (Health.FATAL, MIG) if facts.get("mig_enabled") else (facts["health"], "")
    if gpu is None:
        gpu = Gpu(machine=machine, uuid=facts["uuid"], first_seen_at=at)
    elif gpu.removed_at is not None or (gpu.health == Health.FATAL and health != Health.FATAL):
        gpu.benchmarked_at = None  # back, or repaired: it has to show again what it can do
        gpu.removed_at = None
    gpu.index = facts["index"]
    gpu.name = facts["name"]
    gpu.vram_mib = facts["vram_mib"]
    if gpu.facts.get("given") != facts["given"]:
        gpu.given = facts["given"]  # the host's word counts when it changes; between, what the dashboard chose stays
    gpu.facts = facts
    _identify(gpu, variant_of(facts["name"], facts["vram_mib"], variants))
    if health != gpu.health or reason:  # else an event has told the reason, and the report only repeats the health
        gpu.health, gpu.health_reason = health, reason
    try:
        with transaction.atomic():
            gpu.save()
    except IntegrityError as error:  # another machine was a moment faster with this UUID
        if constraint_of(error) != "gpu_uuid_lives_once":
            raise
        raise UuidTaken(uuid=facts["uuid"]) from error
    taken.accepted += 1


def _identify(gpu: Gpu, variant: GpuVariant | None) -> None:
    """What kind of card it is. Another kind than before has to show anew what it can do, another model to be admitted anew."""
    before = gpu.variant if gpu.pk else None
    if before is not None and before != variant:
        gpu.benchmarked_at = gpu.performance = None
        if variant is None or variant.model_id != before.model_id:
            gpu.admitted = False
    gpu.variant = variant


def _make_room(machine: Machine, uuid: str, at: datetime) -> None:
    """Raises UuidTaken if another live machine holds the card, unless it is the same provider's and lost."""
    other = Gpu.objects.select_for_update(of=("self",)).select_related("machine").filter(uuid=uuid, removed_at=None)
    holder = other.exclude(machine=machine).first()
    if holder is None:
        return
    if holder.machine.provider_id != machine.provider_id or holder.machine.lost_at is None:
        raise UuidTaken(uuid=uuid)
    holder.removed_at = at
    holder.save(update_fields=["removed_at"])


def _tie_to_entry(machine: Machine, key: EnrolmentKey | None) -> None:
    """The approved entry of the machine's model gives it its place and power; the one with room comes first.

    A machine of another model is not tied, and is where its provider's hosts are, as far as we know.
    """
    if machine.entry is not None:
        return
    models = Counter(gpu.variant.model_id for gpu in _cards(machine) if gpu.variant)
    model = models.most_common(1)[0][0] if models else None
    entries = approved_entries(machine, key)
    fitting = sorted(
        (entry for entry in entries if entry.gpu_model_id == model and model), key=lambda entry: _room(entry) <= 0
    )
    machine.entry = fitting[0] if fitting else None
    site = machine.entry or (entries[0] if entries and not machine.country else None)
    if site is not None:
        machine.country, machine.city, machine.datacenter_region = site.country, site.city, site.datacenter_region
        machine.ups = site.application.ups


def approved_entries(machine: Machine, key: EnrolmentKey | None = None) -> list[ApplicationEntry]:
    """The provider's approved entries: those of the key's application first, then the latest."""
    entries = ApplicationEntry.objects.filter(
        application__organisation=machine.provider.organisation_id, application__state=Application.State.APPROVED
    ).select_related("application")
    preferred = key.application_id if key else None
    return sorted(entries, key=lambda entry: (entry.application_id != preferred, -entry.application_id, entry.position))


def _admit(machine: Machine) -> None:
    """Admit the cards that are within the approved entry's model and quantity."""
    if machine.entry is None:
        return
    waiting = [
        gpu
        for gpu in _cards(machine)
        if not gpu.admitted and gpu.given and gpu.variant and gpu.variant.model_id == machine.entry.gpu_model_id
    ]
    if not waiting:
        return
    # Two machines of one entry at once: the entry's row makes them count one after the other.
    ApplicationEntry.objects.select_for_update(no_key=True).get(pk=machine.entry.pk)
    admitted = waiting[: max(0, _room_locked(machine))]
    for gpu in admitted:
        gpu.admitted = True
        gpu.save(update_fields=["admitted"])
    if admitted:
        _give_up_places(machine.entry)


def _give_up_places(entry: ApplicationEntry) -> None:
    """Cards that are gone lose their admission to those that took their places, or swapping cards would admit any number."""
    gone = Gpu.objects.filter(
        machine__entry=entry, removed_at__isnull=False, admitted=True, variant__model=entry.gpu_model_id
    )
    taken = list(gone.order_by("removed_at", "pk").values_list("pk", flat=True))
    Gpu.objects.filter(pk__in=taken[: max(0, len(taken) - max(0, _room(entry)))]).update(admitted=False)


def _room_locked(machine: Machine) -> int:
    # Saved here, so that the count sees this machine as one of the entry's.
    Machine.objects.filter(pk=machine.pk).update(entry=machine.entry)
    return _room(machine.entry) if machine.entry else 0


def _room(entry: ApplicationEntry) -> int:
    """How many more cards the entry admits."""
    admitted = Gpu.objects.present().filter(machine__entry=entry, machine__retired_at=None, admitted=True)
    return entry.quantity - admitted.filter(variant__model=entry.gpu_model_id).count()


def _cards(machine: Machine) -> list[Gpu]:
    return list(Gpu.objects.present().filter(machine=machine).select_related("variant").order_by("index"))

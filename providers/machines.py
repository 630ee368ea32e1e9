"""Connecting a machine, knowing it again by its secret, and letting it go.

A machine enrols with its provider's key and gets a secret of its own; the key may be revoked afterwards. The secret is
shown once and kept as a SHA-256; enrolling again gives a new one, and the old one works on for ten minutes, so that an
agent whose answer was lost is not locked out.
"""

import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext_lazy as _

from gpunex.kit.refusals import Refusal
from gpunex.kit.secrets import digest, same
from providers import inventory as inventories
from providers import keys, schedules, workloads
from providers.inventory import Taken, UuidTaken
from providers.models import EnrolmentKey, Machine, Provider, Workload
from providers.nudges import nudge

SECRET_PREFIX = "gpxm"
SECRET_OVERLAP = timedelta(minutes=10)
_SECRET = re.compile(rf"{SECRET_PREFIX}_([0-9a-f]{{32}})_[A-Za-z0-9_-]{{20,100}}", re.ASCII)
_NAME_PARTS = re.compile(r"[^a-z0-9.-]+", re.ASCII)


class SecretUnknown(Refusal):
    code = "secret_unknown"
    message = _("No machine has this secret. Run the installer again with a key of the provider dashboard.")


class SecretRevoked(Refusal):
    code = "revoked"
    message = _("This machine was removed from the platform. Run the installer again to connect it anew.")


class SimulatedNotHere(Refusal):
    code = "invalid"
    message = _("Simulated machines connect to a demonstration only.")


class NoGpus(Refusal):
    code = "invalid"
    message = _("The machine reports no GPU. Check that nvidia-smi lists its cards, then try again.")


@dataclass(frozen=True)
class Enrolment:
    machine: Machine
    secret: str
    created: bool
    taken: Taken


@transaction.atomic
def enrol(
    *,
    key_text: str,
    fingerprint: str,
    hostname: str,
    agent_version: str,
    boot_id: str,
    simulated: bool,
    inventory: dict[str, Any],
    address: str | None,
    at: datetime,
) -> Enrolment:
    """Connect the host of ``fingerprint`` to the key's provider: a new machine, or the one it was, with a new secret.

    A host that is a copy of another's disk has a fingerprint of its own and becomes a machine of its own.
    Raises what ``keys.verify`` raises, NoGpus, SimulatedNotHere, and UuidTaken if every card is on another live machine;
    a refusal gives a single-use token back.
    """
    if simulated and not settings.EMBEDDED:
        raise SimulatedNotHere
    if not inventory["gpus"]:
        raise NoGpus
    key = keys.verify(text=key_text, fingerprint=fingerprint, address=address, at=at)
    # One enrolment of a provider at a time: a host that asks twice at once is one machine.
    provider = Provider.objects.select_for_update(no_key=True).get(pk=key.provider_id)
    machine = (
        Machine.objects.select_for_update(no_key=True)
        .filter(provider=provider, fingerprint=fingerprint, retired_at=None)
        .first()
    )
    created = machine is None
    if machine is None:
        machine = _new(provider, key, fingerprint=fingerprint, hostname=hostname, simulated=simulated, at=at)
    secret = _give_secret(machine, at)
    machine.agent_version, machine.boot_id = agent_version[:20], boot_id[:64]
    machine.save()
    taken = inventories.take(machine=machine, inventory=inventory, at=at, key=key)
    if created and not taken.accepted:
        raise UuidTaken(uuid=taken.rejected[0].uuid)
    machine.refresh_from_db()
    if created:
        sites = [machine.entry] if machine.entry else inventories.approved_entries(machine, key)
        schedules.first_version(machine=machine, entry=sites[0] if sites else None, at=at)
    return Enrolment(machine=machine, secret=secret, created=created, taken=taken)


def authenticate(*, text: str, at: datetime) -> Machine:
    """The machine whose secret ``text`` is. Raises SecretUnknown, SecretRevoked."""
    public_id = secret_of(text)
    machine = Machine.objects.filter(public_id=public_id).select_related("provider").first() if public_id else None
    if machine is None:
        raise SecretUnknown
    given = digest(text)
    overlapping = machine.old_secret_until is not None and at < machine.old_secret_until
    if not same(given, machine.secret_hash) and not (overlapping and same(given, machine.old_secret_hash)):
        raise SecretUnknown
    if machine.retired_at is not None:
        raise SecretRevoked
    return machine


def secret_of(text: str) -> UUID | None:
    """Whose secret ``text`` says it is; None where it has not the shape of one. Proves nothing yet."""
    match = _SECRET.fullmatch(text)
    return UUID(match[1]) if match else None


@transaction.atomic
def retire(*, machine: Machine, at: datetime) -> list[Workload]:
    """Let the machine go for good: its secret is void, its cards are free to enrol elsewhere.

    What it still runs ends as of its last proof of life, by its side's will; returns these workloads, whose owners have
    to hear of it. Repeating it is harmless.
    """
    machine = Machine.objects.select_for_update(no_key=True).get(pk=machine.pk)
    if machine.retired_at is not None:
        return []
    machine.retired_at = at
    machine.save(update_fields=["retired_at"])
    machine.gpus.filter(removed_at=None).update(removed_at=at)
    ended = list(Workload.objects.known_to_machine().filter(machine=machine).order_by("pk"))
    for workload in ended:
        workloads.end_unseen(workload=workload, cause="agent_shutdown", at=min(at, workload.proved_at or at))
    nudge(machine.public_id)
    return ended


def _new(
    provider: Provider, key: EnrolmentKey, *, fingerprint: str, hostname: str, simulated: bool, at: datetime
) -> Machine:
    return Machine(
        provider=provider,
        enrolled_with=key,
        name=free_name(provider, hostname),
        fingerprint=fingerprint,
        simulated=simulated,
        tier=provider.tier,
        enrolled_at=at,
    )


def free_name(provider: Provider, hostname: str) -> str:
    """The host's name as a name that none of the provider's live machines has: "rig", then "rig-2"."""
    base = _NAME_PARTS.sub("-", hostname.lower()).strip("-.")[:58] or "machine"
    taken = set(Machine.objects.live().filter(provider=provider).values_list("name", flat=True))
    names = (base if number == 1 else f"{base}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def _give_secret(machine: Machine, at: datetime) -> str:
    text = f"{SECRET_PREFIX}_{machine.public_id.hex}_{secrets.token_urlsafe(32)}"
    if machine.secret_hash:
        machine.old_secret_hash, machine.old_secret_until = machine.secret_hash, at + SECRET_OVERLAP
    machine.secret_hash = digest(text)
    return text

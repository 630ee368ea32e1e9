"""Breaks on the provider's side, with their evidence, and how each customer's job ended.

Written by who knows (``marketplace``), read by the score. An incident that an admin excuses no longer counts.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import User
from gpunex.kit.refusals import Refusal
from providers.models import GpuClaim, Machine
from reliability.models import Incident, Outcome


class ReasonMissing(Refusal):
    code = "reason_missing"
    message = _("Say why the incident is excused: the provider reads it.")


def record_incident(
    *,
    machine: Machine,
    key: str,
    cause: str,
    at: datetime,
    reference: UUID | None = None,
    evidence: dict[str, Any] | None = None,
) -> Incident:
    """Once a key; the same key again returns the first one."""
    incident, _made = Incident.objects.get_or_create(
        key=key,
        defaults={"machine": machine, "cause": cause, "at": at, "reference": reference, "evidence": evidence or {}},
    )
    return incident


def record_outcome(
    *,
    machine: Machine,
    reference: UUID,
    cause: str,
    provider_fault: bool,
    at: datetime,
    recorded_at: datetime | None = None,
) -> Outcome:
    """How the job of ``reference`` ended at ``at``, written once, and on which cards it was: those that it claimed.

    ``recorded_at``: when that came to be known, if later; a lost machine's jobs ended with its last proof of life.
    """
    cards = GpuClaim.objects.filter(reference=reference, lane=0).values_list("gpu_id", flat=True)
    outcome, _made = Outcome.objects.get_or_create(
        reference=reference,
        defaults={
            "machine": machine,
            "at": at,
            "cause": cause,
            "provider_fault": provider_fault,
            "recorded_at": max(at, recorded_at or at),
            "cards": sorted(set(cards)),
        },
    )
    return outcome


@transaction.atomic
def excuse(*, incident: Incident, by: User, reason: str, at: datetime) -> Incident:
    """It was not the provider's fault after all. The outcome of the same reference no longer counts. Raises ReasonMissing."""
    reason = " ".join(reason.split())
    if not reason:
        raise ReasonMissing
    incident = Incident.objects.select_for_update().get(pk=incident.pk)
    if incident.excused_at is None:
        incident.excused_at, incident.excused_reason, incident.excused_by = at, reason[:300], by
        incident.save(update_fields=["excused_at", "excused_reason", "excused_by"])
    return incident

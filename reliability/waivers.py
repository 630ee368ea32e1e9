"""Waivers of floors: an admin lets a machine or a GPU stay on the market below one floor, for a reason and until a date.

The end date is kept by itself: whoever asks, asks for a time, and the sweep of the floors applies what has run out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import User
from gpunex.kit.refusals import Refusal
from providers.models import Gpu, Machine
from reliability.models import Delisting, FloorWaiver

LONGEST = timedelta(days=366)


class WaiverReasonMissing(Refusal):
    code = "reason_missing"
    message = _("Say why the floor is waived: the provider reads it.")


class WaiverDateWrong(Refusal):
    code = "waiver_date"
    message = _("A waiver ends on a day to come, within a year. Choose another date.")


class WaiverElsewhere(Refusal):
    code = "waiver_gpu"
    message = _("This GPU is not of that machine. Choose one of its own, or none for all of them.")


@dataclass(frozen=True)
class Waivers:
    """The waivers of one machine that are valid at a time."""

    rows: Sequence[FloorWaiver]

    def covering(self, delisting: Delisting, gpu: Gpu) -> FloorWaiver | None:
        """The one that keeps ``gpu`` on the market in spite of ``delisting``; the longest, None where there is none."""
        fitting = [row for row in self.rows if row.floor == delisting.floor and row.gpu_id in (None, gpu.pk)]
        return max(fitting, key=lambda row: row.until, default=None)


def of(machine: Machine, *, at: datetime) -> Waivers:
    return Waivers(list(FloorWaiver.objects.valid(at).filter(machine=machine)))


@transaction.atomic
def grant(
    *, machine: Machine, gpu: Gpu | None, floor: str, reason: str, until: datetime, by: User, at: datetime
) -> FloorWaiver:
    """Waive ``floor``. What follows is applied by the caller (``floors.apply``).

    Raises WaiverReasonMissing, WaiverDateWrong, WaiverElsewhere.
    """
    reason = " ".join(reason.split())
    if not reason:
        raise WaiverReasonMissing
    if not at < until <= at + LONGEST:
        raise WaiverDateWrong
    if gpu is not None and gpu.machine_id != machine.pk:
        raise WaiverElsewhere
    return FloorWaiver.objects.create(
        machine=machine, gpu=gpu, floor=floor, reason=reason[:300], by=by, at=at, until=until
    )


@transaction.atomic
def revoke(*, waiver: FloorWaiver, by: User, at: datetime) -> FloorWaiver:
    """End it now. Repeating it is harmless."""
    waiver = FloorWaiver.objects.select_for_update(of=("self",)).get(pk=waiver.pk)
    if waiver.revoked_at is None:
        waiver.revoked_at, waiver.revoked_by = at, by
        waiver.save(update_fields=["revoked_at", "revoked_by"])
    return waiver

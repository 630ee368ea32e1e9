"""Time that counts neither for nor against a machine because an admin says so: pauses, and excused stretches of the past.

Both have a reason that the provider reads. A pause keeps the machine off the market while it lasts; what runs goes on. An
excuse takes a stretch out of the uptime after the fact, as after an appeal: scores from then on have it, older ones stay
what they were (``reliability.events``).
"""

from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import User
from gpunex.kit.refusals import Refusal
from providers.models import Machine
from reliability.models import Excuse, Pause


class ReasonMissing(Refusal):
    code = "reason_missing"
    message = _("Say why: the provider reads it.")


class PausedAlready(Refusal):
    code = "paused_already"
    message = _("The machine is paused already. End that pause first.")


class NotPaused(Refusal):
    code = "not_paused"
    message = _("The machine is not paused.")


class NoStretch(Refusal):
    code = "no_stretch"
    message = _("The stretch has to end after it begins, and to be over.")


@transaction.atomic
def pause(*, machine: Machine, by: User, reason: str, at: datetime) -> Pause:
    """Keep ``machine`` off the market until ``resume``. Raises ReasonMissing, PausedAlready."""
    reason = _reason(reason)
    machine = _locked(machine)
    if machine.paused_at is not None or Pause.objects.filter(machine=machine, ended_at=None).exists():
        raise PausedAlready
    machine.paused_at = at
    machine.save(update_fields=["paused_at"])
    return Pause.objects.create(machine=machine, started_at=at, reason=reason, by=by)


@transaction.atomic
def resume(*, machine: Machine, by: User, at: datetime) -> Machine:
    """End the pause. Raises NotPaused."""
    machine = _locked(machine)
    if machine.paused_at is None:
        raise NotPaused
    machine.paused_at = None
    machine.save(update_fields=["paused_at"])
    Pause.objects.filter(machine=machine, ended_at=None).update(ended_at=at, ended_by=by)
    return machine


def excuse_time(
    *, machine: Machine, started_at: datetime, ended_at: datetime, by: User, reason: str, at: datetime
) -> Excuse:
    """Take a stretch that is over out of the machine's uptime. Raises ReasonMissing, NoStretch."""
    reason = _reason(reason)
    if not started_at < ended_at <= at:
        raise NoStretch
    return Excuse.objects.create(
        machine=machine, started_at=started_at, ended_at=ended_at, reason=reason, by=by, recorded_at=at
    )


def _reason(text: str) -> str:
    reason = " ".join(text.split())[:300]
    if not reason:
        raise ReasonMissing
    return reason


def _locked(machine: Machine) -> Machine:
    return Machine.objects.select_for_update(no_key=True, of=("self",)).get(pk=machine.pk)

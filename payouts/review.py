"""What an administrator may do with a payout that stands still: let it go on, or take it back."""

from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from billing.ledger import ReasonMissing
from gpunex.accounts.models import User
from gpunex.kit.refusals import Refusal
from payouts.models import Payout
from payouts.runs import StaffOnly
from payouts.usdc import give_back


class NotInReview(Refusal):
    code = "not_in_review"
    message = _("This payout is not held for review.")


class StillAlive(Refusal):
    code = "still_alive"
    message = _("A signed transaction of this payout may still land, so it cannot be taken back yet.")


class OverAlready(Refusal):
    code = "over_already"
    message = _("This payout is over.")


@transaction.atomic
def resume(*, payout: Payout, by: User, reason: str, at: datetime) -> Payout:
    """Out of review: back to its live attempt if there is one, else to be signed anew. Raises StaffOnly, ReasonMissing, NotInReview."""
    payout = _for(payout, by=by, reason=reason)
    if payout.state != Payout.State.REVIEW:
        raise NotInReview
    alive = payout.attempts.filter(dead=False).exists()
    payout.state = Payout.State.SIGNED if alive else Payout.State.APPROVED
    payout.state_reason = reason.strip()[:300]
    payout.save(update_fields=["state", "state_reason"])
    return payout


@transaction.atomic
def take_back(*, payout: Payout, by: User, reason: str, at: datetime) -> Payout:
    """Cancel a payout that nothing signed can pay any more; its money is earnings again.

    Raises StaffOnly, ReasonMissing, OverAlready, StillAlive.
    """
    payout = _for(payout, by=by, reason=reason)
    if payout.state in (Payout.State.PAID, Payout.State.FAILED):
        raise OverAlready
    if payout.attempts.filter(dead=False).exists():
        raise StillAlive
    give_back(payout, reason=reason.strip()[:300], by=by, at=at)
    return payout


def _for(payout: Payout, *, by: User, reason: str) -> Payout:
    if not by.is_staff:
        raise StaffOnly
    if not reason.strip():
        raise ReasonMissing
    return Payout.objects.select_for_update(no_key=True).get(pk=payout.pk)

"""What an administrator may do with a payout that stands still: let it go on, or take it back."""

from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from billing.ledger import ReasonMissing
from gpunex.accounts.models import User
from gpunex.kit.refusals import Refusal
from payouts.approvals import StaffOnly
from payouts.bank.transfers import may_still_pay
from payouts.models import Payout
from payouts.outcomes import give_back, set_state


class NotInReview(Refusal):
    code = "not_in_review"
    message = _("This payout is not held for review.")


class StillAlive(Refusal):
    code = "still_alive"
    message = _("A signed transaction of this payout may still land, so it cannot be taken back yet.")


class WithTheBank(Refusal):
    code = "with_the_bank"
    message = _("The bank has this payout, or may have it. It comes back by the bank’s answer alone.")


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
    payout.resumed_at = at
    payout.save(update_fields=["resumed_at"])
    set_state(payout, Payout.State.SIGNED if alive else Payout.State.APPROVED, reason=reason.strip())
    return payout


@transaction.atomic
def take_back(*, payout: Payout, by: User, reason: str, at: datetime) -> Payout:
    """Cancel a payout that nothing can pay any more; its money is back where it came from.

    Raises StaffOnly, ReasonMissing, OverAlready, StillAlive, WithTheBank.
    """
    payout = _for(payout, by=by, reason=reason)
    if payout.state not in Payout.OPEN_STATES:
        raise OverAlready
    if payout.attempts.filter(dead=False).exists():
        raise StillAlive
    if may_still_pay(payout):
        raise WithTheBank
    give_back(payout, reason=reason.strip()[:300], by=by, at=at)
    return payout


def _for(payout: Payout, *, by: User, reason: str) -> Payout:
    if not by.is_staff:
        raise StaffOnly
    if not reason.strip():
        raise ReasonMissing
    rows = Payout.objects.select_for_update(no_key=True, of=("self",)).select_related("run", "organisation")
    return rows.get(pk=payout.pk)

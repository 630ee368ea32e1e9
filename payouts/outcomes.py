"""How a payout ends, whatever carried it: paid on chain, given back to where its money came from, or held for a person."""

from datetime import datetime
from typing import Any

from django.utils.translation import gettext_lazy as _

from billing import ledger, metering
from billing.ledger import Kind, Move, Posting
from billing.models import Account
from gpunex.accounts.models import User
from gpunex.accounts.notices import notify
from payouts import failpoints
from payouts.models import Payout, PayoutRun
from payouts.notices import PAYOUT_FAILED, PAYOUT_PAID, RETURN_FAILED, RETURN_PAID, alert


def source_of(payout: Payout) -> Account:
    """The account that a payout's money came from, and goes back to."""
    returned = payout.run.kind == PayoutRun.Kind.RETURN
    return ledger.account(Kind.RENTER_BALANCE if returned else Kind.PROVIDER_PAYABLE, organisation=payout.organisation)


def in_transit(payout: Payout) -> Account:
    return ledger.account(Kind.IN_TRANSIT, organisation=payout.organisation, reference=payout.public_id)


def paid_on_chain(payout: Payout, *, signature: str, at: datetime) -> None:
    """Precondition: the payout is locked, and its transaction was seen to be final and as it was signed."""
    ledger.post(
        key=f"payout:{payout.public_id}:paid",
        debit=in_transit(payout),
        credit=ledger.account(Kind.PAID_CHAIN),
        amount_micro=payout.amount_micro,
        kind=Move.PAID,
        reference=str(payout.public_id),
        data={"signature": signature},
        at=at,
    )
    set_state(payout, Payout.State.PAID, finished_at=at)
    _tell(
        payout,
        RETURN_PAID if payout.run.kind == PayoutRun.Kind.RETURN else PAYOUT_PAID,
        "paid",
        at=at,
        signature=signature,
    )


def give_back(payout: Payout, *, reason: str, by: User | None, at: datetime) -> None:
    """The payout failed for good: its money is earnings again, or balance again if it was a return.

    Precondition: the payout is locked, and nothing can pay it any more: no attempt of it is alive, no bank has it.
    """
    returned = payout.run.kind == PayoutRun.Kind.RETURN
    posting = Posting(
        key=f"payout:{payout.public_id}:back",
        debit=in_transit(payout),
        credit=source_of(payout),
        amount_micro=payout.amount_micro,
        kind=Move.BACK,
        reference=str(payout.public_id),
        actor=by,
        reason=reason,
    )
    if returned:
        # Whoever moves a renter's balance sets anew until when the running meters are funded.
        metering.move_and_fund(organisation=payout.organisation, postings=[posting], at=at)
    else:
        ledger.post_all([posting], at=at)
    set_state(payout, Payout.State.FAILED, reason=reason, finished_at=at)
    _tell(payout, RETURN_FAILED if returned else PAYOUT_FAILED, "failed", at=at, reason=payout.state_reason)
    failpoints.passing("before giving back is committed")


def hold(payout: Payout, *, reason: str, detail: str, at: datetime, key: str) -> None:
    """Nothing more happens to the payout until a person has looked; every administrator is told. Precondition: it is locked."""
    set_state(payout, Payout.State.REVIEW, reason=reason)
    alert(
        key=f"review:{payout.public_id}:{key}",
        what=_("one is held for review"),
        detail=_("Payout %(payout)s: %(reason)s. %(detail)s"),
        data={"payout": str(payout.public_id), "reason": payout.reason_label, "detail": detail},
        at=at,
    )
    failpoints.passing("before holding is committed")


def set_state(payout: Payout, state: str, *, reason: str = "", finished_at: datetime | None = None) -> None:
    payout.state, payout.state_reason, payout.finished_at = state, reason[:300], finished_at
    payout.save(update_fields=["state", "state_reason", "finished_at"])


def _tell(payout: Payout, event: Any, what: str, *, at: datetime, **data: str) -> None:
    notify(
        organisation=payout.organisation,
        event=event,
        key=f"payout:{payout.public_id}:{what}",
        at=at,
        data={
            "amount_micro": payout.amount_micro,
            "destination": payout.destination,
            "payout": str(payout.public_id),
            **data,
        },
    )

"""What the bank's word does to a payout: each transfer goes forward only, and every step is one transaction.

    in file ──▶ handed over ──▶ accepted ──▶ settled: paid ──▶ sent back: returned, payable again
         └──────────┴──────────────┴──▶ rejected, or sent back before it settled: failed, payable again

The same word again does nothing. A word that contradicts what is known (settled after it was rejected) raises DoesNotFit and does
nothing: if the bank is right, money left without a payout, and a person must look.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime, time

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from billing import ledger
from billing.ledger import Kind, Move
from gpunex.accounts.models import User
from gpunex.accounts.notices import notify
from gpunex.kit.refusals import Refusal
from payouts.bank.answers import Said
from payouts.bank.transfers import WITH_THE_BANK
from payouts.models import BankTransfer, Payout
from payouts.notices import BANK_PAID, BANK_RETURNED
from payouts.outcomes import give_back, in_transit, set_state

State = BankTransfer.State
# A payout whose transfer the bank has: handed over, or not recorded as such yet, or held by one of us meanwhile.
_UNDER_WAY = (Payout.State.APPROVED, Payout.State.EXPORTED, Payout.State.REVIEW)


class DoesNotFit(Refusal):
    code = "does_not_fit"
    message = _("The bank says “%(said)s”, and the transfer is “%(state)s”.")


class BookedTwice(Refusal):
    code = "booked_twice"
    message = _("booked a second time: the payout may have been paid twice")


@transaction.atomic
def apply(
    *,
    transfer: BankTransfer,
    said: Said,
    reason: str,
    by: User,
    at: datetime,
    booked_on: date | None = None,
    booking: tuple[str, str] = ("", ""),
) -> bool:
    """Do what the bank says of ``transfer``; False if that was known already. Raises DoesNotFit, BookedTwice.

    ``booking``: the kind of statement that says it, and the bank's own reference there, if it has one.
    """
    # Payout first, as everywhere; each is read after the wait for it.
    payout = Payout.objects.select_for_update(no_key=True).get(pk=transfer.payout_id)
    transfer = BankTransfer.objects.select_for_update(no_key=True).get(pk=transfer.pk)
    kind, reference = booking
    known_as = transfer.bookings.get(f"{kind} {said}") if reference else None
    if known_as not in (None, reference):
        raise BookedTwice
    changed = _STEPS[said](payout, transfer, reason=reason, by=by, at=at, booked_on=booked_on)
    if reference and known_as is None:
        transfer.bookings[f"{kind} {said}"] = reference
        transfer.save(update_fields=["bookings"])
    return changed


def _accept(
    payout: Payout, transfer: BankTransfer, *, reason: str, by: User, at: datetime, booked_on: date | None
) -> bool:
    if transfer.state in (State.ACKNOWLEDGED, State.SETTLED):
        return False
    _must_be_under_way(payout, transfer, Said.ACCEPTED)
    _set(transfer, State.ACKNOWLEDGED)
    if payout.state == Payout.State.APPROVED:
        set_state(payout, Payout.State.EXPORTED)
    return True


def _settle(
    payout: Payout, transfer: BankTransfer, *, reason: str, by: User, at: datetime, booked_on: date | None
) -> bool:
    if transfer.state == State.SETTLED or (transfer.state == State.RETURNED and transfer.settled_at is not None):
        return False
    _must_be_under_way(payout, transfer, Said.SETTLED)
    ledger.post(
        key=f"payout:{payout.public_id}:paid",
        debit=in_transit(payout),
        credit=ledger.account(Kind.PAID_BANK),
        amount_micro=payout.amount_micro,
        kind=Move.PAID,
        reference=str(payout.public_id),
        actor=by,
        data={"currency": transfer.currency, "cents": transfer.amount_cents},
        at=at,
    )
    transfer.settled_at = datetime.combine(booked_on, time(), UTC) if booked_on else at
    _set(transfer, State.SETTLED)
    set_state(payout, Payout.State.PAID, finished_at=at)
    notify(
        organisation=payout.organisation,
        event=BANK_PAID,
        key=f"payout:{payout.public_id}:paid",
        at=at,
        data=_told(payout, transfer),
    )
    return True


def _reject(
    payout: Payout, transfer: BankTransfer, *, reason: str, by: User, at: datetime, booked_on: date | None
) -> bool:
    if transfer.state == State.REJECTED:
        return False
    _must_be_under_way(payout, transfer, Said.REJECTED)
    _set(transfer, State.REJECTED, reason=reason)
    give_back(payout, reason=Payout.Reason.BANK_REJECTED, by=by, at=at)
    return True


def _return(
    payout: Payout, transfer: BankTransfer, *, reason: str, by: User, at: datetime, booked_on: date | None
) -> bool:
    if transfer.state == State.RETURNED:
        return False
    if transfer.state != State.SETTLED:
        # It came back before anything said that it had gone: the money never left the payout's own account.
        _must_be_under_way(payout, transfer, Said.RETURNED)
        _set(transfer, State.RETURNED, reason=reason)
        give_back(payout, reason=Payout.Reason.BANK_RETURNED, by=by, at=at)
        return True
    if payout.state != Payout.State.PAID:
        raise DoesNotFit(said=_word(Said.RETURNED), state=transfer.get_state_display())
    ledger.post(
        key=f"payout:{payout.public_id}:returned",
        debit=ledger.account(Kind.PAID_BANK),
        credit=ledger.account(Kind.PROVIDER_PAYABLE, organisation=payout.organisation),
        amount_micro=payout.amount_micro,
        kind=Move.RETURNED,
        reference=str(payout.public_id),
        actor=by,
        reason=reason,
        at=at,
    )
    _set(transfer, State.RETURNED, reason=reason)
    set_state(payout, Payout.State.RETURNED, reason=Payout.Reason.BANK_RETURNED, finished_at=at)
    notify(
        organisation=payout.organisation,
        event=BANK_RETURNED,
        key=f"payout:{payout.public_id}:returned",
        at=at,
        data=_told(payout, transfer),
    )
    return True


_STEPS: dict[Said, Callable[..., bool]] = {
    Said.ACCEPTED: _accept,
    Said.SETTLED: _settle,
    Said.REJECTED: _reject,
    Said.RETURNED: _return,
}


def _must_be_under_way(payout: Payout, transfer: BankTransfer, said: Said) -> None:
    if transfer.state not in WITH_THE_BANK or payout.state not in _UNDER_WAY:
        raise DoesNotFit(said=_word(said), state=transfer.get_state_display())


def _set(transfer: BankTransfer, state: str, *, reason: str = "") -> None:
    transfer.state = state
    transfer.bank_reason = reason or transfer.bank_reason
    transfer.save(update_fields=["state", "bank_reason", "settled_at"])


def _told(payout: Payout, transfer: BankTransfer) -> dict[str, str | int]:
    return {
        "amount_micro": payout.amount_micro,
        "amount": transfer.amount,
        "destination": payout.destination,
        "reference": transfer.end_to_end_id,
        "reason": transfer.bank_reason,
        "payout": str(payout.public_id),
    }


def _word(said: Said) -> str:
    return {
        Said.ACCEPTED: str(State.ACKNOWLEDGED.label),
        Said.SETTLED: str(State.SETTLED.label),
        Said.REJECTED: str(State.REJECTED.label),
        Said.RETURNED: str(State.RETURNED.label),
    }[said]

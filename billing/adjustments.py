"""Corrections by hand: one administrator asks for one with a reason, a second one makes it. Nothing moves before.

    kind        from → to                                      besides
    ----------  ---------------------------------------------  ---------------------------------------------------------------
    adjustment  any two of the accounts in ``ADJUSTABLE``
    refund      earnings of the provider, or platform.credits  of a meter: with its credits never more than it was charged
                → balance of the renter
    reversal    back from where to where a transfer went       once for ever; a reversed charge counts as given back
    write_off   platform.loss → platform.credits               of a debt: all that is open of it, and the debt is closed

What the chain or a bank proves (deposits, payouts) is not corrected here: the money is where they say. A deposit on the wrong balance is
moved by an adjustment, a payout is taken back on its own page. What a debt's transfers did is corrected by an adjustment too.

Both floors hold: nobody's balance and nobody's earnings go below nothing. Whoever's money moved is told, with the reason.
Locks: the adjustment, the debt, the payers, the meter, then accounts.
"""

from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from billing import ledger, metering
from billing.ledger import AlreadyReversed, Kind, Move, Posting, ReasonMissing
from billing.metering import RefundTooLarge
from billing.models import Account, Adjustment, Meter, ProviderDebt, Transfer
from billing.notices import BALANCE_LOWERED, BALANCE_RAISED, EARNINGS_LOWERED, EARNINGS_RAISED, REFUND_MADE
from gpunex.accounts.models import User
from gpunex.accounts.notices import Event, notify
from gpunex.kit.refusals import Refusal

State = Adjustment.State

ADJUSTABLE = frozenset(
    {Kind.RENTER_BALANCE, Kind.PROVIDER_PAYABLE, Kind.FEE, Kind.CREDITS, Kind.LOSS, Kind.ADJUSTMENTS}
)
REVERSIBLE = frozenset({Move.CHARGE, Move.FEE, Move.REFUND, Move.ADJUSTMENT})
_REASON_MOST = 300


class StaffOnly(Refusal):
    code = "staff_only"
    message = _("Only an administrator may do this.")


class SecondPersonNeeded(Refusal):
    code = "second_person_needed"
    message = _(
        "You asked for this correction yourself; a second administrator has to decide. You can withdraw it and ask anew."
    )


class NotYours(Refusal):
    code = "not_yours"
    message = _("Only %(name)s, who asked for this correction, can withdraw it; you can make or refuse it.")


class DecidedAlready(Refusal):
    code = "decided_already"
    message = _("This correction was decided already (%(state)s). Ask for a new one if more is to be changed.")


class AskedAlready(Refusal):
    code = "asked_already"
    message = _("The same correction is waiting for a second administrator already. Have it decided first.")


class NotAdjustable(Refusal):
    code = "not_adjustable"
    message = _(
        "Money of the account %(account)s is not moved by hand: the chain or the bank says what is there. Name two accounts of "
        "renters, providers or the platform's own."
    )


class SameAccount(Refusal):
    code = "same_account"
    message = _("From and to are the same account. Name two.")


class NotReversible(Refusal):
    code = "not_reversible"
    message = _(
        "A transfer of this kind (%(kind)s) is not reversed: its deposit, payout, credit or debt would say something else than the books. "
        "Move the money by an adjustment, or take a payout back on its own page."
    )


class NoOpenDebt(Refusal):
    code = "no_open_debt"
    message = _(
        "Nothing of this debt is open any more, or not as much. Look at it again; it may have been recovered since."
    )


class WrongAccounts(Refusal):
    code = "wrong_accounts"
    message = _(
        "A refund goes to the balance of the renter who was charged, from the earnings of the provider or from platform.credits."
    )


# --- asking ----------------------------------------------------------------------------------------------------------


@transaction.atomic
def ask(
    *,
    kind: str,
    debit: Account,
    credit: Account,
    amount_micro: int,
    reason: str,
    by: User,
    at: datetime,
    meter: Meter | None = None,
    reverses: Transfer | None = None,
    debt: ProviderDebt | None = None,
) -> Adjustment:
    """Ask for a correction; a second administrator makes or refuses it. ``reason`` is shown to whoever's money it moves.

    Raises StaffOnly, ReasonMissing, SameAccount and what the table above refuses; whether there is money enough is seen when it is made.
    """
    if not by.is_staff:
        raise StaffOnly
    if not reason.strip():
        raise ReasonMissing
    if amount_micro <= 0:
        raise ValueError("an adjustment moves a positive amount")
    wanted = Adjustment(
        kind=kind,
        debit=debit,
        credit=credit,
        amount_micro=amount_micro,
        reason=reason.strip()[:_REASON_MOST],
        meter=meter,
        reverses=reverses,
        debt=debt,
        asked_by=by,
        asked_at=at,
    )
    _refuse_wrong(wanted)
    # One form sent twice at once: the second comes after the first is there.
    User.objects.select_for_update(no_key=True).get(pk=by.pk)
    waiting = Adjustment.objects.filter(state=State.ASKED, reverses=reverses, debt=debt)
    if reverses is None and debt is None:
        same = {"kind": kind, "debit": debit, "credit": credit, "amount_micro": amount_micro}
        waiting = waiting.filter(**same, meter=meter, reason=wanted.reason)
    if waiting.exists():
        raise AskedAlready
    wanted.save()
    return wanted


def ask_refund(
    *, meter: Meter, amount_micro: int, from_earnings: bool, reason: str, by: User, at: datetime
) -> Adjustment:
    """Give ``amount_micro`` of what ``meter`` charged back to its payer, out of the payee's earnings or at the platform's expense."""
    source = ledger.account(Kind.PROVIDER_PAYABLE, organisation=meter.payee) if from_earnings else None
    return ask(
        kind=Adjustment.Kind.REFUND,
        debit=source or ledger.account(Kind.CREDITS),
        credit=ledger.account(Kind.RENTER_BALANCE, organisation=meter.payer),
        amount_micro=amount_micro,
        reason=reason,
        by=by,
        at=at,
        meter=meter,
    )


def ask_reversal(*, transfer: Transfer, reason: str, by: User, at: datetime) -> Adjustment:
    """Move all of ``transfer`` back."""
    return ask(
        kind=Adjustment.Kind.REVERSAL,
        debit=transfer.credit,
        credit=transfer.debit,
        amount_micro=transfer.amount_micro,
        reason=reason,
        by=by,
        at=at,
        meter=_meter_of(transfer),
        reverses=transfer,
    )


def ask_write_off(*, debt: ProviderDebt, reason: str, by: User, at: datetime) -> Adjustment:
    """Give up what is open of ``debt``: the platform bears it. Raises NoOpenDebt."""
    if not debt.open_micro:
        raise NoOpenDebt
    return ask(
        kind=Adjustment.Kind.WRITE_OFF,
        debit=ledger.account(Kind.LOSS),
        credit=ledger.account(Kind.CREDITS),
        amount_micro=debt.open_micro,
        reason=reason,
        by=by,
        at=at,
        debt=debt,
    )


# --- deciding --------------------------------------------------------------------------------------------------------


@transaction.atomic
def make(*, adjustment: Adjustment, by: User, at: datetime) -> Adjustment:
    """The second administrator's yes: the money moves, whoever it belongs to is told.

    Raises StaffOnly, SecondPersonNeeded, DecidedAlready, NotEnoughMoney, RefundTooLarge, AlreadyReversed, NoOpenDebt.
    """
    adjustment = _deciding(adjustment, by=by)
    if adjustment.debt_id is not None:
        adjustment.debt = ProviderDebt.objects.select_for_update(no_key=True).get(pk=adjustment.debt_id)
    _refuse_wrong(adjustment)
    payers = [
        account.organisation
        for account in (adjustment.debit, adjustment.credit)
        if account.kind == Kind.RENTER_BALANCE and account.organisation is not None
    ]
    metering.lock_payers(payers)
    _note_on_meter(adjustment)
    [adjustment.transfer] = metering.move_and_fund_all(
        organisations=payers, postings=[_posting(adjustment, by=by)], at=at
    )
    if adjustment.debt is not None:
        adjustment.debt.state, adjustment.debt.closed_at = ProviderDebt.State.WRITTEN_OFF, at
        adjustment.debt.save(update_fields=["state", "closed_at"])
    _decide(adjustment, State.MADE, by=by, at=at)
    _tell(adjustment, at=at)
    return adjustment


@transaction.atomic
def refuse(*, adjustment: Adjustment, by: User, note: str, at: datetime) -> Adjustment:
    """The second administrator's no, and why. Raises StaffOnly, SecondPersonNeeded, DecidedAlready, ReasonMissing."""
    adjustment = _deciding(adjustment, by=by)
    if not note.strip():
        raise ReasonMissing
    return _decide(adjustment, State.REFUSED, by=by, at=at, note=note)


@transaction.atomic
def withdraw(*, adjustment: Adjustment, by: User, at: datetime, note: str = "") -> Adjustment:
    """Whoever asked changed their mind. Raises NotYours, DecidedAlready."""
    adjustment = _locked(adjustment)
    if adjustment.asked_by_id != by.pk:
        raise NotYours(name=adjustment.asked_by.get_full_name())
    return _decide(adjustment, State.WITHDRAWN, by=by, at=at, note=note)


def _locked(adjustment: Adjustment) -> Adjustment:
    Adjustment.objects.select_for_update(no_key=True).only("pk").get(pk=adjustment.pk)
    adjustment = Adjustment.objects.select_related(
        "debit__organisation", "credit__organisation", "meter", "reverses", "asked_by"
    ).get(pk=adjustment.pk)
    if adjustment.state != State.ASKED:
        raise DecidedAlready(state=adjustment.get_state_display())
    return adjustment


def _deciding(adjustment: Adjustment, *, by: User) -> Adjustment:
    if not by.is_staff:
        raise StaffOnly
    adjustment = _locked(adjustment)
    if adjustment.asked_by_id == by.pk:
        raise SecondPersonNeeded
    return adjustment


def _decide(adjustment: Adjustment, state: State, *, by: User, at: datetime, note: str = "") -> Adjustment:
    adjustment.state, adjustment.decided_by, adjustment.decided_at = state, by, at
    adjustment.decision_note = note.strip()[:_REASON_MOST]
    adjustment.save(update_fields=["state", "decided_by", "decided_at", "decision_note", "transfer"])
    return adjustment


# --- rules -----------------------------------------------------------------------------------------------------------


def _refuse_wrong(wanted: Adjustment) -> None:
    """The table above; asked for and again, under the locks, when it is made."""
    if wanted.debit_id == wanted.credit_id:
        raise SameAccount
    match wanted.kind:
        case Adjustment.Kind.ADJUSTMENT:
            for account in (wanted.debit, wanted.credit):
                if account.kind not in ADJUSTABLE:
                    raise NotAdjustable(account=account.code)
        case Adjustment.Kind.REFUND:
            _refuse_wrong_refund(wanted)
        case Adjustment.Kind.REVERSAL:
            _refuse_wrong_reversal(wanted)
        case Adjustment.Kind.WRITE_OFF:
            if wanted.debt is None or (wanted.debit.kind, wanted.credit.kind) != (Kind.LOSS, Kind.CREDITS):
                raise WrongAccounts
            if wanted.debt.open_micro != wanted.amount_micro:
                raise NoOpenDebt


def _refuse_wrong_refund(wanted: Adjustment) -> None:
    meter, debit, credit = wanted.meter, wanted.debit, wanted.credit
    if meter is None or (credit.kind, credit.organisation_id) != (Kind.RENTER_BALANCE, meter.payer_id):
        raise WrongAccounts
    if debit.kind != Kind.CREDITS and (debit.kind, debit.organisation_id) != (Kind.PROVIDER_PAYABLE, meter.payee_id):
        raise WrongAccounts
    left = meter.billed_gross_micro - meter.refunded_micro
    if wanted.amount_micro > left:
        raise RefundTooLarge(asked_micro=wanted.amount_micro, left_micro=left)


def _refuse_wrong_reversal(wanted: Adjustment) -> None:
    transfer = wanted.reverses
    if transfer is None or transfer.kind not in REVERSIBLE:
        raise NotReversible(kind=transfer.kind if transfer else "")
    if Transfer.objects.filter(reverses=transfer).exists():
        raise AlreadyReversed
    back = (transfer.credit_id, transfer.debit_id, transfer.amount_micro)
    if (wanted.debit_id, wanted.credit_id, wanted.amount_micro) != back:
        raise WrongAccounts


def _meter_of(transfer: Transfer) -> Meter | None:
    if transfer.kind not in (Move.CHARGE, Move.FEE, Move.REFUND):
        return None
    return Meter.objects.filter(public_id=transfer.reference).first()


def _note_on_meter(adjustment: Adjustment) -> None:
    """A refund, or a charge reversed, is given back of the meter; a refund that is reversed is not any more."""
    if adjustment.meter is None:
        return
    taken_back = adjustment.reverses is not None and adjustment.reverses.kind == Move.REFUND
    metering.note_refund(adjustment.meter, -adjustment.amount_micro if taken_back else adjustment.amount_micro)


_MOVES = {
    Adjustment.Kind.ADJUSTMENT: Move.ADJUSTMENT,
    Adjustment.Kind.REFUND: Move.REFUND,
    Adjustment.Kind.REVERSAL: Move.REVERSAL,
    Adjustment.Kind.WRITE_OFF: Move.WRITE_OFF,
}


def _posting(adjustment: Adjustment, *, by: User) -> Posting:
    about = adjustment.public_id
    if adjustment.kind == Adjustment.Kind.REFUND and adjustment.meter is not None:
        about = adjustment.meter.public_id
    elif adjustment.debt is not None:
        about = adjustment.debt.public_id
    return Posting(
        key=f"adjustment:{adjustment.public_id}",
        debit=adjustment.debit,
        credit=adjustment.credit,
        amount_micro=adjustment.amount_micro,
        kind=_MOVES[Adjustment.Kind(adjustment.kind)],
        reference=adjustment.reverses.reference if adjustment.reverses is not None else str(about),
        actor=by,
        reason=adjustment.reason,
        reverses=adjustment.reverses,
        data={"adjustment": str(adjustment.public_id), "asked_by": adjustment.asked_by_id},
    )


# --- telling ---------------------------------------------------------------------------------------------------------


def _tell(adjustment: Adjustment, *, at: datetime) -> None:
    """Each side that is somebody's, in its own words."""
    raised = REFUND_MADE if adjustment.kind == Adjustment.Kind.REFUND else BALANCE_RAISED
    events: dict[tuple[str, bool], Event] = {
        (Kind.RENTER_BALANCE, True): raised,
        (Kind.RENTER_BALANCE, False): BALANCE_LOWERED,
        (Kind.PROVIDER_PAYABLE, True): EARNINGS_RAISED,
        (Kind.PROVIDER_PAYABLE, False): EARNINGS_LOWERED,
    }
    for account, came in ((adjustment.debit, False), (adjustment.credit, True)):
        event = events.get((account.kind, came))
        if event is None or account.organisation is None:
            continue
        data = {"amount_micro": adjustment.amount_micro, "reason": adjustment.reason, "what": _what(adjustment)}
        key = f"adjustment:{adjustment.public_id}:{event.name}"
        notify(organisation=account.organisation, event=event, key=key, data=data, at=at)


def _what(adjustment: Adjustment) -> str:
    """The rental, as statements name it; empty where there is none."""
    if adjustment.meter is None:
        return ""
    labels = adjustment.meter.labels
    return f"{adjustment.meter.quantity} × {labels.get('model', '')} ({labels.get('machine', '')})"

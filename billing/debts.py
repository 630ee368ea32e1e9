"""Credits for a provider's fault, and what a provider owes of them: the part that its earnings did not cover.

1. The renter is credited at once, from ``platform.credits``. What the provider's payable covers moves there in the same transaction;
   the rest is its debt, taken from later earnings before a payout. One debt a reference, for ever.
2. Nothing is taken but from payable: the floor of nothing holds. What is recovered goes to ``platform.credits``, oldest debt first.
3. A recovery's key says how much of the debt was recovered before it, so a repeat of the same step moves nothing.
4. What will never be recovered is written off by two administrators (``billing.adjustments``); the platform bears it.

Locks: the payable account first, then its debts by id. Whoever writes one off locks the debt alone, and accounts that are not locked.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F, Sum

from billing import ledger, metering
from billing.ledger import Kind, Move, Posting
from billing.models import Meter, ProviderDebt, Transfer
from billing.notices import DEBT_OWED
from gpunex.accounts.models import Organisation
from gpunex.accounts.notices import notify

State = ProviderDebt.State


@transaction.atomic
def credit(*, meter: Meter, amount_micro: int, data: dict[str, Any], advance: bool, at: datetime) -> int:
    """Credit the meter's payer for its payee's fault, once for ever; returns how much. ``data`` says for what.

    Without ``advance`` only what the payee's earnings cover is given. Raises RefundTooLarge beyond what the meter billed.
    Precondition: the meter is closed in this very transaction, which holds the lock of the payable account.
    """
    key = credit_key(meter.reference)
    before = Transfer.objects.filter(key=key).first()
    if before is not None:
        return before.amount_micro
    credits = ledger.account(Kind.CREDITS)
    payable = ledger.account(Kind.PROVIDER_PAYABLE, organisation=meter.payee)
    covered = min(amount_micro, ledger.balance(payable))
    amount = amount_micro if advance else covered
    if amount <= 0:
        return 0
    balance = ledger.account(Kind.RENTER_BALANCE, organisation=meter.payer)
    postings = [Posting(key, credits, balance, amount, Move.CREDIT, meter.reference, data=data)]
    if covered:
        cover = f"credit_cover:{meter.reference}"
        postings.append(Posting(cover, payable, credits, covered, Move.CREDIT, meter.reference, data=data))
    metering.note_refund(meter, amount)
    metering.move_and_fund(organisation=meter.payer, postings=postings, at=at)
    if amount > covered:
        owe(organisation=meter.payee, reference=meter.reference, amount_micro=amount - covered, at=at)
    return amount


def credit_key(reference: str | UUID) -> str:
    """The key of the one credit for ``reference`` (the public id of a rental)."""
    return f"credit:{reference}"


@transaction.atomic
def owe(*, organisation: Organisation, reference: str | UUID, amount_micro: int, at: datetime) -> ProviderDebt:
    """Note what ``organisation`` owes for ``reference`` (the public id of a rental or payout), and tell it. Once: a repeat returns the first."""
    debt, made = ProviderDebt.objects.get_or_create(
        reference=str(reference),
        defaults={"organisation": organisation, "amount_micro": amount_micro, "created_at": at},
    )
    if made:
        data = {"amount_micro": amount_micro, "reference": str(reference), "open_micro": open_debt(organisation)}
        notify(organisation=organisation, event=DEBT_OWED, key=f"debt:{debt.public_id}", data=data, at=at)
    return debt


def open_debt(organisation: Organisation) -> int:
    """Micro-USDC that are still to be recovered from ``organisation``."""
    owed = ProviderDebt.objects.filter(organisation=organisation, state=State.OPEN)
    return owed.aggregate(left=Sum(F("amount_micro") - F("recovered_micro")))["left"] or 0


def recent(organisation: Organisation, *, count: int = 20) -> list[ProviderDebt]:
    """For the Payouts tab: what is open first, then what is over, the newest first."""
    rows = ProviderDebt.objects.filter(organisation=organisation)
    return list(rows.order_by(F("closed_at").desc(nulls_first=True), "-pk")[:count])


@transaction.atomic
def recover(*, organisation: Organisation, at: datetime, limit_micro: int) -> int:
    """Take what is owed from the earnings, oldest debt first, at most ``limit_micro``. Returns the micro-USDC taken.

    Precondition: inside the caller's transaction, which holds the lock of the payable account. Never more than is payable.
    """
    payable = ledger.account(Kind.PROVIDER_PAYABLE, organisation=organisation)
    left = min(limit_micro, ledger.balance(payable))
    credits = ledger.account(Kind.CREDITS)
    postings = []
    owed = ProviderDebt.objects.select_for_update(no_key=True).filter(organisation=organisation, state=State.OPEN)
    for debt in owed.order_by("pk"):
        taken = min(left, debt.open_micro)
        if taken <= 0:
            break
        postings.append(
            Posting(
                key=f"debt:{debt.public_id}:recovered_after:{debt.recovered_micro}",
                debit=payable,
                credit=credits,
                amount_micro=taken,
                kind=Move.RECOVERY,
                reference=str(debt.public_id),
                data={"for": debt.reference},
            )
        )
        left -= taken
        debt.recovered_micro += taken
        if not debt.open_micro:
            debt.state, debt.closed_at = State.RECOVERED, at
        debt.save(update_fields=["recovered_micro", "state", "closed_at"])
    ledger.post_all(postings, at=at)
    return sum(posting.amount_micro for posting in postings)

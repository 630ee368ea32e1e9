"""A payout as the bank carries it, and whether the account it goes to is still trusted.

After a transfer came back because of the account (closed, wrong number, name), nothing more is sent to it until its owner confirmed
it or gave another one: the earnings wait, they are not lost.

>>> from uuid import UUID
>>> end_to_end_id(UUID("9f0c2f4e-2f1b-4d35-8f0a-0c1d2e3f4a5b"))
'GPX9f0c2f4e2f1b4d358f0a0c1d2e3f4a5b'
"""

from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import User
from gpunex.kit.refusals import Refusal
from payouts import methods
from payouts.bank import RAILS, currency_of
from payouts.bank.rates import Converted
from payouts.models import BankTransfer, Payout, PayoutMethod

State = BankTransfer.State

PREFIX = "GPX"
# From the making of the file on, the bank may have it, whoever has recorded that or not.
WITH_THE_BANK = (State.IN_FILE, State.EXPORTED, State.ACKNOWLEDGED)
# ISO 20022's external reason codes and Nacha's return codes. A rejection speaks against the account with these; a return speaks
# against it unless it was asked for, or was a duplicate.
_OF_THE_ACCOUNT = (
    r"^(AC0[1-9]|AC1[0-9]|AG0[1-3]|BE0[1-9]|MD0[67]|MS0[23]|RC0[1-9]|RR0[1-4]|CNOR|R0[2-4]|R1[2-7]|R20|R23|R34)"
)
_NOBODYS_FAULT = r"^(AM0|AM1|CUST|DU|FOCR|TECH|R06|R24)"


class NothingToConfirm(Refusal):
    code = "nothing_to_confirm"
    message = _("No bank account waits for a confirmation.")


def end_to_end_id(payout_id: UUID) -> str:
    """Ours alone, at most 35 characters of those every bank takes."""
    return PREFIX + payout_id.hex


def attach(*, payout: Payout, converted: Converted, at: datetime) -> BankTransfer:
    """What the bank shall transfer for ``payout``, fixed once for ever. Precondition: inside the transaction that makes the payout."""
    if payout.amount_micro != converted.cost_micro:
        raise ValueError(f"payout {payout.public_id}: its amount is not what its cents cost")
    return BankTransfer.objects.create(
        payout=payout,
        end_to_end_id=end_to_end_id(payout.public_id),
        currency=currency_of(payout.rail),
        amount_cents=converted.cents,
        rate=converted.rate,
    )


def may_still_pay(payout: Payout) -> bool:
    """Whether the bank has this payout, or may have it, and has not said no: then its money must stay in transit."""
    return BankTransfer.objects.filter(payout=payout, state__in=WITH_THE_BANK).exists()


def doubt(method: PayoutMethod) -> BankTransfer | None:
    """The transfer that came back from this account and that its owner has said nothing about yet; None if there is none."""
    if method.rail not in RAILS:
        return None
    came_back = Q(state=State.REJECTED, bank_reason__regex=_OF_THE_ACCOUNT) | (
        Q(state=State.RETURNED) & ~Q(bank_reason__regex=_NOBODYS_FAULT)
    )
    since = Q(payout__finished_at__gt=method.verified_at) if method.verified_at else Q()
    return (
        BankTransfer.objects.filter(came_back, since, payout__method=method)
        .order_by("-payout__finished_at", "-pk")
        .first()
    )


@transaction.atomic
def confirm_account(*, method: PayoutMethod, by: User, at: datetime) -> PayoutMethod:
    """Its owner looked: the account is right, payouts go to it again. Raises NotForThisRole, NothingToConfirm."""
    if not methods.may_change(method.organisation, by):
        raise methods.NotForThisRole
    method = PayoutMethod.objects.select_for_update(no_key=True).get(pk=method.pk)
    if doubt(method) is None:
        raise NothingToConfirm
    method.verified_at = at
    method.save(update_fields=["verified_at"])
    return method

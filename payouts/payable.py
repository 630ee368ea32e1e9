"""How much of a provider's earnings can be paid out: not what was earned after the cut-off, nor what running rentals may still cost,
nor what the provider owes."""

from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Sum

from billing import debts, ledger
from billing.ledger import Kind
from billing.models import Account, Meter
from gpunex.accounts.models import Organisation
from gpunex.policy.models import Policy
from payouts import failpoints


@dataclass(frozen=True, slots=True)
class Payable:
    """What can be paid out now, what was earned after the cut-off, and what stays for rentals that run."""

    account: Account  # locked
    micro: int
    later_micro: int
    kept_micro: int


def payable_at(organisation: Organisation, cut_off: datetime | None) -> Payable:
    """What was earned (before ``cut_off``, if given), is not paid out yet and need not be kept back.

    Locks the account until the transaction ends.
    """
    locked = Account.objects.select_for_update(no_key=True)
    account = locked.filter(kind=Kind.PROVIDER_PAYABLE, organisation=organisation).first() or locked.get(
        pk=ledger.account(Kind.PROVIDER_PAYABLE, organisation=organisation).pk
    )
    later = 0
    if cut_off is not None:
        later = account.incoming.filter(effective_at__gte=cut_off).aggregate(total=Sum("amount_micro"))["total"] or 0
    kept = kept_back(organisation)
    micro = max(0, account.balance_micro - later - kept)
    return Payable(account=account, micro=micro, later_micro=later, kept_micro=kept)


def kept_back(organisation: Organisation) -> int:
    """What stays until the rentals that run now have ended: the most that a break of them would credit to their renters.

    Without it a provider could be paid for a rental, break it, and leave its credit to the platform. The longest credit
    of any tier is counted, since a meter knows no tiers; once a rental ends well all of it is payable.
    """
    running = list(
        Meter.objects.filter(payee=organisation, closed=False).values_list(
            "billed_gross_micro", "billed_fee_micro", "rate_micro_per_hour"
        )
    )
    if not running:
        return 0
    policy = Policy.load()
    minutes = max(policy.sla_community_minutes, policy.sla_enterprise_minutes)
    return sum(min(billed - fee, rate * minutes // 60) for billed, fee, rate in running)


def after_debts(organisation: Organisation, payable: Payable, *, at: datetime) -> Payable:
    """What is payable once the provider's debts are taken out of it. Precondition: ``payable_at`` in this transaction."""
    if payable.micro <= 0 or not debts.open_debt(organisation):
        return payable
    recovered = debts.recover(organisation=organisation, at=at, limit_micro=payable.micro)
    failpoints.passing("debts were recovered")
    return replace(payable, micro=payable.micro - recovered)

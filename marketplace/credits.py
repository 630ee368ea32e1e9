"""The service credit: what a renter gets for a rental that the provider's side broke, beyond not paying past the break.

It is the price of the rental's last minutes, 30 in the community tier and 120 in the enterprise tier (settings), never more
than the rental was charged. The renter has it at once, from ``platform.credits``; what the provider's payable covers moves
there at once too (``payouts.runs.kept_back`` sees to it that it covers the running rentals' credits), and the platform
bears the rest. Where somebody belongs to both sides the platform bears nothing: a provider
who rents his own GPUs, is paid out and then pulls the plug would have made the credit out of nothing.

>>> credit_of(charged_micro=18_017_222, rate_micro_per_hour=4_100_000, minutes=120)
8200000
>>> credit_of(charged_micro=1_000_000, rate_micro_per_hour=4_100_000, minutes=120)
1000000
"""

from datetime import datetime

from billing import ledger, metering
from billing.ledger import Kind, Move, Posting
from billing.models import Meter, Transfer
from gpunex.accounts.models import Membership, Organisation
from gpunex.policy.models import Policy, Tier
from marketplace.models import Rental


def credit_of(*, charged_micro: int, rate_micro_per_hour: int, minutes: int) -> int:
    return min(charged_micro, rate_micro_per_hour * minutes // 60)


def minutes_of(tier: str) -> int:
    policy = Policy.load()
    return policy.sla_enterprise_minutes if tier == Tier.ENTERPRISE else policy.sla_community_minutes


def credit(*, rental: Rental, meter: Meter, at: datetime) -> int:
    """Credit the renter of a broken ``rental``, once for ever; returns how much. Precondition: the meter is closed.

    Within the transaction that ends the rental, so nobody sees a broken rental without its credit.
    """
    amount = credit_of(
        charged_micro=meter.billed_gross_micro,
        rate_micro_per_hour=meter.rate_micro_per_hour,
        minutes=minutes_of(rental.tier),
    )
    if not amount:
        return 0
    reference = str(rental.public_id)
    credits = ledger.account(Kind.CREDITS)
    balance = ledger.account(Kind.RENTER_BALANCE, organisation=rental.organisation)
    payable = ledger.account(Kind.PROVIDER_PAYABLE, organisation=rental.provider.organisation)
    data = {"cause": rental.cause, "minutes": minutes_of(rental.tier)}
    # Closing the meter locked the payable, so what it covers now it still covers in the same transaction.
    covered = min(amount, ledger.balance(payable))
    if of_one_hand(rental.organisation, rental.provider.organisation):
        amount = covered
    if not amount:
        return 0
    postings = [Posting(key_of(rental), credits, balance, amount, Move.CREDIT, reference, data=data)]
    if covered > 0:
        postings.append(
            Posting(f"credit_cover:{reference}", payable, credits, covered, Move.CREDIT, reference, data=data)
        )
    metering.move_and_fund(organisation=rental.organisation, postings=postings, at=at)
    return amount


def of_one_hand(renter: Organisation, provider: Organisation) -> bool:
    """Whether somebody is a member of both."""
    members = Membership.objects.filter(organisation=provider)
    return Membership.objects.filter(organisation=renter, user__in=members.values("user")).exists()


def key_of(rental: Rental) -> str:
    return f"credit:{rental.public_id}"


def given(rental: Rental) -> int:
    """What was credited for ``rental``, 0 if nothing."""
    return Transfer.objects.filter(key=key_of(rental)).values_list("amount_micro", flat=True).first() or 0

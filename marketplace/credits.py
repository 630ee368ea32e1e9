"""The service credit: what a renter gets for a rental that the provider's side broke, beyond not paying past the break.

It is the price of the rental's last minutes, 30 in the community tier and 120 in the enterprise tier (settings), never more
than the rental was charged. The renter has it at once, from ``platform.credits``; what the provider's payable covers moves
there at once too (``payouts.payable.kept_back`` sees to it that it covers the running rentals' credits), and the
rest is the provider's debt, recovered before its next payout. Where somebody belongs to both sides the platform advances nothing: a
provider who rents his own GPUs, is paid out and then pulls the plug would have made the credit out of nothing.

Credits and refunds of one rental together never exceed what it was charged: the meter keeps count.

>>> credit_of(charged_micro=18_017_222, rate_micro_per_hour=4_100_000, minutes=120)
8200000
>>> credit_of(charged_micro=1_000_000, rate_micro_per_hour=4_100_000, minutes=120)
1000000
"""

from datetime import datetime

from billing import debts
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
    meter.refresh_from_db(fields=["billed_gross_micro", "refunded_micro"])
    amount = credit_of(
        charged_micro=meter.billed_gross_micro - meter.refunded_micro,
        rate_micro_per_hour=meter.rate_micro_per_hour,
        minutes=minutes_of(rental.tier),
    )
    if not amount:
        return given(rental)
    return debts.credit(
        meter=meter,
        amount_micro=amount,
        data={"cause": rental.cause, "minutes": minutes_of(rental.tier)},
        advance=not of_one_hand(rental.organisation, rental.provider.organisation),
        at=at,
    )


def of_one_hand(renter: Organisation, provider: Organisation) -> bool:
    """Whether somebody is a member of both."""
    members = Membership.objects.filter(organisation=provider)
    return Membership.objects.filter(organisation=renter, user__in=members.values("user")).exists()


def given(rental: Rental) -> int:
    """What was credited for ``rental``, 0 if nothing."""
    return (
        Transfer.objects.filter(key=debts.credit_key(rental.public_id)).values_list("amount_micro", flat=True).first()
        or 0
    )

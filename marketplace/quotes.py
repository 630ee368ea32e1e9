"""What renting costs, said before renting, by the same arithmetic that bills it.

Rules
1. The price is the one that ``start_rental`` will read, per GPU and hour; all GPUs together cost ``rate`` an hour, and ``s`` seconds cost
   ``metering.gross_of(rate, s)``: the meter's own function, so the quote for a rental's seconds is its bill, to the micro-USDC.
2. The platform's fee is contained in the price and borne by the provider: it is never added.
3. To start, the balance must cover the policy's runway (an hour) of all that the payer runs, starts, and adds with this.
4. How long the balance lasts is ``metering``'s ``funded_until`` as it would be if this rental, and those that are starting, ran from now on.
5. A rental with limits ends at the first of them, in whole seconds of running, and the most it costs is the cost of those.

4,217 s of 3 GPUs at 0.37 an hour:

>>> from billing.metering import gross_of
>>> gross_of(3 * 370_000, 4217)
1300241
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

from django.utils.translation import gettext_lazy as _

from billing import ledger, metering
from billing.funding import FUNDED_AT_MOST
from billing.models import Meter
from gpunex.accounts.models import Organisation
from gpunex.kit.time import whole_seconds
from gpunex.policy.models import Policy, TierPolicy
from marketplace import limits
from marketplace.models import Listing, ModelPrice
from marketplace.rentals import NotOffered, TooManyGpus, pending_rates
from providers.schedules import window_around

HOUR, DAY = 3600, 86_400


@dataclass(frozen=True, slots=True)
class Funds:
    """A payer's money beside a quote. ``others_micro_per_hour``: what its other rentals, running and starting, cost an hour."""

    available_micro: int
    needed_micro: int
    others_micro_per_hour: int
    lasts_until: datetime
    lasts_seconds: int

    @property
    def short_micro(self) -> int:
        """What is missing to start; 0 if nothing is."""
        return max(0, self.needed_micro - self.available_micro)


@dataclass(frozen=True, slots=True)
class End:
    """After how many seconds of running it ends, and by which limit: ``stop_after``, ``spend_at_most`` or ``hours``."""

    seconds: int
    by: str


@dataclass(frozen=True, slots=True)
class Quote:
    """What an offer costs at one moment. ``funds`` is None for who is not signed in."""

    at: datetime
    listing: Listing
    gpu_count: int
    price_micro: int
    fee_bps: int
    window_until: datetime | None
    stop_after_seconds: int | None
    spend_at_most_micro: int | None
    funds: Funds | None

    @property
    def rate_micro_per_hour(self) -> int:
        return self.price_micro * self.gpu_count

    def cost_micro(self, seconds: int) -> int:
        """What the renter is charged for so many seconds of running."""
        return metering.gross_of(self.rate_micro_per_hour, seconds)

    def fee_micro(self, seconds: int) -> int:
        """The platform's part of it; the provider's is the rest."""
        return metering.fee_of(self.cost_micro(seconds), self.fee_bps)

    @property
    def fee_percent(self) -> Decimal:
        return Decimal(self.fee_bps) / 100

    @property
    def hour_micro(self) -> int:
        return self.cost_micro(HOUR)

    @property
    def day_micro(self) -> int:
        return self.cost_micro(DAY)

    @property
    def stop_after_micro(self) -> int | None:
        return self.cost_micro(self.stop_after_seconds) if self.stop_after_seconds else None

    @property
    def chosen_end(self) -> End | None:
        """The first of the limits that the renter sets; None without any."""
        found = [End(self.stop_after_seconds, "stop_after")] if self.stop_after_seconds else []
        if self.spend_at_most_micro:
            seconds = limits.spend_seconds(
                spend_at_most_micro=self.spend_at_most_micro, rate_micro_per_hour=self.rate_micro_per_hour
            )
            found.append(End(seconds, "spend_at_most"))
        return min(found, key=lambda end: end.seconds, default=None)

    @property
    def end(self) -> End | None:
        """When it would end at the latest if it ran from now on, the money apart; None where nothing ends it."""
        found = [self.chosen_end] if self.chosen_end else []
        if self.window_until is not None:
            found.append(End(whole_seconds(self.at, self.window_until), "hours"))
        return min(found, key=lambda end: end.seconds, default=None)

    @property
    def most_micro(self) -> int | None:
        """The most that can be charged under the renter's own limits; None without any."""
        return self.cost_micro(self.chosen_end.seconds) if self.chosen_end else None


def quote(
    *,
    listing: Listing,
    gpu_count: int,
    organisation: Organisation | None,
    at: datetime,
    stop_after_seconds: int | None = None,
    spend_at_most_micro: int | None = None,
) -> Quote:
    """What ``gpu_count`` GPUs of ``listing`` cost ``at``, to ``organisation`` if one asks. Reads only, promises no GPU.

    Raises NotOffered where no price is asked, TooManyGpus for more than the offer has.
    """
    price = price_of(listing)
    if price is None:
        raise NotOffered(why=_("it has no price"))
    if not 1 <= gpu_count <= listing.gpus_total:
        raise TooManyGpus(wanted=gpu_count, free=listing.gpus_free)
    machine = listing.machine
    return Quote(
        at=at,
        listing=listing,
        gpu_count=gpu_count,
        price_micro=price,
        fee_bps=TierPolicy.of(machine.tier).fee_bps,
        window_until=window_around(machine, at)[1],
        stop_after_seconds=stop_after_seconds,
        spend_at_most_micro=spend_at_most_micro,
        funds=funds(organisation, extra_rate_micro_per_hour=price * gpu_count, at=at) if organisation else None,
    )


def price_of(listing: Listing) -> int | None:
    """What the provider asks for one GPU of the listing's model now, as ``start_rental`` reads it: not the listing's copy."""
    asked = ModelPrice.objects.filter(
        provider=listing.machine.provider_id, gpu_model=listing.gpu_model_id, current=True
    )
    return asked.values_list("price_micro", flat=True).first()


def funds(organisation: Organisation, *, extra_rate_micro_per_hour: int, at: datetime) -> Funds:
    """What the payer has, what a start of so much more an hour needs, and how long it would last."""
    runway = Policy.load().runway_seconds
    with ledger.one_moment():
        position = metering.position(organisation, at=at)
        meters = list(Meter.objects.filter(payer=organisation, closed=False))
        starting = pending_rates(organisation)
    rates = [*starting, extra_rate_micro_per_hour]
    others = sum(meter.rate_micro_per_hour for meter in meters) + sum(starting)
    until = lasts_until(meters, posted_micro=position.posted_micro, rates_from_now=rates, at=at)
    return Funds(
        available_micro=position.available_micro,
        needed_micro=-(-(others + extra_rate_micro_per_hour) * runway // 3600),
        others_micro_per_hour=others,
        lasts_until=until,
        lasts_seconds=whole_seconds(at, until),
    )


def lasts_until(meters: Iterable[Meter], *, posted_micro: int, rates_from_now: Iterable[int], at: datetime) -> datetime:
    """Until when ``posted_micro`` pays for these open meters and for further ones, by their rates, that begin ``at``.

    As ``metering`` funds meters, each from where it was billed to: the F with Σ rate · max(0, F - t) = money, less what
    rounding has left over of each. Exact: whole micro-USDC, times in fractions of a second, cut to microseconds.
    """
    meters = list(meters)
    running = [
        (Fraction(_micros(meter.started_at), 10**6) + meter.billed_seconds, meter.rate_micro_per_hour)
        for meter in meters
    ]
    left = 3600 * posted_micro - sum(
        meter.rate_micro_per_hour * meter.billed_seconds - 3600 * meter.billed_gross_micro for meter in meters
    )
    running += [(Fraction(_micros(at), 10**6), rate) for rate in rates_from_now]
    found, rates, weighted = [], 0, Fraction(0)
    for since, rate in sorted(running):
        rates, weighted = rates + rate, weighted + rate * since
        found.append((left + weighted) / rates)
    latest = at + FUNDED_AT_MOST
    if not found:
        return latest
    micros = min(int(min(found) * 10**6 // 1), _micros(latest))  # a small rate would be funded beyond any calendar
    return _EPOCH + timedelta(microseconds=micros)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)

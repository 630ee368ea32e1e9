"""Exchange rates: what a euro or a dollar costs in USDC, as an administrator read it from a source.

1. A rate is never edited; the one that was quoted last counts. A payout keeps the rate it was made with.
2. None is used beyond the policy's hours. A run that finds no fresh one waits; nothing is guessed.
3. One that is more than 5 % away from the last is confirmed by whoever enters it; what is paid at it, or at one so far from any of the
   week before, waits for two administrators: a rate moves as much money as an amount does.
4. Cents are cut, never rounded up, and cost the least micro-USDC that is worth them: the rest stays payable.

>>> exchanged(12_345_678, micro_per_unit=1_000_000)
(1234, 12340000)
>>> exchanged(100_000_000, micro_per_unit=1_085_000)
(9216, 99993600)
>>> exchanged(9_999, micro_per_unit=1_000_000)
(0, 0)
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import User
from gpunex.kit import show
from gpunex.kit.refusals import Refusal
from gpunex.policy.models import Policy
from payouts.approvals import StaffOnly
from payouts.models import FxRate

CENTS = 100
# One unit in micro-USDC: outside of it somebody's decimal point slipped.
LEAST_MICRO, MOST_MICRO = 200_000, 5_000_000
JUMP_BPS, ALL_BPS = 500, 10_000
# A large jump may be taken in small steps: what was in force within this time counts.
REMEMBERED = timedelta(days=7)


class RateMissing(Refusal):
    code = "rate_missing"
    message = _("There is no exchange rate for %(currency)s yet. An administrator enters one under Exchange rates.")


class RateTooOld(Refusal):
    code = "rate_too_old"
    message = _(
        "The last exchange rate for %(currency)s was quoted on %(quoted)s and is good for %(hours)s hours. Enter a new one first."
    )


class LessThanOneCent(Refusal):
    code = "less_than_one_cent"
    message = _("A bank transfers whole cents; this is less than one.")


class SourceMissing(Refusal):
    code = "source_missing"
    message = _("Say where the rate was read: the name of the exchange or bank, or the address of its page.")


class RateFromTheFuture(Refusal):
    code = "rate_from_the_future"
    message = _("This time is still to come. Give the time at which the source quoted the rate, in UTC.")


class RateStale(Refusal):
    code = "rate_stale"
    message = _("This quote is older than %(hours)s hours, so no payout could use it. Read the rate anew.")


class RateOlderThanLast(Refusal):
    code = "rate_older_than_last"
    message = _("A rate quoted on %(quoted)s is entered already. A new one must be quoted at that time or later.")


class RateUnlikely(Refusal):
    code = "rate_unlikely"
    message = _(
        "One %(currency)s never costs %(rate)s USDC. Check the decimal point, and that it is not the other way round."
    )


class RateJumps(Refusal):
    code = "rate_jumps"
    message = _("That is %(percent)s %% away from the last rate, %(last)s USDC. If it is right, confirm it below.")


@dataclass(frozen=True, slots=True)
class Converted:
    """What an amount buys at a bank: ``cents`` of the currency, for which ``cost_micro`` leaves the earnings."""

    cents: int
    cost_micro: int
    rate: FxRate


def exchanged(amount_micro: int, *, micro_per_unit: int) -> tuple[int, int]:
    """The whole cents that ``amount_micro`` buys, and the least micro-USDC that is worth them. Integers throughout."""
    cents = amount_micro * CENTS // micro_per_unit
    return cents, -(-cents * micro_per_unit // CENTS)


def convert(amount_micro: int, currency: str, at: datetime) -> Converted:
    """As much of ``amount_micro`` as whole cents of ``currency`` can pay, at the rate in force.

    Raises RateMissing, RateTooOld, LessThanOneCent.
    """
    rate = rate_in_force(currency, at)
    cents, cost_micro = exchanged(amount_micro, micro_per_unit=rate.micro_per_unit)
    if cents <= 0:
        raise LessThanOneCent
    return Converted(cents=cents, cost_micro=cost_micro, rate=rate)


def rate_in_force(currency: str, at: datetime) -> FxRate:
    """The rate that a payout made ``at`` uses. Raises RateMissing, RateTooOld."""
    rate = newest(currency, at)
    if rate is None:
        raise RateMissing(currency=currency)
    hours = Policy.load().rate_hours
    if rate.quoted_at < at - timedelta(hours=hours):
        raise RateTooOld(currency=currency, quoted=show.moment(rate.quoted_at), hours=hours)
    return rate


def newest(currency: str, at: datetime) -> FxRate | None:
    return FxRate.objects.filter(currency=currency, quoted_at__lte=at).order_by("-quoted_at", "-pk").first()


def jumped(rate: FxRate) -> bool:
    """Whether ``rate`` is far from the one before it, or from any other of the week before it."""
    before = FxRate.objects.filter(currency=rate.currency, pk__lt=rate.pk)
    week = before.filter(quoted_at__gte=rate.quoted_at - REMEMBERED)
    last = before.order_by("-quoted_at", "-pk")[:1]
    return any(_is_jump(rate.micro_per_unit, last=other.micro_per_unit) for other in [*week, *last])


def _is_jump(micro_per_unit: int, *, last: int) -> bool:
    return abs(micro_per_unit - last) * ALL_BPS > JUMP_BPS * last


@transaction.atomic
def enter(
    *, currency: str, micro_per_unit: int, source: str, quoted_at: datetime, by: User, at: datetime, sure: bool = False
) -> FxRate:
    """Note what one unit of ``currency`` costs. ``sure``: a jump of more than 5 % from the last rate was looked at and is right.

    Raises StaffOnly, SourceMissing, RateFromTheFuture, RateStale, RateOlderThanLast, RateUnlikely, RateJumps.
    """
    if not by.is_staff:
        raise StaffOnly
    if not source.strip():
        raise SourceMissing
    if quoted_at > at:
        raise RateFromTheFuture
    hours = Policy.load().rate_hours
    if quoted_at < at - timedelta(hours=hours):
        raise RateStale(hours=hours)
    if not LEAST_MICRO <= micro_per_unit <= MOST_MICRO:
        raise RateUnlikely(currency=currency, rate=show.price(micro_per_unit))
    last = newest(currency, at)
    if last is not None:
        if quoted_at < last.quoted_at:
            raise RateOlderThanLast(quoted=show.moment(last.quoted_at))
        if _is_jump(micro_per_unit, last=last.micro_per_unit) and not sure:
            tenths = abs(micro_per_unit - last.micro_per_unit) * ALL_BPS * 10 // last.micro_per_unit // 100
            raise RateJumps(percent=f"{tenths // 10}.{tenths % 10}", last=show.price(last.micro_per_unit))
    return FxRate.objects.create(
        currency=currency,
        micro_per_unit=micro_per_unit,
        source=source.strip()[:120],
        quoted_at=quoted_at,
        entered_by=by,
        entered_at=at,
    )

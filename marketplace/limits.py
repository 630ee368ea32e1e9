"""How long a rental may run: the first of its limits, which its machine keeps by itself (``Workload.stop_at``).

    funds       the payer's balance is used up (``Meter.funded_until``, shared by all of the payer's meters)
    stop after  so many seconds after it began running
    spend       the second in which the charge would pass the highest amount
    hours       the declared hours of the offer, as they were when it was rented

>>> spend_seconds(spend_at_most_micro=35_000_000, rate_micro_per_hour=4_100_000)
30731
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils.translation import gettext_lazy as _

from billing.models import Meter
from gpunex.kit.refusals import Refusal
from marketplace.models import Rental, Request

LONGEST_SECONDS = 366 * 86_400
SHORTEST_SECONDS = 60


class LimitNotValid(Refusal):
    code = "limit_invalid"
    message = _("“Stop after” is between 1 minute and 366 days; “spend at most” pays for at least 1 minute.")


@dataclass(frozen=True)
class Limit:
    """When a rental ends at the latest, and the cause it then ends with."""

    at: datetime
    cause: Rental.Cause


def check(*, stop_after_seconds: int | None, spend_at_most_micro: int | None, rate_micro_per_hour: int) -> None:
    """Raises LimitNotValid for a limit that would end the rental before it can do anything."""
    if stop_after_seconds is not None and not SHORTEST_SECONDS <= stop_after_seconds <= LONGEST_SECONDS:
        raise LimitNotValid
    if spend_at_most_micro is not None:
        seconds = spend_seconds(spend_at_most_micro=spend_at_most_micro, rate_micro_per_hour=rate_micro_per_hour)
        if seconds < SHORTEST_SECONDS:
            raise LimitNotValid


def spend_seconds(*, spend_at_most_micro: int, rate_micro_per_hour: int) -> int:
    """Whole seconds whose charge is at most ``spend_at_most_micro``."""
    return spend_at_most_micro * 3600 // rate_micro_per_hour


def of(*, rental: Rental, request: Request, meter: Meter | None) -> Limit | None:
    """The first limit of a rental; None where nothing ends it. Before it runs, only its hours do."""
    found = [Limit(rental.window_until, Rental.Cause.DEADLINE)] if rental.window_until else []
    if meter is not None:
        found.append(Limit(meter.funded_until, Rental.Cause.OUT_OF_MONEY))
        allowed = [request.stop_after_seconds] if request.stop_after_seconds else []
        if request.spend_at_most_micro:
            allowed.append(
                spend_seconds(
                    spend_at_most_micro=request.spend_at_most_micro, rate_micro_per_hour=meter.rate_micro_per_hour
                )
            )
        # A second more than a year is as good as none, and keeps the sum within what a date can be.
        found += [
            Limit(meter.started_at + timedelta(seconds=min(each, LONGEST_SECONDS)), Rental.Cause.DEADLINE)
            for each in allowed
        ]
    return min(found, key=lambda limit: limit.at, default=None)


def differ(limit: Limit | None, stop_at: datetime | None) -> bool:
    """Whether a machine's deadline is worth telling it again: the end of the money trembles by less than a second."""
    if limit is None or stop_at is None:
        return (limit is None) != (stop_at is None)
    return abs((limit.at - stop_at).total_seconds()) >= 1

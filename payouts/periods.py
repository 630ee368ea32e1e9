"""When payouts are due: periods end Monday 00:00 (weekly) or the 1st 00:00 (monthly), UTC, half-open; each rail has its days.

USDC is paid on Monday even if that is a holiday. Banks pay on their business days: the Federal Reserve's for ACH, TARGET's (the ECB's)
for SEPA. What is paid monthly is paid on the first business day, USDC by the Federal Reserve's calendar.

>>> period_ends(Cadence.WEEKLY, after=datetime(2026, 10, 14, tzinfo=UTC), until=datetime(2026, 10, 27, tzinfo=UTC))
[datetime.datetime(2026, 10, 19, 0, 0, tzinfo=datetime.timezone.utc), datetime.datetime(2026, 10, 26, 0, 0, tzinfo=datetime.timezone.utc)]
>>> execution_date(Cadence.MONTHLY, datetime(2026, 8, 1, tzinfo=UTC), Rail.USDC)
datetime.date(2026, 8, 3)
>>> memorial_day = datetime(2026, 5, 25, tzinfo=UTC)
>>> execution_date(Cadence.WEEKLY, memorial_day, Rail.USDC), execution_date(Cadence.WEEKLY, memorial_day, Rail.ACH)
(datetime.date(2026, 5, 25), datetime.date(2026, 5, 26))
"""

from datetime import UTC, date, datetime, timedelta

from gpunex.kit.time import Calendar, first_business_day, next_business_day
from gpunex.policy.models import Policy
from payouts.models import Cadence, Rail

CALENDARS: dict[str, Calendar] = {Rail.USDC: "FED", Rail.ACH: "FED", Rail.SEPA: "ECB"}


def next_period_end(cadence: str, after: datetime) -> datetime:
    """The first cut-off of the cadence that is later than ``after``."""
    midnight = datetime.combine(after.astimezone(UTC).date(), datetime.min.time(), UTC)
    if cadence == Cadence.WEEKLY:
        return midnight + timedelta(days=7 - midnight.weekday())
    return (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)


def period_ends(cadence: str, *, after: datetime, until: datetime) -> list[datetime]:
    """The cut-offs later than ``after`` that have come by ``until``, oldest first."""
    ends = []
    end = next_period_end(cadence, after)
    while end <= until:
        ends.append(end)
        end = next_period_end(cadence, end)
    return ends


def period_start(cadence: str, end: datetime) -> datetime:
    """When the period that ends at ``end`` began."""
    return end - timedelta(days=7) if cadence == Cadence.WEEKLY else (end - timedelta(days=1)).replace(day=1)


def execution_date(cadence: str, period_end: datetime, rail: str = Rail.USDC) -> date:
    """The day on which what was earned in that period is paid by ``rail``."""
    if cadence == Cadence.MONTHLY:
        return first_business_day(period_end.year, period_end.month, calendar=CALENDARS[rail])
    if rail == Rail.USDC:
        return period_end.date()
    return next_business_day(period_end.date(), calendar=CALENDARS[rail])


def minimum_micro(cadence: str, policy: Policy) -> int:
    """From how much on a payout of the cadence is made."""
    return policy.weekly_minimum_micro if cadence == Cadence.WEEKLY else policy.monthly_minimum_micro

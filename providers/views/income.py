"""What a provider earned, by day and by machine, after the fee: posted and on the way. Reading for the dashboard.

A day's income is what came into the payable account less what was taken back, payouts left out; amounts that no settlement
has posted yet are added to the day they were earned on. So today's figure only grows, and yesterday's stands.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from django.db.models import F, Q, Sum
from django.db.models.functions import TruncDate

from billing.ledger import Kind
from billing.metering import accrued, fee_of, gross_of
from billing.models import Meter, Transfer
from gpunex.accounts.models import Organisation
from gpunex.kit.time import whole_seconds
from providers.models import GpuClaim, Provider


@dataclass(frozen=True)
class Income:
    """Micro-USDC after the fee, by UTC day, and this week's by machine (pk)."""

    days: Mapping[date, int]
    machines: Mapping[int, int]

    def since(self, day: date) -> int:
        return sum(amount for earned_on, amount in self.days.items() if earned_on >= day)


def monday(at: datetime) -> datetime:
    """The start of the week that weekly payouts go by: Monday 00:00 UTC."""
    today = at.astimezone(UTC).date()
    return datetime.combine(today - timedelta(days=today.weekday()), time(), tzinfo=UTC)


def of(organisation: Organisation, *, first: date, at: datetime) -> Income:
    """Days from ``first`` on. Two queries."""
    days: dict[date, int] = defaultdict(int)
    start = datetime.combine(first, time(), tzinfo=UTC)
    into = Q(credit__kind=Kind.PROVIDER_PAYABLE, credit__organisation=organisation)
    out_of = Q(debit__kind=Kind.PROVIDER_PAYABLE, debit__organisation=organisation)
    payouts = Q(credit__kind=Kind.IN_TRANSIT) | Q(debit__kind=Kind.IN_TRANSIT)
    rows = (
        Transfer.objects.filter(into | out_of, effective_at__gte=start)
        .exclude(payouts)
        .annotate(day=TruncDate("effective_at", tzinfo=UTC))
        .values("day")
        .annotate(came=Sum("amount_micro", filter=into, default=0), went=Sum("amount_micro", filter=out_of, default=0))
    )
    for row in rows:
        days[row["day"]] += row["came"] - row["went"]

    week, today = monday(at), at.astimezone(UTC).date()
    midnight = datetime.combine(today, time(), tzinfo=UTC)
    machines: dict[int, int] = defaultdict(int)
    meters = Meter.objects.filter(payee=organisation).filter(Q(closed=False) | Q(ended_at__gte=week))
    for meter in meters.annotate(machine=F("rental__listing__machine")):
        total = accrued(meter).net_micro
        if meter.machine is not None:
            machines[meter.machine] += total - min(total, net_until(meter, week))
        if not meter.closed:
            posted = meter.billed_gross_micro - meter.billed_fee_micro
            before_today = min(total, max(posted, net_until(meter, midnight)))
            days[today] += total - before_today
            days[today - timedelta(days=1)] += before_today - posted
    return Income(days={day: amount for day, amount in days.items() if day >= first}, machines=machines)


def net_until(meter: Meter, moment: datetime) -> int:
    """What the meter came to, after the fee, by ``moment``, had it run until then."""
    gross = gross_of(meter.rate_micro_per_hour, whole_seconds(meter.started_at, moment))
    return gross - fee_of(gross, meter.fee_bps)


def rented_seconds(provider: Provider, *, start: datetime, end: datetime) -> float:
    """GPU-seconds between ``start`` and ``end`` that rentals held cards of the provider."""
    held = GpuClaim.objects.filter(gpu__machine__provider=provider, kind=GpuClaim.Kind.RENTAL, period__overlap=(start, end))
    return sum(
        max(0.0, (min(period.upper or end, end) - max(period.lower, start)).total_seconds())
        for period in held.values_list("period", flat=True)
    )

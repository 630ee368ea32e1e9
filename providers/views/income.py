"""What machines earned and how long their GPUs were rented. Reading for the dashboard; days are ``billing.revenue``'s."""

from collections import defaultdict
from datetime import UTC, datetime, time, timedelta

from django.db.models import F, Q

from billing.metering import accrued, fee_of, gross_of
from billing.models import Meter
from gpunex.accounts.models import Organisation
from gpunex.kit.time import whole_seconds
from providers.models import GpuClaim, Provider


def monday(at: datetime) -> datetime:
    """The start of the week that weekly payouts go by: Monday 00:00 UTC."""
    today = at.astimezone(UTC).date()
    return datetime.combine(today - timedelta(days=today.weekday()), time(), tzinfo=UTC)


def by_machine(organisation: Organisation, *, since: datetime) -> dict[int, int]:
    """Earned ``since`` by each machine (pk), after the fee: posted and accruing. One query.

    A meter's amount is cumulative, so what it earned since a moment is its total less what it came to by then; as a settlement
    never spans a midnight, this is what the ledger says too.
    """
    found: dict[int, int] = defaultdict(int)
    meters = Meter.objects.filter(payee=organisation).filter(Q(closed=False) | Q(ended_at__gte=since))
    for meter in meters.annotate(machine=F("rental__listing__machine")):
        total = accrued(meter).net_micro
        if meter.machine is not None:
            found[meter.machine] += total - min(total, net_until(meter, since))
    return found


def net_until(meter: Meter, moment: datetime) -> int:
    """What the meter came to, after the fee, by ``moment``, had it run until then."""
    gross = gross_of(meter.rate_micro_per_hour, whole_seconds(meter.started_at, moment))
    return gross - fee_of(gross, meter.fee_bps)


def rented_seconds(provider: Provider, *, start: datetime, end: datetime) -> float:
    """GPU-seconds between ``start`` and ``end`` that rentals held cards of the provider."""
    held = GpuClaim.objects.filter(
        gpu__machine__provider=provider, kind=GpuClaim.Kind.RENTAL, period__overlap=(start, end)
    )
    return sum(
        max(0.0, (min(period.upper or end, end) - max(period.lower, start)).total_seconds())
        for period in held.values_list("period", flat=True)
    )

"""What a payee earned in a time: posted and accruing apart, by day, by model and by unit, every table summing exactly.

A meter's amount is split equally over its units, in the order of its labels; what does not divide goes to the first ones, a micro-USDC
each (largest remainder), so the lines always sum to the meter's amount.

>>> split(10, 3)
[4, 3, 3]
>>> sum(split(931_445_789, 7))
931445789
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from django.db import connection

from billing.ledger import Kind
from billing.metering import accrued
from billing.models import Meter
from gpunex.accounts.models import Organisation


@dataclass
class Amounts:
    """Of renters' money in the time: gross = net + fee. ``seconds`` are unit-seconds."""

    net_micro: int = 0
    fee_micro: int = 0
    seconds: int = 0

    @property
    def gross_micro(self) -> int:
        return self.net_micro + self.fee_micro

    @property
    def hours(self) -> float:
        return self.seconds / 3600

    def add(self, other: "Amounts") -> None:
        self.net_micro += other.net_micro
        self.fee_micro += other.fee_micro
        self.seconds += other.seconds


@dataclass(frozen=True)
class Unit:
    """A GPU as the labels of a meter name it."""

    machine: str
    index: int
    id: str
    model: str


@dataclass
class Revenue:
    """Amounts of ``[start, end)`` in UTC. ``other_micro``: credits, reversals and adjustments, signed."""

    posted: Amounts = field(default_factory=Amounts)
    accruing: Amounts = field(default_factory=Amounts)
    other_micro: int = 0
    days: dict[date, int] = field(default_factory=lambda: defaultdict(int))
    models: dict[str, Amounts] = field(default_factory=lambda: defaultdict(Amounts))
    units: dict[Unit, Amounts] = field(default_factory=lambda: defaultdict(Amounts))

    @property
    def total(self) -> Amounts:
        result = Amounts()
        result.add(self.posted)
        result.add(self.accruing)
        return result

    @property
    def earned_micro(self) -> int:
        return self.total.net_micro + self.other_micro


def split(micro: int, parts: int) -> list[int]:
    """``micro`` in ``parts`` equal amounts that sum to it; the first ones have what does not divide."""
    each, rest = divmod(micro, parts)
    return [each + (1 if number < rest else 0) for number in range(parts)]


def of(organisation: Organisation, *, start: datetime, end: datetime, at: datetime) -> Revenue:
    """Accruing amounts belong to the time if ``at`` does: they become posted within the hour."""
    revenue = Revenue()
    by_meter: dict[int, Amounts] = defaultdict(Amounts)
    for pk, day, net, fee, seconds in _posted(organisation, start=start, end=end):
        amounts = Amounts(net_micro=int(net), fee_micro=int(fee), seconds=int(seconds))
        revenue.posted.add(amounts)
        revenue.days[day] += amounts.net_micro
        by_meter[pk].add(amounts)
    meters = {meter.pk: meter for meter in Meter.objects.filter(pk__in=by_meter)}
    if start <= at < end:
        for meter in Meter.objects.filter(payee=organisation, closed=False):
            total = accrued(meter)
            amounts = Amounts(
                net_micro=total.net_micro - (meter.billed_gross_micro - meter.billed_fee_micro),
                fee_micro=total.fee_micro - meter.billed_fee_micro,
                seconds=(total.seconds - meter.billed_seconds) * meter.quantity,
            )
            revenue.accruing.add(amounts)
            revenue.days[at.astimezone(UTC).date()] += amounts.net_micro
            by_meter[meter.pk].add(amounts)
            meters[meter.pk] = meter
    for pk, amounts in by_meter.items():
        _distribute(revenue, meters[pk], amounts)
    for day, micro in _others(organisation, start=start, end=end):
        revenue.other_micro += int(micro)
        revenue.days[day] += int(micro)
    return revenue


def days_between(start: datetime, end: datetime) -> Iterable[date]:
    """The UTC days of ``[start, end)``, oldest first."""
    day = start.astimezone(UTC).date()
    last = (end - timedelta(microseconds=1)).astimezone(UTC).date()
    while day <= last:
        yield day
        day += timedelta(days=1)


def _distribute(revenue: Revenue, meter: Meter, amounts: Amounts) -> None:
    model = str(meter.labels.get("model", ""))
    revenue.models[model].add(amounts)
    gpus = meter.labels.get("gpus") or [{"id": str(meter.public_id), "index": 0}]
    parts = zip(
        gpus,
        split(amounts.net_micro, len(gpus)),
        split(amounts.fee_micro, len(gpus)),
        split(amounts.seconds, len(gpus)),
        strict=True,
    )
    for gpu, net, fee, seconds in parts:
        unit = Unit(
            machine=str(meter.labels.get("machine", "")), index=int(gpu["index"]), id=str(gpu["id"]), model=model
        )
        revenue.units[unit].add(Amounts(net_micro=net, fee_micro=fee, seconds=seconds))


def _posted(organisation: Organisation, *, start: datetime, end: datetime) -> list[tuple[int, date, int, int, int]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT m.id, (t.effective_at AT TIME ZONE 'UTC')::date, coalesce(sum(t.amount_micro) FILTER (WHERE t.kind = 'charge'), 0),"
            " coalesce(sum(t.amount_micro) FILTER (WHERE t.kind = 'fee'), 0),"
            " coalesce(sum(((t.data->>'to')::bigint - (t.data->>'from')::bigint) * m.quantity) FILTER (WHERE t.kind = 'charge'), 0)"
            " FROM billing_meter m JOIN billing_transfer t ON t.reference = m.public_id::text AND t.kind IN ('charge', 'fee')"
            " WHERE m.payee_id = %s AND t.effective_at >= %s AND t.effective_at < %s GROUP BY 1, 2",
            [organisation.pk, start, end],
        )
        return list(cursor.fetchall())


def _others(organisation: Organisation, *, start: datetime, end: datetime) -> list[tuple[date, int]]:
    """What else came into or left the payable account: not charges, and not payouts and their return."""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH own AS (SELECT id FROM billing_account WHERE kind = %s AND organisation_id = %s)"
            " SELECT (effective_at AT TIME ZONE 'UTC')::date, sum(CASE WHEN credit_id IN (SELECT id FROM own) THEN amount_micro ELSE -amount_micro END)"
            " FROM billing_transfer WHERE (credit_id IN (SELECT id FROM own) OR debit_id IN (SELECT id FROM own))"
            " AND kind NOT IN ('charge', 'payout', 'payout_back') AND effective_at >= %s AND effective_at < %s GROUP BY 1",
            [Kind.PROVIDER_PAYABLE.value, organisation.pk, start, end],
        )
        return list(cursor.fetchall())

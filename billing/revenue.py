"""What a payee earned in a time: posted and accruing apart, by day, by model and by unit, every table summing exactly.

Rules
1. An amount is a difference of cumulative totals, as a charge is (``metering``): what the meter came to by the end of the time, minus
   what it came to by its start. So any cut of a time into parts, days of 23 or 25 hours among them, sums to the whole, to the
   micro-USDC, and a time need not end where a charge does.
2. A second belongs to the time in which it ends. A charge never spans a UTC midnight, so for whole UTC days this is the ledger's own sum.
3. A meter's amount is split equally over its units, in the order of its labels; what does not divide goes to the first ones, a
   micro-USDC each (largest remainder). What is split are cumulative totals again: the units of any time sum to the meter, the times of any unit
   to its share of the whole, and no figure ever falls while a meter runs.
4. Posted is what has been billed; accruing is what was proved since, and becomes posted within the hour.

>>> split(10, 3)
[4, 3, 3]
>>> sum(split(931_445_789, 7))
931445789

An hour at 0.000001 for three units, seen in two halves: the one micro-USDC is due with the last second, and is the first unit's.

>>> shares(0, 0, 3), shares(0, 1, 3)
([0, 0, 0], [1, 0, 0])
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from django.db import connection
from django.db.models import Q

from billing.ledger import Kind, Move
from billing.metering import accrued, fee_of, gross_of
from billing.models import Meter
from gpunex.accounts.models import Organisation
from gpunex.kit.time import days_between

_UTC = ZoneInfo("UTC")
# What passes through the payable account and is no earning: charges are the meters' own, payouts come and go.
_NOT_OTHERS = (Move.CHARGE, Move.PAYOUT, Move.BACK, Move.RETURNED)
METERS_AT_ONCE = 1000


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


@dataclass(frozen=True, slots=True)
class Line:
    """What one meter brought in one day of the time: whole seconds ``[first, last)`` since its start, posted or still accruing."""

    meter: Meter
    day: date
    first: int
    last: int
    posted: bool

    @property
    def amounts(self) -> Amounts:
        before, after = _net(self.meter, self.first), _net(self.meter, self.last)
        fees = _fee(self.meter, self.last) - _fee(self.meter, self.first)
        return Amounts(net_micro=after - before, fee_micro=fees, seconds=(self.last - self.first) * self.meter.quantity)

    def units(self) -> Iterator[tuple[Unit, Amounts]]:
        """The amounts of each unit, in the order of the labels; they sum to ``amounts``."""
        meter = self.meter
        gpus = meter.labels.get("gpus") or [{"id": str(meter.public_id), "index": 0}]
        parts = zip(
            gpus,
            shares(_net(meter, self.first), _net(meter, self.last), len(gpus)),
            shares(_fee(meter, self.first), _fee(meter, self.last), len(gpus)),
            shares(self.first * meter.quantity, self.last * meter.quantity, len(gpus)),
            strict=True,
        )
        for gpu, net, fee, seconds in parts:
            unit = Unit(
                machine=str(meter.labels.get("machine", "")),
                index=int(gpu["index"]),
                id=str(gpu["id"]),
                model=str(meter.labels.get("model", "")),
            )
            yield unit, Amounts(net_micro=net, fee_micro=fee, seconds=seconds)

    @property
    def starts_at(self) -> datetime:
        return self.meter.started_at + timedelta(seconds=self.first)

    @property
    def ends_at(self) -> datetime:
        return self.meter.started_at + timedelta(seconds=self.last)


@dataclass(frozen=True, slots=True)
class Other:
    """What else came into the payable account or left it: credits to renters, recoveries, corrections. Signed."""

    day: date
    at: datetime
    kind: str
    reference: str
    amount_micro: int


@dataclass
class Revenue:
    """Amounts of ``[start, end)``. ``other_micro``: credits, recoveries, corrections and adjustments, signed. Days are the zone's."""

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


def shares(before: int, after: int, parts: int) -> list[int]:
    """What each part gets of a total that grew from ``before`` to ``after``; they sum to the growth, and none is negative."""
    return [new - old for old, new in zip(split(before, parts), split(after, parts), strict=True)]


def of(organisation: Organisation, *, start: datetime, end: datetime, at: datetime, where: ZoneInfo = _UTC) -> Revenue:
    """All that was earned in ``[start, end)`` as known ``at``, its days those of the zone ``where``."""
    revenue = Revenue()
    for line in lines(organisation, start=start, end=end, where=where):
        amounts = line.amounts
        (revenue.posted if line.posted else revenue.accruing).add(amounts)
        revenue.days[line.day] += amounts.net_micro
        revenue.models[str(line.meter.labels.get("model", ""))].add(amounts)
        for unit, part in line.units():
            revenue.units[unit].add(part)
    for other in others(organisation, start=start, end=end, where=where):
        revenue.other_micro += other.amount_micro
        revenue.days[other.day] += other.amount_micro
    return revenue


def lines(organisation: Organisation, *, start: datetime, end: datetime, where: ZoneInfo = _UTC) -> Iterator[Line]:
    """The time cut by meter and day, the oldest meter first; read as it is asked for."""
    days = list(days_between(start, end, where))
    if not days:
        return
    meters = (
        Meter.objects.filter(payee=organisation, started_at__lt=end)
        .filter(Q(closed=False) | Q(ended_at=None) | Q(ended_at__gt=start))
        .order_by("started_at", "pk")
    )
    for meter in meters.iterator(chunk_size=METERS_AT_ONCE):
        yield from lines_of(meter, days)


def lines_of(meter: Meter, days: Iterable[tuple[date, datetime, datetime]]) -> Iterator[Line]:
    """What one meter brought in each of the days, where it brought anything: what is posted, then what is accruing."""
    billed = meter.billed_seconds
    reached = billed if meter.closed else accrued(meter).seconds
    for day, begins, ends in days:
        first, last = min(_seconds(meter, begins), reached), min(_seconds(meter, ends), reached)
        if first < min(last, billed):
            yield Line(meter=meter, day=day, first=first, last=min(last, billed), posted=True)
        if max(first, billed) < last:
            yield Line(meter=meter, day=day, first=max(first, billed), last=last, posted=False)


def others(organisation: Organisation, *, start: datetime, end: datetime, where: ZoneInfo = _UTC) -> list[Other]:
    """What came into or left the payable account beside charges and payouts, the oldest first."""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH own AS (SELECT id FROM billing_account WHERE kind = %s AND organisation_id = %s)"
            " SELECT (t.effective_at AT TIME ZONE %s)::date, t.effective_at, t.kind, t.reference,"
            " CASE WHEN t.credit_id = own.id THEN t.amount_micro ELSE -t.amount_micro END"
            " FROM own JOIN billing_transfer t ON t.credit_id = own.id OR t.debit_id = own.id"
            " WHERE t.kind <> ALL(%s) AND t.effective_at >= %s AND t.effective_at < %s ORDER BY t.id",
            [
                Kind.PROVIDER_PAYABLE.value,
                organisation.pk,
                where.key,
                [str(kind) for kind in _NOT_OTHERS],
                start,
                end,
            ],
        )
        return [
            Other(day=day, at=moment.astimezone(UTC), kind=kind, reference=reference, amount_micro=int(micro))
            for day, moment, kind, reference, micro in cursor.fetchall()
        ]


def _seconds(meter: Meter, moment: datetime) -> int:
    """Whole seconds from the meter's start to ``moment``, as settling counts them; 0 before it."""
    return max(0, (moment - meter.started_at) // timedelta(seconds=1))


def _fee(meter: Meter, seconds: int) -> int:
    return fee_of(gross_of(meter.rate_micro_per_hour, seconds), meter.fee_bps)


def _net(meter: Meter, seconds: int) -> int:
    return gross_of(meter.rate_micro_per_hour, seconds) - _fee(meter, seconds)

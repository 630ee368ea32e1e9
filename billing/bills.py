"""The bill of one meter, a line a UTC day as on its statements: what was posted, and what is used since and not posted yet.

The stretches follow each other without a gap from the meter's first second, and their amounts sum to what the meter came to.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import BigIntegerField, Max, Sum
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, TruncDate

from billing.ledger import Move
from billing.metering import accrued, gross_of
from billing.models import Meter, Transfer


@dataclass(frozen=True, slots=True)
class Stretch:
    """Whole seconds ``[first, last)`` since the meter's start, and what the payer was charged for them, fee included."""

    meter: Meter
    first: int
    last: int
    gross_micro: int
    posted: bool

    @property
    def seconds(self) -> int:
        return self.last - self.first

    @property
    def starts_at(self) -> datetime:
        return self.meter.started_at + timedelta(seconds=self.first)

    @property
    def ends_at(self) -> datetime:
        return self.meter.started_at + timedelta(seconds=self.last)


def stretches(meter: Meter) -> list[Stretch]:
    """Read from the ledger, oldest first; the last one is the accruing one, where there is any. One query.

    A second or two may cost less than a micro-USDC: then nothing was posted for them, and they belong to the next line.
    """
    rows = (
        Transfer.objects.filter(reference=str(meter.public_id), kind__in=(Move.CHARGE, Move.FEE))
        .values(day=TruncDate("effective_at", tzinfo=UTC))
        .annotate(last=Max(Cast(KT("data__to"), BigIntegerField())), micro=Sum("amount_micro"))
        .order_by("day")
    )
    found, since, posted = [], 0, 0
    for row in rows:
        found.append(Stretch(meter=meter, first=since, last=row["last"], gross_micro=row["micro"], posted=True))
        since, posted = row["last"], posted + row["micro"]
    reached = meter.billed_seconds if meter.closed else accrued(meter).seconds
    if reached > since:
        rest = gross_of(meter.rate_micro_per_hour, reached) - posted
        billed = reached == meter.billed_seconds
        found.append(Stretch(meter=meter, first=since, last=reached, gross_micro=rest, posted=billed))
    return found

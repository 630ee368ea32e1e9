"""The lines of a statement, read from the ledger: one a rental and UTC day, one for each other transfer.

A statement covers a set of transfers of one account that never changes again (a ``Span``), so its lines can be derived anew at any time.
Charges are posted many times a day; a line sums those of one rental and one day. The seconds of a rental's lines follow each other without
a gap, and gross is always fee plus net. Amounts are whole micro-USDC; ``amount_micro`` is what a line did to the account, signed.

>>> Span.from_data(Span(first=5, last=9).as_data())
Span(first=5, last=9, before=None, seen_before=None, seen_last=0)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import connection

from billing.billable import Billable
from billing.ledger import Kind, Move
from billing.models import Account, Deposit, Meter

# Words that an administrator wrote belong on the line; the platform's own reasons are codes.
WITH_REASON = frozenset({Move.ADJUSTMENT, Move.REFUND, Move.REVERSAL, Move.WRITE_OFF})


@dataclass(frozen=True, slots=True)
class Span:
    """Transfers of an account by id, ``[first, last]``, that took effect before ``before``, but for those covered already:
    up to ``seen_last`` and in effect before ``seen_before``."""

    first: int
    last: int
    before: datetime | None = None
    seen_before: datetime | None = None
    seen_last: int = 0

    def as_data(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "last": self.last,
            "before": iso(self.before) if self.before else None,
            "seen_before": iso(self.seen_before) if self.seen_before else None,
            "seen_last": self.seen_last,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Span":
        return cls(
            first=data["first"],
            last=data["last"],
            before=_moment(data["before"]),
            seen_before=_moment(data["seen_before"]),
            seen_last=data["seen_last"],
        )


def iso(at: datetime) -> str:
    """ISO 8601 in UTC, exact: what a statement's body holds."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


# What is in a span, and what the same ids hold beyond it.
_OWN = """
WITH own AS (
    SELECT id, kind, reference, effective_at, reason, data, amount_micro AS amount FROM billing_transfer
    WHERE credit_id = %(account)s AND id BETWEEN %(first)s AND %(last)s
    UNION ALL
    SELECT id, kind, reference, effective_at, reason, data, -amount_micro FROM billing_transfer
    WHERE debit_id = %(account)s AND id BETWEEN %(first)s AND %(last)s
), covered AS (
    SELECT * FROM own WHERE effective_at < %(before)s AND NOT (effective_at < %(seen_before)s AND id <= %(seen_last)s)
)
"""
_CHARGES = """
SELECT reference, (effective_at AT TIME ZONE 'UTC')::date, min(id), max(id), max((data->>'to')::bigint), sum(amount),
       coalesce(sum(amount) FILTER (WHERE kind = 'fee'), 0)
FROM covered WHERE kind IN ('charge', 'fee') GROUP BY 1, 2 ORDER BY 1, 5
"""
_SINGLES = """
SELECT id, kind, reference, effective_at, amount, reason FROM covered WHERE kind NOT IN ('charge', 'fee') ORDER BY id
"""
_TOTAL = "SELECT coalesce(sum(amount), 0) FROM covered"
_OLDEST = "SELECT min(effective_at) FROM covered"
_BEYOND = "SELECT min(id), coalesce(sum(amount), 0) FROM own WHERE effective_at >= %(before)s"


def derive(account: Account, span: Span) -> list[dict[str, Any]]:
    """The lines of ``span``, by day and then in the order in which they were completed."""
    with connection.cursor() as cursor:
        cursor.execute(_OWN + _CHARGES, _values(account, span))
        charges = cursor.fetchall()
        cursor.execute(_OWN + _SINGLES, _values(account, span))
        singles = cursor.fetchall()
    lines = _rental_lines(account, charges) + _single_lines(singles)
    return [line for _day, _last, line in sorted(lines, key=lambda entry: entry[:2])]


def total(account: Account, span: Span) -> int:
    """What the span did to the account, as one sum of the ledger: what its lines must come to."""
    with connection.cursor() as cursor:
        cursor.execute(_OWN + _TOTAL, _values(account, span))
        return int(cursor.fetchone()[0])


def oldest(account: Account, span: Span) -> datetime | None:
    """When the first transfer of the span took effect; None if there is none."""
    with connection.cursor() as cursor:
        cursor.execute(_OWN + _OLDEST, _values(account, span))
        return cursor.fetchone()[0]


def beyond(account: Account, span: Span) -> tuple[int | None, int]:
    """Of the same ids, what takes effect at or after ``span.before``: the first id, and the sum."""
    with connection.cursor() as cursor:
        cursor.execute(_OWN + _BEYOND, _values(account, span))
        first, amount = cursor.fetchone()
        return first, int(amount)


def _values(account: Account, span: Span) -> dict[str, Any]:
    return {
        "account": account.pk,
        "first": span.first,
        "last": span.last,
        "before": span.before or "infinity",
        "seen_before": span.seen_before or "-infinity",
        "seen_last": span.seen_last,
    }


Entry = tuple[str, int, dict[str, Any]]  # day, the last transfer's id, the line


def _rental_lines(account: Account, charges: list[tuple[Any, ...]]) -> list[Entry]:
    """``charges``: meter, day, first id, last id, second reached, amount, fee in it; by meter and second."""
    if not charges:
        return []
    firsts: dict[str, int] = {}
    for meter, _day, first, *_rest in charges:
        firsts[meter] = min(first, firsts.get(meter, first))
    meters = {str(meter.public_id): meter for meter in Meter.objects.filter(public_id__in=firsts)}
    reached = _reached_before(account, firsts)
    fees = _Fees(reached, firsts)
    earning = account.kind == Kind.PROVIDER_PAYABLE  # it gets the net part alone; a balance pays both
    entries: list[Entry] = []
    for reference, day, _first, last, upto, amount, fee_here in charges:
        meter, since = meters[reference], reached.get(reference, 0)
        fee = fees.between(reference, since, upto) if earning else -int(fee_here)
        gross = int(amount) + fee if earning else -int(amount)
        line = {
            "kind": "rental",
            "day": day.isoformat(),
            "rental": meter.reference,
            "meter": reference,
            "model": str(meter.labels.get("model", "")),
            "machine": str(meter.labels.get("machine", "")),
            "units": meter.quantity,
            "since_second": since,
            "seconds": upto - since,
            "rate_micro_per_hour": meter.rate_micro_per_hour,
            "fee_bps": meter.fee_bps,
            "gross_micro": gross,
            "fee_micro": fee,
            "amount_micro": int(amount),
            "state": str(Billable.RUNNING),
        }
        reached[reference] = upto
        entries.append((line["day"], last, line))
    return entries


def _reached_before(account: Account, firsts: Mapping[str, int]) -> dict[str, int]:
    """Up to which second each meter was billed on this account before the given transfer."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT t.reference, max((t.data->>'to')::bigint) FROM billing_transfer t"
            " JOIN unnest(%(meters)s::text[], %(firsts)s::bigint[]) AS f (meter, first) ON t.reference = f.meter AND t.id < f.first"
            " WHERE t.reference = ANY(%(meters)s) AND t.kind IN ('charge', 'fee') AND %(account)s IN (t.debit_id, t.credit_id)"
            " GROUP BY 1",
            {"meters": list(firsts), "firsts": list(firsts.values()), "account": account.pk},
        )
        return {meter: int(upto) for meter, upto in cursor.fetchall()}


class _Fees:
    """The fee postings of meters beyond some second: they go from payer to platform and never touch the payee's account."""

    def __init__(self, reached: Mapping[str, int], meters: Iterable[str]) -> None:
        names = list(meters)
        self._rows: dict[str, list[tuple[int, int]]] = {}
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT t.reference, (t.data->>'to')::bigint, t.amount_micro FROM billing_transfer t"
                " JOIN unnest(%(meters)s::text[], %(since)s::bigint[]) AS f (meter, since) ON t.reference = f.meter"
                " WHERE t.reference = ANY(%(meters)s) AND t.kind = 'fee' AND (t.data->>'to')::bigint > f.since",
                {"meters": names, "since": [reached.get(name, 0) for name in names]},
            )
            for meter, upto, amount in cursor.fetchall():
                self._rows.setdefault(meter, []).append((int(upto), int(amount)))

    def between(self, meter: str, since: int, upto: int) -> int:
        return sum(amount for second, amount in self._rows.get(meter, ()) if since < second <= upto)


def _single_lines(singles: list[tuple[Any, ...]]) -> list[Entry]:
    deposits = [row[0] for row in singles if row[1] in (Move.DEPOSIT, Move.MATCH)]
    signatures = dict(Deposit.objects.filter(transfer_id__in=deposits).values_list("transfer_id", "signature"))
    entries: list[Entry] = []
    for pk, kind, reference, effective_at, amount, reason in singles:
        line = {
            "kind": kind,
            "at": iso(effective_at),
            "reference": signatures.get(pk, reference),
            "transfer": pk,
            "amount_micro": int(amount),
        }
        if reason and kind in WITH_REASON:
            line["reason"] = reason
        entries.append((line["at"][:10], pk, line))
    return entries

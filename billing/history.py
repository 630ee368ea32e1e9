"""A payer's ledger in lines for people: one line a rental and UTC day, one a deposit, one a credit; the newest first.

Charges are posted many times while a rental runs, and always later than the time they cover; a line sums what one day charged one
rental and bears the time of its last second. Lines stand in the order of the times that they show, and the balance beside a line is the
sum of it and of all below it: exact at every line, and the uppermost one is the posted balance.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection

from billing.ledger import Kind, Move
from billing.models import Deposit, Meter
from gpunex.accounts.models import Organisation

CHARGES = (Move.CHARGE, Move.FEE)
DEPOSITS = (Move.DEPOSIT, Move.MATCH)


@dataclass(frozen=True)
class Line:
    """``amount_micro`` is signed: income is positive. Seconds and meter belong to charges, the deposit to deposits.

    ``refund_of`` is the meter of which a refund, or a charge's reversal, gives back.
    """

    kind: str
    at: datetime
    amount_micro: int
    balance_micro: int
    seconds: int = 0
    meter: Meter | None = None
    deposit: Deposit | None = None
    reference: str = ""
    reason: str = ""
    refund_of: Meter | None = None

    @property
    def is_charge(self) -> bool:
        return self.meter is not None


_LINES = """
WITH own AS (SELECT id FROM billing_account WHERE kind = %(balance)s AND organisation_id = %(organisation)s), signed AS (
    SELECT id, key, kind, reference, effective_at, reason, data, amount_micro AS amount FROM billing_transfer WHERE credit_id IN (SELECT id FROM own)
    UNION ALL
    SELECT id, key, kind, reference, effective_at, reason, data, -amount_micro FROM billing_transfer WHERE debit_id IN (SELECT id FROM own)
), lines AS (
    SELECT CASE WHEN kind IN ('charge', 'fee') THEN 'charge' ELSE kind END AS kind, reference,
           max(id) AS last, max(effective_at) AS at, sum(amount) AS amount, max(reason) AS reason,
           coalesce(max((data->>'to')::bigint) FILTER (WHERE kind IN ('charge', 'fee')), 0)
           - coalesce(min((data->>'from')::bigint) FILTER (WHERE kind IN ('charge', 'fee')), 0) AS seconds
    FROM signed
    GROUP BY 1, reference, CASE WHEN kind IN ('charge', 'fee') THEN (effective_at AT TIME ZONE 'UTC')::date::text ELSE key END
), whole AS (SELECT *, sum(amount) OVER (ORDER BY at, last) AS balance FROM lines)
"""
_COUNT = "SELECT count(*) FROM whole WHERE %(kinds)s::text[] IS NULL OR kind = ANY(%(kinds)s)"
_PAGE = """
SELECT kind, reference, at, amount, balance, seconds, reason FROM whole
WHERE %(kinds)s::text[] IS NULL OR kind = ANY(%(kinds)s) ORDER BY at DESC, last DESC LIMIT %(limit)s OFFSET %(offset)s
"""


class Lines:
    """What ``Paginator`` slices: the lines of one organisation, all or those of some kinds."""

    def __init__(self, organisation: Organisation, *, kinds: Sequence[str] | None = None) -> None:
        self._values: dict[str, Any] = {
            "balance": Kind.RENTER_BALANCE.value,
            "organisation": organisation.pk,
            "kinds": None if kinds is None else [str(kind) for kind in kinds],
        }

    def __len__(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute(_LINES + _COUNT, self._values)
            return int(cursor.fetchone()[0])

    def __getitem__(self, wanted: slice) -> list[Line]:
        start = wanted.start or 0
        values = self._values | {"limit": (wanted.stop - start) if wanted.stop is not None else None, "offset": start}
        with connection.cursor() as cursor:
            cursor.execute(_LINES + _PAGE, values)
            rows = cursor.fetchall()
        references = {row[1] for row in rows}
        wanted_meters = _ids(rows, "charge", Move.REFUND, Move.REVERSAL)
        meters = {str(meter.public_id): meter for meter in Meter.objects.filter(public_id__in=wanted_meters)}
        deposits = {
            deposit.signature[:80]: deposit for deposit in Deposit.objects.filter(transfer__reference__in=references)
        }
        return [
            Line(
                kind=kind,
                at=at,
                amount_micro=int(amount),
                balance_micro=int(balance),
                seconds=int(seconds),
                meter=meters.get(reference) if kind == "charge" else None,
                deposit=deposits.get(reference),
                reference=reference,
                reason=reason,
                refund_of=meters.get(reference) if kind != "charge" else None,
            )
            for kind, reference, at, amount, balance, seconds, reason in rows
        ]


def _ids(rows: list[tuple[Any, ...]], *kinds: str) -> set[UUID]:
    """The references of these kinds that are a meter's: a reversal may be of something else."""
    found = set()
    for kind, reference, *_rest in rows:
        if kind in kinds:
            with suppress(ValueError):
                found.add(UUID(reference))
    return found

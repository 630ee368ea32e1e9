"""Statements: what an account did since the last one, issued once, numbered without gaps, and never changed.

Rules
1. A statement is data (``Statement.body``): no words of any language, amounts as whole micro-USDC, times as ISO 8601 in UTC. Page, CSV and PDF
   are drawn from it alone. Its SHA-256 is that of its canonical JSON, and it names the one before it with that one's SHA-256.
2. Statements of an account follow each other: the opening balance is what the one before carried forward, and every transfer is in exactly
   one of them. Which ones is part of the body (``span``), so that the lines can be derived again from the ledger and compared.
3. A payout statement is made in the transaction that sets the payout's money aside, under the lock of the account that pays. It covers all that
   was posted since the last payout: opening + lines = closing; closing - earned after the cut-off - kept back for rentals that
   run = payable; closing - this payout = carried forward. A payout that fails comes back as a line of the next statement.
4. A monthly statement covers what took effect before the month's end and was posted until it was issued. It is issued once the meters are
   billed to the month's end; a proof that is missing is waited for up to a day. What comes later is in the next one, under its own day.
5. Numbers are taken under the lock of their series' row, in the transaction that issues: a rollback gives its number back.

>>> canonical({"b": 1, "a": "é"})
b'{"a":"\\xc3\\xa9","b":1}'
>>> month_of("2026-12")
(datetime.datetime(2026, 12, 1, 0, 0, tzinfo=datetime.timezone.utc), datetime.datetime(2027, 1, 1, 0, 0, tzinfo=datetime.timezone.utc))
"""

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from django.db import connection, transaction
from django.db.models import F, Max

from billing import metering, statement_lines
from billing.ledger import Kind, Move
from billing.models import Account, Meter, Statement, StatementSeries
from billing.statement_lines import Span, iso
from gpunex.accounts.models import Organisation

log = structlog.get_logger(__name__)

VERSION = 1
PAYOUTS, RETURNS, MONTHS = "P", "B", "R"
WAIT_FOR_PROOF = timedelta(days=1)
EVER = 9_223_372_036_854_775_807


class BooksDisagree(Exception):
    """The lines do not come to the account's balance: nothing is issued. A fault of ours, never of a person."""


def canonical(body: Any) -> bytes:
    """The body as the bytes that are hashed and handed out: sorted keys, no spaces, UTF-8."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def hash_of(body: Any) -> str:
    return hashlib.sha256(canonical(body)).hexdigest()


# --- payouts ---------------------------------------------------------------------------------------------------------


def issue_payout(
    *,
    organisation: Organisation,
    reference: str | UUID,
    amount_micro: int,
    period_start: datetime,
    period_end: datetime,
    later_micro: int,
    kept_micro: int,
    at: datetime,
    kind_of_run: str,
    source: str = Kind.PROVIDER_PAYABLE,
) -> Statement:
    """The statement of the payout ``reference`` (its public id), which is about to take ``amount_micro`` from the account of kind ``source``.

    Precondition: inside the transaction that makes the payout, with the account locked, before the amount is moved out of it.
    ``later_micro``: earned after the cut-off; ``kept_micro``: kept back for running rentals. Once a payout: a repeat returns the first.
    Raises BooksDisagree.
    """
    existing = Statement.objects.filter(
        organisation=organisation, kind=Statement.Kind.PAYOUT, reference=str(reference)
    ).first()
    if existing is not None:
        return existing
    series = PAYOUTS if source == Kind.PROVIDER_PAYABLE else RETURNS
    account = Account.objects.get(code=f"{source}:{organisation.public_id}")
    number = _next_number(series)
    before = _last(organisation, series)
    span = Span(first=_after(account, before) + 1, last=_newest(account))
    opening = before.body["carried_micro"] if before else 0
    lines = statement_lines.derive(account, span)
    closing = opening + sum(line["amount_micro"] for line in lines)
    _agree(account, closing, account.balance_micro)
    return _issue(
        kind=Statement.Kind.PAYOUT,
        series=series,
        number=number,
        organisation=organisation,
        reference=str(reference),
        period=(period_start, period_end),
        before=before,
        span=span,
        at=at,
        figures={
            "account": str(source),
            "run_kind": str(kind_of_run),
            "opening_micro": opening,
            "lines": lines,
            "closing_micro": closing,
            "later_micro": later_micro,
            "kept_micro": kept_micro,
            "payable_micro": max(0, closing - later_micro - kept_micro),
            "amount_micro": amount_micro,
            "carried_micro": closing - amount_micro,
        },
    )


def _after(account: Account, before: Statement | None) -> int:
    """The transfer that took the last payout out of the account: what comes after it is new."""
    if before is None:
        return 0
    return account.outgoing.values_list("pk", flat=True).get(kind=Move.PAYOUT, reference=before.reference)


# --- months ----------------------------------------------------------------------------------------------------------


def month_of(name: str) -> tuple[datetime, datetime]:
    """The bounds of the month "2026-12", half-open, UTC."""
    start = datetime.strptime(name, "%Y-%m").replace(tzinfo=UTC)
    return start, _next_month(start)


def issue_months(*, at: datetime) -> int:
    """Issue every monthly statement that is due, oldest first. Returns how many. Late, twice or at once is harmless; one that fails stops none."""
    issued = 0
    for pk in _with_news(before=_month_start(at)):
        try:
            while _issue_month(pk, at=at):
                issued += 1
        except Exception:
            log.exception("statement_not_issued", organisation=pk)
    return issued


# Accounts with a transfer that no monthly statement covers and that took effect before this month. ``next_first`` of the last
# statement is the least id that it left, so an account at rest costs one look into an index.
_NEWS = """
SELECT a.organisation_id FROM billing_account a
LEFT JOIN LATERAL (
    SELECT (body->>'next_first')::bigint AS next_first, period_end, (body->'span'->>'last')::bigint AS last FROM billing_statement
    WHERE organisation_id = a.organisation_id AND series = %(series)s ORDER BY number DESC LIMIT 1
) s ON true
WHERE a.kind = %(kind)s AND (s.period_end IS NULL OR s.period_end < %(before)s) AND (
    EXISTS (SELECT 1 FROM billing_transfer t WHERE t.credit_id = a.id AND t.id >= coalesce(s.next_first, 0)
            AND t.effective_at < %(before)s AND NOT coalesce(t.effective_at < s.period_end AND t.id <= s.last, false))
    OR EXISTS (SELECT 1 FROM billing_transfer t WHERE t.debit_id = a.id AND t.id >= coalesce(s.next_first, 0)
               AND t.effective_at < %(before)s AND NOT coalesce(t.effective_at < s.period_end AND t.id <= s.last, false))
)
ORDER BY a.organisation_id
"""


def _with_news(*, before: datetime) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(_NEWS, {"series": MONTHS, "kind": Kind.RENTER_BALANCE.value, "before": before})
        return [pk for (pk,) in cursor.fetchall()]


@transaction.atomic
def _issue_month(pk: int, *, at: datetime) -> bool:
    """The next monthly statement of an organisation; False if none is due, or proof of its meters is still waited for."""
    organisation = Organisation.objects.get(pk=pk)
    # Settling takes the payer's lock, so that nothing moves its balance until this is committed.
    metering.settle_payer(organisation=organisation, at=at)
    account = Account.objects.select_for_update(no_key=True).get(code=f"{Kind.RENTER_BALANCE}:{organisation.public_id}")
    before = _last(organisation, MONTHS)
    start = _month_due(account, before, at=at)
    if start is None:
        return False
    end = _next_month(start)
    if at < end + WAIT_FOR_PROOF and _unbilled(organisation, end):
        return False
    number = _next_number(MONTHS)
    seen = Span.from_data(before.body["span"]) if before else None
    span = Span(
        first=before.body["next_first"] if before else 0,
        last=_newest(account),
        before=end,
        seen_before=seen.before if seen else None,
        seen_last=seen.last if seen else 0,
    )
    opening = before.body["closing_micro"] if before else 0
    lines = statement_lines.derive(account, span)
    closing = opening + sum(line["amount_micro"] for line in lines)
    left, later = statement_lines.beyond(account, span)
    _agree(account, closing, account.balance_micro - later)
    _issue(
        kind=Statement.Kind.RENTER_MONTH,
        series=MONTHS,
        number=number,
        organisation=organisation,
        reference=f"{start:%Y-%m}",
        period=(start, end),
        before=before,
        span=span,
        at=at,
        figures={
            "account": str(Kind.RENTER_BALANCE),
            "opening_micro": opening,
            "lines": lines,
            "closing_micro": closing,
            "next_first": span.last + 1 if left is None else left,
        },
    )
    return True


def _month_due(account: Account, before: Statement | None, *, at: datetime) -> datetime | None:
    """The month of the oldest transfer not covered yet, never earlier than the one after the last statement."""
    covered_until = before.period_end if before else None
    span = Span(
        first=before.body["next_first"] if before else 0,
        last=EVER,
        before=_month_start(at),
        seen_before=covered_until,
        seen_last=before.body["span"]["last"] if before else 0,
    )
    oldest = statement_lines.oldest(account, span)
    if oldest is None:
        return None
    start = _month_start(oldest)
    if covered_until is not None:
        start = max(start, covered_until)
    return start if start < _month_start(at) else None


def _unbilled(organisation: Organisation, end: datetime) -> bool:
    """Whether a meter may still be billed for seconds before ``end``: its proof has not come that far."""
    for meter in Meter.objects.filter(payer=organisation, closed=False, started_at__lt=end):
        until = min(end, meter.funded_until, meter.ended_at or end)
        if (until - meter.started_at) // timedelta(seconds=1) > meter.billed_seconds:
            return True
    return False


def _month_start(at: datetime) -> datetime:
    return datetime.combine(at.astimezone(UTC).date().replace(day=1), datetime.min.time(), UTC)


def _next_month(start: datetime) -> datetime:
    return (start + timedelta(days=32)).replace(day=1)


# --- issuing ---------------------------------------------------------------------------------------------------------


def _issue(
    *,
    kind: str,
    series: str,
    number: int,
    organisation: Organisation,
    reference: str,
    period: tuple[datetime, datetime],
    before: Statement | None,
    span: Span,
    at: datetime,
    figures: dict[str, Any],
) -> Statement:
    body = {
        "version": VERSION,
        "kind": str(kind),
        "series": series,
        "number": number,
        "organisation": {"id": str(organisation.public_id), "name": organisation.name},
        "reference": reference,
        "period": {"start": iso(period[0]), "end": iso(period[1])},
        "issued_at": iso(at),
        "previous": {"number": before.full_number, "sha256": before.sha256} if before else None,
        "span": span.as_data(),
        **figures,
    }
    return Statement.objects.create(
        kind=kind,
        series=series,
        number=number,
        organisation=organisation,
        reference=reference,
        period_start=period[0],
        period_end=period[1],
        body=body,
        sha256=hash_of(body),
        issued_at=at,
    )


def _next_number(series: str) -> int:
    """Precondition: inside the transaction that issues. The series stays locked until it ends, so numbers come in the order of issue."""
    StatementSeries.objects.get_or_create(name=series)
    StatementSeries.objects.filter(name=series).update(last_number=F("last_number") + 1)
    return StatementSeries.objects.values_list("last_number", flat=True).get(name=series)


def _last(organisation: Organisation, series: str) -> Statement | None:
    return Statement.objects.filter(organisation=organisation, series=series).order_by("-number").first()


def _newest(account: Account) -> int:
    """The last transfer of the account, 0 if none."""
    return max(
        account.incoming.aggregate(last=Max("pk"))["last"] or 0, account.outgoing.aggregate(last=Max("pk"))["last"] or 0
    )


def _agree(account: Account, closing: int, balance: int) -> None:
    if closing != balance:
        raise BooksDisagree(f"{account.code}: the lines come to {closing} micro-USDC, the account to {balance}")

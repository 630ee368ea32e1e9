"""The statements of metering: lock payers and their accounts, set until when their money lasts, bill what is due. Set-based.

For ``billing.metering`` alone, which holds the rules and calls these in the order of its rule 5: ``lock_payers``, ``lock_accounts``,
``fund``, then ``bill``. All of them work within the caller's transaction.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from django.db import connection
from django.db.models import Q, QuerySet

from billing import ledger
from billing.ledger import Kind
from billing.models import Account, Meter
from gpunex.accounts.models import Organisation

# A small rate on a large balance would be funded beyond any calendar.
FUNDED_AT_MOST = timedelta(days=3650)


def open_meters(payers: Sequence[int]) -> QuerySet[Meter]:
    return Meter.objects.filter(payer_id__in=payers, closed=False)


def lock_payers(payers: Sequence[int], *, wait: bool = True) -> list[int]:
    """Lock payers and their open meters; without ``wait`` those that are locked elsewhere are left out."""
    rows = (
        Organisation.objects.select_for_update(no_key=True, skip_locked=not wait).filter(pk__in=payers).order_by("pk")
    )
    locked = [row.pk for row in rows.only("pk")]
    list(open_meters(locked).select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True))
    return locked


def lock_accounts(payers: Sequence[int]) -> None:
    """The payers' balances and the earnings of all whom they pay, by id."""
    payees = open_meters(payers).values("payee_id")
    accounts = Account.objects.filter(
        Q(kind=Kind.RENTER_BALANCE, organisation_id__in=payers)
        | Q(kind=Kind.PROVIDER_PAYABLE, organisation_id__in=payees)
    )
    list(accounts.select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True))


def midnights(payers: Sequence[int], *, at: datetime) -> list[datetime]:
    """The UTC midnights that unbilled time of these payers crosses, oldest first: usually none."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT min(started_at + billed_seconds * interval '1 second') FROM billing_meter WHERE payer_id = ANY(%s) AND NOT closed",
            [list(payers)],
        )
        (oldest,) = cursor.fetchone()
    if oldest is None:
        return []
    midnight = datetime.combine(oldest.astimezone(UTC).date() + timedelta(days=1), datetime.min.time(), UTC)
    cuts = []
    while midnight < at:
        cuts.append(midnight)
        midnight += timedelta(days=1)
    return cuts


# The balance pays, from where each meter was billed to (t), Σ rate · max(0, F − t). Sorted by t, the F that this reaches with the
# first k meters alone is (money + Σ rate·t) / Σ rate, and the least of these is the one at which exactly the right meters take part.
# Amounts are in 1/3600 micro-USDC. What cumulative rounding has left over of each meter (rest) comes off first, so that no floor of
# a later total can cost more than there is.
_FUND = """
WITH running AS (
    SELECT id, payer_id, rate_micro_per_hour::numeric AS rate,
           extract(epoch FROM started_at) + billed_seconds AS t,
           rate_micro_per_hour::numeric * billed_seconds - 3600::numeric * billed_gross_micro AS rest
    FROM billing_meter WHERE payer_id = ANY(%(payers)s) AND NOT closed
), money AS (
    SELECT r.payer_id, 3600 * coalesce(max(a.balance_micro - a.floor_micro), 0) - sum(r.rest) AS left_over
    FROM running r LEFT JOIN billing_account a ON a.kind = %(kind)s AND a.organisation_id = r.payer_id GROUP BY r.payer_id
), prefixes AS (
    SELECT payer_id, sum(rate) OVER w AS rates, sum(rate * t) OVER w AS weighted
    FROM running WINDOW w AS (PARTITION BY payer_id ORDER BY t, id)
), funded AS (
    SELECT p.payer_id,
           timestamptz 'epoch' + floor(1000000 * least(
               min((m.left_over + p.weighted) / p.rates), extract(epoch FROM %(latest)s::timestamptz)
           ))::bigint * interval '1 microsecond' AS until
    FROM prefixes p JOIN money m USING (payer_id) GROUP BY p.payer_id
)
UPDATE billing_meter m SET funded_until = f.until FROM funded f
WHERE m.payer_id = f.payer_id AND NOT m.closed AND m.funded_until IS DISTINCT FROM f.until
"""

# One statement bills all open meters of the payers: transfers, balances and meters together. ``until`` caps it (a midnight).
# A transfer takes effect within the time that it covers, so a charge up to midnight belongs to the day that ended.
_BILL = """
WITH reached AS (
    SELECT id, public_id, payer_id, payee_id, started_at, rate_micro_per_hour, fee_bps, billed_seconds, billed_gross_micro,
           billed_fee_micro, greatest(billed_seconds, floor(extract(epoch FROM
               least(proved_until, funded_until, ended_at, %(until)s::timestamptz) - started_at))::bigint) AS seconds
    FROM billing_meter WHERE payer_id = ANY(%(payers)s) AND NOT closed AND (%(meter)s::bigint IS NULL OR id = %(meter)s)
), total AS (
    SELECT *, div(rate_micro_per_hour::numeric * seconds, 3600) AS gross FROM reached
), due AS (
    SELECT t.*, div(t.gross * t.fee_bps, 10000) AS fee, b.id AS payer_account, p.id AS payee_account
    FROM total t
    JOIN billing_account b ON b.kind = %(balance)s AND b.organisation_id = t.payer_id
    JOIN billing_account p ON p.kind = %(payable)s AND p.organisation_id = t.payee_id
    WHERE t.seconds > t.billed_seconds
), parts AS (
    SELECT id, public_id, seconds, started_at, billed_seconds, rate_micro_per_hour, payer_account,
           part.name, part.account, part.kind, part.amount::bigint AS amount
    FROM due, LATERAL (VALUES
        ('net', payee_account, %(charge)s, (gross - fee) - (billed_gross_micro - billed_fee_micro)),
        ('fee', %(fee_account)s, %(fee)s, fee - billed_fee_micro)
    ) AS part (name, account, kind, amount)
    WHERE part.amount > 0
), posted AS (
    INSERT INTO billing_transfer (key, debit_id, credit_id, amount_micro, kind, reference, effective_at, created_at, reason, data)
    SELECT 'meter:' || public_id || ':' || seconds || ':' || name, payer_account, account, amount, kind, public_id::text,
           started_at + seconds * interval '1 second' - interval '1 microsecond', %(at)s, '',
           jsonb_build_object('from', billed_seconds, 'to', seconds, 'rate_micro_per_hour', rate_micro_per_hour)
    FROM parts ORDER BY id, name DESC
    RETURNING debit_id, credit_id, amount_micro
), moved AS (
    SELECT account, sum(amount) AS amount FROM (
        SELECT debit_id AS account, -amount_micro AS amount FROM posted
        UNION ALL SELECT credit_id, amount_micro FROM posted
    ) AS sides GROUP BY account
), balances AS (
    UPDATE billing_account a SET balance_micro = a.balance_micro + moved.amount FROM moved
    WHERE a.id = moved.account AND a.materialised
)
UPDATE billing_meter m SET billed_seconds = due.seconds, billed_gross_micro = due.gross, billed_fee_micro = due.fee,
       settled_at = CASE WHEN %(until)s::timestamptz IS NULL THEN %(at)s ELSE m.settled_at END
FROM due WHERE m.id = due.id
"""

# After the last cut: who had nothing due is settled too, and what has ended is billed to its end.
_FINISH = """
UPDATE billing_meter SET settled_at = %(at)s, closed = ended_at IS NOT NULL
WHERE payer_id = ANY(%(payers)s) AND NOT closed AND (%(meter)s::bigint IS NULL OR id = %(meter)s)
  AND (settled_at IS DISTINCT FROM %(at)s OR ended_at IS NOT NULL)
RETURNING closed
"""


def fund(payers: Sequence[int], *, at: datetime) -> None:
    """Set until when the money of each payer lasts. Precondition: the payers are locked."""
    with connection.cursor() as cursor:
        cursor.execute(
            _FUND, {"payers": list(payers), "kind": Kind.RENTER_BALANCE.value, "latest": at + FUNDED_AT_MOST}
        )


def bill(payers: Sequence[int], *, at: datetime, meter: int | None = None) -> bool:
    """Bill all open meters of the payers, or the one, a UTC day at a time. Returns whether any is closed by it.

    Precondition: the payers and the accounts are locked, and ``fund`` has just run.
    """
    values = {
        "payers": list(payers),
        "meter": meter,
        "at": at,
        "balance": Kind.RENTER_BALANCE.value,
        "payable": Kind.PROVIDER_PAYABLE.value,
        "charge": ledger.Move.CHARGE.value,
        "fee": ledger.Move.FEE.value,
        "fee_account": ledger.account(Kind.FEE).pk,
    }
    with connection.cursor() as cursor:
        for until in [*midnights(payers, at=at), None]:
            cursor.execute(_BILL, values | {"until": until})
        cursor.execute(_FINISH, values)
        return any(closed for (closed,) in cursor.fetchall())

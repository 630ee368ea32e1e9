"""Metering: seconds become charges, without drift, never below zero, never for a second that nobody proved.

Rules
1. A meter has one rate and one fee for its life. Its whole seconds run from ``started_at``, in UTC.
2. It is billed up to ``min(proved_until, funded_until, ended_at)``, never to now: silence is not billed and not reversed.
3. Billing is cumulative: what is due is the total of all seconds so far, minus what was billed. A tick is never priced alone,
   so the ticks' sizes do not matter. The fee likewise; the provider's part is the rest, so the two always sum to the charge.
4. All running meters of a payer share ``funded_until``: the moment at which the balance would have paid for all of them. It is set
   anew, under the payer's lock, at start, stop, deposit and before each settlement; so ten meters cannot overdraw one balance.
5. Locks: payers (their organisation's row, by id), then their open meters by id, then accounts by id. Whoever moves a renter's
   balance takes the payer first: ``move_and_fund`` does.
6. A settlement never spans a UTC midnight: a transfer belongs to exactly one day, hence to one payout period.

A worked example: 0.35 an hour, with a fee of 8 %, for an hour. Pricing each second alone would bill 349,200 or 352,800.

>>> gross_of(350_000, 3600), fee_of(gross_of(350_000, 3600), 800)
(350000, 28000)
>>> ticks = [0, 1, 61, 62, 1800, 3599, 3600]
>>> sum(gross_of(350_000, now) - gross_of(350_000, before) for before, now in zip(ticks, ticks[1:]))
350000
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from django.db import DatabaseError, connection, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Greatest

from billing import ledger
from billing.ledger import Kind, NotEnoughMoney, Posting
from billing.models import Account, Meter, Transfer
from gpunex.accounts.models import Organisation
from gpunex.policy.models import Policy

log = structlog.get_logger(__name__)

SETTLE_EVERY = timedelta(hours=1)
# Near the end of the money the ledger follows closely, so that what is shown as posted is nearly all there is.
SETTLE_SOON_EVERY = timedelta(minutes=1)
NEAR_THE_END = timedelta(minutes=10)
PAYERS_A_BATCH = 500
# A small rate on a large balance would be funded beyond any calendar.
FUNDED_AT_MOST = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Accrued:
    """All that a meter came to so far, billed or not: whole seconds, micro-USDC charged, and the fee in it."""

    seconds: int
    gross_micro: int
    fee_micro: int

    @property
    def net_micro(self) -> int:
        return self.gross_micro - self.fee_micro


@dataclass(frozen=True, slots=True)
class Position:
    """A payer's money. ``posted`` is in the ledger; ``accruing`` is used and not yet posted; ``available`` is the difference."""

    posted_micro: int
    accruing_micro: int
    burn_micro_per_hour: int
    funded_until: datetime | None  # None where nothing runs

    @property
    def available_micro(self) -> int:
        return self.posted_micro - self.accruing_micro


@dataclass(frozen=True, slots=True)
class Earning:
    """A payee's money, after the fee: in the ledger, on the way there, and what an hour of now adds."""

    posted_micro: int
    accruing_micro: int
    rate_micro_per_hour: int


# --- amounts ---------------------------------------------------------------------------------------------------------


def gross_of(rate_micro_per_hour: int, seconds: int) -> int:
    """Micro-USDC for ``seconds`` since the meter's start."""
    return rate_micro_per_hour * seconds // 3600


def fee_of(gross_micro: int, fee_bps: int) -> int:
    """The platform's part of a charge."""
    return gross_micro * fee_bps // 10_000


def accrued(meter: Meter) -> Accrued:
    """What ``meter`` comes to, up to ``min(proved_until, funded_until, ended_at)``; never less than was billed."""
    ends = [meter.proved_until, meter.funded_until] + ([meter.ended_at] if meter.ended_at else [])
    seconds = max(meter.billed_seconds, (min(ends) - meter.started_at) // timedelta(seconds=1))
    gross = gross_of(meter.rate_micro_per_hour, seconds)
    return Accrued(seconds=seconds, gross_micro=gross, fee_micro=fee_of(gross, meter.fee_bps))


# --- the life of a meter ---------------------------------------------------------------------------------------------


@transaction.atomic
def check_runway(
    *, organisation: Organisation, extra_rate_micro_per_hour: int, at: datetime, pending_rates: Iterable[int] = ()
) -> None:
    """Refuse a start that the balance would not carry for the policy's runway (an hour), together with all that runs.

    Settles the payer's meters first and holds the payer's lock until the caller's transaction ends, so two starts cannot spend the
    same money. ``pending_rates`` are rentals that were started and whose meter is not open yet. Raises NotEnoughMoney.
    """
    settle_payer(organisation=organisation, at=at)
    running = sum(_open(payers=[organisation.pk]).values_list("rate_micro_per_hour", flat=True))
    rate = running + sum(pending_rates) + extra_rate_micro_per_hour
    needed = -(-rate * Policy.load().runway_seconds // 3600)
    have = ledger.balance(ledger.account(Kind.RENTER_BALANCE, organisation=organisation))
    if have < needed:
        raise NotEnoughMoney(needed_micro=needed, have_micro=have)


@transaction.atomic
def open_meter(
    *,
    payer: Organisation,
    payee: Organisation,
    rate_micro_per_hour: int,
    quantity: int,
    fee_bps: int,
    reference: str | UUID,
    labels: Mapping[str, Any],
    at: datetime,
) -> Meter:
    """Start charging ``payer`` from ``at`` on, once per ``reference``: asking again returns the meter there is.

    ``rate_micro_per_hour`` is for all ``quantity`` units together. ``labels`` are frozen for the statement:
    ``{"rental", "model", "machine", "gpus": [{"id", "index"}, …], "image"}``, the GPUs in the order in which amounts are split.
    """
    lock_payer(payer)
    existing = Meter.objects.filter(reference=str(reference)).first()
    if existing is not None:
        return existing
    ledger.account(Kind.RENTER_BALANCE, organisation=payer)
    ledger.account(Kind.PROVIDER_PAYABLE, organisation=payee)
    ledger.account(Kind.FEE)
    settle_payer(organisation=payer, at=at)
    meter = Meter.objects.create(
        payer=payer,
        payee=payee,
        reference=str(reference),
        labels=dict(labels),
        rate_micro_per_hour=rate_micro_per_hour,
        quantity=quantity,
        fee_bps=fee_bps,
        started_at=at,
        proved_until=at,
        funded_until=at,
        settled_at=at,
    )
    _fund([payer.pk], at=at)
    meter.refresh_from_db()
    return meter


@transaction.atomic
def prove(*, until: Mapping[int, datetime]) -> int:
    """Note up to when each meter (by pk) is known to have run; only forward. Returns how many moved. Set-based.

    The proof is a heartbeat, or a report of the job itself, by the server's clock.
    """
    if not until:
        return 0
    payers = list(Meter.objects.filter(pk__in=until, closed=False).values_list("payer_id", flat=True).distinct())
    _lock(payers)
    meters, times = list(until), list(until.values())
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE billing_meter m SET proved_until = p.until"
            " FROM unnest(%s::bigint[], %s::timestamptz[]) AS p (id, until)"
            " WHERE m.id = p.id AND NOT m.closed AND m.proved_until < least(p.until, m.ended_at)",
            [meters, times],
        )
        return cursor.rowcount


@transaction.atomic
def close_meter(*, meter: Meter, ended_at: datetime, at: datetime) -> Meter:
    """End ``meter`` as of ``ended_at`` and settle it; the first end wins, and closing again changes nothing.

    ``ended_at`` is itself the proof that it ran until then: pass what the job reported, or the last proof of life of a machine that
    went silent, never the present for one of which nothing is known. What the balance did not cover is nobody's charge.
    """
    lock_payer(meter.payer)
    Meter.objects.filter(pk=meter.pk, ended_at=None).update(
        ended_at=Greatest(F("started_at"), ended_at),
        proved_until=Greatest(F("proved_until"), F("started_at"), ended_at),
    )
    settle_payer(organisation=meter.payer, at=at)
    meter.refresh_from_db()
    return meter


# --- settling --------------------------------------------------------------------------------------------------------


def settle(*, at: datetime) -> int:
    """Bill the meters that are due: those not settled for an hour, and each minute near the end of the money.

    Returns how many payers were settled. Set-based; payers whom somebody else has locked come next time, and one whose books
    refuse is left out and tried alone, so that it never stops the rest.
    """
    due = Meter.objects.filter(closed=False).filter(
        Q(settled_at__lte=at - SETTLE_EVERY)
        | Q(settled_at__lte=at - SETTLE_SOON_EVERY, funded_until__lte=at + NEAR_THE_END)
        | Q(ended_at__isnull=False)
    )
    return _settle_all(due, at=at, wait=False)


def settle_payees(*, payees: Sequence[Organisation] | None = None, at: datetime) -> int:
    """Bill every open meter of these payees, or of all, whether due or not: before a payout."""
    meters = Meter.objects.filter(closed=False)
    return _settle_all(meters if payees is None else meters.filter(payee__in=payees), at=at, wait=True)


@transaction.atomic
def settle_payer(*, organisation: Organisation, at: datetime) -> None:
    """Bill all open meters of one payer and set anew until when they are funded."""
    _settle([organisation.pk], at=at, wait=True)


def _settle_all(meters: QuerySet[Meter], *, at: datetime, wait: bool) -> int:
    payers = list(meters.order_by("payer_id").values_list("payer_id", flat=True).distinct())
    settled = 0
    for start in range(0, len(payers), PAYERS_A_BATCH):
        batch = payers[start : start + PAYERS_A_BATCH]
        try:
            with transaction.atomic():
                settled += _settle(batch, at=at, wait=wait)
        except DatabaseError:
            log.warning("settled_one_by_one", payers=len(batch), exc_info=True)
            settled += sum(_settle_alone(payer, at=at, wait=wait) for payer in batch)
    return settled


def _settle_alone(payer: int, *, at: datetime, wait: bool) -> int:
    try:
        with transaction.atomic():
            return _settle([payer], at=at, wait=wait)
    except DatabaseError:
        log.exception("payer_not_settled", payer=payer)
        return 0


def _settle(payers: Sequence[int], *, at: datetime, wait: bool) -> int:
    """Precondition: inside a transaction. Returns how many of ``payers`` were settled."""
    payers = _lock(payers, wait=wait)
    if not payers:
        return 0
    _lock_accounts(payers)
    # First until when the money lasts, from the balance as it is under the lock; then nothing billed can break the floor.
    _fund(payers, at=at)
    for cut in [*_midnights(payers, at=at), None]:
        _bill(payers, at=at, until=cut)
    _fund(payers, at=at)
    return len(payers)


def _midnights(payers: Sequence[int], *, at: datetime) -> list[datetime]:
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


# --- what stands where -----------------------------------------------------------------------------------------------


def position(organisation: Organisation, *, at: datetime) -> Position:
    """The payer's money as known ``at``: the ledger, and what its open meters accrued since."""
    meters = list(_open(payers=[organisation.pk]))
    accruing = sum(accrued(meter).gross_micro - meter.billed_gross_micro for meter in meters)
    running = [meter for meter in meters if meter.ended_at is None]
    return Position(
        posted_micro=_posted(Kind.RENTER_BALANCE, organisation),
        accruing_micro=accruing,
        burn_micro_per_hour=sum(meter.rate_micro_per_hour for meter in running),
        funded_until=min((meter.funded_until for meter in running), default=None),
    )


def earning(organisation: Organisation, *, at: datetime) -> Earning:
    """The payee's money as known ``at``, after the fee."""
    meters = list(Meter.objects.filter(payee=organisation, closed=False))
    running = [meter for meter in meters if meter.ended_at is None and meter.funded_until > at]
    return Earning(
        posted_micro=_posted(Kind.PROVIDER_PAYABLE, organisation),
        accruing_micro=sum(
            accrued(meter).net_micro - (meter.billed_gross_micro - meter.billed_fee_micro) for meter in meters
        ),
        rate_micro_per_hour=sum(
            meter.rate_micro_per_hour - fee_of(meter.rate_micro_per_hour, meter.fee_bps) for meter in running
        ),
    )


def _posted(kind: Kind, organisation: Organisation) -> int:
    """Reading makes no account: somebody who never paid has none, and nothing in it."""
    return (
        Account.objects.filter(code=f"{kind}:{organisation.public_id}").values_list("balance_micro", flat=True).first()
        or 0
    )


# --- locks and money -------------------------------------------------------------------------------------------------


def lock_payer(organisation: Organisation) -> None:
    """Precondition: inside a transaction, before any ledger account is locked. Held until it ends."""
    _lock([organisation.pk])


@transaction.atomic
def move_and_fund(*, organisation: Organisation, postings: Sequence[Posting], at: datetime) -> list[Transfer]:
    """Post transfers that touch a payer's balance (deposit, credit, refund), then set anew until when its meters are funded."""
    lock_payer(organisation)
    transfers = ledger.post_all(postings, at=at)
    _fund([organisation.pk], at=at)
    return transfers


def _open(*, payers: Sequence[int]) -> QuerySet[Meter]:
    return Meter.objects.filter(payer_id__in=payers, closed=False)


def _lock(payers: Sequence[int], *, wait: bool = True) -> list[int]:
    """Lock payers and their open meters; without ``wait`` those that are locked elsewhere are left out."""
    rows = (
        Organisation.objects.select_for_update(no_key=True, skip_locked=not wait).filter(pk__in=payers).order_by("pk")
    )
    locked = [row.pk for row in rows.only("pk")]
    list(_open(payers=locked).select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True))
    return locked


def _lock_accounts(payers: Sequence[int]) -> None:
    payees = _open(payers=payers).values("payee_id")
    accounts = Account.objects.filter(
        Q(kind=Kind.RENTER_BALANCE, organisation_id__in=payers)
        | Q(kind=Kind.PROVIDER_PAYABLE, organisation_id__in=payees)
    )
    list(accounts.select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True))


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
    FROM billing_meter WHERE payer_id = ANY(%(payers)s) AND NOT closed
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
UPDATE billing_meter m SET billed_seconds = due.seconds, billed_gross_micro = due.gross, billed_fee_micro = due.fee
FROM due WHERE m.id = due.id
"""


def _fund(payers: Sequence[int], *, at: datetime) -> None:
    """Precondition: the payers are locked."""
    with connection.cursor() as cursor:
        cursor.execute(
            _FUND, {"payers": list(payers), "kind": Kind.RENTER_BALANCE.value, "latest": at + FUNDED_AT_MOST}
        )


def _bill(payers: Sequence[int], *, at: datetime, until: datetime | None) -> None:
    """Precondition: the payers and the accounts are locked, and ``_fund`` has just run."""
    values = {
        "payers": list(payers),
        "until": until,
        "at": at,
        "balance": Kind.RENTER_BALANCE.value,
        "payable": Kind.PROVIDER_PAYABLE.value,
        "charge": ledger.Move.CHARGE.value,
        "fee": ledger.Move.FEE.value,
        "fee_account": ledger.account(Kind.FEE).pk,
    }
    with connection.cursor() as cursor:
        cursor.execute(_BILL, values)
    if until is None:
        _open(payers=payers).update(settled_at=at)
        _open(payers=payers).filter(ended_at__isnull=False).update(closed=True)

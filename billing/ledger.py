"""The ledger: transfers between accounts, in whole micro-USDC, never edited.

Rules
1. A transfer moves a positive amount from one account (debit) to another (credit). An unbalanced row cannot be written, and
   the sum over all accounts is zero at any time.
2. Its key is a business fact ("deposit:<signature>:<account>"), unique for ever. Posting a key again returns the first
   transfer and moves nothing; the same key with another body is refused.
3. Rows are append-only (a trigger refuses the rest). A mistake is corrected by a transfer back, once.
4. Locks are taken in one order everywhere: business rows, then accounts by id, then the insert, so that the transfers of an
   account are numbered in the order in which they took effect.
5. An account with a floor cannot go below it: a constraint says so, not Python. Platform accounts that every transfer touches
   are not materialised; their balance is the sum of their transfers, and nobody waits for one row.
6. A deadlock or a serialisation failure is retried by whoever began the transaction, with the same key.

A worked example: an hour at 2.50 with a fee of 8 % is charged, then paid out. What each step does to the accounts:

>>> charge = [("renter.balance", "provider.payable", 2_300_000), ("renter.balance", "platform.fee", 200_000)]
>>> changes(charge)
{'renter.balance': -2500000, 'provider.payable': 2300000, 'platform.fee': 200000}
>>> reserve, paid = [("provider.payable", "payout.in_transit", 2_300_000)], [("payout.in_transit", "payout.paid.chain", 2_300_000)]
>>> after = changes(charge + reserve + paid)
>>> after
{'renter.balance': -2500000, 'provider.payable': 0, 'platform.fee': 200000, 'payout.in_transit': 0, 'payout.paid.chain': 2300000}
>>> sum(after.values())
0
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db import IntegrityError, connection, transaction
from django.db.models import Sum
from django.utils.translation import gettext_lazy as _
from psycopg2.extras import Json

from billing.models import Account, Transfer
from gpunex.accounts.models import Organisation, User
from gpunex.kit import show
from gpunex.kit.refusals import Refusal


class Kind(StrEnum):
    """The chart of accounts. What we owe is positive; where it came from, the treasury, is negative."""

    TREASURY = "chain.treasury"
    UNMATCHED = "deposits.unmatched"
    RENTER_BALANCE = "renter.balance"
    PROVIDER_PAYABLE = "provider.payable"
    IN_TRANSIT = "payout.in_transit"
    PAID_CHAIN = "payout.paid.chain"
    PAID_BANK = "payout.paid.bank"
    FEE = "platform.fee"
    CREDITS = "platform.credits"
    LOSS = "platform.loss"
    ADJUSTMENTS = "adjustments"


# Accounts of one owner each: a floor of nothing, and a balance kept on the row. The others are hot.
OWNED = frozenset({Kind.RENTER_BALANCE, Kind.PROVIDER_PAYABLE, Kind.IN_TRANSIT})


class Move(StrEnum):
    """What a transfer was for."""

    DEPOSIT = "deposit"
    UNMATCHED = "unmatched"
    MATCH = "match"  # an unmatched deposit given to its owner
    CHARGE = "charge"  # a renter's use, the provider's part
    FEE = "fee"  # a renter's use, the platform's part
    CREDIT = "credit"
    PAYOUT = "payout"  # earnings set aside for a payout
    PAID = "payout_paid"
    BACK = "payout_back"  # a payout failed: its money is earnings again
    RETURNED = "payout_returned"  # a bank sent a paid payout back: its money is earnings again
    REFUND = "refund"  # a charge, or a part of it, given back by hand
    RECOVERY = "recovery"  # a provider's debt taken from its earnings
    WRITE_OFF = "write_off"  # a debt that the platform bears
    ADJUSTMENT = "adjustment"
    REVERSAL = "reversal"


class NotEnoughMoney(Refusal):
    code = "not_enough_money"
    message = _("This needs %(needed)s USDC; the balance is %(have)s USDC. Add the difference and try again.")

    def __init__(self, *, needed_micro: int, have_micro: int) -> None:
        super().__init__(needed=show.usdc(needed_micro), have=show.usdc(have_micro))
        self.needed_micro = needed_micro
        self.have_micro = have_micro


class KeyReused(Exception):
    """A key came again with another body: a fault of ours, never of a person."""


class AlreadyReversed(Refusal):
    code = "already_reversed"
    message = _("This transfer has been reversed already.")


class ReasonMissing(Refusal):
    code = "reason_missing"
    message = _("Say why in a few words: the reason is kept with the change.")


@dataclass(frozen=True, slots=True)
class Posting:
    """One transfer to be made; the fields are those of ``Transfer``."""

    key: str
    debit: Account
    credit: Account
    amount_micro: int
    kind: str
    reference: str = ""
    effective_at: datetime | None = None  # when the fact happened; the time of posting if None
    actor: User | None = None
    reason: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    reverses: Transfer | None = None


def changes[T: Hashable](transfers: Iterable[tuple[T, T, int]]) -> dict[T, int]:
    """What transfers, as (debit, credit, amount), do to each account together."""
    result: dict[T, int] = {}
    for debit, credit, amount in transfers:
        result[debit] = result.get(debit, 0) - amount
        result[credit] = result.get(credit, 0) + amount
    return result


def account(kind: str, *, organisation: Organisation | None = None, reference: str | UUID | None = None) -> Account:
    """The account of ``kind``, made when it is first asked for.

    ``renter.balance`` and ``provider.payable`` are an organisation's; ``payout.in_transit`` is a payout's (``reference``) and says
    whose money it holds (``organisation``); the others are the platform's.
    """
    if kind in (Kind.RENTER_BALANCE, Kind.PROVIDER_PAYABLE):
        if organisation is None or reference is not None:
            raise ValueError(f"{kind} belongs to an organisation")
        code = f"{kind}:{organisation.public_id}"
    elif kind == Kind.IN_TRANSIT:
        if organisation is None or reference is None:
            raise ValueError(f"{kind} belongs to a payout of an organisation")
        code = f"{kind}:{reference}"
    else:
        if organisation is not None or reference is not None:
            raise ValueError(f"{kind} is the platform's")
        code = str(Kind(kind))
    owned = kind in OWNED
    return Account.objects.get_or_create(
        code=code,
        defaults={
            "kind": str(kind),
            "organisation": organisation,
            "floor_micro": 0 if owned else None,
            "materialised": owned,
        },
    )[0]


def balance(account: Account) -> int:
    """Micro-USDC in ``account`` now: what came in minus what went out."""
    if account.materialised:
        return Account.objects.values_list("balance_micro", flat=True).get(pk=account.pk)
    came = account.incoming.aggregate(total=Sum("amount_micro"))["total"] or 0
    went = account.outgoing.aggregate(total=Sum("amount_micro"))["total"] or 0
    return came - went


def post(
    *,
    key: str,
    debit: Account,
    credit: Account,
    amount_micro: int,
    kind: str,
    at: datetime,
    reference: str = "",
    actor: User | None = None,
    reason: str = "",
    data: dict[str, Any] | None = None,
    effective_at: datetime | None = None,
) -> Transfer:
    """Move ``amount_micro`` from ``debit`` to ``credit``, once per ``key``.

    A repeat returns the first transfer. Raises KeyReused if it had another body, NotEnoughMoney if ``debit`` would fall below its floor.
    """
    posting = Posting(
        key=key,
        debit=debit,
        credit=credit,
        amount_micro=amount_micro,
        kind=kind,
        reference=reference,
        effective_at=effective_at,
        actor=actor,
        reason=reason,
        data=data or {},
    )
    return post_all([posting], at=at)[0]


@transaction.atomic
def post_all(postings: Sequence[Posting], *, at: datetime) -> list[Transfer]:
    """Make the transfers together or not at all, each once per key; returns them in order. Raises as ``post`` does."""
    if not postings:
        return []
    for posting in postings:
        if posting.amount_micro <= 0:
            raise ValueError(f"{posting.key}: a transfer moves a positive amount")
    touched = {account.pk for posting in postings for account in (posting.debit, posting.credit)}
    # Locked by id before the insert takes its own id: see rule 4. A list, since a lazy queryset locks nothing.
    locked = list(
        Account.objects.select_for_update(no_key=True).filter(pk__in=touched, materialised=True).order_by("pk")
    )
    new = _insert(postings, at=at)
    rows = {row.key: row for row in Transfer.objects.filter(key__in=[posting.key for posting in postings])}
    for posting in postings:
        _refuse_other_body(rows[posting.key], posting)
    moved = changes((row.debit_id, row.credit_id, row.amount_micro) for row in rows.values() if row.key in new)
    for row in locked:
        change = moved.get(row.pk, 0)
        if not change:
            continue
        if row.floor_micro is not None and change < 0 and row.balance_micro + change < row.floor_micro:
            raise NotEnoughMoney(needed_micro=-change, have_micro=row.balance_micro - row.floor_micro)
        Account.objects.filter(pk=row.pk).update(balance_micro=row.balance_micro + change)
    return [rows[posting.key] for posting in postings]


def reverse(*, transfer: Transfer, key: str, by: User | None, reason: str, at: datetime) -> Transfer:
    """Move a transfer's amount back, once for ever, and say why. Raises ReasonMissing, AlreadyReversed, NotEnoughMoney."""
    if not reason.strip():
        raise ReasonMissing
    posting = Posting(
        key=key,
        debit=transfer.credit,
        credit=transfer.debit,
        amount_micro=transfer.amount_micro,
        kind=Move.REVERSAL,
        reference=transfer.reference,
        actor=by,
        reason=reason.strip(),
        reverses=transfer,
    )
    try:
        return post_all([posting], at=at)[0]
    except IntegrityError as error:
        if Transfer.objects.filter(reverses=transfer).exists():
            raise AlreadyReversed from error
        raise


# --- proof -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold: its figure for people, and each place where it does not, with by how much."""

    name: str
    figure: str
    off: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """What the books prove. ``drift_micro`` is 0 exactly if nothing is off: the most that any one check misses."""

    checks: list[Check]

    @property
    def drift_micro(self) -> int:
        # One wrong amount shows in several checks: adding them up would count it several times.
        return max((sum(map(abs, check.off.values())) for check in self.checks), default=0)

    @property
    def problems(self) -> list[str]:
        return [
            f"{check.name}: {place} is off by {micro} micro-USDC"
            for check in self.checks
            for place, micro in check.off.items()
        ]


@contextmanager
def one_moment() -> Iterator[None]:
    """All that is read inside is as of one moment, while money goes on moving."""
    nested = connection.in_atomic_block
    with transaction.atomic():
        if not nested:
            connection.cursor().execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def verify_books() -> Report:
    """Prove the ledger by itself, in one pass. The chain's side is proved where payouts are known."""
    with one_moment():
        return Report([_check(name, figure, query) for name, figure, query in _PROOFS])


def _check(name: str, figure: str, query: str) -> Check:
    with connection.cursor() as cursor:
        cursor.execute(figure)
        (shown,) = cursor.fetchone()
        cursor.execute(query)
        return Check(name=name, figure=str(shown), off={place: int(micro) for place, micro in cursor.fetchall()})


_SUMS = """
sums AS (
    SELECT account, sum(amount) AS total FROM (
        SELECT credit_id AS account, amount_micro AS amount FROM billing_transfer
        UNION ALL SELECT debit_id, -amount_micro FROM billing_transfer
    ) AS sides GROUP BY account
)"""
_TRANSFERS = "SELECT count(*) || ' transfers' FROM billing_transfer"
_ACCOUNTS = "SELECT count(*) || ' accounts' FROM billing_account"
_METERS = "SELECT count(*) || ' meters' FROM billing_meter"
_PAYEES = "SELECT count(*) || ' providers' FROM billing_account WHERE kind = 'provider.payable'"
_PROOFS = [
    (
        "no account is below its floor",
        _ACCOUNTS,
        "SELECT code, balance_micro - floor_micro FROM billing_account WHERE balance_micro < floor_micro",
    ),
    (
        "each balance is the sum of its transfers",
        _TRANSFERS,
        f"""WITH {_SUMS} SELECT a.code, a.balance_micro - coalesce(s.total, 0) FROM billing_account a
            LEFT JOIN sums s ON s.account = a.id WHERE a.materialised AND a.balance_micro <> coalesce(s.total, 0)""",  # noqa: S608
    ),
    (
        "the whole sums to zero",
        _TRANSFERS,
        f"""WITH {_SUMS} SELECT 'all accounts', total FROM (
                SELECT sum(CASE WHEN a.materialised THEN a.balance_micro ELSE coalesce(s.total, 0) END) AS total
                FROM billing_account a LEFT JOIN sums s ON s.account = a.id
            ) AS whole WHERE total <> 0""",  # noqa: S608
    ),
    (
        "each meter's bill is the sum of its charges",
        _METERS,
        """WITH charged AS (
               SELECT reference, sum(amount_micro) FILTER (WHERE kind = 'charge') AS net, sum(amount_micro) FILTER (WHERE kind = 'fee') AS fee
               FROM billing_transfer WHERE kind IN ('charge', 'fee') GROUP BY reference
           )
           SELECT 'meter ' || coalesce(m.public_id::text, c.reference),
                  abs(coalesce(m.billed_gross_micro - m.billed_fee_micro, 0) - coalesce(c.net, 0))
                  + abs(coalesce(m.billed_fee_micro, 0) - coalesce(c.fee, 0))
           FROM billing_meter m FULL JOIN charged c ON c.reference = m.public_id::text
           WHERE coalesce(m.billed_gross_micro - m.billed_fee_micro, 0) <> coalesce(c.net, 0)
              OR coalesce(m.billed_fee_micro, 0) <> coalesce(c.fee, 0)""",
    ),
    (
        # Σ net charges (by the meters) ± everything else that came and went = payable + in transit.
        "each provider's earnings are payable, in transit or paid",
        _PAYEES,
        """WITH owned AS (
               SELECT id, organisation_id, balance_micro FROM billing_account WHERE kind IN ('provider.payable', 'payout.in_transit')
           ), held AS (SELECT organisation_id, sum(balance_micro) AS micro FROM owned GROUP BY organisation_id),
           earned AS (SELECT payee_id, sum(billed_gross_micro - billed_fee_micro) AS micro FROM billing_meter GROUP BY payee_id),
           moved AS (
               SELECT organisation_id, sum(micro) AS micro FROM (
                   SELECT i.organisation_id, t.amount_micro AS micro FROM billing_transfer t JOIN owned i ON i.id = t.credit_id
                   WHERE t.kind <> 'charge'
                   UNION ALL
                   SELECT o.organisation_id, -t.amount_micro FROM billing_transfer t JOIN owned o ON o.id = t.debit_id
               ) AS sides GROUP BY organisation_id
           )
           SELECT 'organisation ' || o.public_id, coalesce(h.micro, 0) - coalesce(e.micro, 0) - coalesce(v.micro, 0)
           FROM accounts_organisation o LEFT JOIN held h ON h.organisation_id = o.id LEFT JOIN earned e ON e.payee_id = o.id
           LEFT JOIN moved v ON v.organisation_id = o.id
           WHERE coalesce(h.micro, 0) <> coalesce(e.micro, 0) + coalesce(v.micro, 0)""",
    ),
]


# --- rows ------------------------------------------------------------------------------------------------------------


def _insert(postings: Sequence[Posting], *, at: datetime) -> set[str]:
    """The keys that were new. Another transaction with the same key is waited for by the unique index."""
    values: list[Any] = []
    for posting in postings:
        values += [
            posting.key,
            posting.debit.pk,
            posting.credit.pk,
            posting.amount_micro,
            str(posting.kind),
            posting.reference,
            posting.effective_at or at,
            at,
            posting.actor.pk if posting.actor else None,
            posting.reason,
            posting.reverses.pk if posting.reverses else None,
            Json(posting.data),
        ]
    row = "(" + ", ".join(["%s"] * 12) + ")"
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO billing_transfer (key, debit_id, credit_id, amount_micro, kind, reference, effective_at, created_at,"  # noqa: S608
            f" actor_id, reason, reverses_id, data) VALUES {', '.join([row] * len(postings))}"
            " ON CONFLICT (key) DO NOTHING RETURNING key",
            values,
        )
        return {key for (key,) in cursor.fetchall()}


def _refuse_other_body(row: Transfer, posting: Posting) -> None:
    given = (posting.debit.pk, posting.credit.pk, posting.amount_micro, str(posting.kind), posting.reference)
    if (row.debit_id, row.credit_id, row.amount_micro, row.kind, row.reference) != given:
        raise KeyReused(f"{posting.key}: posted before with another body")

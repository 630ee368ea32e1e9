"""The ledger: transfers between accounts, in whole micro-USDC, never edited.

Rules
1. A transfer moves a positive amount from one account (debit) to another (credit). An unbalanced row cannot be written, and
   the sum over all accounts is zero at any time.
2. Its key is a business fact ("deposit:<signature>:<account>"), unique for ever. Posting a key again returns the first
   transfer and moves nothing; the same key with another body is refused, and so is a key whose transfer was reversed since.
   The body is what the transfer does: accounts, amount, kind, reference and what it reverses. Who asked, when, why and ``data``
   are circumstances of the first time: a retry comes from another worker, some milliseconds later, and is the same fact.
3. Rows are append-only (a trigger refuses the rest). A mistake is corrected by a transfer back, once.
4. Locks are taken in one order everywhere: business rows, then accounts by id, then the insert, so that the transfers of an
   account are numbered in the order in which they took effect. All of it is one round trip (``gpunex_post`` in the database).
5. An account with a floor cannot go below it: the posting that would is refused by name, and a constraint stands behind it.
   Platform accounts that every transfer touches are not materialised; their balance is the sum of their transfers, and nobody
   waits for one row.
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

from collections.abc import Hashable, Iterable, Sequence
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
from billing.proof import Check, Report, one_moment, verify_books
from gpunex.accounts.models import Organisation, User
from gpunex.kit import show
from gpunex.kit.refusals import Refusal

__all__ = [
    "OWNED",
    "AlreadyReversed",
    "Check",
    "KeyReused",
    "Kind",
    "Move",
    "NotEnoughMoney",
    "Posting",
    "ReasonMissing",
    "Report",
    "account",
    "balance",
    "changes",
    "one_moment",
    "post",
    "post_all",
    "reverse",
    "verify_books",
]


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
    """A key came again with another body, or after its money went back: a fault of ours, never of a person."""


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
    asked: dict[str, Posting] = {}
    for posting in postings:
        if posting.amount_micro <= 0:
            raise ValueError(f"{posting.key}: a transfer moves a positive amount")
        first = asked.setdefault(posting.key, posting)
        if _body(first) != _body(posting):
            raise KeyReused(f"{posting.key}: asked for twice with two bodies")
    if not asked:
        return []
    made, short = _post(list(asked.values()), at=at)
    if short:
        needed, have = min(short, key=lambda of: of[1] - of[0])
        raise NotEnoughMoney(needed_micro=needed, have_micro=have)
    rows = {key: _row(pk, asked[key], at=at) for key, pk in made.items()}
    if len(rows) < len(asked):
        before = [key for key in asked if key not in rows]
        for row in Transfer.objects.filter(key__in=before).select_related("reversed_by"):
            _refuse_other_body(row, asked[row.key])
            rows[row.key] = row
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


# --- rows ------------------------------------------------------------------------------------------------------------

# One round trip, planned once a connection (migration 0007): lock the accounts by id, insert what is new, move the balances.
_POST = """SELECT * FROM gpunex_post(
    %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::timestamptz[], %s::bigint[], %s::text[], %s::bigint[],
    %s::jsonb[], %s::bigint[], %s::timestamptz
)"""


def _post(postings: Sequence[Posting], *, at: datetime) -> tuple[dict[str, int], list[tuple[int, int]]]:
    """The id of each key that was new, and where money is missing: (needed, there), in micro-USDC."""
    columns: list[list[Any]] = [
        [posting.key for posting in postings],
        [posting.debit.pk for posting in postings],
        [posting.credit.pk for posting in postings],
        [posting.amount_micro for posting in postings],
        [str(posting.kind) for posting in postings],
        [posting.reference for posting in postings],
        [posting.effective_at or at for posting in postings],
        [posting.actor.pk if posting.actor else None for posting in postings],
        [posting.reason for posting in postings],
        [posting.reverses.pk if posting.reverses else None for posting in postings],
        [Json(posting.data) for posting in postings],
    ]
    with connection.cursor() as cursor:
        cursor.execute(_POST, [*columns, list({*columns[1], *columns[2]}), at])
        answer = cursor.fetchall()
    made = {key: pk for key, pk, _have in answer if key is not None}
    return made, [(needed, have) for key, needed, have in answer if key is None]


def _row(pk: int, posting: Posting, *, at: datetime) -> Transfer:
    """The row as it was just written, without reading it back."""
    values = {
        "id": pk,
        "key": posting.key,
        "debit_id": posting.debit.pk,
        "credit_id": posting.credit.pk,
        "amount_micro": posting.amount_micro,
        "kind": str(posting.kind),
        "reference": posting.reference,
        "effective_at": posting.effective_at or at,
        "created_at": at,
        "actor_id": posting.actor.pk if posting.actor else None,
        "reason": posting.reason,
        "reverses_id": posting.reverses.pk if posting.reverses else None,
        "data": posting.data,
    }
    return Transfer.from_db(connection.alias, list(values), list(values.values()))


def _body(posting: Posting) -> tuple[Any, ...]:
    reverses = posting.reverses.pk if posting.reverses else None
    return (
        posting.debit.pk,
        posting.credit.pk,
        posting.amount_micro,
        str(posting.kind),
        posting.reference,
        reverses,
    )


def _refuse_other_body(row: Transfer, posting: Posting) -> None:
    body = (row.debit_id, row.credit_id, row.amount_micro, row.kind, row.reference, row.reverses_id)
    if body != _body(posting):
        raise KeyReused(f"{posting.key}: posted before with another body")
    if hasattr(row, "reversed_by"):
        raise KeyReused(
            f"{posting.key}: posted before and reversed since; what is to move again needs a key of its own"
        )

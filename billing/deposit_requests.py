"""Deposit requests: "pay this amount to my own address", as a Solana Pay link and QR code.

Rules
1. The recipient is the organisation's own deposit address, so the money is credited with the reference or without it. The reference only
   tells which request a payment answers: it is public once used, so it proves nothing about whose money it is.
2. A request is paid once what came for it reaches what it asked for. Less is credited and shown as a part; more, or a second payment, is
   credited and shown too.
3. It expires, or is cancelled, and can be paid all the same: wallets keep links. That is credited and called late.
4. Its state follows payments under the payer's lock, by conditional updates: whoever comes second changes nothing.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q, QuerySet, Sum
from django.db.models.functions import Coalesce, Least
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from solders.pubkey import Pubkey

from billing import metering, treasury
from billing.models import DepositRequest
from gpunex.accounts.models import Organisation, User
from gpunex.chain import pay
from gpunex.kit.refusals import Refusal

State = DepositRequest.State

LIVES_FOR = timedelta(minutes=60)
OPEN_AT_MOST = 10
A_DAY_AT_MOST = 50
# Each is looked for on chain as long as wallets may keep its link; then only the address is watched, for ever.
LOOKED_FOR = timedelta(days=30)
OPEN_EVERY = timedelta(seconds=5)
# How long a request is over → how often it is still looked for.
LATE_EVERY = (
    (timedelta(days=1), timedelta(minutes=10)),
    (timedelta(days=7), timedelta(hours=1)),
    (LOOKED_FOR, timedelta(days=1)),
)


class TooManyRequests(Refusal):
    code = "too_many_deposit_requests"
    message = gettext_lazy(
        "%(most)s deposit requests wait for their payment already. Pay or cancel one of them, or send to your address directly."
    )


class TooManyRequestsToday(Refusal):
    code = "too_many_deposit_requests_today"
    message = gettext_lazy(
        "You made %(most)s deposit requests within a day. Send to your address directly, or try again tomorrow."
    )


class RequestClosed(Refusal):
    code = "deposit_request_closed"
    message = gettext_lazy("This request waits for no payment any more. Nothing was changed.")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request is paid, in micro-USDC, and what a person should know of it."""

    asked_micro: int
    received_micro: int
    late: bool
    open: bool

    @property
    def missing_micro(self) -> int:
        return max(0, self.asked_micro - self.received_micro)

    @property
    def exact(self) -> bool:
        return self.received_micro == self.asked_micro


@transaction.atomic
def ask(*, organisation: Organisation, amount_micro: int, by: User, at: datetime) -> DepositRequest:
    """A request to pay ``amount_micro``, open for an hour. Raises TooManyRequests, TooManyRequestsToday."""
    if amount_micro <= 0:
        raise ValueError("a request asks for a positive amount")
    metering.lock_payer(organisation)
    own = DepositRequest.objects.filter(organisation=organisation)
    if own.filter(state=State.OPEN, expires_at__gt=at).count() >= OPEN_AT_MOST:
        raise TooManyRequests(most=OPEN_AT_MOST)
    if own.filter(created_at__gt=at - timedelta(days=1)).count() >= A_DAY_AT_MOST:
        raise TooManyRequestsToday(most=A_DAY_AT_MOST)
    return DepositRequest.objects.create(
        organisation=organisation,
        amount_micro=amount_micro,
        # No key belongs to it: it is a name that the network indexes.
        reference=str(Pubkey(secrets.token_bytes(32))),
        created_by=by,
        created_at=at,
        expires_at=at + LIVES_FOR,
    )


@transaction.atomic
def cancel(*, request: DepositRequest, at: datetime) -> DepositRequest:
    """Stop waiting. What is paid all the same is credited and called late. Raises RequestClosed."""
    metering.lock_payer(request.organisation)
    waiting = DepositRequest.objects.filter(pk=request.pk, state=State.OPEN, expires_at__gt=at)
    if not waiting.update(state=State.CANCELLED, expires_at=Least("expires_at", at)):
        raise RequestClosed
    request.refresh_from_db()
    return request


def expire(*, at: datetime) -> int:
    """Close the requests whose time is up; returns how many."""
    return DepositRequest.objects.filter(state=State.OPEN, expires_at__lte=at).update(state=State.EXPIRED)


def link(request: DepositRequest, *, wallet: str) -> str:
    """What a wallet app opens: ``wallet`` is the organisation's own deposit address."""
    return pay.link(
        pay.TransferRequest(
            wallet=wallet,
            amount=request.amount_micro,
            mint=treasury.mint(),
            references=(request.reference,),
            label="GPUnex",
            message=_("Deposit %(id)s") % {"id": str(request.public_id)[:8]},
        )
    )


# --- payments --------------------------------------------------------------------------------------------------------


def named_in(organisation: Organisation, keys: Iterable[str]) -> DepositRequest | None:
    """The request of ``organisation`` whose reference is among the keys of a transaction: the oldest unpaid one, should there be several."""
    rows = DepositRequest.objects.filter(organisation=organisation, reference__in=list(keys))
    return min(rows, key=lambda row: (row.paid_at is not None, row.pk), default=None)


def note_payment(request: DepositRequest, *, paid_at: datetime) -> None:
    """Call it paid once enough came. Precondition: in the transaction of the deposit, under the payer's lock."""
    received = request.deposits.aggregate(micro=Sum("amount_micro"))["micro"] or 0
    if received >= request.amount_micro:
        DepositRequest.objects.filter(pk=request.pk, paid_at=None).update(state=State.PAID, paid_at=paid_at)


def with_received(rows: QuerySet[DepositRequest]) -> QuerySet[DepositRequest]:
    """``received_micro`` on each row: what its deposits brought, 0 if nothing."""
    return rows.annotate(received_micro=Coalesce(Sum("deposits__amount_micro"), 0))


def progress(request: DepositRequest, *, received_micro: int, at: datetime) -> Progress:
    return Progress(
        asked_micro=request.amount_micro,
        received_micro=received_micro,
        late=request.late,
        open=request.state == State.OPEN and request.expires_at > at,
    )


def due(*, at: datetime, most: int) -> list[DepositRequest]:
    """Unpaid requests whose turn it is to be looked for on chain: the open ones first, then whichever waited longest."""
    unpaid = DepositRequest.objects.filter(paid_at=None).select_related("organisation__deposit_address")
    open_now = unpaid.filter(state=State.OPEN).filter(_not_since(at - OPEN_EVERY)).order_by("looked_at", "pk")[:most]
    found = list(open_now)
    late, since = Q(pk=None), at
    for age, every in LATE_EVERY:
        late |= Q(expires_at__lte=since, expires_at__gt=at - age) & _not_since(at - every)
        since = at - age
    over = unpaid.exclude(state=State.OPEN).filter(late).order_by("looked_at", "pk")
    return found + list(over[: most - len(found)])


def _not_since(moment: datetime) -> Q:
    return Q(looked_at=None) | Q(looked_at__lte=moment)

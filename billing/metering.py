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
7. What is given back of a charge, by credits, refunds and reversals together, is kept on its meter and never exceeds the charge.
8. One bad row stops nobody else: its batch is tried payer by payer, its payer meter by meter, and it is logged until it is put right.

A worked example: 0.35 an hour, with a fee of 8 %, for an hour. Pricing each second alone would bill 349,200 or 352,800.

>>> gross_of(350_000, 3600), fee_of(gross_of(350_000, 3600), 800)
(350000, 28000)
>>> ticks = [0, 1, 61, 62, 1800, 3599, 3600]
>>> sum(gross_of(350_000, now) - gross_of(350_000, before) for before, now in zip(ticks, ticks[1:]))
350000
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from django.db import DatabaseError, OperationalError, connection, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Greatest
from django.utils.translation import gettext_lazy as _

from billing import funding, ledger
from billing.ledger import Kind, NotEnoughMoney, Posting
from billing.models import Account, Meter, Transfer
from gpunex.accounts.models import Organisation
from gpunex.kit import show
from gpunex.kit.refusals import Refusal
from gpunex.policy.models import Policy

log = structlog.get_logger(__name__)


class RefundTooLarge(Refusal):
    code = "refund_too_large"
    message = _(
        "Of this charge at most %(left)s USDC can still be given back; %(asked)s USDC is more. Credits and refunds together never exceed it."
    )

    def __init__(self, *, asked_micro: int, left_micro: int) -> None:
        super().__init__(asked=show.usdc(asked_micro, fine=True), left=show.usdc(left_micro, fine=True))
        self.left_micro = left_micro


SETTLE_EVERY = timedelta(hours=1)
# Near the end of the money the ledger follows closely, so that what is shown as posted is nearly all there is.
SETTLE_SOON_EVERY = timedelta(minutes=1)
NEAR_THE_END = timedelta(minutes=10)
PAYERS_A_BATCH = 500


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
    running = sum(funding.open_meters([organisation.pk]).values_list("rate_micro_per_hour", flat=True))
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
    funding.fund([payer.pk], at=at)
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
    funding.lock_payers(payers)
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
    """Bill all open meters of one payer and set anew until when they are funded. A meter that cannot be billed stays open and is logged."""
    try:
        with transaction.atomic():
            _settle([organisation.pk], at=at, wait=True)
    except OperationalError:  # a deadlock, a lost connection: whoever began the transaction tries again
        raise
    except DatabaseError:
        _settle_each(organisation.pk, at=at, wait=True)


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
        log.warning("settled_meter_by_meter", payer=payer, exc_info=True)
    try:
        return _settle_each(payer, at=at, wait=wait)
    except DatabaseError:
        log.exception("payer_not_settled", payer=payer)
        return 0


@transaction.atomic
def _settle_each(payer: int, *, at: datetime, wait: bool) -> int:
    """Bill one payer's meters one by one, so that a bad one is left out alone. Returns 1 if all of them could be billed."""
    if not funding.lock_payers([payer], wait=wait):
        return 0
    funding.lock_accounts([payer])
    funding.fund([payer], at=at)
    failed = 0
    for meter in list(funding.open_meters([payer]).order_by("pk").values_list("pk", flat=True)):
        try:
            with transaction.atomic():
                funding.bill([payer], at=at, meter=meter)
        except DatabaseError:
            failed += 1
            log.exception("meter_not_settled", meter=meter, payer=payer)
    funding.fund([payer], at=at)
    return 0 if failed else 1


def _settle(payers: Sequence[int], *, at: datetime, wait: bool) -> int:
    """Precondition: inside a transaction. Returns how many of ``payers`` were settled."""
    payers = funding.lock_payers(payers, wait=wait)
    if not payers:
        return 0
    funding.lock_accounts(payers)
    # First until when the money lasts, from the balance as it is under the lock; then nothing billed can break the floor.
    funding.fund(payers, at=at)
    if funding.bill(payers, at=at):
        # What closed stops taking part; otherwise billing moves no end of the money: it pays what was counted as used.
        funding.fund(payers, at=at)
    return len(payers)


# --- what stands where -----------------------------------------------------------------------------------------------


def position(organisation: Organisation, *, at: datetime) -> Position:
    """The payer's money as known ``at``: the ledger, and what its open meters accrued since."""
    meters = list(funding.open_meters([organisation.pk]))
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
    funding.lock_payers([organisation.pk])


def lock_payers(organisations: Sequence[Organisation]) -> None:
    """As ``lock_payer``, of several at once."""
    funding.lock_payers([organisation.pk for organisation in organisations])


@transaction.atomic
def move_and_fund(*, organisation: Organisation, postings: Sequence[Posting], at: datetime) -> list[Transfer]:
    """Post transfers that touch a payer's balance (deposit, credit, refund), then set anew until when its meters are funded.

    What leaves the balance leaves it after what its meters used until now: their time is billed first.
    Raises NotEnoughMoney, KeyReused.
    """
    return move_and_fund_all(organisations=[organisation], postings=postings, at=at)


@transaction.atomic
def move_and_fund_all(
    *, organisations: Sequence[Organisation], postings: Sequence[Posting], at: datetime
) -> list[Transfer]:
    """As ``move_and_fund``, between the balances of several payers, or of none."""
    payers = funding.lock_payers([organisation.pk for organisation in organisations])
    if payers and any(posting.debit.kind == Kind.RENTER_BALANCE for posting in postings):
        for organisation in sorted(organisations, key=lambda one: one.pk):
            settle_payer(organisation=organisation, at=at)
    transfers = ledger.post_all(postings, at=at)
    if payers:
        funding.fund(payers, at=at)
    return transfers


def note_refund(meter: Meter, amount_micro: int) -> None:
    """Keep that ``amount_micro`` of the meter's charge is given back; negative where a refund itself is taken back.

    Precondition: in the transaction that posts it, before ledger accounts are locked. Raises RefundTooLarge if credits and refunds
    together would exceed the charge, and then writes nothing.
    """
    kept = Meter.objects.filter(
        pk=meter.pk, refunded_micro__gte=-amount_micro, billed_gross_micro__gte=F("refunded_micro") + amount_micro
    ).update(refunded_micro=F("refunded_micro") + amount_micro)
    meter.refresh_from_db(fields=["billed_gross_micro", "refunded_micro"])
    if not kept:
        raise RefundTooLarge(asked_micro=amount_micro, left_micro=meter.billed_gross_micro - meter.refunded_micro)

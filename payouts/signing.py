"""Approved payouts are signed, committed, then sent; see the rules in ``payouts.usdc``.

Run by run, oldest first. A run is looked at whole before its first transaction: a frozen account fails by name, an account that we
opened once and that its owner closed is held for a person, and a run that the treasury cannot pay whole waits whole, while later ones
go on.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.db.models import Count, Q, Sum, prefetch_related_objects
from django.utils.translation import gettext_lazy as _

from billing import collecting, treasury
from gpunex.chain.addresses import ata
from gpunex.chain.rpc import TOKEN_ACCOUNT_BYTES, Account, RpcError, RpcUnavailable
from gpunex.chain.transfers import CU_LIMIT, SignedTransfer, sign_transfer, unsigned
from gpunex.policy.models import Policy
from payouts import failpoints
from payouts.models import Attempt, Payout, PayoutRun, Rail
from payouts.notices import alert
from payouts.outcomes import give_back, hold, set_state
from payouts.passing import never_stopping_the_rest

log = structlog.get_logger(__name__)

BLOCKHASH_GOOD_FOR_S = 20.0
# For how many blocks a transaction with a blockhash can land; a height further off than this is a slot, or a lie.
BLOCKHASH_LIFE = 150
HEIGHTS_APART_MOST = 10_000
SIGNED_A_PASS = 500
# What one transaction costs the treasury in lamports, generously: signature and priority fee.
FEE_LAMPORTS = 100_000
SHORT_FOR = timedelta(minutes=10)
# Of what a transfer needed when it was tried out: a little more, since the state moves on.
CU_MARGIN_PERCENT = 120

_FROZEN_STATE, _STATE_BYTE = 2, 108  # of spl-token's Account


@dataclass(slots=True)
class _Purse:
    """What the treasury can still spend in this pass, and what opening a token account costs it."""

    usdc_micro: int
    lamports: int
    rent_lamports: int


def sign_approved(*, at: datetime) -> int:
    """Sign and send what is approved and cleared and whose day has come. Returns how many payouts changed. Raises RpcUnavailable."""
    ready = Payout.objects.filter(state=Payout.State.APPROVED, rail=Rail.USDC)
    runs = PayoutRun.objects.filter(
        pk__in=ready.values("run"), rail=Rail.USDC, cleared_at__isnull=False, execute_on__lte=at.date()
    ).order_by("period_end", "pk")
    purse: _Purse | None = None
    changed = 0
    blockhashes, price = _fresh_blockhashes(), 0
    left = SIGNED_A_PASS
    for run in runs:
        if purse is None:
            purse, price = _purse(), treasury.cu_price([treasury.token_account()])
        payouts = list(ready.filter(run=run).order_by("pk"))
        accounts = _accounts(payouts)
        payouts, aside = _fit(payouts, accounts, at=at)
        changed += aside
        if not _affordable(payouts, accounts, purse, at=at):
            continue
        for payout in payouts[:left]:
            with never_stopping_the_rest(payout):
                opens = accounts[payout.pk] is None
                attempt = _sign(payout, blockhash=next(blockhashes), price=price, opens=opens, at=at)
                if attempt is None:
                    continue
                changed, left = changed + 1, left - 1
                failpoints.passing("signed and committed")
                if not send(attempt, preflight=True, at=at):
                    return changed  # no node takes it: what is signed waits, and nothing more is signed for now
        if left <= 0:
            break
    return changed


# --- before a run ----------------------------------------------------------------------------------------------------


def _purse() -> _Purse:
    """The treasury now, less what signed transactions may still take out of it."""
    rpc = treasury.rpc()
    alive = Attempt.objects.filter(dead=False, payout__state__in=(Payout.State.SIGNED, Payout.State.REVIEW))
    under_way = alive.aggregate(
        micro=Sum("payout__amount_micro"),
        count=Count("pk"),
        opening=Count("pk", filter=Q(evidence__opens_account=True)),
    )
    rent = rpc.rent_exempt_minimum(TOKEN_ACCOUNT_BYTES)
    return _Purse(
        usdc_micro=(rpc.get_token_balance(treasury.token_account()) or 0) - (under_way["micro"] or 0),
        lamports=rpc.get_balance(treasury.address()) - under_way["count"] * FEE_LAMPORTS - under_way["opening"] * rent,
        rent_lamports=rent,
    )


def _accounts(payouts: Sequence[Payout]) -> dict[int, Account | None]:
    """Where each payout goes, as it is on chain now; None where the token account has to be opened first."""
    addresses = [ata(payout.destination, treasury.mint()) for payout in payouts]
    found = treasury.rpc().get_accounts(addresses)
    return {payout.pk: account for payout, account in zip(payouts, found, strict=True)}


def _fit(payouts: Sequence[Payout], accounts: dict[int, Account | None], *, at: datetime) -> tuple[list[Payout], int]:
    """Those that can be paid, and how many were taken aside: frozen ones fail, closed ones are held for a person."""
    closed = _closed_after_we_opened(
        [payout for payout in payouts if accounts[payout.pk] is None and payout.resumed_at is None]
    )
    fit, aside = [], 0
    for payout in payouts:
        if _is_frozen(accounts[payout.pk]):
            aside += _take_aside(payout, reason=Payout.Reason.FROZEN, at=at)
        elif payout.pk in closed:
            aside += _take_aside(payout, reason=Payout.Reason.ACCOUNT_CLOSED, at=at)
        else:
            fit.append(payout)
    return fit, aside


def _closed_after_we_opened(payouts: Sequence[Payout]) -> set[int]:
    """Opening an account costs rent that its owner gets by closing it: sponsored once an organisation and wallet, ever."""
    opened = set(
        Attempt.objects.filter(
            evidence__opens_account=True,
            payout__state=Payout.State.PAID,
            landed_slot__isnull=False,
            payout__organisation__in={payout.organisation_id for payout in payouts},
        ).values_list("payout__organisation", "payout__destination")
    )
    return {payout.pk for payout in payouts if (payout.organisation_id, payout.destination) in opened}


@transaction.atomic
def _take_aside(payout: Payout, *, reason: Payout.Reason, at: datetime) -> int:
    locked = _locked(payout)
    if locked is None:
        return 0
    if reason == Payout.Reason.FROZEN:
        give_back(locked, reason=reason, by=None, at=at)
    else:
        hold(locked, reason=reason, detail=locked.destination, at=at, key=reason)
    return 1


def _affordable(payouts: Sequence[Payout], accounts: dict[int, Account | None], purse: _Purse, *, at: datetime) -> bool:
    """Whether the treasury can pay all of them; then it is as if they were paid."""
    amount = sum(payout.amount_micro for payout in payouts)
    cost = sum(FEE_LAMPORTS + (purse.rent_lamports if accounts[payout.pk] is None else 0) for payout in payouts)
    if amount > purse.usdc_micro or cost > purse.lamports:
        if amount > purse.usdc_micro:
            collecting.collect_all(at=at)  # what lies on deposit addresses comes in for the next pass, dust too
        _tell_short(payouts, amount_micro=amount, cost_lamports=cost, purse=purse, at=at)
        return False
    purse.usdc_micro -= amount
    purse.lamports -= cost
    return True


def _tell_short(
    payouts: Sequence[Payout], *, amount_micro: int, cost_lamports: int, purse: _Purse, at: datetime
) -> None:
    """Money on its way into the treasury is no alarm; money missing for long is."""
    log.warning(
        "treasury_short",
        payouts=len(payouts),
        usdc_micro=purse.usdc_micro,
        lamports=purse.lamports,
        run=payouts[0].run_id,
    )
    if any(payout.approved_at and payout.approved_at < at - SHORT_FOR for payout in payouts):
        with transaction.atomic():
            alert(
                key=f"treasury-short:{at:%Y%m%d%H}",
                what=_("the treasury holds too little"),
                detail=_(
                    "%(count)s payouts of a run wait for %(amount_micro)s and %(cost)s lamports; "
                    "the treasury can spend %(have_micro)s and %(lamports)s lamports."
                ),
                data={
                    "count": len(payouts),
                    "amount_micro": amount_micro,
                    "cost": f"{cost_lamports:,}",
                    "have_micro": purse.usdc_micro,
                    "lamports": f"{purse.lamports:,}",
                },
                at=at,
            )


# --- signing and sending ---------------------------------------------------------------------------------------------


def _fresh_blockhashes() -> Iterator[tuple[str, int]]:
    """One blockhash for twenty seconds: a run of hundreds asks a few times, not hundreds of times."""
    while True:
        fetched = time.monotonic()
        blockhash, last = treasury.rpc().get_latest_blockhash()
        last = _never_too_early(last)
        while time.monotonic() - fetched < BLOCKHASH_GOOD_FOR_S:
            yield blockhash, last


def _never_too_early(last: int) -> int:
    """The last block height at which a blockhash may land, as one node tells it, and no earlier than any node's height has it.

    Believed alone, a node that keeps the bytes for itself and names a height too low would have us sign anew while the first
    transaction can still land. Too late a height costs time and nothing else.
    """
    heights = treasury.rpc().get_block_heights()
    return max([last, *(height + BLOCKHASH_LIFE for height in heights if height <= last + HEIGHTS_APART_MOST)])


def _sign(payout: Payout, *, blockhash: tuple[str, int], price: int, opens: bool, at: datetime) -> Attempt | None:
    """The signed bytes as a committed row; None if somebody else was first, or payouts were paused meanwhile."""
    # Whoever is signed anew says why, and takes the generous limit: the first one's may have been the reason.
    limit = CU_LIMIT if payout.state_reason else _units(payout, blockhash=blockhash)
    with transaction.atomic():
        locked = _locked(payout)
        if locked is None or Policy.load().payouts_paused:
            return None
        signed = _signed(locked, blockhash=blockhash, price=price, limit=limit)
        attempt = Attempt.objects.create(
            payout=locked,
            number=len(locked.attempts.all()) + 1,
            raw=signed.raw,
            signature=signed.signature,
            blockhash=signed.blockhash,
            last_valid_block_height=signed.last_valid_block_height,
            signed_at=at,
            evidence={"opens_account": True} if opens else {},
        )
        set_state(locked, Payout.State.SIGNED)
        failpoints.passing("before signing is committed")
    return attempt


def _locked(payout: Payout) -> Payout | None:
    """The payout, locked, if it is still to be signed; None if somebody else has it, or an attempt of it is alive."""
    rows = list(
        Payout.objects.select_for_update(skip_locked=True, no_key=True, of=("self",))
        .select_related("organisation", "run")
        .filter(pk=payout.pk, state=Payout.State.APPROVED)
    )
    if not rows:
        return None
    prefetch_related_objects(rows, "attempts")  # after the lock
    return None if any(not attempt.dead for attempt in rows[0].attempts.all()) else rows[0]


def _signed(payout: Payout, *, blockhash: tuple[str, int], price: int, limit: int) -> SignedTransfer:
    return sign_transfer(
        key=treasury.key(),
        mint=treasury.mint(),
        destination_owner=payout.destination,
        amount_micro=payout.amount_micro,
        memo=payout.memo,
        blockhash=blockhash[0],
        last_valid_block_height=blockhash[1],
        cu_price_micro_lamports=price,
        cu_limit=limit,
    )


def _units(payout: Payout, *, blockhash: tuple[str, int]) -> int:
    """The compute units to ask for: what the transfer needs when it is tried out, and a margin.

    A node gets it without its signature: signed, it could land, and then there would be two.
    """
    trial = _signed(payout, blockhash=blockhash, price=0, limit=CU_LIMIT)
    try:
        used = treasury.rpc().simulate_units(unsigned(trial.raw))
    except RpcError:
        used = None
    return CU_LIMIT if used is None else min(CU_LIMIT, used * CU_MARGIN_PERCENT // 100 + 1)


def send(attempt: Attempt, *, preflight: bool, at: datetime) -> bool:
    """Hand the bytes over. Whatever comes back decides nothing (rule 2 of ``payouts.usdc``); False if no node answered at all."""
    answered = True
    try:
        treasury.rpc().send_raw(bytes(attempt.raw), preflight=preflight)
    except RpcError as error:
        log.info("payout_send_answered", signature=attempt.signature, answer=str(error))
    except RpcUnavailable as unavailable:
        answered = False
        log.info("payout_send_unanswered", signature=attempt.signature, reason=str(unavailable))
    failpoints.passing("sent")
    Attempt.objects.filter(pk=attempt.pk).update(sends=attempt.sends + 1, sent_at=at)
    failpoints.passing("the sending was recorded")
    return answered


def _is_frozen(account: Account | None) -> bool:
    return (
        account is not None and len(account.data) >= TOKEN_ACCOUNT_BYTES and account.data[_STATE_BYTE] == _FROZEN_STATE
    )

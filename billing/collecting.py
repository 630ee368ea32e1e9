"""Collecting: what was credited on deposit addresses is brought into the treasury, from which payouts are paid.

Rules
1. The signature is committed before it is sent. Signing again is harmless here: both ends are ours.
2. An account is collected once it holds the policy's ``deposit_sweep_micro``, or after a few days if it is worth its network fee. Dust
   stays where it is: the books count deposit accounts, and thousands of specks cost the platform nothing.
3. When the treasury runs short, payouts ask for everything: ``collect_all``, the largest first.
"""

import uuid
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db.models import Min, Q, QuerySet, Sum

from billing import treasury
from billing.models import Deposit
from gpunex.accounts.models import Organisation
from gpunex.chain.rpc import RpcError, RpcUnavailable
from gpunex.chain.transfers import SignedTransfer, sign_sweep
from gpunex.policy.models import Policy

log = structlog.get_logger(__name__)

AT_ONCE = 20
AFTER = timedelta(days=3)
# Two signatures and a priority fee come to some 0.0001 SOL at most: below this amount collecting costs more than it brings.
WORTH_IT_MICRO = 50_000
# Blocks are made in well under a second; the 150 that a blockhash lives have passed by then.
LOST_AFTER = timedelta(minutes=3)


def sweep_deposits(*, at: datetime) -> int:
    """Bring what is worth it into the treasury. Returns how many transactions were sent."""
    return _collect(_worth_it(at), at=at)


def collect_all(*, at: datetime) -> int:
    """For a treasury that runs short: bring in whatever there is, the largest accounts first. Call again until it has what it needs.

    Returns how many transactions were sent. It calls nodes: never within a transaction. A silent node is only logged.
    """
    return _collect(Q(), at=at)


def _worth_it(at: datetime) -> Q:
    enough = Q(held_micro__gte=Policy.load().deposit_sweep_micro)
    return enough | Q(held_micro__gte=WORTH_IT_MICRO, oldest_at__lte=at - AFTER)


def _collect(worth_it: Q, *, at: datetime) -> int:
    _resolve_all(at=at)
    accounts = (
        _waiting()
        .filter(swept_signature="")
        .values("token_account")
        .annotate(held_micro=Sum("amount_micro"), oldest_at=Min("seen_at"))
        .filter(worth_it)
        .order_by("-held_micro", "token_account")
    )
    sent = 0
    try:
        for row in accounts[:AT_ONCE]:
            sent += _sweep(row["token_account"], at=at)
    except RpcUnavailable as unavailable:
        log.warning("deposits_not_swept", reason=str(unavailable))
    return sent


def _waiting() -> QuerySet[Deposit]:
    return Deposit.objects.filter(swept_at=None, organisation__isnull=False)


def _sweep(token_account: str, *, at: datetime) -> int:
    rows = list(_waiting().filter(token_account=token_account).select_related("organisation"))
    if not rows or any(row.swept_signature for row in rows):
        return 0  # one at a time: what arrived meanwhile goes with the next
    amount = treasury.rpc().get_token_balance(token_account) or 0
    organisation = rows[0].organisation
    if amount == 0 or organisation is None:
        # Swept by an earlier transaction that took it along.
        Deposit.objects.filter(pk__in=[row.pk for row in rows]).update(swept_at=at)
        return 0
    signed = _signed(organisation, amount_micro=amount)
    # Committed before it is sent: see rule 1.
    Deposit.objects.filter(pk__in=[row.pk for row in rows], swept_signature="").update(
        swept_signature=signed.signature, sweep_sent_at=at
    )
    try:
        treasury.rpc().send_raw(signed.raw, preflight=True)
    except RpcError as error:
        log.warning("sweep_refused", account=token_account, reason=str(error))
    return 1


def _resolve_all(*, at: datetime) -> None:
    signatures = list(_waiting().exclude(swept_signature="").values_list("swept_signature", flat=True).distinct())
    try:
        statuses = treasury.rpc().get_signature_statuses(signatures) if signatures else []
    except RpcUnavailable as unavailable:
        log.warning("sweeps_not_looked_for", reason=str(unavailable))
        return
    for signature, status in zip(signatures, statuses, strict=True):
        _resolve(signature, status, at=at)


def _resolve(signature: str, status: dict[str, Any] | None, *, at: datetime) -> None:
    rows = Deposit.objects.filter(swept_signature=signature, swept_at=None)
    if status is not None and status["confirmationStatus"] == "finalized" and status["err"] is None:
        rows.update(swept_at=at)
    elif status is not None and status["err"] is not None:
        rows.update(swept_signature="", sweep_sent_at=None)
    elif status is None:
        rows.filter(sweep_sent_at__lte=at - LOST_AFTER).update(swept_signature="", sweep_sent_at=None)


def _signed(organisation: Organisation, *, amount_micro: int) -> SignedTransfer:
    blockhash, last = treasury.rpc().get_latest_blockhash()
    return sign_sweep(
        owner_key=treasury.deposit_key(organisation),
        treasury_key=treasury.key(),
        mint=treasury.mint(),
        amount_micro=amount_micro,
        memo=f"gpunex:sweep:{uuid.uuid4()}",
        blockhash=blockhash,
        last_valid_block_height=last,
        cu_price_micro_lamports=treasury.cu_price([treasury.token_account()]),
    )

"""Watching the references of deposit requests: what names one is found at once, whatever token it is.

A payment is credited by its account, not by its reference: this only comes first, and sees what the watched USDC account never shows.
A reference is public once it was used, and anybody may name it in transactions of their own. So a look reads the oldest few that are not
known, and takes from them only what reached the address of the request's own organisation.
"""

from datetime import datetime, timedelta

import structlog
from django.db.models import Exists, OuterRef
from solders.pubkey import Pubkey
from spl.token.instructions import create_idempotent_associated_token_account

from billing import deposit_requests, deposits, strays, treasury
from billing.deposits import NotToldAlike
from billing.models import Deposit, DepositAddress, DepositRequest, StrayPayment
from gpunex.chain.rpc import RpcError, RpcUnavailable
from gpunex.chain.transfers import memo_instruction, sign

log = structlog.get_logger(__name__)

REQUESTS_A_SWEEP = 40
TRANSACTIONS_A_LOOK = 20
HISTORY = 1000

# Opening a token account costs the treasury its rent, 0.002 SOL or less: whoever signs up by the thousand must not empty it.
OPENED_A_SWEEP = 10
OPENED_A_DAY = 200


def watch(*, at: datetime) -> int:
    """Close what expired and look for payments of the requests whose turn it is. Returns how many payments were new."""
    deposit_requests.expire(at=at)
    found = 0
    for request in deposit_requests.due(at=at, most=REQUESTS_A_SWEEP):
        try:
            found += _look_for(request, at=at)
        except RpcUnavailable as unavailable:
            # The nodes' trouble, not this request's: it stays due.
            log.warning("requests_not_looked_for", reason=str(unavailable))
            break
        except Exception:
            log.exception("deposit_request_failed", request=str(request.public_id))
            DepositRequest.objects.filter(pk=request.pk).update(looked_at=at)
    return found


def _look_for(request: DepositRequest, *, at: datetime) -> int:
    row = deposits.address_of(request.organisation, at=at)
    listed = treasury.rpc().get_signatures_for_address(request.reference, limit=HISTORY)
    signatures = [entry["signature"] for entry in reversed(listed) if entry["err"] is None]
    known = set(Deposit.objects.filter(signature__in=signatures).values_list("signature", flat=True))
    known |= set(StrayPayment.objects.filter(signature__in=signatures).values_list("signature", flat=True))
    found, unread = 0, 0
    for signature in [signature for signature in signatures if signature not in known][:TRANSACTIONS_A_LOOK]:
        try:
            told = deposits.told_by_nodes(signature)
            found += deposits.take(row, signature, told, at=at) + strays.note(row, signature, told, at=at)
        except NotToldAlike as reason:
            unread += 1
            log.warning("payment_not_told_alike", signature=str(reason))
    if not unread:
        DepositRequest.objects.filter(pk=request.pk).update(looked_at=at)
    return found


def open_accounts(*, at: datetime) -> int:
    """Open the USDC accounts of organisations with a first request: not every wallet app opens one itself. Returns how many were sent.

    Precondition: no transaction. An app that does open it, or a payment that comes first, is no trouble: opening is idempotent.
    """
    left = OPENED_A_DAY - DepositAddress.objects.filter(opened_at__gt=at - timedelta(days=1)).count()
    waiting = DepositRequest.objects.filter(
        organisation=OuterRef("organisation"), state=DepositRequest.State.OPEN, expires_at__gt=at
    )
    paid = Deposit.objects.filter(token_account=OuterRef("token_account"))
    rows = DepositAddress.objects.filter(Exists(waiting), ~Exists(paid), opened_at=None).order_by("pk")
    sent = 0
    for row in rows[: max(0, min(OPENED_A_SWEEP, left))]:
        try:
            sent += _open(row)
        except (RpcUnavailable, RpcError) as error:
            log.warning("token_account_not_opened", address=row.owner, reason=str(error))
            break
        DepositAddress.objects.filter(pk=row.pk).update(opened_at=at)
    return sent


def _open(row: DepositAddress) -> int:
    rpc, key, mint = treasury.rpc(), treasury.key(), treasury.mint()
    if rpc.get_account(row.token_account) is not None:
        return 0
    blockhash, last = rpc.get_latest_blockhash()
    signed = sign(
        payer=key,
        instructions=[
            create_idempotent_associated_token_account(
                key.pubkey(), Pubkey.from_string(row.owner), Pubkey.from_string(mint)
            ),
            memo_instruction(f"gpunex:open:{row.pk}", key.pubkey()),
        ],
        blockhash=blockhash,
        last_valid_block_height=last,
    )
    rpc.send_raw(signed.raw, preflight=True)
    return 1

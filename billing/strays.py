"""Strays: tokens that came to an address of ours and are not USDC in the account that is watched. Nothing is booked for them.

Rules
1. Noted is what a wallet of ours gained in a finalized transaction, as two nodes tell it alike: another token, of the plain Token program
   or of Token-2022, or USDC in another account than the standard one. Once per (signature, account). A person decides what becomes of it.
2. Found by a request's reference at once, and by a slow look at all token accounts of each deposit address, daily at most. SOL is not
   looked for: it is no token, and comes with every airdrop.
3. Anybody can send anything to anybody. So a look reads a bounded number of transactions, and an organisation is told only of what
   names a request of its own, once a request.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from billing import deposit_requests, deposits, treasury
from billing.deposits import NotToldAlike, Transaction
from billing.ledger import ReasonMissing
from billing.models import DepositAddress, StrayPayment
from billing.notices import STRAY_ARRIVED
from gpunex.accounts.models import User
from gpunex.accounts.notices import notify
from gpunex.chain.rpc import TOKEN_PROGRAMS, RpcUnavailable
from gpunex.chain.transfers import TokenGain, account_keys, token_gains, token_payer
from gpunex.kit.refusals import Refusal

log = structlog.get_logger(__name__)

LOOK_EVERY = timedelta(days=1)
ACTIVE_FOR = timedelta(days=7)
ADDRESSES_A_SWEEP = 20
ACCOUNTS_A_LOOK = 20
TRANSACTIONS_A_LOOK = 20
HISTORY = 100


class AlreadyDealtWith(Refusal):
    code = "already_dealt_with"
    message = _("Somebody has dealt with this payment already.")


def find_strays(*, at: datetime) -> int:
    """Look at the token accounts of the addresses whose turn it is. Returns how many payments were new."""
    found = 0
    for row in _turn(at):
        try:
            found += _look_at(row, at=at)
        except RpcUnavailable as unavailable:
            log.warning("strays_not_looked_for", reason=str(unavailable))
            break
        except Exception:
            log.exception("strays_of_address_failed", address=row.owner)
            DepositAddress.objects.filter(pk=row.pk).update(strays_looked_at=at)
    return found


def _turn(at: datetime) -> list[DepositAddress]:
    """Those of organisations that were here lately first, then the ones that waited longest."""
    rows = DepositAddress.objects.filter(organisation__isnull=False).select_related("organisation")
    rows = rows.filter(Q(strays_looked_at=None) | Q(strays_looked_at__lte=at - LOOK_EVERY))
    rows = rows.order_by(F("strays_looked_at").asc(nulls_first=True), "pk")
    active = list(rows.filter(wanted_at__gte=at - ACTIVE_FOR)[:ADDRESSES_A_SWEEP])
    others = rows.exclude(pk__in=[row.pk for row in active])
    return active + list(others[: ADDRESSES_A_SWEEP - len(active)])


def _look_at(row: DepositAddress, *, at: datetime) -> int:
    rpc = treasury.rpc()
    accounts = [
        holding.account
        for program in sorted(TOKEN_PROGRAMS)
        for holding in rpc.get_token_holdings(row.owner, program)
        if holding.amount and holding.account != row.token_account
    ]
    found, left = 0, TRANSACTIONS_A_LOOK
    for account in accounts[:ACCOUNTS_A_LOOK]:
        known = set(StrayPayment.objects.filter(token_account=account).values_list("signature", flat=True))
        listed = rpc.get_signatures_for_address(account, limit=HISTORY)
        for entry in reversed(listed):
            if entry["err"] is not None or entry["signature"] in known or not left:
                continue
            left -= 1
            try:
                told = deposits.told_by_nodes(entry["signature"])
                found += note(row, entry["signature"], told, at=at)
            except NotToldAlike as unread:
                log.warning("stray_not_read", signature=str(unread))
    DepositAddress.objects.filter(pk=row.pk).update(strays_looked_at=at)
    return found


def note(row: DepositAddress, signature: str, told: Sequence[Transaction], *, at: datetime) -> int:
    """List what a transaction brought to ``row`` beside its watched USDC; returns how many payments were new. Raises NotToldAlike."""
    each = [_gains(row, tx) for tx in told]
    if any(gains != each[0] for gains in each):
        raise NotToldAlike(signature)
    return sum(_note(row, signature, gain, told[0], at=at) for gain in each[0])


def _gains(row: DepositAddress, tx: Transaction) -> list[TokenGain]:
    return [gain for gain in token_gains(tx, row.owner) if gain.account != row.token_account]


@transaction.atomic
def _note(row: DepositAddress, signature: str, gain: TokenGain, tx: Transaction, *, at: datetime) -> int:
    if row.organisation is None:
        return 0
    request = deposit_requests.named_in(row.organisation, account_keys(tx))
    stray, made = StrayPayment.objects.get_or_create(
        signature=signature,
        token_account=gain.account,
        defaults={
            "mint": gain.mint,
            "amount_raw": gain.amount,
            "decimals": gain.decimals,
            "sender": token_payer(tx, gain.mint),
            "slot": int(tx["slot"]),
            "organisation": row.organisation,
            "request": request,
            "seen_at": at,
        },
    )
    if made and request is not None:
        notify(
            organisation=row.organisation,
            event=STRAY_ARRIVED,
            key=f"stray:{request.public_id}",
            at=at,
            data={
                "signature": stray.signature,
                "request": str(request.public_id),
                "asked_micro": request.amount_micro,
            },
        )
    return int(made)


@transaction.atomic
def deal_with(*, stray: StrayPayment, by: User, note: str, at: datetime) -> StrayPayment:
    """Close it and say what was done. Raises ReasonMissing, AlreadyDealtWith."""
    if not note.strip():
        raise ReasonMissing
    stray = StrayPayment.objects.select_for_update(no_key=True).get(pk=stray.pk)
    if stray.state != StrayPayment.State.OPEN:
        raise AlreadyDealtWith
    stray.state, stray.handled_by, stray.handled_at = StrayPayment.State.HANDLED, by, at
    stray.note = note.strip()
    stray.save(update_fields=["state", "handled_by", "handled_at", "note"])
    return stray

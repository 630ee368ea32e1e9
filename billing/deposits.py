"""Deposits: USDC that arrives in an account of ours is credited once, at finality, by the change of that account's balance.

Rules
1. An organisation's address is derived from the treasury's key, valid for ever, and only its USDC account is watched.
2. Found by polling, newest signatures down to the last one seen; every few minutes the last hour is read again whatever the cursor
   says, because nodes have been seen to leave rows out. The cursor moves only when everything up to it was looked at.
3. Credited is what the token account gained, of our mint, in a finalized transaction without an error, as two nodes tell it alike:
   one node's word makes no money. Once per (signature, account). One that cannot be read yet is asked for again and holds up no other.
4. What strangers send to the treasury itself belongs to nobody yet: it is booked as unmatched and listed for an admin.
5. Money found is swept into the treasury. The signature is committed before it is sent. Signing again is harmless here: both ends are ours.
"""

import uuid
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from billing import ledger, metering, treasury
from billing.ledger import Kind, Move, Posting, ReasonMissing
from billing.models import Deposit, DepositAddress
from billing.notices import DEPOSIT_CREDITED
from gpunex.accounts.models import Organisation, User
from gpunex.accounts.notices import notify
from gpunex.chain import faucet
from gpunex.chain.addresses import ata
from gpunex.chain.rpc import RpcError, RpcUnavailable
from gpunex.chain.transfers import SignedTransfer, incoming, load_key, sign_sweep
from gpunex.kit.refusals import Refusal

log = structlog.get_logger(__name__)

ACTIVE_FOR = timedelta(minutes=15)
ACTIVE_A_SWEEP = 60
OTHERS_A_SWEEP = 20
OTHERS_EVERY = timedelta(seconds=15)
RESCAN_EVERY = timedelta(minutes=10)
RESCAN_BACK = timedelta(hours=1)
PAGE = 1000
NODES_ALIKE = 2
SWEPT_AT_ONCE = 20
# Blocks are made in well under a second; the 150 that a blockhash lives have passed by then.
SWEEP_LOST_AFTER = timedelta(minutes=3)
REMEMBER_LOOKING_EVERY = timedelta(minutes=1)


class NotUnmatched(Refusal):
    code = "not_unmatched"
    message = _("This deposit has an owner already.")


# --- addresses -------------------------------------------------------------------------------------------------------


def address_for(organisation: Organisation, *, at: datetime) -> DepositAddress:
    """The organisation's own deposit address, made when it is first asked for. Looking at it makes it one that is asked for first."""
    owner = str(treasury.deposit_key(organisation).pubkey())
    row, made = DepositAddress.objects.get_or_create(
        organisation=organisation,
        defaults={"owner": owner, "token_account": ata(owner, treasury.mint()), "created_at": at, "wanted_at": at},
    )
    if not made and (row.wanted_at is None or row.wanted_at < at - REMEMBER_LOOKING_EVERY):
        DepositAddress.objects.filter(pk=row.pk).update(wanted_at=at)
    return row


def _treasury_row(at: datetime) -> DepositAddress:
    return DepositAddress.objects.get_or_create(
        organisation=None,
        owner=treasury.address(),
        defaults={"token_account": treasury.token_account(), "created_at": at},
    )[0]


# --- finding ---------------------------------------------------------------------------------------------------------


def find_deposits(*, at: datetime) -> int:
    """Look at the accounts whose turn it is and credit what arrived. Returns how many deposits were new."""
    found = 0
    for row in _turn(at):
        try:
            found += _look_at(row, at=at)
        except RpcUnavailable as unavailable:
            # The nodes' trouble, not this row's: nothing was moved on, the next sweep begins here again.
            log.warning("deposits_not_looked_for", reason=str(unavailable))
            break
        except Exception:
            log.exception("deposit_address_failed", address=row.owner)
    return found


def _turn(at: datetime) -> list[DepositAddress]:
    """The treasury, those whose owners are looking, and of the others those that waited longest."""
    rows = DepositAddress.objects.select_related("organisation").order_by(F("scanned_at").asc(nulls_first=True), "pk")
    people = rows.filter(organisation__isnull=False)
    active = list(people.filter(wanted_at__gte=at - ACTIVE_FOR)[:ACTIVE_A_SWEEP])
    others = (
        people.exclude(pk__in=[row.pk for row in active])
        .filter(Q(scanned_at=None) | Q(scanned_at__lte=at - OTHERS_EVERY))
        .order_by(F("scanned_at").asc(nulls_first=True), "pk")[:OTHERS_A_SWEEP]
    )
    return [_treasury_row(at), *active, *others]


def _look_at(row: DepositAddress, *, at: datetime) -> int:
    rescan = row.rescanned_at is None or row.rescanned_at <= at - RESCAN_EVERY
    signatures = _signatures(row, since=at - RESCAN_BACK if rescan else None)
    known = set(
        Deposit.objects.filter(token_account=row.token_account, signature__in=signatures).values_list(
            "signature", flat=True
        )
    )
    known |= set(Deposit.objects.filter(swept_signature__in=signatures).values_list("swept_signature", flat=True))
    found, unread = 0, 0
    for signature in reversed(signatures):
        if signature in known:
            continue
        try:
            found += _take(row, signature, at=at)
        except RpcUnavailable:
            raise
        except Exception:
            unread += 1
            log.exception("deposit_not_read", address=row.owner, signature=signature)
    changes: dict[str, Any] = {"scanned_at": at}
    if rescan and not unread:
        changes["rescanned_at"] = at
    if signatures and not unread:
        changes["cursor"] = signatures[0]
    DepositAddress.objects.filter(pk=row.pk).update(**changes)
    return found


def _signatures(row: DepositAddress, *, since: datetime | None) -> list[str]:
    """Signatures without an error, newest first: all after the cursor, and with ``since`` those after that moment too."""
    signatures: list[str] = []
    before: str | None = None
    behind_cursor = not row.cursor
    while True:
        page = treasury.rpc().get_signatures_for_address(
            row.token_account, until=None if since else row.cursor or None, before=before, limit=PAGE
        )
        for entry in page:
            old = (
                since is not None
                and row.cursor
                and entry.get("blockTime") is not None
                and entry["blockTime"] < since.timestamp()
            )
            if behind_cursor and old:
                return signatures
            if entry["err"] is None:
                signatures.append(entry["signature"])
            behind_cursor = behind_cursor or entry["signature"] == row.cursor
        if len(page) < PAGE:
            return signatures
        before = page[-1]["signature"]


class NotToldAlike(Exception):
    """Listed, but not to be had yet from two nodes, or not told alike by them."""


def _take(row: DepositAddress, signature: str, *, at: datetime) -> int:
    told = _told(signature)
    if None in told:
        raise NotToldAlike(signature)
    amounts = {incoming(each, row.token_account, treasury.mint()) for each in told if each is not None}
    if len(amounts) > 1:
        raise NotToldAlike(f"{signature}: {sorted(amounts)} micro-USDC")
    transaction_json, amount = told[0], amounts.pop()
    if amount == 0 or transaction_json is None:
        return 0
    sender = sender_of(transaction_json)
    if row.organisation is None and DepositAddress.objects.filter(owner=sender).exists():
        return 0  # a sweep of ours: only our key can send from such an address
    return _credit(
        row, signature=signature, amount_micro=amount, slot=int(transaction_json["slot"]), sender=sender, at=at
    )


def _told(signature: str) -> list[dict[str, Any] | None]:
    """The transaction as the first two nodes that answer tell it; of one node where only one is configured. Raises RpcUnavailable."""
    rpc = treasury.rpc()
    told: list[dict[str, Any] | None] = []
    silent: RpcUnavailable | None = None
    for node in rpc.nodes:
        try:
            told.append(rpc.get_transaction(signature, node=node))
        except RpcUnavailable as unavailable:
            silent = unavailable
        if len(told) == min(NODES_ALIKE, len(rpc.nodes)):
            return told
    raise silent or RpcUnavailable(f"{signature}: no node answered")


def sender_of(transaction_json: dict[str, Any]) -> str:
    """The wallet that paid, where there is exactly one; else empty."""
    meta, mint = transaction_json["meta"], treasury.mint()
    before, after = (
        {
            row["accountIndex"]: (row.get("owner", ""), int(row["uiTokenAmount"]["amount"]))
            for row in meta[name] or ()
            if row["mint"] == mint
        }
        for name in ("preTokenBalances", "postTokenBalances")
    )
    payers = {owner for index, (owner, amount) in before.items() if after.get(index, (owner, 0))[1] < amount}
    return payers.pop() if len(payers) == 1 else ""


@transaction.atomic
def _credit(row: DepositAddress, *, signature: str, amount_micro: int, slot: int, sender: str, at: datetime) -> int:
    """Once per signature and account, whoever asks how often."""
    organisation = row.organisation
    if organisation is not None:
        metering.lock_payer(organisation)
    posting = Posting(
        key=f"deposit:{signature}:{row.pk}",
        debit=ledger.account(Kind.TREASURY),
        credit=ledger.account(Kind.RENTER_BALANCE, organisation=organisation)
        if organisation
        else ledger.account(Kind.UNMATCHED),
        amount_micro=amount_micro,
        kind=Move.DEPOSIT if organisation else Move.UNMATCHED,
        reference=signature[:80],
        data={"sender": sender, "slot": slot},
    )
    transfer = (
        metering.move_and_fund(organisation=organisation, postings=[posting], at=at)[0]
        if organisation
        else ledger.post_all([posting], at=at)[0]
    )
    deposit, made = Deposit.objects.get_or_create(
        signature=signature,
        token_account=row.token_account,
        defaults={
            "organisation": organisation,
            "amount_micro": amount_micro,
            "sender": sender,
            "slot": slot,
            "state": Deposit.State.CREDITED if organisation else Deposit.State.UNMATCHED,
            "seen_at": at,
            "transfer": transfer,
            "swept_at": None if organisation else at,
        },
    )
    if made and organisation is not None:
        notify(
            organisation=organisation,
            event=DEPOSIT_CREDITED,
            key=f"deposit:{deposit.public_id}",
            at=at,
            data={"amount_micro": amount_micro, "signature": signature},
        )
    return int(made)


@transaction.atomic
def give_unmatched(*, deposit: Deposit, organisation: Organisation, by: User, reason: str, at: datetime) -> Deposit:
    """An admin found whose money it is. Raises ReasonMissing, NotUnmatched."""
    if not reason.strip():
        raise ReasonMissing
    metering.lock_payer(organisation)
    deposit = Deposit.objects.select_for_update(no_key=True).get(pk=deposit.pk)
    if deposit.state != Deposit.State.UNMATCHED:
        raise NotUnmatched
    posting = Posting(
        key=f"match:{deposit.public_id}",
        debit=ledger.account(Kind.UNMATCHED),
        credit=ledger.account(Kind.RENTER_BALANCE, organisation=organisation),
        amount_micro=deposit.amount_micro,
        kind=Move.MATCH,
        reference=deposit.signature[:80],
        actor=by,
        reason=reason.strip(),
    )
    metering.move_and_fund(organisation=organisation, postings=[posting], at=at)
    deposit.state, deposit.organisation = Deposit.State.CREDITED, organisation
    deposit.save(update_fields=["state", "organisation"])
    data = {"amount_micro": deposit.amount_micro, "signature": deposit.signature}
    notify(organisation=organisation, event=DEPOSIT_CREDITED, key=f"deposit:{deposit.public_id}", at=at, data=data)
    return deposit


# --- sweeping --------------------------------------------------------------------------------------------------------


def sweep_deposits(*, at: datetime) -> int:
    """Bring what was credited into the treasury. Returns how many transactions were sent."""
    waiting = Deposit.objects.filter(swept_at=None, organisation__isnull=False)
    accounts = list(
        waiting.order_by("token_account").values_list("token_account", flat=True).distinct()[:SWEPT_AT_ONCE]
    )
    sent = 0
    try:
        for token_account in accounts:
            sent += _sweep(token_account, at=at)
    except RpcUnavailable as unavailable:
        log.warning("deposits_not_swept", reason=str(unavailable))
    return sent


def _sweep(token_account: str, *, at: datetime) -> int:
    rows = list(Deposit.objects.filter(token_account=token_account, swept_at=None).select_related("organisation"))
    under_way = sorted({row.swept_signature for row in rows if row.swept_signature})
    for signature, status in zip(under_way, treasury.rpc().get_signature_statuses(under_way), strict=True):
        _resolve(token_account, signature, status, at=at)
    rows = list(Deposit.objects.filter(token_account=token_account, swept_at=None).select_related("organisation"))
    if not rows or any(row.swept_signature for row in rows):
        return 0
    amount = treasury.rpc().get_token_balance(token_account) or 0
    organisation = rows[0].organisation
    if amount == 0 or organisation is None:
        # Swept by an earlier transaction that took it along.
        Deposit.objects.filter(pk__in=[row.pk for row in rows]).update(swept_at=at)
        return 0
    signed = _signed_sweep(organisation, amount_micro=amount)
    # Committed before it is sent: see rule 5.
    Deposit.objects.filter(pk__in=[row.pk for row in rows], swept_signature="").update(
        swept_signature=signed.signature, sweep_sent_at=at
    )
    try:
        treasury.rpc().send_raw(signed.raw, preflight=True)
    except RpcError as error:
        log.warning("sweep_refused", account=token_account, reason=str(error))
    return 1


def _resolve(token_account: str, signature: str, status: dict[str, Any] | None, *, at: datetime) -> None:
    rows = Deposit.objects.filter(token_account=token_account, swept_signature=signature, swept_at=None)
    if status is not None and status["confirmationStatus"] == "finalized" and status["err"] is None:
        rows.update(swept_at=at)
    elif status is not None and status["err"] is not None:
        rows.update(swept_signature="", sweep_sent_at=None)
    elif status is None:
        rows.filter(sweep_sent_at__lte=at - SWEEP_LOST_AFTER).update(swept_signature="", sweep_sent_at=None)


def _signed_sweep(organisation: Organisation, *, amount_micro: int) -> SignedTransfer:
    owner = treasury.deposit_key(organisation)
    blockhash, last = treasury.rpc().get_latest_blockhash()
    return sign_sweep(
        owner_key=owner,
        treasury_key=treasury.key(),
        mint=treasury.mint(),
        amount_micro=amount_micro,
        memo=f"gpunex:sweep:{uuid.uuid4()}",
        blockhash=blockhash,
        last_valid_block_height=last,
        cu_price_micro_lamports=treasury.cu_price([treasury.token_account()]),
    )


# --- trying it out ---------------------------------------------------------------------------------------------------


def send_test_usdc(*, organisation: Organisation, amount_micro: int, at: datetime) -> str:
    """On the development chain, money from nothing to the organisation's address, as its own wallet would send it.

    Returns the signature. Raises RpcUnavailable, RpcError.
    """
    if not settings.EMBEDDED or settings.FAUCET_KEY_FILE is None:
        raise RuntimeError("there is a faucet on the development chain only")
    row = address_for(organisation, at=at)
    return faucet.give(treasury.rpc(), load_key(settings.FAUCET_KEY_FILE), treasury.mint(), row.owner, amount_micro)

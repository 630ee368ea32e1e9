"""Deposits: USDC that arrives in an account of ours is credited once, at finality, by the change of that account's balance.

Rules
1. An organisation's address is derived from the treasury's key, valid for ever, and only its USDC account is watched.
2. Found by polling, newest signatures down to the last one seen; every few minutes the last hour is read again whatever the cursor
   says, because nodes have been seen to leave rows out. The cursor moves only when everything up to it was looked at.
3. Credited is what the token account gained, of our mint, in a finalized transaction without an error, as two nodes tell it alike:
   one node's word makes no money. Once per (signature, account), by whichever watcher comes first. One that cannot be read yet is asked
   for again and holds up no other.
4. Whose money it is, the account says. A reference key in the transaction only tells which of the owner's requests was paid.
5. What strangers send to the treasury itself belongs to nobody yet: it is booked as unmatched and listed for an admin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _
from solders.keypair import Keypair

from billing import deposit_requests, ledger, metering, treasury
from billing.ledger import Kind, Move, Posting, ReasonMissing
from billing.models import Deposit, DepositAddress, DepositRequest
from billing.notices import DEPOSIT_CREDITED, REQUEST_PAID
from gpunex.accounts.models import Organisation, User
from gpunex.accounts.notices import notify
from gpunex.chain import faucet, pay
from gpunex.chain.addresses import ata
from gpunex.chain.rpc import RpcUnavailable
from gpunex.chain.transfers import account_keys, incoming, load_key, memo_of, token_payer
from gpunex.kit.refusals import Refusal

log = structlog.get_logger(__name__)

ACTIVE_FOR = timedelta(minutes=15)
ACTIVE_A_SWEEP = 60
OTHERS_A_SWEEP = 20
OTHERS_EVERY = timedelta(seconds=15)
RESCAN_EVERY = timedelta(minutes=10)
RESCAN_BACK = timedelta(hours=1)
PAGE = 1000
READ_A_LOOK = 100
READ_A_SWEEP = 500
NODES_ALIKE = 2
MEMO_KEPT = 200
# A mail for each speck that somebody sends would let anybody fill an inbox: below this only the notice tells of it.
MAILED_FROM_MICRO = 10_000
REMEMBER_LOOKING_EVERY = timedelta(minutes=1)

Transaction = dict[str, Any]  # as Rpc.get_transaction gives it


class NotUnmatched(Refusal):
    code = "not_unmatched"
    message = _("This deposit has an owner already.")


class NotToYourself(Refusal):
    code = "not_to_yourself"
    message = _("You are a member of this organisation. Let another administrator give it the deposit.")


# --- addresses -------------------------------------------------------------------------------------------------------


def address_of(organisation: Organisation, *, at: datetime) -> DepositAddress:
    """The organisation's own deposit address, made when it is first asked for."""
    row = DepositAddress.objects.filter(organisation=organisation).select_related("organisation").first()
    if row is not None:
        return row
    owner = str(treasury.deposit_key(organisation).pubkey())
    return DepositAddress.objects.get_or_create(
        organisation=organisation,
        defaults={"owner": owner, "token_account": ata(owner, treasury.mint()), "created_at": at},
    )[0]


def address_for(organisation: Organisation, *, at: datetime) -> DepositAddress:
    """The address for somebody who looks at it and may send money soon: it is asked for first."""
    row = address_of(organisation, at=at)
    if row.wanted_at is None or row.wanted_at < at - REMEMBER_LOOKING_EVERY:
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
    found, left = 0, READ_A_SWEEP
    for row in _turn(at):
        if left <= 0:
            break  # whoever was not looked at has waited longest when the next sweep begins
        try:
            new, read = _look_at(row, at=at, most=min(left, READ_A_LOOK))
            found, left = found + new, left - read
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


def _look_at(row: DepositAddress, *, at: datetime, most: int) -> tuple[int, int]:
    """How many deposits were new, and how many transactions were read, at most ``most`` of each part: the rest comes next time.

    Anybody can have an account named in transactions by the thousand; they delay its owner then, and nobody else.
    """
    rescan = row.rescanned_at is None or row.rescanned_at <= at - RESCAN_EVERY
    new, again = _signatures(row, since=at - RESCAN_BACK if rescan else None)
    known = _known(row, [*new, *again])
    found, read, unread, reached = 0, 0, 0, ""
    for signature in reversed(new):
        if signature not in known:
            if read >= most:
                break
            credited = _try(row, signature, at=at)
            found, read, unread = found + (credited or 0), read + (credited is not None), unread + (credited is None)
        if not unread:
            reached = signature
    for signature in [signature for signature in again if signature not in known][:most]:
        credited = _try(row, signature, at=at)
        found, read, unread = found + (credited or 0), read + 1, unread + (credited is None)
    changes: dict[str, Any] = {"scanned_at": at}
    if rescan and not unread:
        changes["rescanned_at"] = at
    if reached:
        changes["cursor"] = reached
    DepositAddress.objects.filter(pk=row.pk).update(**changes)
    return found, read


def _try(row: DepositAddress, signature: str, *, at: datetime) -> int | None:
    """How many deposits it brought; None if it cannot be read yet. Raises RpcUnavailable."""
    try:
        return take(row, signature, told_by_nodes(signature), at=at)
    except RpcUnavailable:
        raise
    except Exception:
        log.exception("deposit_not_read", address=row.owner, signature=signature)
        return None


def _known(row: DepositAddress, signatures: Sequence[str]) -> set[str]:
    """Those in the books already, and collections of ours."""
    booked = Deposit.objects.filter(token_account=row.token_account, signature__in=signatures)
    collected = Deposit.objects.filter(swept_signature__in=signatures)
    return set(booked.values_list("signature", flat=True)) | set(collected.values_list("swept_signature", flat=True))


def _signatures(row: DepositAddress, *, since: datetime | None) -> tuple[list[str], list[str]]:
    """Signatures without an error, newest first: those after the cursor; and with ``since``, older ones after that moment."""
    new: list[str] = []
    again: list[str] = []
    before: str | None = None
    passed = False
    while True:
        page = treasury.rpc().get_signatures_for_address(
            row.token_account, until=None if since else row.cursor or None, before=before, limit=PAGE
        )
        for entry in page:
            passed = passed or entry["signature"] == row.cursor
            if passed and since is not None and (entry.get("blockTime") or since.timestamp()) < since.timestamp():
                return new, again
            if entry["err"] is None:
                (again if passed else new).append(entry["signature"])
        if len(page) < PAGE:
            return new, again
        before = page[-1]["signature"]


class NotToldAlike(Exception):
    """Listed, but not to be had yet from two nodes, or not told alike by them."""


def is_known(row: DepositAddress, signature: str) -> bool:
    """Whether this transaction's USDC is in the books already."""
    return Deposit.objects.filter(signature=signature, token_account=row.token_account).exists()


def take(row: DepositAddress, signature: str, told: Sequence[Transaction], *, at: datetime) -> int:
    """Credit what a transaction brought to ``row``, as ``told_by_nodes`` told it; returns 1 if that was new. Raises NotToldAlike."""
    amounts = {incoming(each, row.token_account, treasury.mint()) for each in told}
    if len(amounts) > 1:
        raise NotToldAlike(f"{signature}: {sorted(amounts)} micro-USDC")
    tx, amount = told[0], amounts.pop()
    if amount == 0:
        return 0
    sender = sender_of(tx)
    if row.organisation is None and DepositAddress.objects.filter(owner=sender).exists():
        return 0  # a sweep of ours: only our key can send from such an address
    arrived = Arrived(
        signature=signature,
        amount_micro=amount,
        slot=int(tx["slot"]),
        sender=sender,
        memo=_printable(memo_of(tx) or ""),
        keys=tuple(account_keys(tx)),
        block_at=min(at, datetime.fromtimestamp(tx["blockTime"], UTC)) if tx.get("blockTime") else at,
    )
    return _credit(row, arrived, at=at)


def told_by_nodes(signature: str) -> list[Transaction]:
    """The transaction as the first two nodes that answer tell it; of one node where only one is configured.

    Raises NotToldAlike if one of them does not know it yet, RpcUnavailable.
    """
    rpc = treasury.rpc()
    told: list[Transaction] = []
    silent: RpcUnavailable | None = None
    for node in rpc.nodes:
        try:
            tx = rpc.get_transaction(signature, node=node)
        except RpcUnavailable as unavailable:
            silent = unavailable
            continue
        if tx is None:
            raise NotToldAlike(signature)
        told.append(tx)
        if len(told) == min(NODES_ALIKE, len(rpc.nodes)):
            return told
    raise silent or RpcUnavailable(f"{signature}: no node answered")


def _printable(memo: str) -> str:
    """A stranger wrote it: without the control characters, of which PostgreSQL refuses one and terminals obey others."""
    return "".join(sign for sign in memo[:MEMO_KEPT] if sign.isprintable())


def sender_of(tx: Transaction) -> str:
    """The wallet that paid USDC, where there is exactly one; else empty."""
    return token_payer(tx, treasury.mint())


# --- crediting -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    """USDC in a transaction, as the chain tells it; ``keys`` are all accounts that the transaction names."""

    signature: str
    amount_micro: int
    slot: int
    sender: str
    memo: str
    keys: tuple[str, ...]
    block_at: datetime


@transaction.atomic
def _credit(row: DepositAddress, arrived: Arrived, *, at: datetime) -> int:
    """Once per signature and account, whoever asks how often."""
    organisation = row.organisation
    if organisation is not None:
        metering.lock_payer(organisation)
    posting = Posting(
        key=f"deposit:{arrived.signature}:{row.pk}",
        debit=ledger.account(Kind.TREASURY),
        credit=ledger.account(Kind.RENTER_BALANCE, organisation=organisation)
        if organisation
        else ledger.account(Kind.UNMATCHED),
        amount_micro=arrived.amount_micro,
        kind=Move.DEPOSIT if organisation else Move.UNMATCHED,
        reference=arrived.signature[:80],
        data={
            "sender": arrived.sender,
            "slot": arrived.slot,
            "memo": arrived.memo,
            "block_at": arrived.block_at.isoformat(),
        },
    )
    transfer = (
        metering.move_and_fund(organisation=organisation, postings=[posting], at=at)[0]
        if organisation
        else ledger.post_all([posting], at=at)[0]
    )
    deposit, made = Deposit.objects.get_or_create(
        signature=arrived.signature,
        token_account=row.token_account,
        defaults={
            "organisation": organisation,
            "amount_micro": arrived.amount_micro,
            "sender": arrived.sender,
            "slot": arrived.slot,
            "state": Deposit.State.CREDITED if organisation else Deposit.State.UNMATCHED,
            "seen_at": at,
            "transfer": transfer,
            "request": deposit_requests.named_in(organisation, arrived.keys) if organisation else None,
            "swept_at": None if organisation else at,
        },
    )
    if made and organisation is not None:
        if deposit.request is not None:
            deposit_requests.note_payment(deposit.request, paid_at=arrived.block_at)
        _tell(deposit, organisation, at=at)
    return int(made)


def _tell(deposit: Deposit, organisation: Organisation, *, at: datetime) -> None:
    data: dict[str, Any] = {"amount_micro": deposit.amount_micro, "signature": deposit.signature}
    if deposit.request is not None:
        data |= {"request": str(deposit.request.public_id), "asked_micro": deposit.request.amount_micro}
    notify(
        organisation=organisation,
        event=DEPOSIT_CREDITED if deposit.request is None else REQUEST_PAID,
        key=f"deposit:{deposit.public_id}",
        at=at,
        data=data,
        by_mail=deposit.amount_micro >= MAILED_FROM_MICRO,
    )


@transaction.atomic
def give_unmatched(*, deposit: Deposit, organisation: Organisation, by: User, reason: str, at: datetime) -> Deposit:
    """An admin found whose money it is, and it is not his own. Raises ReasonMissing, NotToYourself, NotUnmatched."""
    if not reason.strip():
        raise ReasonMissing
    if organisation.members.filter(pk=by.pk).exists():
        raise NotToYourself
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
    _tell(deposit, organisation, at=at)
    return deposit


# --- trying it out ---------------------------------------------------------------------------------------------------


def send_test_usdc(*, organisation: Organisation, amount_micro: int, at: datetime) -> str:
    """On the development chain, money from nothing to the organisation's address, as its own wallet would send it.

    Returns the signature. Raises RpcUnavailable, RpcError.
    """
    row = address_for(organisation, at=at)
    return faucet.give(treasury.rpc(), _faucet_key(), treasury.mint(), row.owner, amount_micro)


def pay_with_test_wallet(*, request: DepositRequest, at: datetime) -> str:
    """On the development chain, pay a request as a wallet app does that opens its link: read from the link alone.

    The wallet is the faucet's own, filled for the purpose. Returns the signature. Raises RpcUnavailable, RpcError.
    """
    rpc, key = treasury.rpc(), _faucet_key()
    row = address_for(request.organisation, at=at)
    wanted = pay.read(deposit_requests.link(request, wallet=row.owner))
    faucet.give(rpc, key, wanted.mint, str(key.pubkey()), wanted.amount)
    return pay.pay(rpc, key, wanted)


def _faucet_key() -> Keypair:
    if not settings.EMBEDDED or settings.FAUCET_KEY_FILE is None:
        raise RuntimeError("there is a faucet on the development chain only")
    return load_key(settings.FAUCET_KEY_FILE)

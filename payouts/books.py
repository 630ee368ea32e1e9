"""The books against the chain: what the ledger says we hold, and that nothing left the treasury but payouts.

    on chain (treasury + deposit accounts) = held by the ledger + arrived and not yet credited − landed and not yet marked as paid

The chain and the ledger are read one after the other while both move: a difference counts only if it is still there on a second look.
"""

import base64
from dataclasses import dataclass, field
from typing import Any

from billing import deposits, ledger, treasury
from billing.ledger import Check, Kind, Report
from billing.models import Account, Deposit, DepositAddress, Transfer
from gpunex.chain.rpc import TOKEN_ACCOUNT_BYTES
from gpunex.chain.transfers import incoming, token_delta
from payouts.models import Attempt, Payout, Rail

ACCOUNTS_A_CALL = 100
LOOKS = 4
PAGE = 1000


@dataclass(slots=True)
class _Seen:
    """One look at the chain."""

    on_chain_micro: int = 0  # in the treasury and in all deposit accounts
    arrived_micro: int = 0  # into accounts of ours, and the watcher has not come to it yet
    signatures: list[str] = field(default_factory=list)  # of the treasury's account, successful, newest first
    unknown: dict[str, int] = field(default_factory=dict)  # what left the treasury by no payout's signature


def verify_books(*, with_chain: bool = True) -> Report:
    """Prove the ledger by itself, the payouts against it and, ``with_chain``, both against the chain. Raises RpcUnavailable."""
    checks = [*ledger.verify_books().checks, _payouts_check()]
    if not with_chain:
        return Report(checks)
    on_chain = _chain_checks()
    for _again in range(LOOKS - 1):
        if not any(check.off for check in on_chain):
            break
        on_chain = _chain_checks()
    return Report(checks + on_chain)


def _payouts_check() -> Check:
    """Each payout's money is where its state says: in transit, with the chain, or back in payable."""
    off: dict[str, int] = {}
    with ledger.one_moment():
        payouts = list(Payout.objects.select_related("organisation"))
        held = dict(Account.objects.filter(kind=Kind.IN_TRANSIT).values_list("code", "balance_micro"))
        paid: dict[str, int] = {}
        for row in Transfer.objects.filter(kind=ledger.Move.PAID).only("reference", "amount_micro"):
            paid[row.reference] = paid.get(row.reference, 0) + row.amount_micro
    for payout in payouts:
        reference = str(payout.public_id)
        in_transit = payout.amount_micro if payout.state in Payout.OPEN_STATES else 0
        with_chain = payout.amount_micro if payout.state == Payout.State.PAID else 0
        wrong = abs(held.get(f"{Kind.IN_TRANSIT}:{reference}", 0) - in_transit) + abs(
            paid.get(reference, 0) - with_chain
        )
        if wrong:
            off[f"payout {reference}"] = wrong
    return Check(name="each payout's money is where its state says", figure=f"{len(payouts)} payouts", off=off)


def _chain_checks() -> list[Check]:
    attempts = {attempt.signature: attempt for attempt in Attempt.objects.select_related("payout")}
    seen = _look(set(attempts))
    landed = set(seen.signatures)
    held = -ledger.balance(ledger.account(Kind.TREASURY)) - ledger.balance(ledger.account(Kind.PAID_CHAIN))
    under_way = sum(
        attempt.payout.amount_micro
        for signature, attempt in attempts.items()
        if signature in landed and attempt.payout.state != Payout.State.PAID
    )
    off = seen.on_chain_micro - held - seen.arrived_micro + under_way
    figure = (
        f"{seen.on_chain_micro} micro-USDC on chain, {held} in the ledger, "
        f"{seen.arrived_micro} to be credited, {under_way} to be marked as paid"
    )
    return [
        Check(
            name="the chain holds what the ledger says",
            figure=figure,
            off={"treasury and deposit accounts": off} if off else {},
        ),
        # Money that left the treasury without a payout means that somebody else has its key.
        Check(
            name="what left the treasury is a payout's",
            figure=f"{len(seen.signatures)} transactions of the treasury",
            off=seen.unknown,
        ),
        _paid_check(landed, attempts),
    ]


def _paid_check(landed: set[str], attempts: dict[str, Attempt]) -> Check:
    """Each payout that is called paid is on chain, by exactly one of its attempts; no attempt called dead is."""
    by_payout: dict[int, list[Attempt]] = {}
    for signature, attempt in attempts.items():
        if signature in landed:
            by_payout.setdefault(attempt.payout_id, []).append(attempt)
    off: dict[str, int] = {}
    paid = Payout.objects.filter(state=Payout.State.PAID, rail=Rail.USDC)
    for payout in paid:
        times = len(by_payout.get(payout.pk, []))
        if times != 1:
            off[f"payout {payout.public_id}"] = (times - 1) * payout.amount_micro
    for attempt in (attempt for found in by_payout.values() for attempt in found if attempt.dead):
        off[f"attempt {attempt.signature}"] = attempt.payout.amount_micro
    return Check(name="each paid payout is on chain once", figure=f"{len(paid)} paid payouts", off=off)


# --- reading the chain -----------------------------------------------------------------------------------------------


def _look(attempts: set[str]) -> _Seen:
    own = treasury.token_account()
    rows = list(DepositAddress.objects.filter(organisation__isnull=False))
    seen = _Seen(
        on_chain_micro=(treasury.rpc().get_token_balance(own) or 0)
        + sum(_balances([row.token_account for row in rows])),
        signatures=_succeeded(own),
    )
    for row in rows:
        new = _succeeded(row.token_account, until=row.cursor or None)
        for signature in _unless_booked(new, row.token_account):
            tx = treasury.rpc().get_transaction(signature)
            seen.arrived_micro += incoming(tx, row.token_account, treasury.mint()) if tx else 0
    ours = {row.owner for row in rows}
    for signature in _unless_booked(seen.signatures, own):
        tx = treasury.rpc().get_transaction(signature) if signature not in attempts else None
        delta = token_delta(tx, own, treasury.mint()) if tx else 0
        if delta < 0:
            seen.unknown[f"transaction {signature}"] = -delta
        elif tx and deposits.sender_of(tx) not in ours:
            seen.arrived_micro += delta
    return seen


def _unless_booked(signatures: list[str], token_account: str) -> list[str]:
    """Those that are neither a deposit in the books nor a sweep of ours."""
    booked = set(Deposit.objects.filter(token_account=token_account).values_list("signature", flat=True))
    booked |= set(Deposit.objects.exclude(swept_signature="").values_list("swept_signature", flat=True))
    return [signature for signature in signatures if signature not in booked]


def _succeeded(account: str, *, until: str | None = None) -> list[str]:
    signatures: list[str] = []
    before: str | None = None
    while True:
        page = treasury.rpc().get_signatures_for_address(account, until=until, before=before, limit=PAGE)
        signatures += [entry["signature"] for entry in page if entry["err"] is None]
        if len(page) < PAGE:
            return signatures
        before = page[-1]["signature"]


def _balances(accounts: list[str]) -> list[int]:
    """Micro-USDC of many token accounts, a hundred a call."""

    def read(answer: Any) -> list[int]:
        return [_amount(value) for value in answer["value"]]

    options = {"commitment": "finalized", "encoding": "base64"}
    amounts: list[int] = []
    for start in range(0, len(accounts), ACCOUNTS_A_CALL):
        amounts += treasury.rpc().call(
            "getMultipleAccounts", accounts[start : start + ACCOUNTS_A_CALL], options, read=read
        )
    return amounts


def _amount(value: dict[str, Any] | None) -> int:
    data = base64.b64decode(value["data"][0]) if value else b""
    # Layout of spl-token's Account: the amount at 64..72, little-endian.
    return int.from_bytes(data[64:72], "little") if len(data) >= TOKEN_ACCOUNT_BYTES else 0

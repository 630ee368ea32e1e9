"""The books against the chain: what the ledger says we hold, and that nothing left the treasury but payouts.

    on chain (treasury + deposit accounts) = held by the ledger + arrived and not yet credited − landed and not yet marked as paid

The chain and the ledger are read one after the other while both move: a difference counts only if it is still there on a second look.
"""

from dataclasses import dataclass

from django.db.models import F

from billing import ledger, treasury
from billing.ledger import Check, Kind, Report
from billing.models import Account, Deposit, DepositAddress, Transfer
from gpunex.chain.rpc import TOKEN_ACCOUNT_BYTES, RpcUnavailable
from gpunex.chain.transfers import incoming, token_delta
from payouts.models import Attempt, Payout

ACCOUNTS_A_CALL = 100
LOOKS = 4
PAGE = 1000


@dataclass(frozen=True, slots=True)
class _Seen:
    """One look at the chain: finalized and successful signatures of the treasury, balances of all accounts of ours."""

    treasury_micro: int
    signatures: list[str]
    deposits: dict[str, int]  # by token account


def verify_books(*, with_chain: bool = True) -> Report:
    """Prove the ledger by itself, the payouts against it and, ``with_chain``, both against the chain. Raises RpcUnavailable."""
    checks = [*ledger.verify_books().checks, _payouts_check()]
    if with_chain:
        for _look in range(LOOKS):
            on_chain = _chain_checks()
            if not any(check.off for check in on_chain):
                break
        checks += on_chain
    return Report(checks)


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
        wrong = abs(held.get(f"{Kind.IN_TRANSIT}:{reference}", 0) - in_transit) + abs(paid.get(reference, 0) - with_chain)
        if wrong:
            off[f"payout {reference}"] = wrong
    return Check(name="each payout's money is where its state says", figure=f"{len(payouts)} payouts", off=off)


def _chain_checks() -> list[Check]:
    seen = _look()
    held = -ledger.balance(ledger.account(Kind.TREASURY)) - ledger.balance(ledger.account(Kind.PAID_CHAIN))
    landed = set(seen.signatures)
    attempts = {attempt.signature: attempt for attempt in Attempt.objects.select_related("payout")}
    under_way = sum(
        attempt.payout.amount_micro
        for signature, attempt in attempts.items()
        if signature in landed and attempt.payout.state != Payout.State.PAID
    )
    on_chain = seen.treasury_micro + sum(seen.deposits.values())
    arrived = _not_credited(seen)
    off = on_chain - held - arrived + under_way
    return [
        Check(
            name="the chain holds what the ledger says",
            figure=f"{on_chain} micro-USDC on chain, {held} in the ledger, {arrived} to be credited, {under_way} to be marked as paid",
            off={"treasury and deposit accounts": off} if off else {},
        ),
        _outgoing_check(seen, attempts),
        _paid_check(landed, attempts),
    ]


def _outgoing_check(seen: _Seen, attempts: dict[str, Attempt]) -> Check:
    """Money that left the treasury without a payout means that somebody else has its key."""
    known = set(attempts) | set(Deposit.objects.exclude(swept_signature="").values_list("swept_signature", flat=True))
    known |= set(Deposit.objects.filter(token_account=treasury.token_account()).values_list("signature", flat=True))
    off: dict[str, int] = {}
    for signature in seen.signatures:
        if signature in known:
            continue
        tx = treasury.rpc().get_transaction(signature)
        delta = token_delta(tx, treasury.token_account(), treasury.mint()) if tx else 0
        if delta < 0:
            off[f"transaction {signature}"] = -delta
    return Check(name="each payment out of the treasury is a payout's", figure=f"{len(seen.signatures)} transactions", off=off)


def _paid_check(landed: set[str], attempts: dict[str, Attempt]) -> Check:
    """Each payout that is called paid is on chain, by exactly one of its attempts; no attempt called dead is."""
    by_payout: dict[int, list[Attempt]] = {}
    for signature, attempt in attempts.items():
        if signature in landed:
            by_payout.setdefault(attempt.payout_id, []).append(attempt)
    off: dict[str, int] = {}
    paid = Payout.objects.filter(state=Payout.State.PAID, rail="usdc")
    for payout in paid:
        times = len(by_payout.get(payout.pk, []))
        if times != 1:
            off[f"payout {payout.public_id}"] = (times - 1) * payout.amount_micro
    for attempt in (attempt for found in by_payout.values() for attempt in found if attempt.dead):
        off[f"attempt {attempt.signature}"] = attempt.payout.amount_micro
    return Check(name="each paid payout is on chain once", figure=f"{len(paid)} paid payouts", off=off)


# --- reading the chain -----------------------------------------------------------------------------------------------


def _look() -> _Seen:
    accounts = list(DepositAddress.objects.filter(organisation__isnull=False).values_list("token_account", flat=True))
    amounts: dict[str, int] = {}
    for start in range(0, len(accounts), ACCOUNTS_A_CALL):
        chunk = accounts[start : start + ACCOUNTS_A_CALL]
        amounts |= {account: amount for account, amount in zip(chunk, treasury.rpc().get_token_balances(chunk), strict=True) if amount}
    return _Seen(
        treasury_micro=treasury.rpc().get_token_balance(treasury.token_account()) or 0,
        signatures=_succeeded(treasury.token_account()),
        deposits=amounts,
    )


def _succeeded(account: str) -> list[str]:
    signatures: list[str] = []
    before: str | None = None
    while True:
        page = treasury.rpc().get_signatures_for_address(account, before=before, limit=PAGE)
        signatures += [entry["signature"] for entry in page if entry["err"] is None]
        if len(page) < PAGE:
            return signatures
        before = page[-1]["signature"]


def _not_credited(seen: _Seen) -> int:
    """What arrived in accounts of ours and the watcher has not come to yet."""
    total = 0
    sweeps = set(DepositAddress.objects.values_list("owner", flat=True))
    for row in DepositAddress.objects.filter(F("organisation_id").isnull if False else F("pk").__class__("pk").isnull) if False else []:
        total += row.pk
    unswept: dict[str, int] = {}
    for account, amount in Deposit.objects.filter(swept_at=None).values_list("token_account", "amount_micro"):
        unswept[account] = unswept.get(account, 0) + amount
    for account, amount in seen.deposits.items():
        if amount != unswept.get(account, 0):
            total += _arrived(account, _succeeded(account), own=set())
    return total + _arrived(treasury.token_account(), seen.signatures, own=sweeps)


def _arrived(account: str, signatures: list[str], *, own: set[str]) -> int:
    raise NotImplementedError

"""The books against the payouts and the chain: what the ledger says we hold, and that nothing left the treasury but payouts.

    on chain (treasury + deposit accounts) = held by the ledger + arrived and not yet credited − landed and not yet marked as paid

What a bank paid does not touch the chain: its USDC stays in the treasury until somebody sells it.

The chain and the ledger are read one after the other while both move: a difference counts only if it is still there on a second look.
"""

from collections import Counter
from dataclasses import dataclass, field

from django.db import connection
from django.db.models import Sum

from billing import deposits, ledger, proof, treasury
from billing.ledger import Kind
from billing.models import Deposit, DepositAddress
from billing.proof import Check, Report
from gpunex.chain.rpc import TOKEN_ACCOUNT_BYTES
from gpunex.chain.transfers import incoming, token_delta
from payouts.bank.proof import bank_check
from payouts.models import Attempt, Payout, Rail

LOOKS = 4
PAGE = 1000


def verify_books(*, with_chain: bool = True) -> Report:
    """Prove the ledger by itself, the payouts against it and, ``with_chain``, both against the chain. Raises RpcUnavailable."""
    with proof.one_moment():
        by_itself = [*ledger.verify_books().checks, *_row_checks(), bank_check()]
    if not with_chain:
        return Report(by_itself)
    on_chain = _chain_checks()
    for _again in range(LOOKS - 1):
        if not any(check.off for check in on_chain):
            break
        on_chain = _chain_checks()
    return Report(by_itself + on_chain)


# --- rows against the ledger -----------------------------------------------------------------------------------------

_PAYOUTS = "payouts", "SELECT count(*) FROM payouts_payout"
_ROWS = [
    (
        _PAYOUTS,
        # Set aside once, and since then where the state says: in transit, paid, given back to where it came from, or returned by a bank.
        "each payout's money is where its state says",
        """WITH moved AS (
               SELECT t.reference, t.kind,
                      CASE WHEN t.kind = 'payout' THEN d.kind ELSE c.kind END AS account, sum(t.amount_micro) AS micro
               FROM billing_transfer t JOIN billing_account d ON d.id = t.debit_id JOIN billing_account c ON c.id = t.credit_id
               WHERE t.kind IN ('payout', 'payout_paid', 'payout_back', 'payout_returned') GROUP BY 1, 2, 3
           ), expected AS (
               SELECT p.public_id, p.amount_micro AS micro, move.kind, move.account
               FROM payouts_payout p JOIN payouts_payoutrun r ON r.id = p.run_id,
               LATERAL (SELECT CASE WHEN r.kind = 'return' THEN 'renter.balance' ELSE 'provider.payable' END AS source) AS s,
               LATERAL (VALUES
                   ('payout', s.source, true),
                   ('payout_paid', CASE WHEN p.rail = 'usdc' THEN 'payout.paid.chain' ELSE 'payout.paid.bank' END, p.state IN ('paid', 'returned')),
                   ('payout_back', s.source, p.state = 'failed'),
                   ('payout_returned', s.source, p.state = 'returned')
               ) AS move (kind, account, happened) WHERE move.happened
           ), held AS (
               SELECT p.public_id, coalesce(a.balance_micro, 0) AS micro,
                      CASE WHEN p.state IN ('paid', 'failed', 'returned') THEN 0 ELSE p.amount_micro END AS wanted
               FROM payouts_payout p LEFT JOIN billing_account a ON a.code = 'payout.in_transit:' || p.public_id
           )
           SELECT 'payout ' || place, max(micro)::bigint FROM (
               SELECT coalesce(e.public_id::text, m.reference) AS place, abs(coalesce(e.micro, 0) - coalesce(m.micro, 0)) AS micro
               FROM expected e FULL JOIN moved m
               ON m.reference = e.public_id::text AND m.kind = e.kind AND m.account = e.account
               WHERE coalesce(e.micro, 0) <> coalesce(m.micro, 0)
               UNION ALL SELECT public_id::text, abs(micro - wanted) FROM held WHERE micro <> wanted
           ) AS off GROUP BY place""",
    ),
    (
        _PAYOUTS,
        "each payout's statement is there and says its amount",
        """SELECT 'payout ' || p.public_id, p.amount_micro FROM payouts_payout p LEFT JOIN billing_statement s
           ON s.kind = 'payout' AND s.organisation_id = p.organisation_id AND s.reference = p.public_id::text
           WHERE p.statement_sha256 <> ''
             AND (s.sha256 IS DISTINCT FROM p.statement_sha256 OR (s.body->>'amount_micro')::bigint IS DISTINCT FROM p.amount_micro)""",
    ),
    (
        _PAYOUTS,
        "each payout goes where its owner said",
        """SELECT 'payout ' || p.public_id, p.amount_micro FROM payouts_payout p JOIN payouts_payoutmethod m ON m.id = p.method_id
           WHERE (m.organisation_id, m.rail) <> (p.organisation_id, p.rail)
             OR p.destination <> CASE WHEN m.rail = 'usdc' THEN m.address ELSE m.masked END""",
    ),
    (
        _PAYOUTS,
        "nothing of a run that is not cleared has left",
        """SELECT 'payout ' || p.public_id, p.amount_micro FROM payouts_payout p JOIN payouts_payoutrun r ON r.id = p.run_id
           WHERE r.cleared_at IS NULL AND (
               p.state IN ('signed', 'exported', 'paid', 'returned') OR EXISTS (SELECT 1 FROM payouts_attempt a WHERE a.payout_id = p.id)
           )""",
    ),
    (
        ("deposits", "SELECT count(*) FROM billing_deposit"),
        # On its owner's balance at once, or through what was unmatched.
        "each deposit is on its owner's balance",
        """SELECT 'deposit ' || d.public_id, greatest(1, abs(d.amount_micro - coalesce(last.amount_micro, 0)))
           FROM billing_deposit d JOIN billing_transfer t ON t.id = d.transfer_id
           LEFT JOIN billing_transfer m ON m.key = 'match:' || d.public_id
           JOIN billing_transfer last ON last.id = coalesce(m.id, t.id)
           JOIN billing_account c ON c.id = last.credit_id
           WHERE t.amount_micro <> d.amount_micro OR last.amount_micro <> d.amount_micro
             OR c.kind <> CASE WHEN d.state = 'credited' THEN 'renter.balance' ELSE 'deposits.unmatched' END
             OR c.organisation_id IS DISTINCT FROM d.organisation_id""",
    ),
    (
        ("statements", "SELECT count(*) FROM billing_statement"),
        "statements are numbered without a gap",
        """SELECT 'series ' || coalesce(n.name, s.series), greatest(1, abs(coalesce(n.last_number, 0) - coalesce(s.count, 0)))
           FROM billing_statementseries n FULL JOIN (
               SELECT series, count(*) AS count, max(number) AS highest FROM billing_statement GROUP BY series
           ) AS s ON s.series = n.name
           WHERE coalesce(n.last_number, 0) <> coalesce(s.count, 0) OR s.highest <> s.count""",
    ),
]


def _row_checks() -> list[Check]:
    with connection.cursor() as cursor:
        checks = []
        for (of, count), name, query in _ROWS:
            cursor.execute(count)
            figure = f"{cursor.fetchone()[0]} {of}"
            cursor.execute(query)
            checks.append(
                Check(name=name, figure=figure, off={place: int(micro) for place, micro in cursor.fetchall()})
            )
    return checks


# --- the chain against both ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Seen:
    """One look at the chain."""

    on_chain_micro: int = 0  # in the treasury and in all deposit accounts
    arrived_micro: int = 0  # into accounts of ours, and the watcher has not come to it yet
    signatures: list[str] = field(default_factory=list)  # of the treasury's account, successful, newest first
    unknown: dict[str, int] = field(default_factory=dict)  # what left the treasury by no payout's signature


@dataclass(frozen=True, slots=True)
class _Signed:
    """What an attempt's signature is for."""

    payout: int
    amount_micro: int
    state: str
    dead: bool


def _chain_checks() -> list[Check]:
    attempts = {
        row.signature: _Signed(row.payout_id, row.payout.amount_micro, row.payout.state, row.dead)
        for row in Attempt.objects.select_related("payout").only(
            "signature", "dead", "payout__amount_micro", "payout__state"
        )
    }
    seen = _look(set(attempts))
    landed = set(seen.signatures)
    held = -ledger.balance(ledger.account(Kind.TREASURY)) - ledger.balance(ledger.account(Kind.PAID_CHAIN))
    under_way = sum(
        signed.amount_micro
        for signature, signed in attempts.items()
        if signature in landed and signed.state != Payout.State.PAID
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


def _paid_check(landed: set[str], attempts: dict[str, _Signed]) -> Check:
    """Each payout that is called paid is on chain, by exactly one of its attempts; no attempt called dead is."""
    found = {signature: signed for signature, signed in attempts.items() if signature in landed}
    times = Counter(signed.payout for signed in found.values())
    off = {f"attempt {signature}": signed.amount_micro for signature, signed in found.items() if signed.dead}
    paid = Payout.objects.filter(state=Payout.State.PAID, rail=Rail.USDC).values_list("pk", "public_id", "amount_micro")
    for pk, public_id, amount in paid:
        if times[pk] != 1:
            off[f"payout {public_id}"] = (times[pk] - 1) * amount
    return Check(name="each paid payout is on chain once", figure=f"{len(paid)} paid payouts", off=off)


# --- reading the chain -----------------------------------------------------------------------------------------------


def _look(attempts: set[str]) -> _Seen:
    own, mint = treasury.token_account(), treasury.mint()
    rows = list(DepositAddress.objects.filter(organisation__isnull=False))
    balances = _balances([own, *(row.token_account for row in rows)])
    seen = _Seen(on_chain_micro=sum(balances.values()), signatures=_succeeded(own))
    unswept = dict(
        Deposit.objects.filter(swept_at=None).values_list("token_account").annotate(micro=Sum("amount_micro"))
    )
    for row in rows:
        # Where the balance is what was credited and not collected yet, nothing came that the watcher has not seen.
        if balances[row.token_account] == unswept.get(row.token_account, 0):
            continue
        for signature in _unless_booked(_succeeded(row.token_account, until=row.cursor or None), row.token_account):
            tx = treasury.rpc().get_transaction(signature)
            seen.arrived_micro += incoming(tx, row.token_account, mint) if tx else 0
    ours = {row.owner for row in rows}
    for signature in _unless_booked([each for each in seen.signatures if each not in attempts], own):
        tx = treasury.rpc().get_transaction(signature)
        delta = token_delta(tx, own, mint) if tx else 0
        if delta < 0:
            seen.unknown[f"transaction {signature}"] = -delta
        elif tx and deposits.sender_of(tx) not in ours:
            seen.arrived_micro += delta
    return seen


def _unless_booked(signatures: list[str], token_account: str) -> list[str]:
    """Those that are neither a deposit in the books nor a sweep of ours."""
    if not signatures:
        return []
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


def _balances(accounts: list[str]) -> dict[str, int]:
    """Micro-USDC of many token accounts."""
    found = treasury.rpc().get_accounts(accounts)
    return {
        # Layout of spl-token's Account: the amount at 64..72, little-endian.
        address: int.from_bytes(account.data[64:72], "little")
        if account and len(account.data) >= TOKEN_ACCOUNT_BYTES
        else 0
        for address, account in zip(accounts, found, strict=True)
    }

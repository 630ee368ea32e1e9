"""Proving one payout to anyone: from the ledger's lines to the statement, and from the statement to the chain or the bank.

1. The statement has the hash that was kept with the payout, follows on the one before it, and its lines are derived from the ledger anew.
2. The ledger set the amount aside once, and the money is where the payout's state says.
3. On chain exactly one of the payout's transactions succeeded; it paid this amount of this token to this owner, and its memo carries the
   payout's id and the statement's hash. By bank: the cents are worth the amount, the file is unchanged, the bank's answer agrees.

Nothing is written. A node that does not answer proves nothing, for or against.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from django.db.models import Sum
from django.utils.translation import gettext_lazy as _

from billing import statement_proof, treasury
from billing.ledger import Kind, Move
from billing.models import Account, Statement, Transfer
from billing.statements import hash_of
from gpunex.chain.rpc import RpcError, RpcUnavailable
from gpunex.chain.transfers import outgoing_matches
from payouts.bank import files
from payouts.bank.answers import Said
from payouts.bank.rates import exchanged
from payouts.models import Attempt, BankImport, BankTransfer, Payout, PayoutRun, Rail

State = Payout.State


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    PENDING = "pending"  # the payout has not come that far
    UNKNOWN = "unknown"  # nobody answered
    ABSENT = "absent"  # made before there were such things


TITLES = {
    "statement": _("The statement is unchanged: its hash is the one that was kept with the payout"),
    "lines": _("The amount follows from the ledger, line by line"),
    "ledger": _("The ledger set the amount aside once, and it is where the state says"),
    "transaction": _(
        "The chain paid this amount of USDC to the destination, with the payout’s id and the statement’s hash"
    ),
    "once": _("No more than one transaction of this payout is on the chain"),
    "bank": _("The bank transfer is worth the amount, is unchanged in its file, and the bank’s answer agrees"),
}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold. ``detail`` is for whoever runs the platform: the figure, or what is off."""

    name: str
    outcome: Outcome
    detail: str

    @property
    def title(self) -> str:
        return str(TITLES[self.name])


@dataclass(frozen=True, slots=True)
class Verification:
    checks: list[Check]

    @property
    def problems(self) -> list[str]:
        """What speaks against the payout, or could not be asked."""
        bad = (Outcome.FAILED, Outcome.UNKNOWN)
        return [f"{check.name}: {check.detail}" for check in self.checks if check.outcome in bad]

    @property
    def all_passed(self) -> bool:
        return not self.problems


def verify(payout: Payout) -> Verification:
    """Look at everything that is known of ``payout``. Asks the chain, so never within a transaction."""
    checks = [*_statement_checks(payout), _ledger_check(payout)]
    checks += _chain_checks(payout) if payout.rail == Rail.USDC else [_bank_check(payout)]
    return Verification(checks)


def _check(name: str, faults: list[str], good: str) -> Check:
    return Check(name, Outcome.FAILED if faults else Outcome.PASSED, "; ".join(faults) or good)


# --- the statement ---------------------------------------------------------------------------------------------------


def _statement_checks(payout: Payout) -> list[Check]:
    statement = statement_of(payout)
    if statement is None:
        faults = ["its statement is missing"] if payout.statement_sha256 else []
        if faults:
            return [_check("statement", faults, "")]
        return [Check("statement", Outcome.ABSENT, "made before payouts had statements")]
    body = statement.body
    own = []
    if payout.statement_sha256 != statement.sha256 or hash_of(body) != statement.sha256:
        own.append("its hash is not the one that was kept with the payout")
    if body["amount_micro"] != payout.amount_micro:
        own.append(f"it says {body['amount_micro']} micro-USDC, the payout {payout.amount_micro}")
    lines = statement_proof.faults(statement) + _cut_off_faults(payout, statement)
    return [
        _check("statement", own, f"{statement.full_number}, SHA-256 {statement.sha256}"),
        _check("lines", lines, f"{len(body['lines'])} lines, {body['payable_micro']} micro-USDC payable"),
    ]


def statement_of(payout: Payout) -> Statement | None:
    return Statement.objects.filter(
        organisation=payout.organisation, kind=Statement.Kind.PAYOUT, reference=str(payout.public_id)
    ).first()


def _cut_off_faults(payout: Payout, statement: Statement) -> list[str]:
    """What came in after the cut-off is found again in the ledger."""
    if payout.run.kind != PayoutRun.Kind.CYCLE:
        return []
    body = statement.body
    account = Account.objects.filter(code=f"{body['account']}:{payout.organisation.public_id}").first()
    if account is None:
        return []
    later = account.incoming.filter(effective_at__gte=payout.run.period_end, pk__lte=body["span"]["last"])
    total = later.aggregate(total=Sum("amount_micro"))["total"] or 0
    if total == body["later_micro"]:
        return []
    return [f"{total} micro-USDC came in after the cut-off, the statement says {body['later_micro']}"]


# --- the ledger ------------------------------------------------------------------------------------------------------


def _ledger_check(payout: Payout) -> Check:
    expected = Counter({Move.PAYOUT: 1})
    if payout.state in (State.PAID, State.RETURNED):
        expected[Move.PAID] = 1
    if payout.state == State.FAILED:
        expected[Move.BACK] = 1
    if payout.state == State.RETURNED:
        expected[Move.RETURNED] = 1
    moves = (Move.PAYOUT, Move.PAID, Move.BACK, Move.RETURNED)
    rows = list(
        Transfer.objects.filter(reference=str(payout.public_id), kind__in=moves).select_related("debit", "credit")
    )
    source = Kind.RENTER_BALANCE if payout.run.kind == PayoutRun.Kind.RETURN else Kind.PROVIDER_PAYABLE
    own, transit = f"{source}:{payout.organisation.public_id}", f"{Kind.IN_TRANSIT}:{payout.public_id}"
    paid_to = Kind.PAID_CHAIN if payout.rail == Rail.USDC else Kind.PAID_BANK
    ways = {
        Move.PAYOUT: (own, transit),
        Move.PAID: (transit, str(paid_to)),
        Move.BACK: (transit, own),
        Move.RETURNED: (str(paid_to), own),
    }
    faults = []
    method = payout.method
    if method is not None and payout.destination != (method.address or method.masked):
        faults.append(f"it goes to {payout.destination}, its owner said {method.shown}")
    if Counter(Move(row.kind) for row in rows) != expected:
        faults.append(f"its transfers are {sorted(row.kind for row in rows)} while it is {payout.state}")
    for row in rows:
        if row.amount_micro != payout.amount_micro:
            faults.append(f"transfer {row.pk} moved {row.amount_micro} micro-USDC, not {payout.amount_micro}")
        if (row.debit.code, row.credit.code) != ways[Move(row.kind)]:
            faults.append(f"transfer {row.pk} went from {row.debit.code} to {row.credit.code}")
    return _check("ledger", faults, f"{payout.amount_micro} micro-USDC, {payout.state}, {len(rows)} transfers")


# --- the chain -------------------------------------------------------------------------------------------------------


def _chain_checks(payout: Payout) -> list[Check]:
    attempts = list(payout.attempts.all())
    looks, silence = [], ""
    for node in treasury.rpc().nodes:
        try:
            looks.append(_look(payout, attempts, node))
        except (RpcUnavailable, RpcError) as error:
            silence = str(error)
    if not looks or looks.count(looks[0]) != len(looks):
        why = "the nodes of the chain say different things" if looks else f"the chain did not answer: {silence}"
        return [Check(name, Outcome.UNKNOWN, why) for name in ("transaction", "once")]
    landed = looks[0]
    once = [f"{len(landed)} of its transactions succeeded on chain"] if len(landed) > 1 else []
    once += [
        f"{attempt.signature} was taken for dead and is on chain"
        for attempt in attempts
        if attempt.dead and attempt.signature in landed
    ]
    return [
        _transaction_check(payout, landed),
        _check("once", once, f"{len(attempts)} signed, {len(landed)} on chain"),
    ]


def _look(payout: Payout, attempts: list[Attempt], node: int) -> dict[str, bool]:
    """The payout's transactions that one node calls final and successful: whether each did what the payout says."""
    landed = {}
    for attempt in attempts:
        tx = treasury.rpc().get_transaction(attempt.signature, node=node)
        if tx is not None and tx["meta"]["err"] is None:
            landed[attempt.signature] = outgoing_matches(
                tx, payout.destination, treasury.mint(), payout.amount_micro, payout.memo
            )
    return landed


def _transaction_check(payout: Payout, landed: dict[str, bool]) -> Check:
    if not landed:
        if payout.state in Payout.OPEN_STATES:
            return Check("transaction", Outcome.PENDING, "not paid yet")
        if payout.state == State.FAILED:
            return Check("transaction", Outcome.PASSED, "nothing was paid: the money went back")
        return Check("transaction", Outcome.FAILED, "it is called paid, and none of its transactions is on chain")
    faults = ["it is called failed, and the chain paid it"] if payout.state == State.FAILED else []
    faults += [
        f"{signature} is not this amount to this owner with this memo" for signature, fits in landed.items() if not fits
    ]
    return _check("transaction", faults, f"{', '.join(landed)} with memo {payout.memo}")


# --- the bank --------------------------------------------------------------------------------------------------------

# Of each state that a bank's word leads to: the transfer's, and what the answer said.
_ANSWERED = {
    State.PAID: (BankTransfer.State.SETTLED, Said.SETTLED),
    State.RETURNED: (BankTransfer.State.RETURNED, Said.RETURNED),
}


def _bank_check(payout: Payout) -> Check:
    transfer = BankTransfer.objects.filter(payout=payout).select_related("file", "rate", "payout").first()
    if transfer is None:
        return Check("bank", Outcome.FAILED, "it has no bank transfer")
    faults = []
    if exchanged(payout.amount_micro, micro_per_unit=transfer.rate.micro_per_unit) != (
        transfer.amount_cents,
        payout.amount_micro,
    ):
        faults.append(f"{transfer.amount_cents} cents are not worth {payout.amount_micro} micro-USDC")
    if transfer.file is not None:
        try:
            content = files.content(transfer.file)
        except (files.FileDamaged, ValueError) as error:
            faults.append(f"file {transfer.file.message_id} cannot be read as it was made: {error}")
        else:
            if _named_in(transfer, content) != 1:
                faults.append(f"it is not once in file {transfer.file.message_id}")
    faults += _answer_faults(payout, transfer)
    if not faults and payout.state in Payout.OPEN_STATES:
        return Check("bank", Outcome.PENDING, f"{transfer.amount_cents} cents, {transfer.state}")
    return _check("bank", faults, f"{transfer.amount_cents} cents of {transfer.currency}, {transfer.state}")


def _answer_faults(payout: Payout, transfer: BankTransfer) -> list[str]:
    if payout.state not in _ANSWERED:
        return []
    state, said = _ANSWERED[State(payout.state)]
    if transfer.state != state or transfer.file is None:
        return [f"it is {payout.state}, and its bank transfer is {transfer.state}"]
    if said == Said.SETTLED and payout.rail == Rail.ACH:
        return []  # an ACH bank answers only what goes wrong
    told = {"end_to_end_id": transfer.end_to_end_id, "said": said.value}
    return [] if BankImport.objects.filter(lines__contains=[told]).exists() else [f"no answer of the bank says {said}"]


def _named_in(transfer: BankTransfer, content: bytes) -> int:
    """How many transfers of the file are this one: a SEPA file names our own id, an entry of a NACHA file ends with the trace number."""
    if transfer.payout.rail == Rail.ACH:
        trace = transfer.trace_number.encode()
        return sum(line.startswith(b"6") and line.rstrip().endswith(trace) for line in content.splitlines())
    return content.count(f"<EndToEndId>{transfer.end_to_end_id}</EndToEndId>".encode())

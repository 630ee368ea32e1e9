"""The books against the bank: each payout by bank stands where its transfer says, and cost what its cents are worth.

>>> is_consistent("settled", "paid"), is_consistent("rejected", "paid"), is_consistent("in_file", "failed")
(True, False, False)
"""

from billing.ledger import Check
from payouts.bank import RAILS
from payouts.bank.rates import CENTS
from payouts.models import BankTransfer, Payout

State = BankTransfer.State
_STATES: dict[str, frozenset[str]] = {
    # Before the bank has it, a person may still take it back.
    State.WAITING: frozenset({"reserved", "approved", "review", "failed"}),
    State.IN_FILE: frozenset({"approved", "review"}),
    State.EXPORTED: frozenset({"exported", "review"}),
    State.ACKNOWLEDGED: frozenset({"exported", "review"}),
    State.SETTLED: frozenset({"paid"}),
    State.REJECTED: frozenset({"failed"}),
    State.RETURNED: frozenset({"returned", "failed"}),
}


def is_consistent(transfer_state: str, payout_state: str) -> bool:
    return payout_state in _STATES[transfer_state]


def bank_check() -> Check:
    """Raises nothing; a payout that is off is named with its amount, or with by how much its cost differs."""
    off: dict[str, int] = {}
    payouts = Payout.objects.filter(rail__in=RAILS).select_related("bank_transfer__rate").order_by("pk")
    count = 0
    for payout in payouts.iterator():
        count += 1
        transfer = getattr(payout, "bank_transfer", None)
        if transfer is None or not is_consistent(transfer.state, payout.state):
            off[f"payout {payout.public_id}"] = payout.amount_micro
            continue
        cost = -(-transfer.amount_cents * transfer.rate.micro_per_unit // CENTS)
        if cost != payout.amount_micro:
            off[f"payout {payout.public_id}"] = payout.amount_micro - cost
    return Check(name="each bank payout stands where its transfer says", figure=f"{count} bank payouts", off=off)

"""Paying USDC: a state machine whose every step may be the last before a crash, and that never pays twice.

    approved ── sign, COMMIT, then send ──▶ signed ── found final on chain, as signed ──▶ paid
        ▲                                     │
        └── the attempt is proven dead ◀──────┤──▶ failed (definite; the money is where it came from)
                                              └──▶ review (a person must look; alerted)

1. The signed bytes and their signature are committed before they are sent. Whoever finds them later sends the same bytes: the network
   takes a signature once. A second signature exists only after the first is proven dead.
2. What sending answers decides nothing: not a time-out, not "already processed", not "blockhash not found". Only the chain does,
   asked by signature with its whole history.
3. Dead is: a minute after signing at the earliest, the least block height of at least two answers is past the last valid one and a
   margin, and after that two nodes know nothing of the signature, twice, a minute apart. One node may lie, lag, or answer with the slot
   (22 million ahead); a height that the clock does not explain counts for nothing, nor does a history that misses what is known to be there.
4. Paid is: final, without an error, and the transaction gave this amount to this owner with this memo, as two answers tell it.
5. A node that does not answer changes no state; one that asked to be left alone for a while is.
6. Two workers at once are harmless: each step locks the payout, looks again at its state, and one live attempt a payout is a constraint.
7. The kill switch stops signing and sending, first and again; what is on its way is still found.

``signing`` has the way out, ``resolving`` the way back, ``outcomes`` how it ends.
"""

from datetime import datetime

import structlog
from django.conf import settings

from gpunex.chain.rpc import RpcUnavailable
from gpunex.policy.models import Policy
from payouts.outcomes import give_back
from payouts.resolving import resolve_signed
from payouts.signing import sign_approved

__all__ = ["advance", "explorer_link", "give_back"]

log = structlog.get_logger(__name__)


def advance(*, at: datetime) -> int:
    """Move every payout on as far as it can go now. Returns how many changed their state. Late, twice or at once is harmless."""
    paused = Policy.load().payouts_paused
    changed = 0
    try:
        changed += resolve_signed(at=at, resend=not paused)
        if not paused:
            changed += sign_approved(at=at)
    except RpcUnavailable as unavailable:
        log.warning("payouts_wait_for_the_chain", reason=str(unavailable))
    return changed


def explorer_link(signature: str) -> str:
    """Where anyone can look a transaction up; empty where no explorer knows the chain."""
    return settings.SOLANA_EXPLORER.format(signature=signature) if settings.SOLANA_EXPLORER else ""

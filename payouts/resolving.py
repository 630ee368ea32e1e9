"""Signed payouts are found on chain, or proven dead; see the rules in ``payouts.usdc``."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import transaction
from django.utils.translation import gettext_lazy as _

from billing import treasury
from gpunex.chain.rpc import RpcError, RpcUnavailable
from gpunex.chain.transfers import outgoing_matches
from payouts import failpoints
from payouts.models import Attempt, Payout, Rail
from payouts.notices import alert
from payouts.outcomes import give_back, hold, paid_on_chain, set_state
from payouts.passing import never_stopping_the_rest
from payouts.signing import BLOCKHASH_LIFE, send

log = structlog.get_logger(__name__)

RESEND_EVERY = timedelta(seconds=2)
# A node's height may run a little ahead of what it has executed.
HEIGHT_MARGIN = 32
# Blocks have a window, and so has trust: nothing is called dead within a minute, whatever heights are told.
DEAD_NOT_BEFORE = timedelta(seconds=60)
# Nor because of one look: an index that lags has caught up by the second one.
LOOK_AGAIN_AFTER = timedelta(seconds=60)
# A blockhash lives for so many blocks, which come a few a second. A height that no clock explains is a slot, or a lie.
BLOCKS_A_SECOND_MOST = 10
HEIGHT_SLACK = 1_000
ANSWERS_NEEDED = 2
ATTEMPTS_MOST = 5
STUCK_AFTER = timedelta(minutes=30)

_CUSTOM_INSUFFICIENT, _CUSTOM_FROZEN = 1, 17  # spl-token's TokenError
_OUT_OF_UNITS = ("ComputationalBudgetExceeded", "ProgramFailedToComplete")


def resolve_signed(*, at: datetime, resend: bool) -> int:
    """Ask the chain about every live attempt. Returns how many payouts changed. Raises RpcUnavailable."""
    live = Attempt.objects.filter(dead=False, payout__state=Payout.State.SIGNED, payout__rail=Rail.USDC)
    attempts = list(live.select_related("payout").order_by("pk"))
    if not attempts:
        return 0
    statuses = treasury.rpc().get_signature_statuses([attempt.signature for attempt in attempts])
    heights = treasury.rpc().get_block_heights() if None in statuses else []
    changed = 0
    for attempt, status in zip(attempts, statuses, strict=True):
        with never_stopping_the_rest(attempt.payout):
            moved = 0
            if status is None:
                moved = _unseen(attempt, heights=heights, resend=resend, at=at)
            elif status["confirmationStatus"] == "finalized":
                failpoints.passing("seen as final")
                moved = _landed(attempt, at=at)
            if not moved and attempt.signed_at < at - STUCK_AFTER:
                _tell_stuck(attempt, at=at)
            changed += moved
    return changed


def _unseen(attempt: Attempt, *, heights: Sequence[int], resend: bool, at: datetime) -> int:
    believed = [height for height in heights if _explained(attempt, height, at=at)]
    if not believed or min(believed) <= attempt.last_valid_block_height + HEIGHT_MARGIN:
        turn = attempt.sent_at is None or attempt.sent_at <= at - RESEND_EVERY
        # Preflight only once: from the second time on the network itself shall say what is wrong.
        if resend and turn and not send(attempt, preflight=attempt.sends == 0, at=at):
            raise RpcUnavailable("no node takes transactions")
        return 0
    if attempt.signed_at > at - DEAD_NOT_BEFORE or len(believed) < min(ANSWERS_NEEDED, len(treasury.rpc().nodes)):
        return 0
    # The last looks come after the height was seen to be past: what landed until then is in the history now.
    answers = _answers(lambda node: _known_to(node, attempt))
    if len(answers) < ANSWERS_NEEDED or any(answers):
        return 0
    if not _unseen_for_long(attempt, at=at):
        return 0
    failpoints.passing("proven dead")
    evidence = {"heights": list(heights), "histories": len(answers)}
    return _dead(attempt, reason=Payout.Reason.EXPIRED, evidence=evidence, at=at)


def _known_to(node: int, attempt: Attempt) -> bool:
    """Whether this node's history has the attempt. Raises RpcUnavailable if it does not even have what it says came last for USDC:
    a history that forgets, or is away for a while, proves nothing."""
    rpc = treasury.rpc()
    newest = [entry["signature"] for entry in rpc.get_signatures_for_address(treasury.mint(), limit=1, node=node)]
    asked, *others = rpc.get_signature_statuses([attempt.signature, *newest], node=node)
    if asked is None and (not others or None in others):
        raise RpcUnavailable("the history is not there")
    return asked is not None


def _unseen_for_long(attempt: Attempt, *, at: datetime) -> bool:
    """Whether two looks with time between them found nothing. A history may lag behind the height that its node tells."""
    first = attempt.evidence.get("unseen_at")
    if first is not None:
        return datetime.fromisoformat(first) <= at - LOOK_AGAIN_AFTER
    Attempt.objects.filter(pk=attempt.pk, dead=False).update(evidence=attempt.evidence | {"unseen_at": at.isoformat()})
    return False


def _explained(attempt: Attempt, height: int, *, at: datetime) -> bool:
    """Whether so many blocks can have passed since the attempt was signed."""
    seconds = max(0, int((at - attempt.signed_at).total_seconds()))
    signed_at = attempt.last_valid_block_height - BLOCKHASH_LIFE
    return height <= signed_at + seconds * BLOCKS_A_SECOND_MOST + HEIGHT_SLACK


def _landed(attempt: Attempt, *, at: datetime) -> int:
    """Some node calls it final: read what it did, from two answers that agree."""
    answers = _answers(lambda node: treasury.rpc().get_transaction(attempt.signature, node=node))
    found = [answer for answer in answers if answer is not None]
    if len(found) < ANSWERS_NEEDED:
        return 0
    tx, payout = found[0], attempt.payout
    errors = [answer["meta"]["err"] for answer in found]
    if errors[0] is not None and errors == errors[:1] * len(errors):
        return _refused(attempt, error=errors[0], tx=tx, at=at)
    if all(
        outgoing_matches(answer, payout.destination, treasury.mint(), payout.amount_micro, payout.memo)
        for answer in found
    ):
        return _paid(attempt, tx=tx, at=at)
    return _review(attempt, reason=Payout.Reason.NOT_AS_SIGNED, evidence={"slot": tx["slot"], "errors": errors}, at=at)


def _answers[T](ask: Callable[[int], T]) -> list[T]:
    """What ``ANSWERS_NEEDED`` nodes say, or the only one twice; fewer where fewer answer."""
    nodes = list(treasury.rpc().nodes)
    answers: list[T] = []
    for node in nodes if len(nodes) >= ANSWERS_NEEDED else nodes * ANSWERS_NEEDED:
        try:
            answers.append(ask(node))
        except (RpcUnavailable, RpcError) as error:
            log.info("payout_evidence_missing", node=node, reason=str(error))
        if len(answers) == ANSWERS_NEEDED:
            break
    return answers


def _refused(attempt: Attempt, *, error: Any, tx: dict[str, Any], at: datetime) -> int:
    """On chain with an error: it moved nothing and never will. What it says decides what comes next."""
    evidence = {"error": error, "slot": tx["slot"]}
    fee = int(tx["meta"]["fee"])
    match error:
        case {"InstructionError": [int(), {"Custom": int(code)}]} if code == _CUSTOM_FROZEN:
            return _dead(attempt, reason=Payout.Reason.FROZEN, evidence=evidence, fee=fee, failed=True, at=at)
        case {"InstructionError": [int(), {"Custom": int(code)}]} if code == _CUSTOM_INSUFFICIENT:
            return _dead(attempt, reason=Payout.Reason.TREASURY, evidence=evidence, fee=fee, at=at)
        case {"InstructionError": [int(), str(name)]} if name in _OUT_OF_UNITS:
            return _dead(attempt, reason=Payout.Reason.REFUSED_ON_CHAIN, evidence=evidence, fee=fee, at=at)
    return _dead(attempt, reason=Payout.Reason.REFUSED_ON_CHAIN, evidence=evidence, fee=fee, review=True, at=at)


@transaction.atomic
def _paid(attempt: Attempt, *, tx: dict[str, Any], at: datetime) -> int:
    payout = _locked(attempt)
    if payout is None:
        return 0
    Attempt.objects.filter(pk=attempt.pk).update(landed_slot=int(tx["slot"]), fee_lamports=int(tx["meta"]["fee"]))
    paid_on_chain(payout, signature=attempt.signature, at=at)
    failpoints.passing("before paid is committed")
    transaction.on_commit(lambda: failpoints.passing("paid and committed"))
    return 1


@transaction.atomic
def _dead(
    attempt: Attempt,
    *,
    reason: str,
    evidence: dict[str, Any],
    at: datetime,
    fee: int | None = None,
    failed: bool = False,
    review: bool = False,
) -> int:
    """The attempt can never pay any more: sign anew, or give the money back, or have a person look."""
    payout = _locked(attempt)
    if payout is None:
        return 0
    Attempt.objects.filter(pk=attempt.pk).update(
        dead=True, evidence=attempt.evidence | evidence | {"at": at.isoformat()}, fee_lamports=fee
    )
    if failed:
        give_back(payout, reason=reason, by=None, at=at)
    elif review or attempt.number % ATTEMPTS_MOST == 0:
        reason = reason if review else Payout.Reason.TOO_MANY_ATTEMPTS
        hold(payout, reason=reason, detail=_of(attempt, evidence), at=at, key=str(attempt.number))
    else:
        set_state(payout, Payout.State.APPROVED, reason=reason)
    failpoints.passing("before dead is committed")
    return 1


@transaction.atomic
def _review(attempt: Attempt, *, reason: str, evidence: dict[str, Any], at: datetime) -> int:
    """Held with its attempt alive: nothing is signed anew until a person has looked."""
    payout = _locked(attempt)
    if payout is None:
        return 0
    Attempt.objects.filter(pk=attempt.pk).update(evidence=attempt.evidence | evidence | {"at": at.isoformat()})
    hold(payout, reason=reason, detail=_of(attempt, evidence), at=at, key=str(attempt.number))
    return 1


def _locked(attempt: Attempt) -> Payout | None:
    """The payout, locked, if it still waits for this very attempt. A list, since a lazy queryset locks nothing."""
    rows = list(
        Payout.objects.select_for_update(skip_locked=True, no_key=True, of=("self",))
        .select_related("organisation", "run")
        .filter(pk=attempt.payout_id, state=Payout.State.SIGNED)
    )
    if not rows or not Attempt.objects.filter(pk=attempt.pk, dead=False).exists():
        return None
    return rows[0]


def _of(attempt: Attempt, evidence: dict[str, Any]) -> str:
    return f"{attempt.signature}, {attempt.number}: {evidence}"


def _tell_stuck(attempt: Attempt, *, at: datetime) -> None:
    with transaction.atomic():
        alert(
            key=f"stuck:{attempt.payout.public_id}:{attempt.number}",
            what=_("one is neither paid nor dead"),
            detail=_(
                "Payout %(payout)s was signed on %(signed_at)s as %(signature)s, and the nodes do not agree on what became of it."
            ),
            data={
                "payout": str(attempt.payout.public_id),
                "signed_at": attempt.signed_at.isoformat(),
                "signature": attempt.signature,
            },
            at=at,
        )

"""Paying USDC: a state machine whose every step may be the last before a crash, and that never pays twice.

    approved ── sign, COMMIT, then send ──▶ signed ── found final on chain, as signed ──▶ paid
        ▲                                     │
        └── the attempt is proven dead ◀──────┤──▶ failed (definite; the money is earnings again)
                                              └──▶ review (a person must look; alerted)

1. The signed bytes and their signature are committed before they are sent. Whoever finds them later sends the same bytes: the network
   takes a signature once. A second signature exists only after the first is proven dead.
2. What sending answers decides nothing: not a time-out, not "already processed", not "blockhash not found". Only the chain does,
   asked by signature with its whole history.
3. Dead is: the least block height of at least two answers is past the last valid one and a margin, and after that two answers know
   nothing of the signature. One node may lie, lag, or answer with the slot (22 million ahead).
4. Paid is: final, without an error, and the transaction gave this amount to this owner with this memo.
5. A node that does not answer changes no state.
6. Two workers at once are harmless: each step locks the payout, looks again at its state, and one live attempt a payout is a constraint.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext_lazy as _

from billing import ledger, treasury
from billing.ledger import Kind, Move
from gpunex.accounts.models import User
from gpunex.accounts.notices import notify
from gpunex.chain.addresses import ata
from gpunex.chain.rpc import TOKEN_ACCOUNT_BYTES, Account, RpcError, RpcUnavailable
from gpunex.chain.transfers import outgoing_matches, sign_transfer
from gpunex.policy.models import Policy
from payouts import failpoints
from payouts.models import Attempt, Payout, Rail
from payouts.notices import PAYOUT_FAILED, PAYOUT_PAID, alert

log = structlog.get_logger(__name__)

RESEND_EVERY = timedelta(seconds=2)
BLOCKHASH_GOOD_FOR_S = 20.0
# A node's height may run a little ahead of what it has executed.
HEIGHT_MARGIN = 32
ANSWERS_NEEDED = 2
ATTEMPTS_MOST = 5
SIGNED_A_PASS = 500
# What one transaction costs the treasury in lamports, generously: signature and priority fee.
FEE_LAMPORTS = 100_000
SHORT_FOR = timedelta(minutes=10)

_FROZEN_STATE, _STATE_BYTE = 2, 108  # of spl-token's Account
_CUSTOM_INSUFFICIENT, _CUSTOM_FROZEN = 1, 17  # spl-token's TokenError


def advance(*, at: datetime) -> int:
    """Move every payout on as far as it can go now. Returns how many changed their state. Late, twice or at once is harmless."""
    paused = Policy.load().payouts_paused
    try:
        changed = _resolve_signed(at=at, resend=not paused)
        if not paused:
            changed += _sign_approved(at=at)
    except RpcUnavailable as unavailable:
        log.warning("payouts_wait_for_the_chain", reason=str(unavailable))
        return 0
    return changed


# --- approved → signed → sent ----------------------------------------------------------------------------------------


def _sign_approved(*, at: datetime) -> int:
    ready = Payout.objects.filter(state=Payout.State.APPROVED, rail=Rail.USDC, run__execute_on__lte=at.date())
    payouts = list(ready.select_related("run").order_by("run_id", "pk")[:SIGNED_A_PASS])
    if not payouts:
        return 0
    changed = 0
    accounts = {payout.pk: treasury.rpc().get_account(ata(payout.destination, treasury.mint())) for payout in payouts}
    for payout in [payout for payout in payouts if _is_frozen(accounts[payout.pk])]:
        changed += _fail(payout, reason=Payout.Reason.FROZEN, at=at)
        payouts.remove(payout)
    affordable = _affordable(payouts, accounts, at=at)
    if not affordable:
        return changed
    price = treasury.cu_price([treasury.token_account()])
    blockhashes = _fresh_blockhashes()
    for payout in affordable:
        with _never_stopping_the_rest(payout):
            blockhash, last_valid = next(blockhashes)
            attempt = _sign(payout, blockhash=blockhash, last_valid=last_valid, price=price, at=at)
            if attempt is not None:
                changed += 1
                failpoints.passing("signed and committed")
                _send(attempt, preflight=True, at=at)
    return changed


def _affordable(payouts: Sequence[Payout], accounts: dict[int, Account | None], *, at: datetime) -> list[Payout]:
    """The payouts of the runs that the treasury can pay whole, oldest run first; a run that it cannot is held back whole."""
    rpc = treasury.rpc()
    under_way = sum(
        Payout.objects.filter(state=Payout.State.SIGNED, rail=Rail.USDC).values_list("amount_micro", flat=True)
    )
    usdc = (rpc.get_token_balance(treasury.token_account()) or 0) - under_way
    lamports = rpc.get_balance(treasury.address())
    rent = rpc.rent_exempt_minimum(TOKEN_ACCOUNT_BYTES)
    result: list[Payout] = []
    for _run, group in groupby(payouts, key=lambda payout: payout.run_id):
        members = list(group)
        amount = sum(payout.amount_micro for payout in members)
        cost = sum(FEE_LAMPORTS + (rent if accounts[payout.pk] is None else 0) for payout in members)
        if amount <= usdc and cost <= lamports:
            result += members
            usdc, lamports = usdc - amount, lamports - cost
        else:
            _tell_short(members, usdc=usdc, lamports=lamports, at=at)
    return result


def _tell_short(payouts: Sequence[Payout], *, usdc: int, lamports: int, at: datetime) -> None:
    """Money on its way into the treasury is no alarm; money missing for long is."""
    log.warning("treasury_short", payouts=len(payouts), usdc_micro=usdc, lamports=lamports)
    if any(payout.approved_at and payout.approved_at < at - SHORT_FOR for payout in payouts):
        detail = (
            f"{len(payouts)} payouts wait for {sum(payout.amount_micro for payout in payouts)} micro-USDC; "
            f"the treasury can spend {usdc} micro-USDC and {lamports} lamports."
        )
        with transaction.atomic():
            alert(key=f"treasury-short:{at:%Y%m%d%H}", what=_("the treasury holds too little"), detail=detail, at=at)


def _fresh_blockhashes() -> Iterator[tuple[str, int]]:
    """One blockhash for twenty seconds: a run of hundreds asks a few times, not hundreds of times."""
    while True:
        fetched = time.monotonic()
        blockhash = treasury.rpc().get_latest_blockhash()
        while time.monotonic() - fetched < BLOCKHASH_GOOD_FOR_S:
            yield blockhash


@transaction.atomic
def _sign(payout: Payout, *, blockhash: str, last_valid: int, price: int, at: datetime) -> Attempt | None:
    """The signed bytes as a committed row; None if somebody else was first, or payouts were paused meanwhile."""
    locked = (
        Payout.objects.select_for_update(skip_locked=True, no_key=True)
        .filter(pk=payout.pk, state=Payout.State.APPROVED)
        .first()
    )
    if locked is None or locked.attempts.filter(dead=False).exists() or Policy.load().payouts_paused:
        return None
    signed = sign_transfer(
        key=treasury.key(),
        mint=treasury.mint(),
        destination_owner=locked.destination,
        amount_micro=locked.amount_micro,
        memo=locked.memo,
        blockhash=blockhash,
        last_valid_block_height=last_valid,
        cu_price_micro_lamports=price,
    )
    attempt = Attempt.objects.create(
        payout=locked,
        number=locked.attempts.count() + 1,
        raw=signed.raw,
        signature=signed.signature,
        blockhash=signed.blockhash,
        last_valid_block_height=signed.last_valid_block_height,
        signed_at=at,
    )
    locked.state = Payout.State.SIGNED
    locked.save(update_fields=["state"])
    failpoints.passing("before signing is committed")
    return attempt


def _send(attempt: Attempt, *, preflight: bool, at: datetime) -> None:
    """Hand the bytes over. Whatever comes back decides nothing: see rule 2."""
    try:
        treasury.rpc().send_raw(bytes(attempt.raw), preflight=preflight)
    except (RpcError, RpcUnavailable) as error:
        log.info("payout_send_answered", signature=attempt.signature, answer=str(error))
    failpoints.passing("sent")
    Attempt.objects.filter(pk=attempt.pk).update(sends=attempt.sends + 1, sent_at=at)


# --- signed → paid, failed, review, or approved again ----------------------------------------------------------------


def _resolve_signed(*, at: datetime, resend: bool) -> int:
    live = Attempt.objects.filter(dead=False, payout__state=Payout.State.SIGNED, payout__rail=Rail.USDC)
    attempts = list(live.select_related("payout").order_by("pk"))
    if not attempts:
        return 0
    statuses = treasury.rpc().get_signature_statuses([attempt.signature for attempt in attempts])
    heights = treasury.rpc().get_block_heights() if None in statuses else []
    changed = 0
    for attempt, status in zip(attempts, statuses, strict=True):
        with _never_stopping_the_rest(attempt.payout):
            if status is None:
                changed += _unseen(attempt, heights=heights, resend=resend, at=at)
            elif status["confirmationStatus"] == "finalized":
                changed += _landed(attempt, at=at)
    return changed


def _unseen(attempt: Attempt, *, heights: list[int], resend: bool, at: datetime) -> int:
    if min(heights) <= attempt.last_valid_block_height + HEIGHT_MARGIN:
        if resend and (attempt.sent_at is None or attempt.sent_at <= at - RESEND_EVERY):
            # Preflight only once: from the second time on the network itself shall say what is wrong.
            _send(attempt, preflight=attempt.sends == 0, at=at)
        return 0
    if len(heights) < min(ANSWERS_NEEDED, len(treasury.rpc().nodes)):
        return 0
    # The last look comes after the height was seen to be past: what landed until then is in the history now.
    answers = _answers(lambda node: treasury.rpc().get_signature_statuses([attempt.signature], node=node)[0])
    if len(answers) < ANSWERS_NEEDED or any(answer is not None for answer in answers):
        return 0
    return _dead(attempt, reason=Payout.Reason.EXPIRED, evidence={"heights": heights, "histories": len(answers)}, at=at)


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
    _review(attempt, reason=Payout.Reason.NOT_AS_SIGNED, evidence={"slot": tx["slot"], "errors": errors}, at=at)
    return 1


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
    custom = _custom_code(error)
    evidence = {"error": error, "slot": tx["slot"]}
    fee = int(tx["meta"]["fee"])
    if custom == _CUSTOM_FROZEN:
        return _dead(attempt, reason=Payout.Reason.FROZEN, evidence=evidence, fee=fee, failed=True, at=at)
    if custom == _CUSTOM_INSUFFICIENT:
        return _dead(attempt, reason=Payout.Reason.TREASURY, evidence=evidence, fee=fee, at=at)
    return _dead(attempt, reason=Payout.Reason.REFUSED_ON_CHAIN, evidence=evidence, fee=fee, review=True, at=at)


def _custom_code(error: Any) -> int | None:
    match error:
        case {"InstructionError": [int(), {"Custom": int(code)}]}:
            return code
    return None


@transaction.atomic
def _paid(attempt: Attempt, *, tx: dict[str, Any], at: datetime) -> int:
    payout = _locked(attempt)
    if payout is None:
        return 0
    ledger.post(
        key=f"payout:{payout.public_id}:paid",
        debit=ledger.account(Kind.IN_TRANSIT, organisation=payout.organisation, reference=payout.public_id),
        credit=ledger.account(Kind.PAID_CHAIN),
        amount_micro=payout.amount_micro,
        kind=Move.PAID,
        reference=str(payout.public_id),
        data={"signature": attempt.signature},
        at=at,
    )
    Attempt.objects.filter(pk=attempt.pk).update(landed_slot=int(tx["slot"]), fee_lamports=int(tx["meta"]["fee"]))
    _set_state(payout, Payout.State.PAID, reason="", finished_at=at)
    notify(
        organisation=payout.organisation,
        event=PAYOUT_PAID,
        key=f"payout:{payout.public_id}:paid",
        at=at,
        data={
            "amount_micro": payout.amount_micro,
            "destination": payout.destination,
            "signature": attempt.signature,
            "payout": str(payout.public_id),
        },
    )
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
        dead=True, evidence=evidence | {"at": at.isoformat()}, fee_lamports=fee
    )
    if failed:
        give_back(payout, reason=reason, by=None, at=at)
    elif review or attempt.number % ATTEMPTS_MOST == 0:
        _set_state(payout, Payout.State.REVIEW, reason=reason if review else Payout.Reason.TOO_MANY_ATTEMPTS)
        _alert_review(payout, attempt=attempt, evidence=evidence, at=at)
    else:
        _set_state(payout, Payout.State.APPROVED, reason=reason)
    return 1


@transaction.atomic
def _review(attempt: Attempt, *, reason: str, evidence: dict[str, Any], at: datetime) -> None:
    """Held with its attempt alive: nothing is signed anew until a person has looked."""
    payout = _locked(attempt)
    if payout is None:
        return
    Attempt.objects.filter(pk=attempt.pk).update(evidence=evidence | {"at": at.isoformat()})
    _set_state(payout, Payout.State.REVIEW, reason=reason)
    _alert_review(payout, attempt=attempt, evidence=evidence, at=at)


@transaction.atomic
def _fail(payout: Payout, *, reason: str, at: datetime) -> int:
    """A payout that has no live attempt cannot be made: give the money back."""
    locked = (
        Payout.objects.select_for_update(skip_locked=True, no_key=True)
        .filter(pk=payout.pk, state=Payout.State.APPROVED)
        .first()
    )
    if locked is None or locked.attempts.filter(dead=False).exists():
        return 0
    give_back(locked, reason=reason, by=None, at=at)
    return 1


def _locked(attempt: Attempt) -> Payout | None:
    """The payout, locked, if it still waits for this very attempt. A list, since a lazy queryset locks nothing."""
    rows = list(
        Payout.objects.select_for_update(skip_locked=True, no_key=True, of=("self",))
        .select_related("organisation")
        .filter(pk=attempt.payout_id, state=Payout.State.SIGNED)
    )
    if not rows or not Attempt.objects.filter(pk=attempt.pk, dead=False).exists():
        return None
    return rows[0]


def give_back(payout: Payout, *, reason: str, by: User | None, at: datetime) -> None:
    """Precondition: the payout is locked and no attempt of it is alive."""
    ledger.post(
        key=f"payout:{payout.public_id}:back",
        debit=ledger.account(Kind.IN_TRANSIT, organisation=payout.organisation, reference=payout.public_id),
        credit=ledger.account(Kind.PROVIDER_PAYABLE, organisation=payout.organisation),
        amount_micro=payout.amount_micro,
        kind=Move.BACK,
        reference=str(payout.public_id),
        actor=by,
        reason=reason,
        at=at,
    )
    _set_state(payout, Payout.State.FAILED, reason=reason, finished_at=at)
    notify(
        organisation=payout.organisation,
        event=PAYOUT_FAILED,
        key=f"payout:{payout.public_id}:failed",
        at=at,
        data={
            "amount_micro": payout.amount_micro,
            "destination": payout.destination,
            "reason": payout.reason_text,
            "payout": str(payout.public_id),
        },
    )


def _set_state(payout: Payout, state: str, *, reason: str, finished_at: datetime | None = None) -> None:
    payout.state, payout.state_reason, payout.finished_at = state, reason[:300], finished_at
    payout.save(update_fields=["state", "state_reason", "finished_at"])


def _alert_review(payout: Payout, *, attempt: Attempt, evidence: dict[str, Any], at: datetime) -> None:
    detail = f"Payout {payout.public_id}, attempt {attempt.number}, signature {attempt.signature}: {payout.reason_text}. {evidence}"
    alert(key=f"review:{payout.public_id}:{attempt.number}", what=_("one is held for review"), detail=detail, at=at)


def _is_frozen(account: Account | None) -> bool:
    return (
        account is not None and len(account.data) >= TOKEN_ACCOUNT_BYTES and account.data[_STATE_BYTE] == _FROZEN_STATE
    )


@contextmanager
def _never_stopping_the_rest(payout: Payout) -> Iterator[None]:
    """A node's silence ends the pass; any other failure concerns this payout alone, and the next pass tries it again."""
    try:
        yield
    except RpcUnavailable:
        raise
    except Exception:
        log.exception("payout_not_moved", payout=str(payout.public_id))


def explorer_link(signature: str) -> str:
    """Where anyone can look a transaction up; empty where no explorer knows the chain."""
    return settings.SOLANA_EXPLORER.format(signature=signature) if settings.SOLANA_EXPLORER else ""

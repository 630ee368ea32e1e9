"""The receipt of a payout or of a return: what was paid, to where, how it went, and how anyone can check it."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from gpunex.accounts.organisations import organisation_of
from gpunex.kit.templatetags import ui
from payouts import verify
from payouts.models import Attempt, BankTransfer, Payout, PayoutRun, Rail
from payouts.usdc import explorer_link

LAMPORTS = 1_000_000_000
State = Payout.State
SHADES = {
    State.PAID: "ok",
    State.FAILED: "bad",
    State.RETURNED: "bad",
    State.REVIEW: "warn",
}


@require_safe
def payout(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Of the organisation's own payouts only. A return of balance stands on the renter's side, a payout on the provider's."""
    rows = (
        Payout.objects.filter(organisation=organisation_of(request)).select_related("run").prefetch_related("attempts")
    )
    row = get_object_or_404(rows, public_id=public_id)
    attempt = row.last_attempt
    transfer = (
        BankTransfer.objects.filter(payout=row).select_related("rate", "file").first()
        if row.rail != Rail.USDC
        else None
    )
    returned = row.run.kind == PayoutRun.Kind.RETURN
    context = {
        "nav": "balance" if returned else "payouts",
        "shell": "shell/renter.html" if returned else "shell/provider.html",
        "returned": returned,
        "payout": row,
        "shade": SHADES.get(State(row.state), "busy"),
        "bank": row.rail != Rail.USDC,
        "transfer": transfer,
        "attempt": attempt,
        "link": explorer_link(attempt.signature) if attempt else "",
        "fee_sol": _sol(attempt.fee_lamports) if attempt and attempt.fee_lamports else "",
        "live": row.state in Payout.OPEN_STATES,
        "statement": verify.statement_of(row),
        "verify_url": request.build_absolute_uri(reverse("payouts:verify", args=[row.public_id])),
        "steps": _steps(row, attempt, transfer),
    }
    if request.headers.get("HX-Request") and request.GET.get("live"):
        return _vary(render(request, "payouts/receipt.html#live", context))
    return _vary(render(request, "payouts/receipt.html", context))


def _sol(lamports: int) -> str:
    """Exact, without a float.

    >>> _sol(5_400), _sol(1_000_000_000)
    ('0.0000054', '1')
    """
    whole, rest = divmod(lamports, LAMPORTS)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")


def _steps(row: Payout, attempt: Attempt | None, transfer: BankTransfer | None) -> list[dict[str, Any]]:
    """What happened and what comes, for the timeline."""
    over = row.state in (State.PAID, State.FAILED, State.RETURNED)
    taken = (
        _("Set aside from your balance") if row.run.kind == PayoutRun.Kind.RETURN else _("Set aside from your earnings")
    )
    steps = [_done(taken, row.reserved_at)]
    if row.approved_at:
        steps.append(_done(_("Approved"), row.approved_at))
    elif not over:
        steps.append({"state": "now", "title": _("Waiting for approval")})
    if row.rail == Rail.USDC:
        steps += _sent_by_chain(attempt)
    else:
        steps += _sent_by_bank(row, transfer)
    return [*steps, *_ending(row)]


def _sent_by_chain(attempt: Attempt | None) -> list[dict[str, Any]]:
    if attempt is None:
        return []
    note = _("attempt %(number)s") % {"number": attempt.number} if attempt.number > 1 else ""
    steps = [_done(_("Signed"), attempt.signed_at, note)]
    if attempt.sent_at:
        steps.append(_done(_("Sent to the network"), attempt.sent_at))
    return steps


def _sent_by_bank(row: Payout, transfer: BankTransfer | None) -> list[dict[str, Any]]:
    if transfer is None or transfer.file is None:
        return []
    steps = [_done(_("Put into the file for the bank"), transfer.file.created_at)]
    if transfer.file.exported_at:
        steps.append(_done(_("Handed to the bank"), transfer.file.exported_at))
    if transfer.state == BankTransfer.State.ACKNOWLEDGED:
        steps.append({"state": "done", "title": _("Accepted by the bank")})
    if row.state == State.RETURNED and transfer.settled_at:
        steps.append(_done(_("Settled by the bank"), transfer.settled_at))
    return steps


def _ending(row: Payout) -> list[dict[str, Any]]:
    bank = row.rail != Rail.USDC
    last = _("Settled by the bank") if bank else _("Final on chain")
    if row.state == State.PAID:
        return [_done(last, row.finished_at)]
    if row.state in (State.FAILED, State.RETURNED):
        title = _("Sent back by the bank") if row.state == State.RETURNED else _("Did not go through")
        return [{"state": "failed", "title": title, "note": row.reason_text, "when": ui.when(row.finished_at)}]
    if row.state == State.REVIEW:
        return [{"state": "now", "title": _("Held for a check"), "note": row.reason_text}]
    if row.state == State.APPROVED:
        now = _("Waiting for the bank’s file") if bank else _("Being signed")
        return [{"state": "now", "title": now, "note": row.reason_text}, {"state": "later", "title": last}]
    under_way = row.state in (State.SIGNED, State.EXPORTED)
    return [{"state": "now" if under_way else "later", "title": last}]


def _done(title: str, at: datetime | None, note: str = "") -> dict[str, Any]:
    return {"state": "done", "title": title, "note": note, "when": ui.when(at)}


def _vary(response: HttpResponse) -> HttpResponse:
    patch_vary_headers(response, ["HX-Request"])
    return response

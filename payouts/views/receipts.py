"""The receipt of a payout: how it went, and what anyone can look up on chain."""

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from gpunex.kit.templatetags import ui
from payouts.models import Attempt, Payout
from payouts.usdc import explorer_link

LAMPORTS = 1_000_000_000
State = Payout.State


@require_safe
def payout(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """The receipt: how it went, and what anyone can look up on chain."""
    rows = Payout.objects.filter(organisation=request.organisation).select_related("run").prefetch_related("attempts")
    row = get_object_or_404(rows, public_id=public_id)
    attempt = row.last_attempt
    context = {
        "nav": "payouts",
        "payout": row,
        "attempt": attempt,
        "link": explorer_link(attempt.signature) if attempt else "",
        "fee_sol": f"{attempt.fee_lamports / LAMPORTS:.9f}".rstrip("0") if attempt and attempt.fee_lamports else "",
        "live": row.state in Payout.OPEN_STATES,
        "steps": _steps(row, attempt),
    }
    if request.headers.get("HX-Request") and request.GET.get("live"):
        return _vary(render(request, "payouts/receipt.html#live", context))
    return _vary(render(request, "payouts/receipt.html", context))


def _steps(row: Payout, attempt: Attempt | None) -> list[dict[str, Any]]:
    """What happened and what comes, for the timeline."""
    over = row.state in (State.PAID, State.FAILED)
    steps: list[dict[str, Any]] = [
        {"state": "done", "title": _("Set aside from your earnings"), "when": ui.when(row.reserved_at)}
    ]
    if row.approved_at:
        steps.append({"state": "done", "title": _("Approved"), "when": ui.when(row.approved_at)})
    elif not over:
        steps.append({"state": "now", "title": _("Waiting for approval")})
    if attempt:
        note = _("attempt %(number)s") % {"number": attempt.number} if attempt.number > 1 else ""
        steps.append({"state": "done", "title": _("Signed"), "note": note, "when": ui.when(attempt.signed_at)})
        if attempt.sent_at:
            steps.append({"state": "done", "title": _("Sent to the network"), "when": ui.when(attempt.sent_at)})
    if row.state == State.PAID:
        steps.append({"state": "done", "title": _("Final on chain"), "when": ui.when(row.finished_at)})
    elif row.state == State.FAILED:
        steps.append(
            {
                "state": "failed",
                "title": _("Did not go through"),
                "note": row.reason_text,
                "when": ui.when(row.finished_at),
            }
        )
    elif row.state == State.REVIEW:
        steps.append({"state": "now", "title": _("Held for a check"), "note": row.reason_text})
    elif row.state == State.APPROVED:
        steps.append({"state": "now", "title": _("Being signed"), "note": row.reason_text})
        steps.append({"state": "later", "title": _("Final on chain")})
    else:
        steps.append({"state": "now" if row.state == State.SIGNED else "later", "title": _("Final on chain")})
    return steps


def _vary(response: HttpResponse) -> HttpResponse:
    patch_vary_headers(response, ["HX-Request"])
    return response

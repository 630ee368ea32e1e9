"""The public page that proves a payout, for whoever has its id: it is in the memo of the transaction on chain."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_not_required
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.http import require_safe

from payouts import verify
from payouts.models import Payout
from payouts.usdc import explorer_link
from payouts.verify import Outcome

# The chain is asked at most once a minute for a payout, however often the page is opened.
KEPT_S = 60
SHADES = {Outcome.PASSED: "ok", Outcome.FAILED: "bad", Outcome.PENDING: "busy", Outcome.UNKNOWN: "warn"}


@require_safe
@login_not_required
def verification(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Amount, day, state, transaction and hash, and which checks passed; who was paid is nobody's business beyond what is on chain."""
    payout = get_object_or_404(Payout.objects.select_related("run", "organisation"), public_id=public_id)
    found = _outcomes(payout)
    attempt = next((row for row in payout.attempts.all() if row.landed_slot), None)
    outcomes = {Outcome(outcome) for _name, outcome in found["checks"]}
    return render(
        request,
        "payouts/verification.html",
        {
            "payout": payout,
            "signature": attempt.signature if attempt else "",
            "link": explorer_link(attempt.signature) if attempt else "",
            "checked_at": datetime.fromtimestamp(found["at"], UTC),
            "checks": [
                {"title": verify.TITLES[name], "outcome": outcome, "shade": SHADES.get(Outcome(outcome), "info")}
                for name, outcome in found["checks"]
            ],
            "verdict": _verdict(payout, outcomes),
        },
    )


def _outcomes(payout: Payout) -> dict[str, Any]:
    """What the checks said within the last minute; a change of the payout's state is looked at at once."""
    key = f"verify:{payout.public_id}:{payout.state}"
    found = cache.get(key)
    if found is None:
        result = verify.verify(payout)
        found = {
            "at": timezone.now().timestamp(),
            "checks": [(check.name, str(check.outcome)) for check in result.checks],
        }
        cache.set(key, found, timeout=KEPT_S)
    return dict(found)


def _verdict(payout: Payout, outcomes: set[Outcome]) -> str:
    if Outcome.FAILED in outcomes:
        return "failed"
    if Outcome.UNKNOWN in outcomes:
        return "unknown"
    return "proved" if payout.state == Payout.State.PAID else "open"

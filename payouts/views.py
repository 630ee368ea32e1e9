"""The provider's Payouts tab: the next payout, the wallet, the cadence, what was paid, and a receipt for each."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Count, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpunex import desk
from gpunex.kit import show
from gpunex.kit.refusals import Refusal
from gpunex.kit.templatetags import ui
from gpunex.policy.models import Policy
from payouts import methods, runs
from payouts.forms import CadenceForm, WalletForm
from payouts.methods import ChainSilent, NotForThisRole
from payouts.models import Attempt, Cadence, Payout
from payouts.usdc import explorer_link

PAYOUTS_A_PAGE = 20
LAMPORTS = 1_000_000_000
State = Payout.State


@require_safe
def payouts(request: HttpRequest) -> HttpResponse:
    if desk.of(request) is None:
        return redirect("providers:roles")
    at = timezone.now()
    if request.headers.get("HX-Request") and request.GET.get("live"):
        return _vary(render(request, "payouts/payouts.html#live", _page(request, at=at)))
    return _vary(render(request, "payouts/payouts.html", _page(request, at=at) | {"form": WalletForm()}))


@require_http_methods(["GET", "HEAD", "POST"])
def connect_wallet(request: HttpRequest) -> HttpResponse:
    """Name the first wallet, or another one. A refusal stands beside the address and keeps what was typed."""
    if desk.of(request) is None:
        return redirect("providers:roles")
    organisation, at = request.organisation, timezone.now()
    context = {"nav": "payouts", "method": methods.active_method(organisation, at)}
    form = WalletForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            method = methods.connect_wallet(
                organisation=organisation, address=form.cleaned_data["address"], by=request.user, at=at
            )
        except (ChainSilent, NotForThisRole) as refusal:
            form.add_error(None, str(refusal))
        except Refusal as refusal:
            form.add_error("address", str(refusal))
        else:
            if method.active_from > at:
                told = _("From %(when)s on, payouts go to the new wallet.") % {"when": show.moment(method.active_from)}
            else:
                told = _("Payouts now go to the wallet that ends in %(last)s.") % {"last": method.address[-6:]}
            messages.success(request, told)
            return redirect("providers:payouts")
    return render(request, "payouts/wallet.html", context | {"form": form}, status=422 if form.errors else 200)


@require_POST
def cancel_wallet(request: HttpRequest) -> HttpResponse:
    if desk.of(request) is None:
        return redirect("providers:roles")
    try:
        methods.cancel_change(organisation=request.organisation, by=request.user, at=timezone.now())
    except Refusal as refusal:
        messages.error(request, str(refusal))
    else:
        messages.success(request, _("The change is cancelled; payouts go on as before."))
    return redirect("providers:payouts")


@require_POST
def cadence(request: HttpRequest) -> HttpResponse:
    if desk.of(request) is None:
        return redirect("providers:roles")
    form = CadenceForm(request.POST)
    if form.is_valid():
        chosen = Cadence(form.cleaned_data["cadence"])
        try:
            methods.choose_cadence(
                organisation=request.organisation, cadence=chosen, by=request.user, at=timezone.now()
            )
        except Refusal as refusal:
            messages.error(request, str(refusal))
        else:
            messages.success(request, _("Paid %(cadence)s from the next period on.") % {"cadence": chosen.label})
    return redirect("providers:payouts")


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


def _page(request: HttpRequest, *, at: datetime) -> dict[str, Any]:
    organisation = request.organisation
    earning = desk.of(request).earning
    rows = Payout.objects.filter(organisation=organisation)
    page = Paginator(rows.select_related("run").prefetch_related("attempts"), PAYOUTS_A_PAGE).get_page(
        request.GET.get("page")
    )
    paid = rows.filter(state=State.PAID).aggregate(micro=Sum("amount_micro"), count=Count("pk"))
    in_transit = rows.filter(state__in=Payout.OPEN_STATES).aggregate(micro=Sum("amount_micro"))["micro"] or 0
    cadence, cut_off, execute_on = runs.next_payout(organisation, at)
    preference = methods.cadence_of(organisation)
    policy, kept = Policy.load(), runs.kept_back(organisation)
    return {
        "nav": "payouts",
        "at": at,
        "page": page,
        "rows": [
            {"payout": row, "link": explorer_link(row.last_attempt.signature) if row.last_attempt else ""}
            for row in page
        ],
        "open": in_transit > 0,
        "method": methods.active_method(organisation, at),
        "waiting": methods.waiting_method(organisation, at),
        "may_change": methods.may_change(organisation, request.user),
        "cadence": cadence,
        "cut_off": cut_off,
        "execute_on": execute_on,
        "minimum_micro": runs.minimum_micro(cadence, policy),
        "payable_micro": earning.posted_micro,
        "so_far_micro": max(0, earning.posted_micro + earning.accruing_micro - kept),
        "kept_micro": kept,
        "in_transit_micro": in_transit,
        "paid_micro": paid["micro"] or 0,
        "paid_count": paid["count"],
        "cadences": _cadences(preference.next_cadence or preference.cadence, policy),
    }


def _cadences(chosen: str, policy: Policy) -> list[dict[str, Any]]:
    weekly, monthly = show.usdc(policy.weekly_minimum_micro), show.usdc(policy.monthly_minimum_micro)
    return [
        {
            "value": Cadence.WEEKLY,
            "label": _("Weekly"),
            "note": _("every Monday, from %(least)s USDC") % {"least": weekly},
            "chosen": chosen == Cadence.WEEKLY,
        },
        {
            "value": Cadence.MONTHLY,
            "label": _("Monthly"),
            "note": _("first business day, from %(least)s USDC") % {"least": monthly},
            "chosen": chosen == Cadence.MONTHLY,
        },
    ]


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

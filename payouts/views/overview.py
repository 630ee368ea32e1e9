"""The provider's Payouts tab: the next payout, the destinations, the cadence, what was paid, and a receipt for each."""

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Count, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from billing import debts
from gpunex import desk
from gpunex.accounts.fresh import fresh_sign_in
from gpunex.kit import show
from gpunex.kit.refusals import Refusal
from gpunex.policy.models import Policy
from payouts import history, methods, payable, periods, runs
from payouts.forms import CadenceForm, RailForm
from payouts.models import Cadence, Payout, PayoutRun, Rail

PAYOUTS_A_PAGE = 20
State = Payout.State


@require_safe
def payouts(request: HttpRequest) -> HttpResponse:
    if desk.of(request) is None:
        return redirect("providers:roles")
    at = timezone.now()
    if request.headers.get("HX-Request") and request.GET.get("live"):
        return _vary(render(request, "payouts/payouts.html#live", _page(request, at=at)))
    return _vary(render(request, "payouts/payouts.html", _page(request, at=at)))


@require_POST
@fresh_sign_in(back="providers:payouts")
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


@require_POST
@fresh_sign_in(back="providers:payouts")
def rail(request: HttpRequest) -> HttpResponse:
    """Be paid by another of the destinations that stand."""
    if desk.of(request) is None:
        return redirect("providers:roles")
    form = RailForm(request.POST)
    if form.is_valid():
        chosen = Rail(form.cleaned_data["rail"])
        try:
            preference = methods.choose_rail(
                organisation=request.organisation, rail=chosen, by=request.user, at=timezone.now()
            )
        except Refusal as refusal:
            messages.error(request, str(refusal))
        else:
            if preference.rail == chosen:
                messages.success(request, _("Paid by this way: %(rail)s.") % {"rail": chosen.label})
            else:
                messages.success(
                    request, _("Paid by this way from the next period on: %(rail)s.") % {"rail": chosen.label}
                )
    return redirect("providers:payouts")


def _page(request: HttpRequest, *, at: datetime) -> dict[str, Any]:
    organisation = request.organisation
    earning = desk.of(request).earning
    # What went back of a balance stands with the balance.
    rows = Payout.objects.filter(organisation=organisation).exclude(run__kind=PayoutRun.Kind.RETURN)
    page = Paginator(rows.select_related("run").prefetch_related("attempts"), PAYOUTS_A_PAGE).get_page(
        request.GET.get("page")
    )
    paid = rows.filter(state=State.PAID).aggregate(micro=Sum("amount_micro"), count=Count("pk"))
    in_transit = rows.filter(state__in=Payout.OPEN_STATES).aggregate(micro=Sum("amount_micro"))["micro"] or 0
    coming = runs.next_payout(organisation, at)
    cadence = coming.cadence
    destinations = methods.destinations(organisation, at)
    paid_to = next((one for one in destinations if one.in_use), None)
    preference = methods.cadence_of(organisation)
    policy, kept, debt = Policy.load(), payable.kept_back(organisation), debts.open_debt(organisation)
    return {
        "nav": "payouts",
        "at": at,
        "page": page,
        "rows": history.lines(page),
        "open": in_transit > 0,
        "destinations": destinations,
        "wallet_stands": any(one.rail == Rail.USDC for one in destinations),
        "bank_stands": any(one.rail != Rail.USDC for one in destinations),
        "method": paid_to.method if paid_to else None,
        "waiting": paid_to.waiting if paid_to else None,
        "rail": coming.rail,
        "hours": int(methods.cool_down().total_seconds() // 3600),
        "may_change": methods.may_change(organisation, request.user),
        "who_may_change": methods.who_may_change(organisation),
        "cadence": cadence,
        "cut_off": coming.cut_off,
        "execute_on": coming.execute_on,
        "minimum_micro": periods.minimum_micro(cadence, policy),
        "payable_micro": earning.posted_micro,
        "so_far_micro": max(0, earning.posted_micro + earning.accruing_micro - kept - debt),
        "kept_micro": kept,
        "debt_micro": debt,
        "debts": debts.recent(organisation) if debt else (),
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


def _vary(response: HttpResponse) -> HttpResponse:
    patch_vary_headers(response, ["HX-Request"])
    return response

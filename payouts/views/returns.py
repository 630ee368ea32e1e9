"""Taking unused balance out: how much, to which wallet, what it costs, and the returns so far."""

import uuid
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from gpunex.accounts.fresh import fresh_sign_in, typed_before
from gpunex.accounts.organisations import organisation_of
from gpunex.kit import show
from gpunex.kit.conflicts import retrying
from gpunex.kit.refusals import Refusal
from gpunex.policy.models import Policy
from payouts import history, methods, returns
from payouts.forms import ReturnForm
from payouts.models import Payout, PayoutRun, Rail
from payouts.returns import LessThanLeast, MoreThanUnused, NoWalletToReturnTo, WalletNotProven, WalletTooNew

RETURNS_A_PAGE = 20


@require_http_methods(["GET", "HEAD", "POST"])
def return_balance(request: HttpRequest) -> HttpResponse:
    """Whoever may not ask sees how it stands; whoever may confirms first that it is still them."""
    if methods.may_change(organisation_of(request), request.user):
        return _return_balance(request)
    return render(request, "payouts/return.html", _page(request, at=timezone.now()), status=_status(request))


@fresh_sign_in
def _return_balance(request: HttpRequest) -> HttpResponse:
    at = timezone.now()
    form = ReturnForm(request.POST or None, initial={"key": uuid.uuid4()} | typed_before(request))
    if request.method == "POST" and form.is_valid():
        try:
            payout = retrying(returns.ask_back)(
                organisation=request.organisation,
                amount_micro=form.cleaned_data["amount_micro"],
                by=request.user,
                at=at,
                key=str(form.cleaned_data["key"]),
            )
        except (MoreThanUnused, LessThanLeast) as refusal:
            form.add_error("amount", str(refusal))
        except Refusal as refusal:
            form.add_error(None, str(refusal))
        else:
            _tell(request, payout)
            return redirect("payouts:return_balance")
    context = _page(request, at=at) | {"form": form}
    return render(request, "payouts/return.html", context, status=422 if form.errors else 200)


def _tell(request: HttpRequest, payout: Payout) -> None:
    fields = {"amount": show.usdc(payout.amount_micro, fine=True), "last": payout.destination[-6:]}
    if payout.state == Payout.State.FAILED:
        messages.warning(
            request,
            _("This request did not go through: %(reason)s. The money is in your balance.")
            % {"reason": payout.reason_text},
        )
    elif payout.state == Payout.State.RESERVED:
        messages.success(
            request,
            _("%(amount)s USDC are set aside. An amount of this size is looked at by two of us before it leaves.")
            % fields,
        )
    else:
        messages.success(request, _("%(amount)s USDC are on their way to the wallet that ends in %(last)s.") % fields)


def _page(request: HttpRequest, *, at: datetime) -> dict[str, Any]:
    organisation = request.organisation
    rows = Payout.objects.filter(organisation=organisation, run__kind=PayoutRun.Kind.RETURN)
    page = Paginator(rows.select_related("run").prefetch_related("attempts"), RETURNS_A_PAGE).get_page(
        request.GET.get("page")
    )
    context: dict[str, Any] = {
        "nav": "balance",
        "unused": returns.unused(organisation, at=at),
        "least_micro": returns.LEAST_MICRO,
        "runway_seconds": Policy.load().runway_seconds,
        "page": page,
        "rows": history.lines(page),
        "who_may_change": methods.who_may_change(organisation),
        "waiting": methods.waiting_method(organisation, at, Rail.USDC),
    }
    try:
        context["method"] = returns.destination(organisation, at)
    except NoWalletToReturnTo as refusal:
        context["no_wallet"] = str(refusal)
    except WalletNotProven as refusal:
        context["not_proven"] = str(refusal)
    except WalletTooNew as refusal:
        context["too_new"] = str(refusal)
    return context


def _status(request: HttpRequest) -> int:
    return 422 if request.method == "POST" else 200

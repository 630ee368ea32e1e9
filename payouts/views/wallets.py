"""The wallet that payouts go to: named, changed, or left as it is."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from gpunex import desk
from gpunex.kit import show
from gpunex.kit.refusals import Refusal
from payouts import methods
from payouts.forms import WalletForm
from payouts.methods import ChainSilent, NotForThisRole


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

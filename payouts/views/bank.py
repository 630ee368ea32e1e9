"""The bank account that payouts go to: its country first, then what a transfer there needs. Shown masked, always.

Errors stand beside their fields and keep what was typed; an account number is never in a message, a log or an address.
"""

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from gpunex import desk
from gpunex.accounts.fresh import fresh_sign_in, typed_before
from gpunex.kit import show
from gpunex.kit.refusals import Refusal
from gpunex.policy.models import Policy
from payouts import methods
from payouts.bank import RAILS, details, transfers
from payouts.bank_forms import FORMS, AchForm, CountryForm, SepaForm
from payouts.methods import ConnectedAlready
from payouts.models import PayoutMethod, Rail
from providers.places import country_name


@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
def bank(request: HttpRequest) -> HttpResponseBase:
    """The account in force, a change that waits, and the form for another one."""
    if desk.of(request) is None:
        return redirect("providers:roles")
    if not methods.may_change(request.organisation, request.user):
        people = methods.who_may_change(request.organisation)
        return _page(request, {"people": people}, refused=request.method == "POST")
    return _bank(request)


@fresh_sign_in(back="payouts:bank")
def _bank(request: HttpRequest) -> HttpResponse:
    typed = typed_before(request)
    sent = request.POST if request.method == "POST" else typed or request.GET
    countries = CountryForm(sent if "country" in sent else None)
    country = countries.cleaned_data["country"] if countries.is_bound and countries.is_valid() else ""
    context: dict[str, Any] = {"countries": countries, "country": country, "country_name": country_name(country)}
    served = details.is_served(country, Policy.load()) if country else True
    context["served"] = served
    if not country or not served:
        return _page(request, context, refused=request.method == "POST" or bool(countries.errors))
    kind = FORMS[details.rail_of_country(country) or Rail.SEPA]
    form = kind(request.POST) if request.method == "POST" else kind(initial=typed)
    if request.method == "POST" and form.is_valid():
        try:
            method = _keep(request, form)
        except ConnectedAlready as refusal:
            form.add_error("iban" if form.rail == Rail.SEPA else "account", str(refusal))
        except Refusal as refusal:
            form.add_error(None, str(refusal))
        else:
            messages.success(request, _told(request, method))
            return redirect("providers:payouts")
    return _page(request, context | {"form": form}, refused=bool(form.errors))


@require_POST
@fresh_sign_in(back="payouts:bank")
def bank_cancel(request: HttpRequest) -> HttpResponse:
    """Let the account in force stand."""
    if desk.of(request) is None:
        return redirect("providers:roles")
    rail = request.POST.get("rail", "")
    if rail in RAILS:
        try:
            methods.cancel_change(organisation=request.organisation, rail=rail, by=request.user, at=timezone.now())
        except Refusal as refusal:
            messages.error(request, str(refusal))
        else:
            messages.success(request, _("The change is cancelled; the account stays as it was."))
    return redirect("payouts:bank")


@require_POST
@fresh_sign_in(back="payouts:bank")
def bank_confirm(request: HttpRequest) -> HttpResponse:
    """After a transfer came back: the account is right all the same."""
    if desk.of(request) is None:
        return redirect("providers:roles")
    at = timezone.now()
    rail = request.POST.get("rail", "")
    method = methods.active_method(request.organisation, at, rail) if rail in RAILS else None
    if method is not None:
        try:
            transfers.confirm_account(method=method, by=request.user, at=at)
        except Refusal as refusal:
            messages.error(request, str(refusal))
        else:
            messages.success(request, _("Confirmed: the next payout goes to this account again."))
    return redirect("payouts:bank")


def _keep(request: HttpRequest, form: SepaForm | AchForm) -> PayoutMethod:
    return methods.keep_method(
        organisation=request.organisation,
        rail=form.rail,
        by=request.user,
        at=timezone.now(),
        details=form.kept,
        masked=form.masked,
        country=form.country,
    )


def _told(request: HttpRequest, method: PayoutMethod) -> str:
    if method.active_from > timezone.now():
        return _("From %(when)s on, the bank account is %(account)s.") % {
            "when": show.moment(method.active_from),
            "account": method.shown,
        }
    if methods.rail_of(request.organisation) == method.rail:
        return _("Payouts now go to the bank account %(account)s.") % {"account": method.shown}
    return _("The bank account %(account)s is entered. Choose below to be paid to it.") % {"account": method.shown}


def _page(request: HttpRequest, context: dict[str, Any], *, refused: bool = False) -> HttpResponse:
    at = timezone.now()
    context |= {
        "nav": "payouts",
        "accounts": _accounts(request, at),
        "may_change": "people" not in context,
        "hours": int(methods.cool_down().total_seconds() // 3600),
    }
    response = render(request, "payouts/bank.html", context, status=422 if refused else 200)
    response["Cache-Control"] = "no-store"  # a form that was refused holds an account number
    return response


def _accounts(request: HttpRequest, at: datetime) -> list[dict[str, Any]]:
    """Each bank rail with an account in force or waiting."""
    paid_by = methods.rail_of(request.organisation)
    accounts = []
    for rail in RAILS:
        standing = methods.active_method(request.organisation, at, rail)
        waiting = methods.waiting_method(request.organisation, at, rail)
        if standing or waiting:
            accounts.append(
                {
                    "rail": rail.value,
                    "label": rail.label,
                    "standing": standing,
                    "waiting": waiting,
                    "country": country_name((standing or waiting).country),
                    "doubt": transfers.doubt(standing) if standing else None,
                    "in_use": rail == paid_by,
                }
            )
    return accounts

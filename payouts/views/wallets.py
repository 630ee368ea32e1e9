"""The wallet that money goes to: named, proven by a signature, changed, or left as it is.

The same pages stand in the provider's front, where payouts go to the wallet, and in the renter's, where unused balance does.
"""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from gpunex import desk
from gpunex.accounts.fresh import fresh_sign_in, typed_before
from gpunex.accounts.organisations import organisation_of
from gpunex.kit import show
from gpunex.kit.refusals import Refusal
from payouts import challenges, methods
from payouts.challenges import ChainSilent, ChallengeExpired, ChallengeUnknown, ChallengeUsed, SignedByAnotherKey
from payouts.forms import SignatureForm, WalletForm
from payouts.methods import NotForThisRole
from payouts.models import PayoutMethod, Rail, WalletChallenge


@require_http_methods(["GET", "HEAD", "POST"])
def connect_wallet(request: HttpRequest) -> HttpResponse:
    """Name the first wallet, or another one. A refusal stands beside the address and keeps what was typed."""
    if (elsewhere := _elsewhere(request)) is not None:
        return elsewhere
    if not methods.may_change(organisation_of(request), request.user):
        return _not_for_this_role(request)
    return _connect_wallet(request)


@fresh_sign_in
def _connect_wallet(request: HttpRequest) -> HttpResponse:
    form = WalletForm(request.POST or None, initial={"address": request.GET.get("address", "")} | typed_before(request))
    if request.method == "POST" and form.is_valid():
        try:
            challenge = challenges.issue(
                organisation=request.organisation,
                address=form.cleaned_data["address"],
                by=request.user,
                at=timezone.now(),
            )
        except (ChainSilent, NotForThisRole) as refusal:
            form.add_error(None, str(refusal))
        except Refusal as refusal:
            form.add_error("address", str(refusal))
        else:
            return redirect(_url(request, "prove_wallet", challenge.public_id))
    return _page(request, "payouts/wallet.html", {"form": form}, refused=bool(form.errors))


@require_http_methods(["GET", "HEAD", "POST"])
@fresh_sign_in
def prove_wallet(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Show the text to sign, and take the signature: from a wallet in the browser, or pasted."""
    if (elsewhere := _elsewhere(request)) is not None:
        return elsewhere
    at = timezone.now()
    mine = WalletChallenge.objects.filter(organisation=organisation_of(request), user=request.user)
    challenge = get_object_or_404(mine, public_id=public_id)
    form = SignatureForm(request.POST or None, initial=typed_before(request))
    if request.method == "POST" and form.is_valid():
        try:
            method = challenges.prove(
                challenge=challenge,
                signature=form.cleaned_data["signature"],
                organisation=request.organisation,
                by=request.user,
                at=at,
            )
        except (challenges.NotASignature, SignedByAnotherKey) as refusal:
            form.add_error("signature", str(refusal))
        except (ChallengeExpired, ChallengeUsed, ChallengeUnknown) as refusal:
            messages.error(request, str(refusal))
            return redirect(f"{_url(request, 'connect_wallet')}?address={challenge.address}")
        except Refusal as refusal:
            form.add_error(None, str(refusal))
        else:
            messages.success(request, _told(request, method))
            return redirect(_home(request))
    over = challenge.used_at is not None or at >= challenge.expires_at
    command = f"solana sign-offchain-message --keypair wallet.json '{challenge.message}'"
    standing = methods.active_method(request.organisation, at, Rail.USDC)
    changes = standing is not None and standing.address != challenge.address
    context = {"form": form, "challenge": challenge, "over": over, "command": command, "changes": changes}
    return _page(request, "payouts/wallet_proof.html", context, refused=bool(form.errors))


@require_POST
def cancel_wallet(request: HttpRequest) -> HttpResponse:
    """Let the wallet in force stand."""
    if (elsewhere := _elsewhere(request)) is not None:
        return elsewhere
    return fresh_sign_in(back=_home_name(request))(_cancel_wallet)(request)


def _cancel_wallet(request: HttpRequest) -> HttpResponse:
    try:
        methods.cancel_change(organisation=organisation_of(request), rail=Rail.USDC, by=request.user, at=timezone.now())
    except Refusal as refusal:
        messages.error(request, str(refusal))
    else:
        done = _("The change is cancelled; the wallet stays as it was.")
        messages.success(
            request, done if _for_renters(request) else _("The change is cancelled; payouts go on as before.")
        )
    return redirect(_home(request))


def _told(request: HttpRequest, method: PayoutMethod) -> str:
    if method.active_from > timezone.now():
        when = show.moment(method.active_from)
        if _for_renters(request):
            return _("From %(when)s on, balance goes back to the new wallet.") % {"when": when}
        return _("From %(when)s on, payouts go to the new wallet.") % {"when": when}
    if _for_renters(request):
        return _("The wallet that ends in %(last)s is connected.") % {"last": method.address[-6:]}
    return _("Payouts now go to the wallet that ends in %(last)s.") % {"last": method.address[-6:]}


def _page(request: HttpRequest, template: str, context: dict[str, Any], *, refused: bool = False) -> HttpResponse:
    organisation, at = request.organisation, timezone.now()
    renters = _for_renters(request)
    context |= {
        "shell": "shell/renter.html" if renters else "shell/provider.html",
        "nav": "balance" if renters else "payouts",
        "home": _home(request),
        "home_name": _("Take money out") if renters else _("Payouts"),
        "start": _url(request, "connect_wallet"),
        "method": methods.active_method(organisation, at, Rail.USDC),
        "waiting": methods.waiting_method(organisation, at, Rail.USDC),
        "hours": int(methods.cool_down().total_seconds() // 3600),
    }
    return render(request, template, context, status=422 if refused else 200)


def _not_for_this_role(request: HttpRequest) -> HttpResponse:
    """What the people who may not change it see: who may."""
    people = methods.who_may_change(request.organisation)
    return _page(request, "payouts/wallet.html", {"people": people}, refused=request.method == "POST")


def _for_renters(request: HttpRequest) -> bool:
    match = request.resolver_match
    return match is not None and "payouts" in match.namespaces


def _elsewhere(request: HttpRequest) -> HttpResponse | None:
    """The provider's front is for providers."""
    if not _for_renters(request) and desk.of(request) is None:
        return redirect("providers:roles")
    return None


def _home(request: HttpRequest) -> str:
    return reverse(_home_name(request))


def _home_name(request: HttpRequest) -> str:
    """Where the wallet stands and is put to use."""
    return "payouts:return_balance" if _for_renters(request) else "providers:payouts"


def _url(request: HttpRequest, name: str, *args: object) -> str:
    return reverse(f"{'payouts' if _for_renters(request) else 'providers'}:{name}", args=args)

"""Deposit requests: a payment link with its QR code, what came for it, and the list of all of them."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from billing import deposit_requests, deposits
from billing.forms import DepositRequestForm
from billing.models import DepositRequest
from billing.qr import qr
from gpunex.chain.rpc import RpcError, RpcUnavailable
from gpunex.kit.conflicts import retrying
from gpunex.kit.refusals import Refusal
from payouts.usdc import explorer_link

REQUESTS_A_PAGE = 20
State = DepositRequest.State


@require_http_methods(["GET", "HEAD", "POST"])
def requests(request: HttpRequest) -> HttpResponse:
    """All requests, the newest first; POST makes one."""
    if request.method != "POST":
        return _list(request, form=DepositRequestForm())
    form = DepositRequestForm(request.POST)
    if form.is_valid():
        try:
            made = retrying(deposit_requests.ask)(
                organisation=_organisation(request),
                amount_micro=form.cleaned_data["amount"],
                by=request.user,
                at=timezone.now(),
            )
        except Refusal as refusal:
            form.add_error(None, str(refusal))
        else:
            return redirect("billing:deposit_request", made.public_id)
    return _list(request, form=form, status=422)


@require_safe
def deposit_request(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """One request. Its state line asks for itself; once the state is another one, the page is loaded anew."""
    row, at = _own(request, public_id), timezone.now()
    context = _shown(row, at=at)
    if request.headers.get("HX-Request") and request.GET.get("live"):
        response = render(request, "billing/deposit_request.html#live", context)
        if request.GET["live"] != context["seen"]:
            response.headers["HX-Refresh"] = "true"
        return _vary(response)
    address = deposits.address_for(row.organisation, at=at)
    context |= {
        "nav": "balance",
        "address": address,
        "deposits": [
            {"deposit": deposit, "link": explorer_link(deposit.signature)}
            for deposit in row.deposits.order_by("pk")[:REQUESTS_A_PAGE]
        ],
        "strays": list(row.stray_payments.order_by("pk")[:REQUESTS_A_PAGE]),
        "demonstration": settings.EMBEDDED,
    }
    if context["progress"].open:
        link = deposit_requests.link(row, wallet=address.owner)
        context |= {"link": link, "qr": qr(link, label=_("QR code of the payment link"))}
    return _vary(render(request, "billing/deposit_request.html", context))


@require_POST
def cancel(request: HttpRequest, public_id: UUID) -> HttpResponse:
    row = _own(request, public_id)
    try:
        retrying(deposit_requests.cancel)(request=row, at=timezone.now())
    except Refusal as refusal:
        messages.error(request, str(refusal))
    return redirect("billing:deposit_request", row.public_id)


@require_POST
def pay(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """On the development chain only: pay it as a wallet app would, from the link alone."""
    if not settings.EMBEDDED:
        raise Http404
    row, at = _own(request, public_id), timezone.now()
    if not deposit_requests.progress(row, received_micro=row.received_micro, at=at).open:
        messages.error(request, str(deposit_requests.RequestClosed()))
        return redirect("billing:deposit_request", row.public_id)
    try:
        deposits.pay_with_test_wallet(request=row, at=at)
    except (RpcUnavailable, RpcError):
        messages.error(request, _("The development chain did not answer. Nothing was sent; try again in a minute."))
    else:
        messages.success(request, _("The wallet sent the payment; it counts once it is final."))
    return redirect("billing:deposit_request", row.public_id)


def _list(request: HttpRequest, *, form: DepositRequestForm, status: int = 200) -> HttpResponse:
    at = timezone.now()
    rows = DepositRequest.objects.filter(organisation=_organisation(request)).order_by("-created_at", "-pk")
    page = Paginator(deposit_requests.with_received(rows), REQUESTS_A_PAGE).get_page(request.GET.get("page"))
    context = {"nav": "balance", "form": form, "page": page, "rows": [_shown(row, at=at) for row in page]}
    return render(request, "billing/deposit_requests.html", context, status=status)


def _shown(row: Any, *, at: datetime) -> dict[str, Any]:
    """``row`` comes with what it received."""
    progress = deposit_requests.progress(row, received_micro=row.received_micro, at=at)
    shade, words = _words(row, progress)
    return {
        "row": row,
        "progress": progress,
        "shade": shade,
        "words": words,
        "seconds_left": max(0, int((row.expires_at - at).total_seconds())),
        # What the state line was drawn from: a page that shows something else is out of date.
        "seen": f"{row.state}-{progress.open:d}-{row.received_micro}",
        "poll_every": 3 if progress.open else 15 if row.paid_at is None else 0,
    }


def _words(row: DepositRequest, progress: deposit_requests.Progress) -> tuple[str, str]:
    if row.state == State.PAID:
        return "ok", _("paid late") if progress.late else _("paid")
    if progress.received_micro:
        return "warn", _("paid in part")
    if progress.open:
        return "busy", _("waiting for the payment")
    return "idle", _("cancelled") if row.state == State.CANCELLED else _("expired")


def _own(request: HttpRequest, public_id: UUID) -> Any:
    rows = DepositRequest.objects.filter(organisation=_organisation(request)).select_related("organisation")
    return get_object_or_404(deposit_requests.with_received(rows), public_id=public_id)


def _organisation(request: HttpRequest) -> Any:
    if not request.organisation:
        raise Http404
    return request.organisation


def _vary(response: HttpResponse) -> HttpResponse:
    patch_vary_headers(response, ["HX-Request"])
    return response

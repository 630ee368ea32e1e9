"""The renter's balance."""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.paginator import Page, Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from billing import deposits, history, metering
from billing.forms import DepositRequestForm, TestUsdcForm
from billing.metering import accrued
from billing.models import DepositRequest, Meter
from billing.qr import qr
from gpunex.chain.rpc import RpcError, RpcUnavailable
from gpunex.kit import show
from gpunex.policy.models import Policy

LINES_A_PAGE = 20
KINDS: dict[str, tuple[str, ...] | None] = {"": None, "deposits": history.DEPOSITS, "charges": ("charge",)}


@require_safe
def balance(request: HttpRequest) -> HttpResponse:
    """What can be spent, until when it lasts, how to add to it, and where it went."""
    return _balance(request, form=TestUsdcForm() if settings.EMBEDDED else None)


@require_POST
def test_usdc(request: HttpRequest) -> HttpResponse:
    """On the development chain only: send test USDC to one's own deposit address."""
    if not settings.EMBEDDED:
        raise Http404
    form = TestUsdcForm(request.POST)
    if not form.is_valid():
        return _balance(request, form=form, status=422)
    try:
        deposits.send_test_usdc(
            organisation=_organisation(request), amount_micro=form.cleaned_data["amount"], at=timezone.now()
        )
    except (RpcUnavailable, RpcError):
        form.add_error(None, _("The development chain did not answer. Nothing was sent; try again in a minute."))
        return _balance(request, form=form, status=422)
    amount = show.usdc(form.cleaned_data["amount"])
    messages.success(
        request,
        _("%(amount)s USDC are on their way to your address; they count once they are final.") % {"amount": amount},
    )
    return redirect("billing:balance")


def _balance(request: HttpRequest, *, form: TestUsdcForm | None, status: int = 200) -> HttpResponse:
    organisation, at = _organisation(request), timezone.now()
    kind = request.GET.get("kind", "")
    page: Page[Any] = Paginator(history.Lines(organisation, kinds=KINDS.get(kind)), LINES_A_PAGE).get_page(
        request.GET.get("page")
    )
    position = metering.position(organisation, at=at)
    context: dict[str, Any] = {
        "nav": "balance",
        "at": at,
        "position": position,
        "balance_micro": position.available_micro,
        "runway_seconds": max(0, int((position.funded_until - at).total_seconds())) if position.funded_until else None,
        "low": _low(position, at=at),
        "running": _running(Meter.objects.filter(payer=organisation, closed=False).order_by("started_at")),
        "page": page,
        "kind": kind if kind in KINDS else "",
        "segments": [
            {
                "label": label,
                "href": reverse("billing:balance") + (f"?kind={name}" if name else ""),
                "current": kind == name,
            }
            for name, label in (("", _("All")), ("deposits", _("Deposits")), ("charges", _("Charges")))
        ],
    }
    if request.headers.get("HX-Request") and request.GET.get("live"):
        return _vary(render(request, "billing/balance.html#live", context))
    address = deposits.address_for(organisation, at=at)
    waiting = DepositRequest.objects.filter(
        organisation=organisation, state=DepositRequest.State.OPEN, expires_at__gt=at
    )
    context |= {
        "address": address,
        "qr": qr(address.owner, label=_("QR code of your deposit address")),
        "form": form,
        "request_form": DepositRequestForm(auto_id="request_%s"),
        "waiting_requests": waiting.count(),
    }
    return _vary(render(request, "billing/balance.html", context, status=status))


def _low(position: metering.Position, *, at: datetime) -> str:
    """The state of a balance that ends soon, by the hours at which warnings are sent; empty where there is time, or nothing runs."""
    policy = Policy.load()
    if position.funded_until is None or position.funded_until > at + timedelta(hours=policy.warning_hours_early):
        return ""
    return "bad" if position.funded_until <= at + timedelta(hours=policy.warning_hours_late) else "warn"


def _running(meters: Any) -> list[dict[str, Any]]:
    rows = []
    for meter in meters:
        total = accrued(meter)
        rows.append({"meter": meter, "total": total, "unposted_micro": total.gross_micro - meter.billed_gross_micro})
    return rows


def _organisation(request: HttpRequest) -> Any:
    if not request.organisation:
        raise Http404
    return request.organisation


def _vary(response: HttpResponse) -> HttpResponse:
    patch_vary_headers(response, ["HX-Request"])
    return response

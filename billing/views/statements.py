"""Statements for those whose they are: a list, and each as a page, as CSV, as PDF and as the very bytes that were hashed."""

from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.paginator import Paginator
from django.db.models import BigIntegerField
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from billing.documents import pdf, sheet
from billing.documents.model import Document
from billing.models import Statement
from billing.statements import MONTHS, PAYOUTS, RETURNS, canonical
from gpunex import desk
from gpunex.kit.sheets import rows_as_csv

STATEMENTS_A_PAGE = 24
LINES_A_PAGE = 100
SERIES = {"": MONTHS, "payouts": PAYOUTS, "returns": RETURNS}


@require_safe
def statements(request: HttpRequest) -> HttpResponse:
    """Those of the organisation, the newest first: of each month, of each payout, or of each return."""
    chosen = request.GET.get("of", "")
    chosen = chosen if chosen in SERIES else ""
    rows = Statement.objects.filter(organisation=_organisation(request), series=SERIES[chosen])
    page = Paginator(_with_figures(rows), STATEMENTS_A_PAGE).get_page(request.GET.get("page"))
    return render(
        request,
        "billing/statements.html",
        _frame(request, earning=chosen == "payouts")
        | {
            "of": chosen,
            "page": page,
            "segments": [
                {"label": label, "href": f"?of={name}" if name else request.path, "current": name == chosen}
                for name, label in (("", _("Months")), ("payouts", _("Payouts")), ("returns", _("Returns")))
            ],
        },
    )


def _with_figures(rows: Any) -> Any:
    """Without the bodies: a year of long ones would be read for two figures each."""
    return (
        rows.defer("body")
        .annotate(
            closing_micro=Cast(KT("body__closing_micro"), BigIntegerField()),
            paid_micro=Cast(KT("body__amount_micro"), BigIntegerField()),
        )
        .order_by("-number")
    )


@require_safe
def statement(request: HttpRequest, public_id: UUID) -> HttpResponse:
    row = _own(request, public_id)
    document = Document(row)
    page = Paginator(document.rows, LINES_A_PAGE).get_page(request.GET.get("page"))
    return render(
        request,
        "billing/statement.html",
        _frame(request, earning=document.earning)
        | {
            "statement": row,
            "document": document,
            "page": page,
            "verify": verify_path(document),
            "back": reverse("billing:statements") + ("" if not document.pays else f"?of={_segment(row)}"),
        },
    )


@require_safe
def statement_csv(request: HttpRequest, public_id: UUID) -> HttpResponseBase:
    document = Document(_own(request, public_id))
    # Drawn at once: a stream is written after the request's language is gone.
    return rows_as_csv(sheet.header(), list(sheet.rows(document)), f"gpunex-{document.number}.csv")


@require_safe
def statement_pdf(request: HttpRequest, public_id: UUID) -> HttpResponse:
    document = Document(_own(request, public_id))
    path = verify_path(document)
    data = pdf.render(document, verify_url=settings.PUBLIC_URL + path if path else "")
    return _file(data, f"gpunex-{document.number}.pdf", "application/pdf")


@require_safe
def statement_json(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """The very bytes that were hashed: ``sha256sum`` of the file gives the statement's SHA-256."""
    row = _own(request, public_id)
    return _file(canonical(row.body), f"gpunex-{row.full_number}.json", "application/json")


def verify_path(document: Document) -> str:
    """Where anyone can check the payout that a statement belongs to; empty for a month."""
    return reverse("payouts:verify", args=[document.body["reference"]]) if document.pays else ""


def _file(data: bytes, name: str, kind: str) -> HttpResponse:
    response = HttpResponse(data, content_type=kind)
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Cache-Control"] = "private, no-store"
    return response


def _own(request: HttpRequest, public_id: UUID) -> Statement:
    return get_object_or_404(Statement, organisation=_organisation(request), public_id=public_id)


def _organisation(request: HttpRequest) -> Any:
    if not request.organisation:
        raise Http404
    return request.organisation


def _segment(row: Statement) -> str:
    return next(name for name, series in SERIES.items() if series == row.series)


def _frame(request: HttpRequest, *, earning: bool) -> dict[str, Any]:
    """Payouts stand on the provider's side, months and returns on the renter's."""
    provider = earning and desk.of(request) is not None
    return {
        "shell": "shell/provider.html" if provider else "shell/renter.html",
        "nav": "payouts" if provider else "balance",
        "provider_side": provider,
    }

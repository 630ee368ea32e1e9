"""Statements as they were issued: read-only, and proved anew when one is opened."""

import json
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from unfold.decorators import display

from billing import statement_proof
from billing.models import Statement
from gpunex.kit.registers import ReadOnlyAdmin


@admin.register(Statement)
class StatementAdmin(ReadOnlyAdmin):
    list_display = ["full_number", "kind", "organisation", "reference", "period_start", "period_end", "issued_at"]
    list_filter = ["kind", "series", "issued_at"]
    search_fields = ["=reference", "=sha256", "=public_id", "organisation__name", "organisation__members__email"]
    list_select_related = ["organisation"]
    ordering = ["-pk"]
    show_full_result_count = False
    fields = [
        "full_number",
        "kind",
        "organisation",
        "reference",
        "period_start",
        "period_end",
        "issued_at",
        "sha256",
        "proof",
        "document",
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Statement]:
        rows = super().get_queryset(request)
        match = request.resolver_match
        return rows.defer("body") if match and match.url_name == "billing_statement_changelist" else rows

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """Also by the number as people cite it: P-000042."""
        series, dash, number = search_term.strip().upper().partition("-")
        if dash and number.isdecimal() and len(number) <= 9:
            return queryset.filter(series=series, number=int(number)), False
        return super().get_search_results(request, queryset, search_term)

    @display(description=_lazy("number"), ordering="pk")
    def full_number(self, statement: Statement) -> str:
        return statement.full_number

    @display(description=_lazy("proof"))
    def proof(self, statement: Statement) -> str:
        """Against its hash, the statement before it, and the ledger."""
        return "; ".join(statement_proof.faults(statement)) or _("Everything fits.")

    @display(description=_lazy("document"))
    def document(self, statement: Statement) -> str:
        text = json.dumps(statement.body, indent=1, ensure_ascii=False, sort_keys=True)
        return format_html('<pre dir="ltr">{}</pre>', text)

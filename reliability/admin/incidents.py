"""Breaks on the provider's side with their evidence, which may be excused with a reason."""

import json
from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from unfold.widgets import UnfoldAdminTextareaWidget

from gpunex.kit import show
from gpunex.kit.registers import DecidingAdmin, Decision
from reliability import incidents
from reliability.models import Case, Gap, Incident


class ReasonForm(forms.Form):
    reason = forms.CharField(
        label=_lazy("Reason"),
        max_length=300,
        widget=UnfoldAdminTextareaWidget({"rows": 2}),
        help_text=_lazy("The provider reads it."),
    )


@admin.register(Incident)
class IncidentAdmin(DecidingAdmin):
    """Excusing one takes its weight off the score from now on; older scores stay what they were, so it can't be undone."""

    list_display = ["machine", "cause", "at", "reference", "excused_at", "excused_reason"]
    list_filter = ["cause", ("excused_at", admin.EmptyFieldListFilter)]
    list_select_related = ["machine"]
    search_fields = ["machine__name", "machine__provider__organisation__name", "reference", "key"]
    ordering = ["-at"]
    fields = [
        "machine", "cause", "at", "shown_evidence", "links", "excused_at", "excused_by", "excused_reason",
    ]  # fmt: skip
    readonly_fields = ["shown_evidence", "links"]

    def decisions(self, request: HttpRequest, row: Incident) -> Sequence[Decision]:
        if row.excused_at is not None or not request.user.has_perm("reliability.change_incident"):
            return []

        def excuse(form: forms.Form) -> str:
            reason = form.cleaned_data["reason"]
            incidents.excuse(incident=row, by=request.user, reason=reason, at=timezone.now())
            return _("Excused: %(reason)s") % {"reason": reason}

        return [Decision("excuse", _("Excuse this incident"), _("Excuse"), ReasonForm(), excuse)]

    @admin.display(description=_lazy("evidence"))
    def shown_evidence(self, incident: Incident) -> SafeString:
        return as_text(incident.evidence)

    @admin.display(description=_lazy("see also"))
    def links(self, incident: Incident) -> SafeString:
        found = [(reverse("admin:reliability_machinerisk_change", args=[incident.machine_id]), incident.machine.name)]
        if incident.reference:
            address = reverse("admin:marketplace_rental_changelist")
            found.append((f"{address}?q={incident.reference}", _("rental")))
        gap = (
            Gap.objects.filter(machine=incident.machine, started_at__lte=incident.at, ended_at__gte=incident.at)
            .order_by("-started_at")
            .first()
        )
        if gap is not None:
            found.append(
                (
                    reverse("admin:reliability_gap_change", args=[gap.pk]),
                    _("gap from %(from)s to %(to)s: %(kind)s")
                    % {
                        "from": show.moment(gap.started_at),
                        "to": show.moment(gap.ended_at),
                        "kind": gap.get_kind_display(),
                    },
                )
            )
        for case in Case.objects.filter(kind=Case.Kind.INCIDENT, reference__in=_names(incident)).order_by("-pk")[:5]:
            found.append(
                (reverse("admin:reliability_case_change", args=[case.pk]), _("case: %(subject)s") % {"subject": case})
            )
        return links_of(found)


def _names(incident: Incident) -> list[str]:
    return [incident.key, *([str(incident.reference)] if incident.reference else [])]


def as_text(value: Any) -> SafeString:
    """JSON to be read by a person."""
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    return format_html('<pre dir="ltr">{}</pre>', text)


def links_of(found: Sequence[tuple[str, Any]]) -> SafeString:
    return format_html_join(mark_safe("<br>"), '<a class="text-primary-600" href="{}"><bdi>{}</bdi></a>', found)

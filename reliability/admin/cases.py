"""The queue of questions and appeals: what waits longest first; the answer goes out by mail."""

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import Case as Cases
from django.db.models import Value, When
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join, linebreaks
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldBooleanWidget

from gpunex.kit import show
from gpunex.kit.registers import DecidingAdmin, Decision
from reliability import cases
from reliability.admin.incidents import links_of
from reliability.models import Case

State = Case.State
SHOWN = 50


class AnswerForm(forms.Form):
    text = forms.CharField(
        label=_lazy("Answer"),
        max_length=cases.MOST_CHARACTERS,
        widget=UnfoldAdminTextareaWidget({"rows": 8}),
        help_text=_lazy("Mailed as it is, in the language in which it is written."),
    )


class AppealForm(AnswerForm):
    excuse = forms.BooleanField(
        label=_lazy("Excuse the incident"),
        required=False,
        widget=UnfoldBooleanWidget(),
        help_text=_lazy("The answer is the reason that is kept. The score is computed anew."),
    )


@admin.register(Case)
class CaseAdmin(DecidingAdmin):
    list_display = ["subject", "organisation", "kind", "shown_state", "waiting", "opened_at"]
    list_filter = ["state", "kind"]
    list_select_related = ["organisation"]
    search_fields = ["subject", "reference", "organisation__name", "opened_by__email", "public_id"]
    fields = ["subject", "kind", "reference", "links", "organisation", "opened_by", "language", "state", "thread"]
    readonly_fields = ["links", "language", "thread"]

    def get_ordering(self, request: HttpRequest) -> Any:
        return [Cases(When(state=State.OPEN, then=Value(0)), default=Value(1)), "changed_at", "pk"]

    def decisions(self, request: HttpRequest, row: Case) -> Sequence[Decision]:
        if row.state == State.CLOSED or not request.user.has_perm("reliability.change_case"):
            return []
        incident = cases.incident_of(row)
        appeal = (
            incident is not None
            and incident.excused_at is None
            and request.user.has_perm("reliability.change_incident")
        )

        def answer(form: forms.Form) -> str:
            typed, at = form.cleaned_data, timezone.now()
            if appeal and typed.get("excuse"):
                cases.uphold(case=row, by=request.user, text=typed["text"], at=at)
                return _("Answered, and the incident excused.")
            cases.answer(case=row, by=request.user, text=typed["text"], at=at)
            return _("Answered.")

        def close(_form: forms.Form) -> str:
            cases.close(case=row, at=timezone.now())
            return _("Closed.")

        return [
            Decision("answer", _("Answer"), _("Send by mail"), AppealForm() if appeal else AnswerForm(), answer),
            Decision("close", _("Close without a word"), _("Close"), forms.Form(), close),
        ]

    @display(description=_lazy("state"), label={State.OPEN: "warning", State.ANSWERED: "success", State.CLOSED: "info"})
    def shown_state(self, case: Case) -> tuple[str, str]:
        return case.state, case.get_state_display()

    @admin.display(description=_lazy("last message"))
    def waiting(self, case: Case) -> str:
        return show.distance(case.changed_at, timezone.now())

    @admin.display(description=_lazy("language"))
    def language(self, case: Case) -> str:
        return case.opened_by.get_language_display()

    @admin.display(description=_lazy("see also"))
    def links(self, case: Case) -> SafeString | str:
        incident = cases.incident_of(case)
        found: list[tuple[str, str]] = []
        if incident is not None:
            found.append((reverse("admin:reliability_incident_change", args=[incident.pk]), str(incident)))
        elif case.reference:
            for model, text in (("machinerisk", _("machines")), ("benchmark", _("benchmarks"))):
                found.append((f"{reverse(f'admin:reliability_{model}_changelist')}?q={case.reference}", text))
        return links_of(found) if found else "–"

    @admin.display(description=_lazy("messages"))
    def thread(self, case: Case) -> SafeString:
        """The newest first, at most 50: the queue is for answering, the person's page has all."""
        messages = case.messages.select_related("author").order_by("-at", "-pk")[:SHOWN]
        return format_html_join(
            mark_safe("<hr>"),  # no text of anybody's
            '<p><b><bdi>{}</bdi></b> {}</p><div dir="auto">{}</div>',
            (
                (
                    _("Our team, %(name)s") % {"name": message.author} if message.from_staff else str(message.author),
                    show.moment(message.at),
                    format_html("{}", mark_safe(linebreaks(message.text, autoescape=True))),  # noqa: S308  # escaped
                )
                for message in messages
            ),
        )

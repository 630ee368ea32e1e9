"""Bases of the admin's pages: rows that are looked at, rows about which a person decides, and rows whose every change is told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from unfold.admin import ModelAdmin, TabularInline

from gpunex.kit.conflicts import retrying
from gpunex.kit.refusals import Refusal


class ReadOnlyAdmin(ModelAdmin):
    """Rows that operations write and people read. ``exclude`` what nobody needs to see."""

    list_fullwidth = True
    view_on_site = False  # what belongs to somebody is a 404 to everybody else, the staff too

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@dataclass
class Decision:
    """One thing that can be done with a row, as ``admin/decision.html`` shows it.

    ``act`` gets the cleaned form, does it and returns what to say: the history keeps it. A Refusal is shown above the form.
    """

    name: str
    title: str
    submit: str
    form: forms.Form
    act: Callable[[forms.Form], str]


class DecidingAdmin(ReadOnlyAdmin):
    """Rows that nobody edits and about which a person decides: ``decisions`` says what the row and the person allow now."""

    change_form_outer_before_template = "admin/decision.html"

    def decisions(self, request: HttpRequest, row: Any) -> Sequence[Decision]:
        raise NotImplementedError

    def note(self, request: HttpRequest, row: Any) -> str:
        """What to do next, in a sentence."""
        return ""

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        row = self.get_object(request, object_id)
        decisions = list(self.decisions(request, row)) if row is not None else []
        status = 200
        if request.method == "POST" and row is not None:
            chosen = next((one for one in decisions if one.name == request.POST.get("decision")), None)
            if chosen is None:
                messages.warning(request, _("Nothing was done: this was decided already, or is not yours to decide."))
                return redirect(request.path)
            chosen.form = type(chosen.form)(request.POST)
            if chosen.form.is_valid():
                try:
                    said = retrying(chosen.act)(chosen.form)
                except Refusal as refusal:
                    chosen.form.add_error(None, str(refusal))
                else:
                    self.log_change(request, row, said)
                    messages.success(request, said)
                    return redirect(request.path)
            status = 422
            request.method = "GET"  # shown again as a page: of the row itself nothing is edited here
        context = dict(extra_context or {})
        if row is not None:
            context |= {"note": self.note(request, row), "decisions": decisions}
        response = super().change_view(request, object_id, form_url, context)
        response.status_code = status if response.status_code == 200 else response.status_code
        return response


class ReadOnlyInline(TabularInline):
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class TellingAdmin(ModelAdmin):
    """Rows that an admin edits: the history says who changed what from which value to which."""

    list_fullwidth = True
    warn_unsaved_form = True

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        message = super().construct_change_message(request, form, formsets, add)
        if add or not form.changed_data:
            return message
        told = [
            _("%(field)s: %(old)s → %(new)s")
            % {
                "field": form.fields[name].label or name,
                "old": form.fields[name].prepare_value(form[name].initial),
                "new": form.fields[name].prepare_value(form.cleaned_data.get(name)),
            }
            for name in form.changed_data
        ]
        return [{"changed": {"fields": told}}, *(part for part in message if "name" in next(iter(part.values()), {}))]

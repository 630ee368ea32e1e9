"""Bases of the admin's pages: rows that are looked at, and rows whose every change is told with its old and new value."""

from typing import Any

from django.db.models import Model
from django.http import HttpRequest
from django.utils.translation import gettext as _
from unfold.admin import ModelAdmin, TabularInline


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

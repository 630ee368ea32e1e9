"""Versions of the score's formula: which one counts, what a newer one would change, and letting it count."""

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _lazy
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget

from gpunex.kit.refusals import Refusal
from reliability import formulas
from reliability.models import FormulaSwitch


class SwitchForm(forms.ModelForm):
    version = forms.TypedChoiceField(label=_lazy("version"), coerce=int, widget=UnfoldAdminSelectWidget())

    class Meta:
        model = FormulaSwitch
        fields = ["version", "reason"]
        widgets = {"reason": UnfoldAdminTextareaWidget({"rows": 2})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "version" in self.fields:
            versions = [(version, str(version)) for version in sorted(formulas.FORMULAS, reverse=True)]
            self.fields["version"].choices = versions

    def clean(self) -> dict[str, Any]:
        typed = super().clean() or {}
        if not self.errors:
            try:
                formulas.check(version=typed["version"], reason=typed["reason"], at=timezone.now())
            except Refusal as refusal:
                raise forms.ValidationError(str(refusal)) from refusal
        return typed


@admin.register(FormulaSwitch)
class FormulaSwitchAdmin(ModelAdmin):
    """Each row lets a version count from its moment on. Adding one is the switch; rows are never edited."""

    list_display = ["version", "at", "by", "reason"]
    list_select_related = ["by"]
    ordering = ["-at"]
    list_fullwidth = True
    list_before_template = "admin/reliability/formulas.html"
    form = SwitchForm

    def has_change_permission(self, request: HttpRequest, obj: FormulaSwitch | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: FormulaSwitch | None = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        counts, *shadows = formulas.running(timezone.now())
        compared = [(version, formulas.differences(counting=counts, shadow=version)) for version in shadows]
        return super().changelist_view(request, {**(extra_context or {}), "counts": counts, "compared": compared})

    def save_model(self, request: HttpRequest, obj: FormulaSwitch, form: Any, change: bool) -> None:
        made = formulas.switch(version=obj.version, by=request.user, reason=obj.reason, at=timezone.now())
        obj.pk, obj.at, obj.by = made.pk, made.at, made.by

"""What machines did, to be looked at; and incidents, which may be excused with a reason."""

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from unfold.admin import ModelAdmin
from unfold.decorators import display

from gpunex.kit.registers import ReadOnlyAdmin
from reliability import incidents
from reliability.models import Benchmark, Connection, HealthEvent, Incident, Outcome, PlatformOutage, Score

State = Benchmark.State


class ExcuseForm(forms.ModelForm):
    def clean_excused_reason(self) -> str:
        reason = " ".join(self.cleaned_data["excused_reason"].split())
        if not reason:
            raise forms.ValidationError(str(incidents.ReasonMissing()))
        return reason


@admin.register(Incident)
class IncidentAdmin(ModelAdmin):
    """A break on the provider's side. Excusing it takes its weight off the score; that can't be undone."""

    list_display = ["machine", "cause", "at", "reference", "excused_at", "excused_reason"]
    list_filter = ["cause", ("excused_at", admin.EmptyFieldListFilter)]
    list_select_related = ["machine"]
    search_fields = ["machine__name", "machine__provider__organisation__name", "reference", "key"]
    ordering = ["-at"]
    list_fullwidth = True
    form = ExcuseForm
    fields = ["machine", "cause", "at", "reference", "evidence", "excused_at", "excused_by", "excused_reason"]
    readonly_fields = ["machine", "cause", "at", "reference", "evidence", "excused_at", "excused_by"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Incident | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Incident | None = None) -> bool:
        return super().has_change_permission(request, obj) and (obj is None or obj.excused_at is None)

    def save_model(self, request: HttpRequest, obj: Incident, form: Any, change: bool) -> None:
        incidents.excuse(incident=obj, by=request.user, reason=form.cleaned_data["excused_reason"], at=timezone.now())

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        return _("Excused: %(reason)s") % {"reason": form.cleaned_data["excused_reason"]}


@admin.register(Benchmark)
class BenchmarkAdmin(ReadOnlyAdmin):
    list_display = ["gpu", "shown_state", "performance", "requested_at", "received_at", "simulated", "reason"]
    list_filter = ["state", "simulated", "gpu__variant__model"]
    list_select_related = ["gpu__machine"]
    search_fields = ["gpu__uuid", "gpu__machine__name", "gpu__machine__provider__organisation__name"]
    exclude = ["nonce"]

    @display(
        description=_lazy("state"),
        label={State.ACCEPTED: "success", State.REFUSED: "danger", State.FAILED: "warning", State.REQUESTED: "info"},
    )
    def shown_state(self, benchmark: Benchmark) -> tuple[str, str]:
        return benchmark.state, benchmark.get_state_display()


@admin.register(Score)
class ScoreAdmin(ReadOnlyAdmin):
    list_display = ["machine", "score", "uptime", "completion", "consistency", "new", "at", "version"]
    list_filter = ["new", "version"]
    list_select_related = ["machine"]
    search_fields = ["machine__name", "machine__provider__organisation__name"]
    ordering = ["-at"]


@admin.register(Connection)
class ConnectionAdmin(ReadOnlyAdmin):
    list_display = ["machine", "started_at", "ended_at", "boot_id"]
    list_select_related = ["machine"]
    search_fields = ["machine__name", "machine__provider__organisation__name"]
    ordering = ["-started_at"]


@admin.register(HealthEvent)
class HealthEventAdmin(ReadOnlyAdmin):
    list_display = ["machine", "gpu", "kind", "at", "received_at", "data"]
    list_filter = ["kind"]
    list_select_related = ["machine", "gpu__machine"]
    search_fields = ["machine__name", "gpu__uuid"]
    ordering = ["-at"]


@admin.register(Outcome)
class OutcomeAdmin(ReadOnlyAdmin):
    list_display = ["machine", "cause", "provider_fault", "at", "reference"]
    list_filter = ["provider_fault", "cause"]
    list_select_related = ["machine"]
    search_fields = ["machine__name", "reference"]
    ordering = ["-at"]


@admin.register(PlatformOutage)
class PlatformOutageAdmin(ReadOnlyAdmin):
    list_display = ["started_at", "ended_at"]
    ordering = ["-started_at"]

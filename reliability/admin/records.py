"""What machines did, to be looked at."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _lazy
from unfold.decorators import display

from gpunex.kit.registers import ReadOnlyAdmin
from reliability import benchmarks
from reliability.models import (
    Benchmark,
    Connection,
    Excuse,
    Gap,
    HealthEvent,
    Outcome,
    Pause,
    PlatformOutage,
    Score,
)

State = Benchmark.State


@admin.register(Benchmark)
class BenchmarkAdmin(ReadOnlyAdmin):
    list_display = ["gpu", "shown_state", "performance", "absolute", "requested_at", "trigger", "simulated", "why"]
    list_filter = ["state", "code", "trigger", "simulated", "gpu__variant__model"]
    list_select_related = ["gpu__machine"]
    search_fields = ["gpu__uuid", "gpu__machine__name", "gpu__machine__provider__organisation__name"]
    exclude = ["nonce"]
    readonly_fields = ["why"]

    @display(
        description=_lazy("state"),
        label={State.ACCEPTED: "success", State.REFUSED: "danger", State.FAILED: "warning", State.REQUESTED: "info"},
    )
    def shown_state(self, benchmark: Benchmark) -> tuple[str, str]:
        return benchmark.state, benchmark.get_state_display()

    @admin.display(description=_lazy("why"))
    def why(self, benchmark: Benchmark) -> str:
        return benchmarks.in_words(benchmark.code, benchmark.details)


@admin.register(Score)
class ScoreAdmin(ReadOnlyAdmin):
    list_display = ["machine", "score", "uptime", "completion", "consistency", "margin", "new", "at", "version"]
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


@admin.register(Gap)
class GapAdmin(ReadOnlyAdmin):
    list_display = ["machine", "started_at", "ended_at", "kind"]
    list_filter = ["kind"]
    list_select_related = ["machine"]
    search_fields = ["machine__name", "machine__provider__organisation__name"]
    ordering = ["-started_at"]


@admin.register(HealthEvent)
class HealthEventAdmin(ReadOnlyAdmin):
    list_display = ["machine", "gpu", "kind", "severity", "at", "received_at", "data"]
    list_filter = ["severity", "kind"]
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
    list_display = ["started_at", "ended_at", "kind", "ongoing"]
    list_filter = ["kind"]
    ordering = ["-started_at"]


class _OfMachineAdmin(ReadOnlyAdmin):
    search_fields = ["machine__name", "machine__provider__organisation__name"]

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).select_related("machine", "by")


@admin.register(Pause)
class PauseAdmin(_OfMachineAdmin):
    list_display = ["machine", "started_at", "ended_at", "reason", "by"]
    ordering = ["-started_at"]


@admin.register(Excuse)
class ExcuseAdmin(_OfMachineAdmin):
    list_display = ["machine", "started_at", "ended_at", "reason", "by", "recorded_at"]
    ordering = ["-recorded_at"]

"""The platform's side of providing: the review of applications, the catalogue, and a look at what is connected."""

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Case, F, QuerySet, Value, When
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone
from django.utils.dates import WEEKDAYS_ABBR
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from unfold.admin import TabularInline
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminRadioSelectWidget, UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget

from gpunex.kit import show
from gpunex.kit.refusals import Refusal
from gpunex.kit.registers import ReadOnlyAdmin, ReadOnlyInline, TellingAdmin
from gpunex.policy.models import Tier
from providers import applications
from providers.models import (
    Application,
    ApplicationEntry,
    ApplicationEvent,
    EnrolmentKey,
    Gpu,
    GpuModel,
    GpuVariant,
    Machine,
    MaintenanceWindow,
    Provider,
    Schedule,
    VariantExpectation,
)
from providers.places import country_name
from providers.requirements import facts_of, fits
from reliability import connections

State = Application.State
APPROVE, ASK, REJECT = "approve", "ask", "reject"


class DecisionForm(forms.Form):
    """What a reviewer decides. The rules judge it; here it is only read."""

    decision = forms.ChoiceField(
        label=_lazy("Decision"),
        choices=[(APPROVE, _lazy("Approve")), (ASK, _lazy("Ask for more information")), (REJECT, _lazy("Reject"))],
        widget=UnfoldAdminRadioSelectWidget(),
        error_messages={"required": _lazy("Choose a decision.")},
    )
    tier = forms.ChoiceField(
        label=_lazy("Tier"),
        choices=[("", "—"), *Tier.choices],
        required=False,
        widget=UnfoldAdminSelectWidget(),
        help_text=_lazy("For an approval."),
    )
    message = forms.CharField(
        label=_lazy("Message to the applicant"),
        max_length=4000,
        required=False,
        widget=UnfoldAdminTextareaWidget({"rows": 4}),
        help_text=_lazy("Mailed as it is. Required to ask and to reject."),
    )
    overrule = forms.CharField(
        label=_lazy("Reason to overrule missed requirements"),
        max_length=4000,
        required=False,
        widget=UnfoldAdminTextareaWidget({"rows": 2}),
        help_text=_lazy("Kept in the history, not mailed. A missing UPS cannot be overruled for enterprise."),
    )

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("decision") == APPROVE and not data.get("tier"):
            self.add_error("tier", _("Choose the tier."))
        if data.get("decision") in (ASK, REJECT) and not data.get("message", "").strip():
            self.add_error("message", _("Write what the applicant is told."))
        return data

    def carry_out(self, application: Application, *, by: Any, at: datetime) -> Application:
        """Raises the refusals of providers.applications."""
        data = self.cleaned_data
        if data["decision"] == ASK:
            return applications.ask(application=application, message=data["message"], by=by, at=at)
        if data["decision"] == REJECT:
            return applications.reject(application=application, message=data["message"], by=by, at=at)
        return applications.approve(
            application=application, tier=data["tier"], message=data["message"], overrule=data["overrule"], by=by, at=at
        )


class OverdueFilter(admin.SimpleListFilter):
    title = _lazy("overdue")
    parameter_name = "overdue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("yes", _("Overdue"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Application]) -> QuerySet[Application]:
        return queryset.filter(state=State.SUBMITTED, due_at__lt=timezone.now()) if self.value() == "yes" else queryset


class CountryFilter(admin.SimpleListFilter):
    title = _lazy("country")
    parameter_name = "country"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        codes = ApplicationEntry.objects.order_by("country").values_list("country", flat=True).distinct()
        return [(code, country_name(code)) for code in codes]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Application]) -> QuerySet[Application]:
        return queryset.filter(entries__country=self.value()).distinct() if self.value() else queryset


class ModelFilter(CountryFilter):
    title = _lazy("GPU model")
    parameter_name = "model"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [*GpuModel.objects.values_list("slug", "name"), ("other", _("Other"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Application]) -> QuerySet[Application]:
        if not self.value():
            return queryset
        wanted = {"entries__gpu_model": None} if self.value() == "other" else {"entries__gpu_model__slug": self.value()}
        return queryset.filter(**wanted).exclude(entries=None).distinct()


class EntryInline(ReadOnlyInline):
    model = ApplicationEntry
    fields = ["model_name", "quantity", "host_memory_gb", "download_gbps", "upload_gbps", "place", "hours"]
    readonly_fields = ["model_name", "place", "hours"]

    @admin.display(description=_lazy("GPU model"))
    def model_name(self, entry: ApplicationEntry) -> str:
        return (
            entry.model_name
            if entry.gpu_model
            else _("%(model)s (not in the catalogue)") % {"model": entry.other_model}
        )

    @admin.display(description=_lazy("place"))
    def place(self, entry: ApplicationEntry) -> str:
        return _(", ").join(part for part in (entry.city, country_name(entry.country), entry.datacenter_region) if part)

    @admin.display(description=_lazy("available"))
    def hours(self, entry: ApplicationEntry) -> str:
        if entry.always_available:
            return _("around the clock")
        days = _(", ").join(f"{WEEKDAYS_ABBR[day]} {start}–{end}" for day, start, end in entry.windows)
        return f"{entry.timezone}: {days}"


class EventInline(ReadOnlyInline):
    model = ApplicationEvent
    fields = ["at", "actor", "from_state", "to_state", "message", "overruled"]


@admin.register(Application)
class ApplicationAdmin(ReadOnlyAdmin):
    """The review queue, the one due first on top, and one application on one page with its decision."""

    list_display = ["applicant", "shown_state", "due", "gpus", "countries", "ups", "commitment_months", "submitted_at"]
    list_filter = ["state", OverdueFilter, ModelFilter, CountryFilter, "tier", "ups", "commitment_months"]
    search_fields = ["full_name", "company", "email", "organisation__name"]
    inlines = [EntryInline, EventInline]
    change_form_outer_before_template = "admin/providers/application_decision.html"
    fieldsets = [
        (None, {"fields": ["state", "tier", "submitted_at", "due_at", "decided_at", "decided_by"]}),
        (_lazy("Applicant"), {"fields": ["full_name", "email", "company", "organisation", "created_by"]}),
        (_lazy("Infrastructure"), {"fields": ["ups", "commitment_months", "maintenance_notes"]}),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Application]:
        return super().get_queryset(request).select_related("organisation").prefetch_related("entries__gpu_model")

    def get_ordering(self, request: HttpRequest) -> Any:
        waiting_first = Case(
            When(state=State.SUBMITTED, then=Value(0)), When(state=State.NEEDS_INFO, then=Value(1)), default=Value(2)
        )
        return [waiting_first, F("due_at").asc(nulls_last=True), "-created_at"]

    @display(description=_lazy("applicant"), header=True)
    def applicant(self, application: Application) -> list[str]:
        return [application.company or application.full_name or str(application.organisation), application.email]

    @display(
        description=_lazy("state"),
        label={
            State.SUBMITTED: "info",
            State.NEEDS_INFO: "warning",
            State.APPROVED: "success",
            State.REJECTED: "danger",
        },
    )
    def shown_state(self, application: Application) -> tuple[str, str]:
        return application.state, application.get_state_display()

    @display(description=_lazy("due"), label={"overdue": "danger", "due": "info"})
    def due(self, application: Application) -> Any:
        if application.state != State.SUBMITTED or not application.due_at:
            return None
        now = timezone.now()
        if application.due_at < now:
            return "overdue", _("overdue, %(when)s") % {"when": show.distance(application.due_at, now)}
        return "due", show.distance(application.due_at, now)

    @admin.display(description=_lazy("GPUs"))
    def gpus(self, application: Application) -> str:
        return format_html('<bdi dir="ltr">{}</bdi>', ", ".join(str(entry) for entry in application.entries.all()))

    @admin.display(description=_lazy("countries"))
    def countries(self, application: Application) -> str:
        return _(", ").join(sorted({country_name(entry.country) for entry in application.entries.all()}))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        application = self.get_object(request, object_id)
        form = DecisionForm(initial={"decision": None})
        status = 200
        if request.method == "POST" and application is not None:
            if not request.user.has_perm("providers.change_application"):
                raise PermissionDenied
            form = DecisionForm(request.POST)
            if form.is_valid():
                try:
                    decided = form.carry_out(application, by=request.user, at=timezone.now())
                except Refusal as refusal:
                    form.add_error(None, str(refusal))
                else:
                    messages.success(
                        request, _("%(application)s: recorded, and mailed to the applicant.") % {"application": decided}
                    )
                    return redirect("admin:providers_application_changelist")
            status = 422
            request.method = "GET"  # shown again as a page: of the application itself nothing is edited here
        context = (extra_context or {}) | {"decision": form, "title": str(application)}
        if application is not None:
            context |= self._for_review(request, application)
        response = super().change_view(request, object_id, form_url, context)
        response.status_code = status if response.status_code == 200 else response.status_code
        return response

    def _for_review(self, request: HttpRequest, application: Application) -> dict[str, Any]:
        others = Application.objects.filter(organisation=application.organisation).exclude(pk=application.pk)
        return {
            "fits": fits(facts_of(application)),
            "others": others.order_by("-created_at")[:10],
            "can_decide": request.user.has_perm("providers.change_application")
            and bool({State.APPROVED, State.NEEDS_INFO, State.REJECTED} & applications.TRANSITIONS[application.state]),
            "overdue": application.state == State.SUBMITTED
            and application.due_at
            and application.due_at < timezone.now(),
        }


@admin.register(Provider)
class ProviderAdmin(ReadOnlyAdmin):
    list_display = ["organisation", "tier", "commitment_months", "approved_at"]
    list_filter = ["tier"]
    search_fields = ["organisation__name", "organisation__members__email"]
    actions_detail = ["off_cycle"]

    @action(description=_lazy("Off-cycle payout"), url_path="off-cycle", permissions=["pay"])
    def off_cycle(self, request: HttpRequest, object_id: int) -> HttpResponse:
        provider = get_object_or_404(Provider, pk=object_id)
        return redirect("admin:payouts_payout_off_cycle", provider.organisation.public_id)

    def has_pay_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        # Named "payouts.add_payout" in the decorator, the admin's checks would look for its row, also before the first migrate.
        return request.user.has_perm("payouts.add_payout")


class GpuInline(ReadOnlyInline):
    model = Gpu
    fields = ["index", "name", "uuid", "variant", "given", "admitted", "health", "delisted_at"]
    show_change_link = True


class ClockFilter(admin.SimpleListFilter):
    title = _lazy("clock")
    parameter_name = "clock"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("off", _lazy("off by more than 5 s"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Machine]) -> QuerySet[Machine]:
        return queryset.filter(pk__in=connections.clocks_off()) if self.value() == "off" else queryset


@admin.register(Machine)
class MachineAdmin(ReadOnlyAdmin):
    list_display = [
        "name",
        "provider",
        "tier",
        "country",
        "simulated",
        "heard",
        "clock",
        "agent_version",
        "driver_version",
    ]
    list_filter = ["tier", "simulated", ClockFilter, "country"]
    search_fields = ["name", "provider__organisation__name", "public_id"]
    exclude = ["secret_hash", "old_secret_hash", "old_secret_until"]
    inlines = [GpuInline]

    @admin.display(description=_lazy("last heard from"), ordering="last_seen_at")
    def heard(self, machine: Machine) -> str:
        return show.distance(machine.last_seen_at, timezone.now()) if machine.last_seen_at else "–"

    @admin.display(description=_lazy("clock ahead, s"), ordering="clock_offset_ms")
    def clock(self, machine: Machine) -> str:
        return "–" if machine.clock_offset_ms is None else show.cut(machine.clock_offset_ms / 1000, 1)


@admin.register(Gpu)
class GpuAdmin(ReadOnlyAdmin):
    """Cards. One beyond the approved model or quantity is connected and benchmarked, and offered once it is admitted here."""

    list_display = ["name", "machine", "uuid", "variant", "given", "admitted", "health", "delisted_at"]
    list_filter = ["admitted", "given", "health", "variant"]
    search_fields = ["uuid", "machine__name", "name"]
    actions = ["admit"]

    @admin.action(description=_lazy("Admit to the marketplace"), permissions=["admit"])
    def admit(self, request: HttpRequest, queryset: QuerySet[Gpu]) -> None:
        waiting = list(queryset.filter(admitted=False))
        Gpu.objects.filter(pk__in=[gpu.pk for gpu in waiting]).update(admitted=True)
        for gpu in waiting:
            self.log_change(request, gpu, _("Admitted to the marketplace"))
        messages.success(request, _("%(count)s GPUs are admitted.") % {"count": len(waiting)})

    def has_admit_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("providers.change_gpu")


@admin.register(EnrolmentKey)
class EnrolmentKeyAdmin(ReadOnlyAdmin):
    """Which keys there are and where they were used; the hash helps nobody."""

    list_display = [
        "prefix",
        "kind",
        "name",
        "provider",
        "created_at",
        "expires_at",
        "used_at",
        "revoked_at",
        "last_used_at",
    ]
    list_filter = ["kind"]
    search_fields = ["prefix", "name", "provider__organisation__name"]
    exclude = ["hash"]


@admin.register(Schedule)
class ScheduleAdmin(ReadOnlyAdmin):
    list_display = ["machine", "effective_from", "timezone", "always", "created_at"]
    search_fields = ["machine__name"]


@admin.register(MaintenanceWindow)
class MaintenanceWindowAdmin(ReadOnlyAdmin):
    list_display = ["machine", "starts_at", "ends_at", "reason", "declared_at", "cancelled_at"]
    search_fields = ["machine__name", "reason"]


@admin.register(GpuModel)
class GpuModelAdmin(TellingAdmin):
    list_display = ["name", "vram_gib", "klass", "position", "active"]
    list_filter = ["klass", "active"]
    search_fields = ["name"]
    prepopulated_fields = {"slug": ["name"]}


class ExpectationInline(TabularInline):
    model = VariantExpectation
    extra = 0


@admin.register(GpuVariant)
class GpuVariantAdmin(TellingAdmin):
    list_display = ["name", "model", "nvml_names", "vram_mib_least", "vram_mib_most", "power_w"]
    list_filter = ["model"]
    search_fields = ["name"]
    inlines = [ExpectationInline]

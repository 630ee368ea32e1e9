"""Machines by risk: those that need a look first, and on each one's page what can be done about it."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin
from django.db import transaction
from django.db.models import Count, F, FloatField, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from gpunex.kit.registers import DecidingAdmin, Decision
from gpunex.kit.show import cut
from marketplace import listings
from providers.models import Machine
from reliability import excuses, floors, waivers
from reliability.admin.incidents import ReasonForm, links_of
from reliability.models import (
    Anomaly,
    Connection,
    Delisting,
    Floor,
    FloorWaiver,
    Incident,
    MachineRisk,
    Score,
)

# What a sign weighs beside a point of the score that is missing.
WEIGHTS = {"incidents": 10.0, "delistings": 5.0, "anomalies": 10.0, "breaks": 1.0}


class WaiveForm(forms.Form):
    floor = forms.ChoiceField(label=_lazy("Floor"), choices=Floor.choices, widget=UnfoldAdminSelectWidget())
    gpu = forms.IntegerField(
        label=_lazy("GPU index"),
        required=False,
        min_value=0,
        widget=UnfoldAdminIntegerFieldWidget(),
        help_text=_lazy("Empty: all GPUs of the machine."),
    )
    days = forms.IntegerField(
        label=_lazy("Days"), min_value=1, max_value=366, initial=14, widget=UnfoldAdminIntegerFieldWidget()
    )
    reason = forms.CharField(
        label=_lazy("Reason"),
        max_length=300,
        widget=UnfoldAdminTextareaWidget({"rows": 2}),
        help_text=_lazy("The provider reads it."),
    )


class ExcuseForm(ReasonForm):
    field_order = ("started_at", "ended_at", "reason")
    started_at = forms.DateTimeField(label=_lazy("From (UTC)"), widget=UnfoldAdminTextInputWidget({"dir": "ltr"}))
    ended_at = forms.DateTimeField(label=_lazy("Until (UTC)"), widget=UnfoldAdminTextInputWidget({"dir": "ltr"}))


@admin.register(MachineRisk)
class MachineRiskAdmin(DecidingAdmin):
    """Risk: the points that the score lacks, 10 for each incident of 7 days and open anomaly, 5 a delisting, 1 a broken connection."""

    list_display = [
        "name",
        "provider",
        "risk",
        "score",
        "incidents",
        "breaks",
        "delisted",
        "waived",
        "odd",
        "last_seen_at",
    ]
    list_filter = ["tier", "simulated", ("paused_at", admin.EmptyFieldListFilter)]
    search_fields = ["name", "provider__organisation__name", "public_id", "gpus__uuid"]
    fields = [
        "name", "provider", "tier", "risk", "score", "last_seen_at", "clock_offset_ms", "paused_at", "driver_version", "agent_version",
        "links",
    ]  # fmt: skip
    readonly_fields = ["risk", "score", "links"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        at = timezone.now()
        week, day = at - timedelta(days=7), at - timedelta(days=1)
        mine = OuterRef("pk")
        counts = {
            "incident_count": Incident.objects.filter(machine=mine, at__gt=week, excused_at=None),
            "break_count": Connection.objects.filter(machine=mine, ended_at__gt=day),
            "delisting_count": Delisting.objects.open().filter(machine=mine),
            "waiver_count": FloorWaiver.objects.valid(at).filter(machine=mine),
            "anomaly_count": Anomaly.objects.filter(machine=mine, state=Anomaly.State.OPEN),
        }
        # Not super(): it orders by what is only annotated here.
        found = (
            self.model._default_manager.get_queryset()
            .filter(retired_at=None)
            .select_related("provider__organisation")
            .annotate(
                latest_score=Subquery(
                    Score.objects.counting().filter(machine=mine).order_by("-at").values("score")[:1]
                ),
                **{name: _count(rows) for name, rows in counts.items()},
            )
        )
        return found.annotate(
            risk_now=Coalesce(100.0 - F("latest_score"), Value(0.0), output_field=FloatField())
            + WEIGHTS["incidents"] * F("incident_count")
            + WEIGHTS["delistings"] * F("delisting_count")
            + WEIGHTS["anomalies"] * F("anomaly_count")
            + WEIGHTS["breaks"] * F("break_count")
        )

    def get_ordering(self, request: HttpRequest) -> Any:
        return ["-risk_now", "pk"]

    def decisions(self, request: HttpRequest, row: Any) -> Sequence[Decision]:
        found = []
        if request.user.has_perm("reliability.add_floorwaiver"):
            found.append(Decision("waive", _("Waive a floor"), _("Waive"), WaiveForm(), self._waive(request, row)))
        if request.user.has_perm("reliability.add_pause"):
            found.append(self._pause(request, row))
        if request.user.has_perm("reliability.add_excuse"):
            found.append(
                Decision("excuse", _("Excuse a stretch of time"), _("Excuse"), ExcuseForm(), self._excuse(request, row))
            )
        return found

    def _waive(self, request: HttpRequest, row: Any) -> Any:
        def waive(form: forms.Form) -> str:
            typed, at = form.cleaned_data, timezone.now()
            machine = Machine.objects.get(pk=row.pk)
            gpu = None
            if typed["gpu"] is not None:
                gpu = machine.gpus.present().filter(index=typed["gpu"]).first()
                if gpu is None:
                    raise waivers.WaiverElsewhere
            with transaction.atomic():
                waiver = waivers.grant(
                    machine=machine,
                    gpu=gpu,
                    floor=typed["floor"],
                    reason=typed["reason"],
                    until=at + timedelta(days=typed["days"]),
                    by=request.user,
                    at=at,
                )
                floors.apply_now(machine=machine, at=at)
            listings.refresh(machines=[machine], at=at)
            return _("Waived: %(waiver)s, %(reason)s") % {"waiver": waiver, "reason": waiver.reason}

        return waive

    def _pause(self, request: HttpRequest, row: Any) -> Decision:
        def pause(form: forms.Form) -> str:
            at, machine = timezone.now(), Machine.objects.get(pk=row.pk)
            reason = form.cleaned_data["reason"]
            excuses.pause(machine=machine, by=request.user, reason=reason, at=at)
            listings.refresh(machines=[machine], at=at)
            return _("Paused: %(reason)s") % {"reason": reason}

        def resume(_form: forms.Form) -> str:
            at, machine = timezone.now(), Machine.objects.get(pk=row.pk)
            excuses.resume(machine=machine, by=request.user, at=at)
            listings.refresh(machines=[machine], at=at)
            return _("The pause is over.")

        if row.paused_at is not None:
            return Decision("resume", _("Paused"), _("End the pause"), forms.Form(), resume)
        return Decision("pause", _("Keep it off the market"), _("Pause"), ReasonForm(), pause)

    def _excuse(self, request: HttpRequest, row: Any) -> Any:
        def excuse(form: forms.Form) -> str:
            typed = form.cleaned_data
            excuses.excuse_time(
                machine=Machine.objects.get(pk=row.pk),
                started_at=typed["started_at"],
                ended_at=typed["ended_at"],
                by=request.user,
                reason=typed["reason"],
                at=timezone.now(),
            )
            return _("Excused: %(reason)s") % {"reason": typed["reason"]}

        return excuse

    @admin.display(description=_lazy("risk"), ordering="risk_now")
    def risk(self, machine: Any) -> str:
        return cut(machine.risk_now, 1)

    @admin.display(description=_lazy("score"), ordering="latest_score")
    def score(self, machine: Any) -> str:
        return "–" if machine.latest_score is None else cut(machine.latest_score, 2)

    @admin.display(description=_lazy("incidents, 7 days"), ordering="incident_count")
    def incidents(self, machine: Any) -> int:
        return machine.incident_count

    @admin.display(description=_lazy("connections broken, 24 h"), ordering="break_count")
    def breaks(self, machine: Any) -> int:
        return machine.break_count

    @admin.display(description=_lazy("floors missed"), ordering="delisting_count")
    def delisted(self, machine: Any) -> int:
        return machine.delisting_count

    @admin.display(description=_lazy("waivers"), ordering="waiver_count")
    def waived(self, machine: Any) -> int:
        return machine.waiver_count

    @admin.display(description=_lazy("open anomalies"), ordering="anomaly_count")
    def odd(self, machine: Any) -> int:
        return machine.anomaly_count

    @admin.display(description=_lazy("see also"))
    def links(self, machine: Any) -> SafeString:
        def named(model: str, text: str) -> tuple[str, str]:
            return f"{reverse(f'admin:reliability_{model}_changelist')}?q={machine.name}", text

        return links_of(
            [
                (reverse("admin:providers_machine_change", args=[machine.pk]), _("the machine and its GPUs")),
                named("incident", _("incidents")),
                named("anomaly", _("anomalies")),
                named("delisting", _("floors missed")),
                named("floorwaiver", _("waivers")),
                named("gap", _("gaps in the connection")),
                named("benchmark", _("benchmarks")),
            ]
        )


def _count(rows: QuerySet[Any]) -> Coalesce:
    counted = rows.order_by().values("machine").annotate(count=Count("pk")).values("count")
    return Coalesce(Subquery(counted), Value(0))

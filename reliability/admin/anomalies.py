"""What looks odd: a person dismisses or confirms it."""

from collections.abc import Sequence

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from unfold.decorators import display
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget

from gpunex.kit.registers import DecidingAdmin, Decision
from reliability import anomalies
from reliability.admin.incidents import as_text, links_of
from reliability.models import Anomaly

State = Anomaly.State


class DecideForm(forms.Form):
    state = forms.ChoiceField(
        label=_lazy("Decision"),
        choices=[
            (State.DISMISSED, _lazy("Dismiss: nothing is wrong")),
            (State.CONFIRMED, _lazy("Confirm: it is wrong")),
        ],
        widget=UnfoldAdminSelectWidget(),
    )
    note = forms.CharField(
        label=_lazy("Note"),
        max_length=300,
        widget=UnfoldAdminTextareaWidget({"rows": 2}),
        help_text=_lazy("Whoever looks at this machine next reads it."),
    )


@admin.register(Anomaly)
class AnomalyAdmin(DecidingAdmin):
    """Confirming changes nothing by itself: pause the machine on its own page if it has to leave the market."""

    list_display = ["shown_kind", "machine", "gpu", "shown_state", "first_seen_at", "last_seen_at", "note"]
    list_filter = ["state", "kind"]
    list_select_related = ["machine", "gpu__machine"]
    search_fields = ["machine__name", "machine__provider__organisation__name", "gpu__uuid"]
    ordering = ["-last_seen_at"]
    fields = [
        "kind", "machine", "gpu", "shown_evidence", "links", "first_seen_at", "last_seen_at", "state", "note", "by", "decided_at",
    ]  # fmt: skip
    readonly_fields = ["shown_evidence", "links"]

    def decisions(self, request: HttpRequest, row: Anomaly) -> Sequence[Decision]:
        if row.state != State.OPEN or not request.user.has_perm("reliability.change_anomaly"):
            return []

        def decide(form: forms.Form) -> str:
            typed = form.cleaned_data
            anomalies.decide(
                anomaly=row,
                state=State(typed["state"]),
                text=typed["note"],
                by=request.user,
                at=timezone.now(),
            )
            return _("%(state)s: %(note)s") % {"state": State(typed["state"]).label, "note": typed["note"]}

        return [Decision("decide", _("Look at it and decide"), _("Decide"), DecideForm(), decide)]

    @display(description=_lazy("kind"))
    def shown_kind(self, anomaly: Anomaly) -> str:
        return anomaly.get_kind_display()

    @display(
        description=_lazy("state"), label={State.OPEN: "warning", State.CONFIRMED: "danger", State.DISMISSED: "info"}
    )
    def shown_state(self, anomaly: Anomaly) -> tuple[str, str]:
        return anomaly.state, anomaly.get_state_display()

    @admin.display(description=_lazy("evidence"))
    def shown_evidence(self, anomaly: Anomaly) -> SafeString:
        return as_text(anomaly.evidence)

    @admin.display(description=_lazy("see also"))
    def links(self, anomaly: Anomaly) -> SafeString:
        found = [
            (reverse("admin:reliability_machinerisk_change", args=[anomaly.machine_id]), anomaly.machine.name),
            (f"{reverse('admin:reliability_benchmark_changelist')}?q={anomaly.machine.name}", _("its benchmarks")),
        ]
        return links_of(found)

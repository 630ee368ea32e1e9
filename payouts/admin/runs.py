"""Payout runs: what each comes to, what is in it, and the yes of two administrators above the cap."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Q, QuerySet, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.utils.translation import ngettext
from unfold.decorators import display

from gpunex.kit import show
from gpunex.kit.conflicts import retrying
from gpunex.kit.refusals import Refusal
from gpunex.policy.models import Policy
from payouts import approvals
from payouts.admin.pause import TellingPauseAdmin
from payouts.models import Payout, PayoutRun, Rail


class ApproveRunForm(forms.Form):
    """Nothing to fill in: the yes is the button."""


@admin.register(PayoutRun)
class PayoutRunAdmin(TellingPauseAdmin):
    list_display = [
        "period_end",
        "kind",
        "cadence",
        "rail",
        "execute_on",
        "stands",
        "payouts_in_it",
        "sum_of_it",
        "created_by",
        "reason",
    ]
    list_filter = ["kind", "cadence", "rail"]
    search_fields = ["=public_id", "reason"]
    list_select_related = ["created_by"]
    ordering = ["-period_end", "-pk"]
    exclude = ["approved_by"]
    readonly_fields = ["payouts_in_it", "sum_of_it", "states_in_it", "approvals_so_far"]
    change_form_outer_before_template = "admin/decision.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[PayoutRun]:
        leaving = ~Q(payouts__state__in=[Payout.State.FAILED, Payout.State.RETURNED])
        return (
            super()
            .get_queryset(request)
            .annotate(count=Count("payouts"), micro=Sum("payouts__amount_micro", filter=leaving))
        )

    @display(description=_lazy("payouts"), ordering="count")
    def payouts_in_it(self, run: Any) -> str:
        return format_html(
            '<a href="{}?run__id__exact={}">{}</a>', reverse("admin:payouts_payout_changelist"), run.pk, run.count
        )

    @display(description=_lazy("sum, USDC"), ordering="micro")
    def sum_of_it(self, run: Any) -> str:
        return show.usdc(run.micro or 0)

    @display(
        description=_lazy("stands"),
        label={"waits": "danger", "making": "warning", "cleared": "success", "empty": "info"},
    )
    def stands(self, run: Any) -> tuple[str, str]:
        if run.cleared_at is not None:
            return "cleared", _("cleared")
        if run.count and run.made_at is not None:
            return "waits", _("waits for two approvals")
        return "making", _("being made") if run.rail == Rail.USDC else _("being made, or waits for an exchange rate")

    @display(description=_lazy("states"))
    def states_in_it(self, run: PayoutRun) -> str:
        words = dict(Payout.State.choices)
        counted = run.payouts.order_by().values_list("state").annotate(count=Count("pk"))
        return "; ".join(f"{words[state]}: {count}" for state, count in counted) or "–"

    @display(description=_lazy("approved by"))
    def approvals_so_far(self, run: PayoutRun) -> str:
        return ", ".join(user.email for user in run.approved_by.all()) or "–"

    # What can be done with a run

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        run = self.get_object(request, object_id)
        form, status = ApproveRunForm(), 200
        if request.method == "POST" and run is not None:
            if not request.user.has_perm("payouts.change_payoutrun"):
                raise PermissionDenied
            form = ApproveRunForm(request.POST)
            form.is_valid()
            try:
                retrying(approvals.approve_run)(run=run, by=request.user, at=timezone.now())
            except Refusal as refusal:
                form.add_error(None, str(refusal))
            else:
                self.log_change(request, run, _("Run approved"))
                messages.success(request, _("Recorded."))
                return redirect("admin:payouts_payoutrun_change", run.pk)
            status = 422
            request.method = "GET"  # shown again as a page: of the row itself nothing is edited here
        context = dict(extra_context or {})
        if run is not None and request.user.has_perm("payouts.change_payoutrun"):
            context |= {"note": self._next(run), "decisions": self._decisions(run, form)}
        response = super().change_view(request, object_id, form_url, context)
        response.status_code = status if response.status_code == 200 else response.status_code
        return response

    def _next(self, run: PayoutRun) -> str:
        sentences = []
        if approvals.waits(run):
            sentences.append(
                _("It comes to %(total)s USDC; above %(cap)s USDC two administrators approve the whole run.")
                % {"total": show.usdc(approvals.total_micro(run)), "cap": show.usdc(Policy.load().run_cap_micro)}
            )
        elif run.cleared_at is None:
            sentences.append(
                _("It is still being made; the next sweep goes on with it.")
                if run.rail == Rail.USDC
                else _("It is not made yet. A run for banks waits for an exchange rate of the last hours.")
            )
        waiting = run.payouts.filter(state=Payout.State.RESERVED).count()
        if waiting:
            sentences.append(
                ngettext(
                    "%(count)s payout in it waits for two approvals of its own.",
                    "%(count)s payouts in it wait for two approvals of their own.",
                    waiting,
                )
                % {"count": waiting}
            )
        if Policy.load().payouts_paused:
            sentences.append(_("Payouts are paused."))
        return " ".join(sentences)

    def _decisions(self, run: PayoutRun, form: forms.Form) -> list[dict[str, Any]]:
        if not approvals.waits(run) and not form.errors:
            return []
        return [{"name": "approve", "title": _("Approve"), "form": form, "submit": _("Approve this run")}]

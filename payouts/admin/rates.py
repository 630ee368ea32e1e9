"""Exchange rates: entered with their source and time, never edited; the newest counts."""

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from unfold.decorators import display
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget, UnfoldBooleanWidget

from gpunex.kit import show
from gpunex.kit.money import UsdcFormField
from gpunex.kit.refusals import Refusal
from gpunex.kit.registers import ReadOnlyAdmin
from gpunex.policy.models import Policy
from payouts.bank import rates
from payouts.bank.rates import (
    RateFromTheFuture,
    RateJumps,
    RateOlderThanLast,
    RateStale,
    RateUnlikely,
    SourceMissing,
)
from payouts.models import FxRate

_FIELD_OF: dict[type[Refusal], str] = {
    RateFromTheFuture: "quoted_at",
    RateStale: "quoted_at",
    RateOlderThanLast: "quoted_at",
    RateUnlikely: "micro_per_unit",
    RateJumps: "sure",
    SourceMissing: "source",
}


class RateForm(forms.Form):
    currency = forms.ChoiceField(
        label=_lazy("Currency"), choices=FxRate.Currency.choices, widget=UnfoldAdminSelectWidget
    )
    micro_per_unit = UsdcFormField(
        label=_lazy("One unit costs, USDC"),
        help_text=_lazy("What one euro or one dollar costs in USDC: 1.085 says that a euro costs 1.085 USDC."),
        widget=UnfoldAdminTextInputWidget,
    )
    source = forms.CharField(
        label=_lazy("Source"),
        max_length=120,
        help_text=_lazy("Where it was read: an exchange, a bank, the address of its page."),
        widget=UnfoldAdminTextInputWidget,
    )
    quoted_at = forms.DateTimeField(
        label=_lazy("Quoted at, UTC"), widget=UnfoldAdminTextInputWidget({"type": "datetime-local", "dir": "ltr"})
    )
    sure = forms.BooleanField(
        label=_lazy("The jump is right"),
        required=False,
        help_text=_lazy("Only asked for if the rate is more than 5 % away from the last one."),
        widget=UnfoldBooleanWidget,
    )


@admin.register(FxRate)
class FxRateAdmin(ReadOnlyAdmin):
    list_display = ["currency", "shown_rate", "source", "quoted_at", "entered_by", "entered_at"]
    list_filter = ["currency", "quoted_at"]
    search_fields = ["source"]
    list_select_related = ["entered_by"]
    ordering = ["-quoted_at", "-pk"]

    @display(description=_lazy("one unit costs, USDC"), ordering="micro_per_unit")
    def shown_rate(self, rate: FxRate) -> str:
        return show.price(rate.micro_per_unit)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("payouts.add_fxrate")

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        at = timezone.now()
        form = RateForm(request.POST or None, initial={"quoted_at": f"{at:%Y-%m-%dT%H:%M}"})
        if request.method == "POST" and form.is_valid():
            data = form.cleaned_data
            try:
                rate = rates.enter(**data, by=request.user, at=at)
            except Refusal as refusal:
                form.add_error(_FIELD_OF.get(type(refusal)), str(refusal))
            else:
                self.log_addition(
                    request,
                    rate,
                    _("%(currency)s at %(rate)s, from %(source)s")
                    % {
                        "currency": rate.currency,
                        "rate": show.price(rate.micro_per_unit),
                        "source": rate.source,
                    },
                )
                messages.success(request, _("Entered. Payouts made from now on use it."))
                return redirect("admin:payouts_fxrate_changelist")
        title = _("Enter an exchange rate")
        context = self.admin_site.each_context(request) | {
            "title": title,
            "opts": self.model._meta,
            "note": self._state(at),
            "decisions": [{"title": title, "form": form, "submit": _("Enter the rate")}],
        }
        return TemplateResponse(request, "admin/payouts/bank.html", context, status=422 if form.errors else 200)

    def _state(self, at: datetime) -> str:
        """Which rates are good now, and which are too old."""
        told = []
        for currency in FxRate.Currency.values:
            rate = rates.newest(currency, at)
            if rate is None:
                told.append(_("%(currency)s: none yet") % {"currency": currency})
            else:
                told.append(
                    _("%(currency)s: %(rate)s, quoted %(ago)s")
                    % {
                        "currency": currency,
                        "rate": show.price(rate.micro_per_unit),
                        "ago": show.distance(rate.quoted_at, at),
                    }
                )
        good = _("A rate is good for %(hours)s hours.") % {"hours": Policy.load().rate_hours}
        return f"{' · '.join(told)}. {good}"

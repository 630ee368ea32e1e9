"""Forms of billing's pages: they read what was typed; the rules judge it."""

from datetime import date
from typing import Any

from django import forms
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from gpunex.kit.money import MICRO, parse_usdc
from gpunex.kit.refusals import Refusal
from gpunex.kit.time import zone

TEST_USDC_MOST = 10_000 * MICRO
REQUEST_MOST = 1_000_000 * MICRO
# Far outside of these a day in some zone is no date any more.
EARLIEST, LATEST = date(2000, 1, 1), date(9990, 12, 31)


class AmountField(forms.CharField):
    """An amount of USDC as a person writes it, read into whole micro-USDC."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("widget", forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"}))
        options.setdefault("error_messages", {"required": _("Write how much, for example 12.50.")})
        super().__init__(**options)

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        try:
            return parse_usdc(text)
        except Refusal as refusal:
            raise forms.ValidationError(str(refusal)) from refusal


class TestUsdcForm(forms.Form):
    """The development chain's gift to one's own deposit address."""

    amount = AmountField(label=_("Amount"), initial="100")

    def clean_amount(self) -> int:
        micro: int = self.cleaned_data["amount"]
        if not 0 < micro <= TEST_USDC_MOST:
            raise forms.ValidationError(_("Choose an amount from 0.000001 to 10,000 USDC."))
        return micro


class DepositRequestForm(forms.Form):
    """How much to put on the balance by a payment link."""

    amount = AmountField(label=_("Amount"))

    def clean_amount(self) -> int:
        micro: int = self.cleaned_data["amount"]
        if not 0 < micro <= REQUEST_MOST:
            raise forms.ValidationError(_("Choose an amount from 0.000001 to 1,000,000 USDC."))
        return micro


class RangeForm(forms.Form):
    """Two days of a zone, both included: half-open in time, from the first one's midnight to the midnight after the last."""

    first = forms.DateField(label=_("From"), widget=forms.DateInput(attrs={"type": "date"}))
    last = forms.DateField(label=_("To"), widget=forms.DateInput(attrs={"type": "date"}))
    zone = forms.CharField(
        label=_("Time zone of the days"),
        required=False,
        max_length=64,
        widget=forms.TextInput(attrs={"list": "zones", "autocomplete": "off", "data-ltr": True}),
    )

    def clean_zone(self) -> str:
        name: str = self.cleaned_data["zone"].strip()
        if name:
            try:
                zone(name)
            except ValueError:
                text = gettext("“%(typed)s” is not a time zone. One looks like Asia/Amman or Europe/Berlin.")
                raise forms.ValidationError(text % {"typed": name}) from None
        return name

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        first, last = data.get("first"), data.get("last")
        if isinstance(first, date) and isinstance(last, date) and first > last:
            self.add_error("last", _("This day is before the first one."))
        if isinstance(first, date) and isinstance(last, date) and (last - first).days > 366:
            self.add_error("last", _("Choose at most a year."))
        for name, day in (("first", first), ("last", last)):
            if isinstance(day, date) and not EARLIEST <= day <= LATEST:
                bounds = {"first": EARLIEST.isoformat(), "last": LATEST.isoformat()}
                self.add_error(name, gettext("Choose a day from %(first)s to %(last)s.") % bounds)
        return data

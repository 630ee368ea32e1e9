"""Forms of billing's pages: they read what was typed; the rules judge it."""

from datetime import date
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from gpunex.kit.money import MICRO, parse_usdc
from gpunex.kit.refusals import Refusal

TEST_USDC_MOST = 10_000 * MICRO


class AmountField(forms.CharField):
    """An amount of USDC as a person writes it, read into whole micro-USDC."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("widget", forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"}))
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


class RangeForm(forms.Form):
    """Two UTC days, both included."""

    first = forms.DateField(label=_("From"), widget=forms.DateInput(attrs={"type": "date"}))
    last = forms.DateField(label=_("To"), widget=forms.DateInput(attrs={"type": "date"}))

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        first, last = data.get("first"), data.get("last")
        if isinstance(first, date) and isinstance(last, date) and first > last:
            self.add_error("last", _("This day is before the first one."))
        if isinstance(first, date) and isinstance(last, date) and (last - first).days > 366:
            self.add_error("last", _("Choose at most a year."))
        return data

"""Fields for figures that people type: Arabic digits are read, and a refusal repeats what was typed and says what to write."""

import re
from decimal import Decimal, InvalidOperation
from typing import Any

from django import forms
from django.forms.utils import flatatt
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

MOST_GBPS = 400
_DIGITS = str.maketrans("٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹٫−", "01234567890123456789.-")
_WHOLE = re.compile(r"-?\d{1,12}", re.ASCII)
_DECIMAL = re.compile(r"-?\d{1,9}(\.\d{1,9})?", re.ASCII)
_MEGA = re.compile(r"(\d{1,7}(?:\.\d+)?)\s*m(?:b(?:it)?/?(?:ps|s)?)?", re.ASCII | re.IGNORECASE)
_COMMA = re.compile(r"(\d{1,4}),(\d{1,3})", re.ASCII)


class WholeNumberField(forms.Field):
    """A whole number from ``least`` to ``most``; Arabic digits are read too. A refusal repeats what was typed."""

    def __init__(self, *, least: int, most: int, not_a_number: Any, out_of_range: Any, **kwargs: Any) -> None:
        super().__init__(
            widget=forms.TextInput(attrs={"inputmode": "numeric", "dir": "ltr", "maxlength": "20"}), **kwargs
        )
        self.least, self.most = least, most
        self.not_a_number, self.out_of_range = not_a_number, out_of_range

    def clean(self, value: Any) -> int:
        text = _text(value)
        super().clean(text)
        plain = text.translate(_DIGITS)
        fields = {"typed": text[:30], "least": f"{self.least:,}", "most": f"{self.most:,}"}
        if not _WHOLE.fullmatch(plain):
            raise forms.ValidationError(self.not_a_number % fields)
        if not self.least <= int(plain) <= self.most:
            raise forms.ValidationError(self.out_of_range % fields)
        return int(plain)


class GbpsField(forms.Field):
    """A speed in Gbps with up to three decimals. A number of Mbps is refused with what it would be here."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            widget=forms.TextInput(attrs={"inputmode": "decimal", "dir": "ltr", "maxlength": "20"}), **kwargs
        )

    def clean(self, value: Any) -> Decimal:
        text = _text(value)
        super().clean(text)
        plain = text.translate(_DIGITS)
        if not _DECIMAL.fullmatch(plain):
            raise forms.ValidationError(self._not_a_number(text, plain))
        speed = Decimal(plain)
        if speed <= 0:
            raise forms.ValidationError(
                _("“%(typed)s” is not a speed. Write a number above 0, like 0.3.") % {"typed": text[:30]}
            )
        if speed > MOST_GBPS:
            raise forms.ValidationError(
                _("“%(typed)s” is more than %(most)s Gbps. %(typed)s Mbps is %(gbps)s.")
                % {"typed": text[:30], "most": MOST_GBPS, "gbps": _as_gbps(speed)}
            )
        if speed != speed.quantize(Decimal("0.001")):
            raise forms.ValidationError(
                _("“%(typed)s” has more than three decimals. 1 Mbps is 0.001.") % {"typed": text[:30]}
            )
        return speed

    def _not_a_number(self, text: str, plain: str) -> str:
        mega = _MEGA.fullmatch(plain)
        if mega:
            return _("“%(typed)s” is not a number of Gbps. %(mbps)s Mbps is %(gbps)s.") % {
                "typed": text[:30],
                "mbps": mega[1],
                "gbps": _as_gbps(Decimal(mega[1])),
            }
        comma = _COMMA.fullmatch(plain)
        if comma:
            return _("“%(typed)s” can be read in two ways. Decimals stand after a point: %(gbps)s.") % {
                "typed": text[:30],
                "gbps": f"{comma[1]}.{comma[2]}",
            }
        return _("“%(typed)s” is not a number of Gbps. 300 Mbps is 0.3.") % {"typed": text[:30]}


def _as_gbps(mbps: Decimal) -> str:
    try:
        return f"{(mbps / 1000).quantize(Decimal('0.001')).normalize():f}"
    except InvalidOperation:
        return "0.001"


def _text(value: Any) -> str:
    return str(value or "").strip()


class LongSelect(forms.Select):
    """A select of hundreds of options, written in one go: a template for each would cost most of the page's time."""

    def render(self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None) -> SafeString:
        attrs = self.build_attrs(self.attrs, {"name": name, **(attrs or {})})
        chosen = str(value or "")
        options = format_html_join(
            "",
            '<option value="{}"{}>{}</option>',
            ((code, mark_safe(" selected") if str(code) == chosen else "", words) for code, words in self.choices),
        )
        return format_html("<select{}>{}</select>", flatatt(attrs), options)

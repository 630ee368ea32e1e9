"""Money: whole micro-USDC in ``int``; 1 USDC is 1,000,000. No float and no Decimal arithmetic touches an amount.

>>> parse_usdc("2.05")
2050000
>>> as_decimal_string(2050000)
'2.05'
>>> as_decimal_string(1)
'0.000001'
"""

import re
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_lazy as _

from gpunex.kit.refusals import Refusal

MICRO = 1_000_000
_AMOUNT = re.compile(r"(\d{1,12})(?:\.(\d{1,6}))?", re.ASCII)
_ARABIC_DIGITS = str.maketrans("٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹٫", "01234567890123456789.")
# The largest amount accepted from a person: far above any real one and far below a bigint.
LARGEST_MICRO = 1_000_000_000 * MICRO


class NotAnAmount(Refusal):
    code = "not_an_amount"
    message = _("“%(text)s” is not an amount of USDC. Write it with a point and at most six decimals: 12.50.")


def parse_usdc(text: str) -> int:
    """What a person typed, as micro-USDC: digits, at most six decimals, Arabic digits too. Raises NotAnAmount.

    "1e3", "NaN", "-5", "1,5" and seven decimals are refused: each could mean more than one thing, or nothing.
    """
    if not isinstance(text, str):
        raise TypeError("amounts are read from text only")
    match = _AMOUNT.fullmatch(text.strip().translate(_ARABIC_DIGITS))
    if match is None:
        raise NotAnAmount(text=text[:40])
    micro = int(match[1]) * MICRO + int((match[2] or "0").ljust(6, "0"))
    if micro > LARGEST_MICRO:
        raise NotAnAmount(text=text[:40])
    return micro


def as_decimal_string(micro: int) -> str:
    """The exact amount for APIs and files: no exponent, no trailing zeros beyond two decimals."""
    whole, rest = divmod(abs(micro), MICRO)
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0") if rest % 10_000 == 0 else f"{rest:06d}".rstrip("0")
    return f"{'-' if micro < 0 else ''}{whole}.{decimals}"


class UsdcFormField(forms.CharField):
    """An amount as people write it, in USDC; whole micro-USDC once cleaned."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.widget.attrs |= {"inputmode": "decimal", "dir": "ltr", "autocomplete": "off"}

    def prepare_value(self, value: Any) -> Any:
        return as_decimal_string(value) if isinstance(value, int) else value

    def clean(self, value: Any) -> int | None:
        text = super().clean(value)
        if not text:
            return None
        try:
            return parse_usdc(text)
        except NotAnAmount as refusal:
            raise ValidationError(str(refusal), code=refusal.code) from refusal

    def has_changed(self, initial: Any, data: Any) -> bool:
        return super().has_changed(self.prepare_value(initial), data)


class UsdcField(models.BigIntegerField):
    """Whole micro-USDC in a bigint column. Columns are named ``*_micro``."""

    def to_python(self, value: Any) -> Any:
        if isinstance(value, float):
            raise ValidationError("an amount of money is never a float")
        return super().to_python(value)

    def formfield(self, **kwargs: Any) -> Any:
        """Typed in USDC: a slip of a zero in micro-USDC would be a factor of ten."""
        kwargs.pop("choices_form_class", None)
        return models.Field.formfield(self, form_class=UsdcFormField, **kwargs)

    def get_prep_value(self, value: Any) -> Any:
        if isinstance(value, float):
            raise TypeError("an amount of money is never a float")
        return super().get_prep_value(value)

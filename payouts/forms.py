"""Forms of the payout pages: they read what was typed; the rules judge it."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from gpunex.kit.money import parse_usdc
from gpunex.kit.refusals import Refusal
from payouts.models import Cadence, Rail

LAST_CHARACTERS = 6


class WalletForm(forms.Form):
    """An address, and its last characters typed once more: a look at the end catches a wrong paste."""

    address = forms.CharField(
        label=_("Wallet address"),
        max_length=120,
        strip=True,
        widget=forms.TextInput(attrs={"dir": "ltr", "autocomplete": "off", "spellcheck": "false", "class": "mono"}),
    )
    last_characters = forms.CharField(
        label=_("Its last 6 characters"),
        max_length=12,
        help_text=_("Read them from your wallet, not from the field above."),
        widget=forms.TextInput(attrs={"dir": "ltr", "autocomplete": "off", "spellcheck": "false", "class": "mono"}),
    )

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        address, last = data.get("address"), data.get("last_characters")
        if address and last and last != address[-LAST_CHARACTERS:]:
            self.add_error(
                "last_characters",
                _("These are not the last 6 characters of the address above. Compare both with your wallet."),
            )
        return data


class SignatureForm(forms.Form):
    """What the wallet answered with. Whether it fits, the rules say."""

    signature = forms.CharField(
        label=_("Signature"),
        max_length=200,
        strip=True,
        help_text=_("As your wallet shows it: 87 or 88 letters and digits."),
        error_messages={"required": _("Sign the text with your wallet, and paste the signature here.")},
        widget=forms.Textarea(
            attrs={"dir": "ltr", "autocomplete": "off", "spellcheck": "false", "class": "mono", "rows": 3}
        ),
    )


class ReturnForm(forms.Form):
    """How much of the unused balance goes back. ``key`` is made by the page, so that sending twice asks once."""

    EVERYTHING, AMOUNT = "everything", "amount"

    key = forms.UUIDField(widget=forms.HiddenInput)
    how = forms.ChoiceField(
        label=_("How much"),
        choices=[(EVERYTHING, _("Everything that is unused")), (AMOUNT, _("This amount"))],
        initial=EVERYTHING,
        widget=forms.RadioSelect,
    )
    amount = forms.CharField(
        label=_("Amount"),
        required=False,
        max_length=40,
        widget=forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"}),
    )

    def clean(self) -> dict[str, Any]:
        """``amount_micro``: None for everything."""
        data = super().clean() or {}
        text = (data.get("amount") or "").strip()
        data["amount_micro"] = None
        if data.get("how") != self.AMOUNT:
            # An amount beside "everything" may be meant either way, and more than was meant can't be taken back.
            if text:
                self.add_error(
                    "amount", _("You wrote an amount and chose everything. Choose “This amount”, or leave this empty.")
                )
            return data
        if not text:
            self.add_error("amount", _("Write how much, or choose everything."))
            return data
        try:
            data["amount_micro"] = parse_usdc(text)
        except Refusal as refusal:
            self.add_error("amount", str(refusal))
        return data


class CadenceForm(forms.Form):
    cadence = forms.ChoiceField(choices=Cadence.choices)


class RailForm(forms.Form):
    rail = forms.ChoiceField(choices=Rail.choices)

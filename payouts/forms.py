"""Forms of the payout pages: they read what was typed; the rules judge it."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from payouts.models import Cadence

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


class CadenceForm(forms.Form):
    cadence = forms.ChoiceField(choices=Cadence.choices)

"""Forms of reliability's pages: they read what was typed; the rules judge it."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from reliability.cases import MOST_CHARACTERS
from reliability.models import Case


class MessageForm(forms.Form):
    text = forms.CharField(
        label=_("Message"),
        max_length=MOST_CHARACTERS,
        widget=forms.Textarea(attrs={"rows": 8}),
        error_messages={"required": _("Write what it is about.")},
    )


class CaseForm(MessageForm):
    """A new case. ``initial`` may name what it is about."""

    field_order = ("kind", "subject", "reference", "text")
    kind = forms.ChoiceField(label=_("About"), choices=Case.Kind.choices)
    subject = forms.CharField(
        label=_("Subject"), max_length=120, error_messages={"required": _("Say in a few words what it is about.")}
    )
    reference = forms.CharField(
        label=_("Reference"),
        max_length=80,
        required=False,
        widget=forms.TextInput(attrs={"dir": "ltr", "autocomplete": "off"}),
        help_text=_("Filled in where a page brought you here: the rental, machine, GPU or payout it is about."),
    )


def initial_of(query: Any) -> dict[str, str]:
    """What the address of the page that linked here says: only what a case can be about."""
    about = query.get("about", "")
    kind = about if about in Case.Kind.values else Case.Kind.OTHER.value
    return {"kind": kind, "reference": " ".join(query.get("reference", "").split())[:80]}

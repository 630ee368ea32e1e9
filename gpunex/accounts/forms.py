from typing import Any

from django import forms
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import User
from gpunex.kit.time import zone


class SignupForm(forms.Form):
    """What sign-up asks beyond email and password (django-allauth mixes it in)."""

    full_name = forms.CharField(
        label=_("Full name"), max_length=120, widget=forms.TextInput(attrs={"autocomplete": "name"})
    )

    def signup(self, request: HttpRequest, user: User) -> None:
        """allauth calls this after the user is saved; the adapter has taken the name already."""


class ProfileForm(forms.ModelForm):
    """What a person sets about themselves."""

    language = forms.ChoiceField(
        label=_("Language"),
        help_text=_("Of these pages and of the mails you get."),
        choices=User.Language.choices,
        widget=forms.RadioSelect,
    )
    theme = forms.ChoiceField(
        label=_("Appearance"),
        choices=[("", _("As the device")), ("light", _("Light")), ("dark", _("Dark"))],
        widget=forms.RadioSelect,
        required=False,
    )

    class Meta:
        model = User
        fields = ("full_name", "language", "timezone", "theme")
        widgets = {
            "full_name": forms.TextInput(attrs={"autocomplete": "name", "dir": "auto"}),
            "timezone": forms.TextInput(attrs={"list": "zones", "autocomplete": "off", "data-ltr": True}),
        }
        labels = {"full_name": _("Full name")}
        help_texts = {
            "timezone": _("As Asia/Amman or Europe/Berlin. Times are in UTC unless a page names another zone."),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["full_name"].required = True

    def clean_full_name(self) -> str:
        return " ".join(self.cleaned_data["full_name"].split())

    def clean_timezone(self) -> str:
        name = self.cleaned_data["timezone"].strip()
        try:
            zone(name)
        except ValueError:
            text = gettext("“%(typed)s” is not a time zone. One looks like Asia/Amman or Europe/Berlin.")
            raise forms.ValidationError(text % {"typed": name}) from None
        return name

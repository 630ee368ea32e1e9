from django import forms
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import User


class SignupForm(forms.Form):
    """What sign-up asks beyond email and password (django-allauth mixes it in)."""

    full_name = forms.CharField(
        label=_("Full name"), max_length=120, widget=forms.TextInput(attrs={"autocomplete": "name"})
    )

    def signup(self, request: HttpRequest, user: User) -> None:
        """allauth calls this after the user is saved; the adapter has taken the name already."""

"""Second factors as django-allauth keeps them: their secrets encrypted, passkeys bound to this site, names in our words."""

import struct
from typing import Any
from urllib.parse import urlsplit

from allauth.account.internal.flows.login import get_authentication_records
from allauth.mfa.adapter import DefaultMFAAdapter, get_adapter
from allauth.mfa.models import Authenticator
from allauth.mfa.utils import is_mfa_enabled
from allauth.mfa.webauthn.forms import (
    AddWebAuthnForm,
    AuthenticateWebAuthnForm,
    EditWebAuthnForm,
    LoginWebAuthnForm,
    ReauthenticateWebAuthnForm,
)
from django import forms
from django.conf import settings
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import User
from gpunex.kit import secrets

# A recovery code alone is no second factor: it is what is left when one was lost.
FACTORS = (Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN)
NAME_CHARACTERS = 60


def has_second_factor(user: User) -> bool:
    """An authenticator app, or a passkey or security key."""
    return is_mfa_enabled(user, list(FACTORS))


def used_second_factor(request: HttpRequest) -> bool:
    """Whether this very session was opened, or confirmed, with more than the password; one from before the factor was not."""
    return any(record.get("method") == "mfa" for record in get_authentication_records(request, request.user))


class SecondFactorAdapter(DefaultMFAAdapter):
    error_messages = {
        **DefaultMFAAdapter.error_messages,
        "add_email_blocked": _(
            "An account with a second factor cannot get another address. Turn the second factor off first."
        ),
        "cannot_generate_recovery_codes": _(
            "Recovery codes come with a second factor. Set up an authenticator app or a passkey first."
        ),
        "incorrect_code": _(
            "This did not fit. Try again: a code of the app changes every 30 seconds, a recovery code works once."
        ),
        "unverified_email": _("Confirm your email address first; then a second factor can be set up."),
    }

    def encrypt(self, text: str) -> str:
        return secrets.encrypt(text).decode()

    def decrypt(self, encrypted_text: str) -> str:
        """What was stored before secrets were encrypted is read as it is."""
        try:
            return secrets.decrypt(encrypted_text.encode())
        except ValueError:
            return encrypted_text

    def generate_authenticator_name(self, user: User, type: Authenticator.Type) -> str:
        number = Authenticator.objects.filter(user=user, type=type).count() + 1
        return gettext("Passkey") if number == 1 else gettext("Passkey %(number)s") % {"number": number}

    def get_public_key_credential_rp_entity(self) -> dict[str, str]:
        """A passkey belongs to the site's name, whatever name a request came in by; the demonstration has none of its own."""
        entity = super().get_public_key_credential_rp_entity()
        if not settings.EMBEDDED:
            entity["id"] = urlsplit(settings.PUBLIC_URL).hostname or ""
        return entity | {"name": "GPUnex"}

    def get_public_key_credential_user_entity(self, user: User) -> dict[str, Any]:
        return super().get_public_key_credential_user_entity(user) | {"display_name": user.full_name or user.email}


MALFORMED = (TypeError, ValueError, AttributeError, LookupError, struct.error)


class CredentialField(forms.JSONField):
    """What a browser answered with. Text nested deeper than Python reads is no answer of a browser."""

    widget = forms.HiddenInput

    def to_python(self, value: Any) -> Any:
        try:
            return super().to_python(value)
        except RecursionError as error:
            raise get_adapter().validation_error("incorrect_code") from error

    def bound_data(self, data: Any, initial: Any) -> None:
        """An answer is good once: a refused one does not stand in the form again."""


class _Careful(forms.Form):
    """A credential that no browser makes is refused like a wrong one, whatever the library stumbles over in it."""

    credential = CredentialField()

    def clean(self) -> Any:
        try:
            return super().clean()
        except MALFORMED as error:
            raise get_adapter().validation_error("incorrect_code") from error

    def clean_credential(self) -> Any:
        credential = self.cleaned_data["credential"]
        inherited = getattr(super(), "clean_credential", lambda: credential)
        try:
            return inherited()
        except MALFORMED as error:
            raise get_adapter().validation_error("incorrect_code") from error


class AddPasskeyForm(_Careful, AddWebAuthnForm):
    """Made to sign in with alone, unless the person says otherwise."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["passwordless"].initial = True
        self.fields["name"].widget.attrs["maxlength"] = str(NAME_CHARACTERS)

    def clean_name(self) -> str:
        # Cut and not refused: the key exists already, and would be lost.
        return super().clean_name()[:NAME_CHARACTERS]


class SignInWithPasskeyForm(_Careful, LoginWebAuthnForm):
    pass


class PasskeyAsSecondFactorForm(_Careful, AuthenticateWebAuthnForm):
    pass


class ConfirmWithPasskeyForm(_Careful, ReauthenticateWebAuthnForm):
    pass


class RenamePasskeyForm(EditWebAuthnForm):
    name = forms.CharField(
        label=_("Name"),
        max_length=NAME_CHARACTERS,
        widget=forms.TextInput(attrs={"dir": "auto", "autocomplete": "off"}),
    )

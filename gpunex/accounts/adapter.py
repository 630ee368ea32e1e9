"""django-allauth's seams: its mails go through the outbox, and signing up makes an organisation."""

import uuid
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from django.core.exceptions import ValidationError
from django.core.validators import EmailValidator
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone, translation
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import Membership, User
from gpunex.accounts.organisations import open_personal
from gpunex.outbox import mail


class AccountAdapter(DefaultAccountAdapter):
    error_messages = {
        **DefaultAccountAdapter.error_messages,
        "account_inactive": _("This account is closed."),
        "duplicate_email": _("This address already belongs to your account."),
        "email_password_mismatch": _("This email and this password do not belong together."),
        "email_taken": _("Another account already has this address."),
        "enter_current_password": _("Type the present password first."),
        "incorrect_code": _("This is not the code that the app shows now. It changes every 30 seconds."),
        "incorrect_password": _("This is not the password of the account."),
        "too_many_login_attempts": _("Too many wrong passwords. Wait a few minutes, or choose a new password."),
        "rate_limited": _("Too many requests in a short time. Wait a few minutes."),
    }

    def save_user(self, request: HttpRequest, user: User, form: Any, commit: bool = True) -> User:
        user.language = (translation.get_language() or "en")[:2]
        user.full_name = (form.cleaned_data.get("full_name") or "").strip()
        with transaction.atomic():
            user = super().save_user(request, user, form, commit=commit)
            if commit:
                open_personal(user=user, at=timezone.now())
        return user

    def login(self, request: HttpRequest, user: User) -> None:
        """An account that a command made (``createsuperuser``) never signed up: it gets its organisation here."""
        super().login(request, user)
        if not Membership.objects.filter(user=user).exists():
            open_personal(user=user, at=timezone.now())

    def get_reauthentication_methods(self, user: User) -> list[dict[str, Any]]:
        """In our words, the same as on the doors."""
        words = {
            "reauthenticate": _("Use the password"),
            "mfa_reauthenticate": _("Use the app or a recovery code"),
            "mfa_reauthenticate:webauthn": _("Use a passkey"),
        }
        methods = super().get_reauthentication_methods(user)
        return [method | {"description": words.get(method["id"], method["description"])} for method in methods]

    def clean_email(self, email: str) -> str:
        """Refuse what no mail server can be found for: a domain whose name in DNS would be too long, or empty in parts."""
        email = super().clean_email(email)
        try:
            email.rpartition("@")[2].encode("idna")
        except UnicodeError:
            raise ValidationError(EmailValidator.message, code="invalid") from None
        return email

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        message = self.render_mail(template_prefix, email, {"email": email, **context})
        html = next((body for body, kind in getattr(message, "alternatives", []) if kind == "text/html"), None)
        mail.queue(
            # A verification or reset mail is asked for anew each time: its key is its own.
            key=f"account:{template_prefix}:{uuid.uuid4()}",
            event=template_prefix.rsplit("/", 1)[-1],
            to=email,
            subject=message.subject,
            text=str(message.body),
            html=str(html) if html else None,
            at=timezone.now(),
        )

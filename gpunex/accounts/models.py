"""Who acts (User), who pays and is paid (Organisation), and what they are told (Notice).

Every payer, provider, rental, key, deposit and statement belongs to an organisation; ``created_by`` names the user.
"""

import uuid
from typing import Any, ClassVar

from django.contrib.auth.models import AbstractBaseUser, BaseUserManager, PermissionsMixin
from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower
from django.utils.timezone import now
from django.utils.translation import gettext_lazy as _


class UserManager(BaseUserManager["User"]):
    def create_user(self, email: str, password: str | None = None, **fields: Any) -> "User":
        user = self.model(email=self.normalize_email(email).lower(), **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> "User":
        return self.create_user(email, password, is_staff=True, is_superuser=True, **fields)

    def get_by_natural_key(self, username: str | None) -> "User":
        return self.get(email__iexact=username)


class User(AbstractBaseUser, PermissionsMixin):
    """A person who signs in with their email address."""

    class Language(models.TextChoices):
        ENGLISH = "en", "English"
        ARABIC = "ar", "العربية"

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    email = models.EmailField(_("email"))
    full_name = models.CharField(_("full name"), max_length=120, blank=True)
    language = models.CharField(_("language"), max_length=5, choices=Language.choices, default=Language.ENGLISH)
    theme = models.CharField(_("theme"), max_length=5, blank=True)  # "", "light" or "dark"
    timezone = models.CharField(_("time zone"), max_length=64, default="UTC")
    is_staff = models.BooleanField(_("staff"), default=False)
    is_active = models.BooleanField(_("active"), default=True)
    date_joined = models.DateTimeField(_("joined"), default=now)

    objects = UserManager()

    USERNAME_FIELD = "email"
    EMAIL_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        verbose_name = _("user")
        verbose_name_plural = _("users")
        constraints = [models.UniqueConstraint(Lower("email"), name="user_email_is_unique")]

    def __str__(self) -> str:
        return self.email

    def get_full_name(self) -> str:
        return self.full_name or self.email

    def get_short_name(self) -> str:
        return self.full_name.split(" ")[0] if self.full_name else self.email


class Organisation(models.Model):
    """Who pays and who is paid. Sign-up makes a personal one."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    name = models.CharField(_("name"), max_length=120)
    personal = models.BooleanField(_("personal"), default=True)
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", verbose_name=_("created by"))
    created_at = models.DateTimeField(_("created at"), default=now)
    members: Any = models.ManyToManyField(User, through="Membership", related_name="organisations")

    class Meta:
        verbose_name = _("organisation")
        verbose_name_plural = _("organisations")

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """A user's role in an organisation."""

    class Role(models.TextChoices):
        OWNER = "owner", _("owner")
        BILLING = "billing", _("billing")
        MEMBER = "member", _("member")
        VIEWER = "viewer", _("viewer")

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships", verbose_name=_("user"))
    organisation = models.ForeignKey(
        Organisation, on_delete=models.CASCADE, related_name="memberships", verbose_name=_("organisation")
    )
    role = models.CharField(_("role"), max_length=10, choices=Role.choices, default=Role.OWNER)
    created_at = models.DateTimeField(_("created at"), default=now)

    class Meta:
        verbose_name = _("membership")
        verbose_name_plural = _("memberships")
        constraints = [models.UniqueConstraint(fields=["user", "organisation"], name="membership_is_unique")]

    def __str__(self) -> str:
        return f"{self.user} · {self.organisation}"


class Notice(models.Model):
    """What an organisation was told in its dashboard; the mail of the same event is an outbox row under the same key.

    Kept as event and data, never as text: the reader's language decides when it is shown.
    """

    organisation = models.ForeignKey(Organisation, on_delete=models.CASCADE, related_name="notices")
    key = models.CharField(max_length=160, unique=True)
    event = models.CharField(max_length=60)
    data: Any = models.JSONField(default=dict)
    created_at = models.DateTimeField(default=now)
    read_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("notice")
        verbose_name_plural = _("notices")
        indexes = [
            models.Index(name="notice_unread", fields=["organisation", "-created_at"], condition=Q(read_at=None))
        ]

    def __str__(self) -> str:
        return self.key

"""What connects a machine: single-use enrolment tokens and long-lived provider API keys. Stored as hashes only."""

from datetime import datetime
from typing import Any, Self

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from providers.models.applications import Application, Provider


class EnrolmentKeyQuerySet(models.QuerySet["EnrolmentKey"]):
    def usable(self, at: datetime) -> Self:
        """Neither revoked, nor past its time, nor a token that a host has used."""
        return self.filter(models.Q(expires_at=None) | models.Q(expires_at__gt=at), revoked_at=None).filter(
            models.Q(kind=EnrolmentKey.Kind.API_KEY) | models.Q(used_at=None)
        )


class EnrolmentKey(models.Model):
    """A secret shown once; only its SHA-256 stays."""

    class Kind(models.TextChoices):
        TOKEN = "token", _("single-use token")
        API_KEY = "api_key", _("API key")

    provider = models.ForeignKey(Provider, on_delete=models.PROTECT, related_name="keys", verbose_name=_("provider"))
    kind = models.CharField(_("kind"), max_length=8, choices=Kind.choices)
    name = models.CharField(_("name"), max_length=60, blank=True)
    prefix = models.CharField(_("prefix"), max_length=24)
    hash = models.CharField(_("SHA-256"), max_length=64, unique=True)
    application = models.ForeignKey(
        Application, null=True, blank=True, on_delete=models.PROTECT, related_name="keys", verbose_name=_("application")
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        verbose_name=_("created by"),
    )
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    expires_at = models.DateTimeField(_("expires at"), null=True, blank=True)
    used_at = models.DateTimeField(_("used at"), null=True, blank=True)
    used_fingerprint = models.CharField(_("used by host"), max_length=80, blank=True)
    revoked_at = models.DateTimeField(_("revoked at"), null=True, blank=True)
    last_used_at = models.DateTimeField(_("last used at"), null=True, blank=True)
    last_used_from = models.GenericIPAddressField(_("last used from"), null=True, blank=True)

    objects: Any = EnrolmentKeyQuerySet.as_manager()

    class Meta:
        verbose_name = _("enrolment key")
        verbose_name_plural = _("enrolment keys")

    def __str__(self) -> str:
        return f"{self.prefix}…"

    def is_usable(self, at: datetime) -> bool:
        """As ``usable`` of the queryset."""
        spent = self.kind == self.Kind.TOKEN and self.used_at is not None
        return self.revoked_at is None and not spent and (self.expires_at is None or self.expires_at > at)

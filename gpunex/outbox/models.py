"""What is to be sent: a row queued in the transaction of the operation that causes it, delivered by a sweep."""

from datetime import datetime
from typing import Any, Self

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class MessageQuerySet(models.QuerySet["Message"]):
    def due(self, at: datetime) -> Self:
        return self.filter(state=Message.State.QUEUED, next_try_at__lte=at).order_by("next_try_at", "pk")


class Message(models.Model):
    """One mail. ``body`` is encrypted (it may hold a link or token that signs in) and blanked once sent."""

    class State(models.TextChoices):
        QUEUED = "queued", _("queued")
        SENT = "sent", _("sent")
        FAILED = "failed", _("failed")

    key = models.CharField(_("key"), max_length=200, unique=True)
    event = models.CharField(_("event"), max_length=60)
    to = models.EmailField(_("to"))
    subject = models.CharField(_("subject"), max_length=300)
    body = models.BinaryField(_("body, encrypted"), null=True)
    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.QUEUED)
    tries = models.PositiveSmallIntegerField(_("tries"), default=0)
    next_try_at = models.DateTimeField(_("next try at"), default=timezone.now)
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    sent_at = models.DateTimeField(_("sent at"), null=True, blank=True)
    error = models.CharField(_("last error"), max_length=300, blank=True)

    objects: Any = MessageQuerySet.as_manager()

    class Meta:
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        indexes = [models.Index(name="message_due", fields=["next_try_at"], condition=models.Q(state="queued"))]

    def __str__(self) -> str:
        return f"{self.event} → {self.to}"

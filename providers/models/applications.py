"""Becoming a provider: the application, its GPU entries, its history; and the provider it leads to."""

import uuid
from datetime import datetime
from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.urls import reverse
from django.utils.timezone import now
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import Organisation
from gpunex.policy.models import Tier
from providers.models.catalogue import GpuModel


class Provider(models.Model):
    """An organisation that may offer GPUs, with the tier that its review gave it."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organisation = models.OneToOneField(
        Organisation, on_delete=models.PROTECT, related_name="provider", verbose_name=_("organisation")
    )
    tier = models.CharField(_("tier"), max_length=16, choices=Tier.choices)
    approved_at = models.DateTimeField(_("approved at"))
    commitment_months = models.PositiveSmallIntegerField(_("commitment, months"))

    class Meta:
        verbose_name = _("provider")
        verbose_name_plural = _("providers")

    def __str__(self) -> str:
        return self.organisation.name


class ApplicationQuerySet(models.QuerySet["Application"]):
    def waiting(self) -> Self:
        """In the review queue, the one due first at the top."""
        return self.filter(state=Application.State.SUBMITTED).order_by("due_at", "pk")

    def overdue(self, at: datetime) -> Self:
        return self.waiting().filter(due_at__lt=at)

    def open(self) -> Self:
        return self.filter(state__in=Application.OPEN_STATES)


class Application(models.Model):
    """An organisation's request to provide GPUs."""

    class State(models.TextChoices):
        DRAFT = "draft", _("draft")
        SUBMITTED = "submitted", _("submitted")
        NEEDS_INFO = "needs_info", _("more information needed")
        APPROVED = "approved", _("approved")
        REJECTED = "rejected", _("rejected")
        WITHDRAWN = "withdrawn", _("withdrawn")

    OPEN_STATES = (State.DRAFT, State.SUBMITTED, State.NEEDS_INFO)

    class Commitment(models.IntegerChoices):
        THREE = 3, _("3 months")
        SIX = 6, _("6 months")
        TWELVE = 12, _("12 months")

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="applications", verbose_name=_("organisation")
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", verbose_name=_("created by")
    )
    full_name = models.CharField(_("full legal name"), max_length=120)
    email = models.EmailField(_("email"))
    company = models.CharField(_("company"), max_length=120, blank=True)
    ups = models.BooleanField(_("UPS"), default=False)
    commitment_months = models.PositiveSmallIntegerField(
        _("commitment"), choices=Commitment.choices, default=Commitment.THREE
    )
    maintenance_notes = models.TextField(_("maintenance notes"), max_length=4000, blank=True)
    state = models.CharField(_("state"), max_length=12, choices=State.choices, default=State.DRAFT)
    tier = models.CharField(_("tier"), max_length=16, choices=Tier.choices, blank=True)
    # What was typed and not sent yet, as {field: [texts]}: also what is not an answer yet ("300M"). None once sent.
    draft: Any = models.JSONField(_("draft"), null=True, blank=True)
    draft_saved_at = models.DateTimeField(_("draft saved at"), null=True, blank=True)
    form_token = models.UUIDField(
        _("form token"), default=uuid.uuid4, unique=True, editable=False
    )  # one page load, one application
    created_at = models.DateTimeField(_("created at"), default=now)
    submitted_at = models.DateTimeField(_("submitted at"), null=True, blank=True)
    due_at = models.DateTimeField(_("review due at"), null=True, blank=True)
    decided_at = models.DateTimeField(_("decided at"), null=True, blank=True)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        verbose_name=_("decided by"),
    )

    objects: Any = ApplicationQuerySet.as_manager()

    class Meta:
        verbose_name = _("application")
        verbose_name_plural = _("applications")
        constraints = [
            models.UniqueConstraint(
                fields=["organisation"],
                condition=Q(state__in=["draft", "submitted", "needs_info"]),
                name="one_open_application",
                violation_error_message=_("You already have an open application."),
            ),
            models.CheckConstraint(name="approved_has_tier", condition=~Q(state="approved") | ~Q(tier="")),
        ]
        indexes = [models.Index(fields=["state", "due_at"], name="application_queue")]

    def __str__(self) -> str:
        return f"{self.company or self.full_name} ({self.get_state_display()})"

    def get_absolute_url(self) -> str:
        return reverse("providers:application", args=[self.public_id])


class ApplicationEntry(models.Model):
    """A group of like GPUs: how many, in what host, where, and when they are available."""

    application = models.ForeignKey(
        Application, on_delete=models.CASCADE, related_name="entries", verbose_name=_("application")
    )
    position = models.PositiveSmallIntegerField(_("position"), default=0)
    gpu_model = models.ForeignKey(
        GpuModel, null=True, blank=True, on_delete=models.PROTECT, related_name="+", verbose_name=_("GPU model")
    )
    other_model = models.CharField(_("other model"), max_length=80, blank=True)
    quantity = models.PositiveSmallIntegerField(_("quantity"))
    host_memory_gb = models.PositiveIntegerField(_("host memory, GB"))
    download_gbps = models.DecimalField(_("download, Gbps"), max_digits=7, decimal_places=3)
    upload_gbps = models.DecimalField(_("upload, Gbps"), max_digits=7, decimal_places=3)
    always_available = models.BooleanField(_("available 24/7"), default=True)
    # [[weekday 0-6 (Monday 0), "HH:MM", "HH:MM"], …] in `timezone`; an end before its start runs over midnight,
    # "24:00" ends the day. See providers.weeks.
    windows: Any = models.JSONField(_("weekly hours"), default=list, blank=True)
    timezone = models.CharField(_("time zone"), max_length=64, default="UTC")
    country = models.CharField(_("country"), max_length=2)
    city = models.CharField(_("city"), max_length=80, blank=True)
    datacenter_region = models.CharField(_("datacenter region"), max_length=80, blank=True)

    class Meta:
        verbose_name = _("GPU entry")
        verbose_name_plural = _("GPU entries")
        ordering = ["position", "pk"]
        constraints = [
            models.CheckConstraint(
                name="entry_names_a_model", condition=Q(gpu_model__isnull=False) | ~Q(other_model="")
            ),
            models.CheckConstraint(name="entry_quantity_range", condition=Q(quantity__gte=1, quantity__lte=5000)),
            models.CheckConstraint(name="entry_speeds_positive", condition=Q(download_gbps__gt=0, upload_gbps__gt=0)),
        ]

    def __str__(self) -> str:
        return f"{self.quantity} × {self.model_name}"

    @property
    def model_name(self) -> str:
        return self.gpu_model.name if self.gpu_model else self.other_model


class ApplicationEvent(models.Model):
    """One change of an application's state: who, when, from what to what, and the words that went with it."""

    application = models.ForeignKey(
        Application, on_delete=models.CASCADE, related_name="events", verbose_name=_("application")
    )
    at = models.DateTimeField(_("at"))
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        verbose_name=_("by"),
    )
    from_state = models.CharField(_("from"), max_length=12, choices=Application.State.choices, blank=True)
    to_state = models.CharField(_("to"), max_length=12, choices=Application.State.choices)
    message = models.TextField(_("message"), max_length=4000, blank=True)
    overruled = models.TextField(
        _("requirements overruled because"), max_length=4000, blank=True
    )  # for the team's eyes

    class Meta:
        verbose_name = _("application event")
        verbose_name_plural = _("application events")
        ordering = ["at", "pk"]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M} {self.to_state}"

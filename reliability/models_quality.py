"""What follows from what machines did: delistings and their waivers, what looks odd, and what people ask about it."""

import uuid
from datetime import datetime
from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import Organisation
from providers.models import Gpu, Machine


class Floor(models.TextChoices):
    """The quality floors, the gravest first."""

    SOFTWARE = "software", _("software versions")
    MACHINE = "machine", _("network and SSD")
    PERFORMANCE = "performance", _("benchmark")
    UPTIME = "uptime", _("uptime")


class DelistingQuerySet(models.QuerySet["Delisting"]):
    def open(self) -> Self:
        return self.filter(ended_at=None)


class Delisting(models.Model):
    """An episode in which a GPU (or, without one, the whole machine) was below one floor. Several may be open at once."""

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="delistings", verbose_name=_("machine"))
    gpu = models.ForeignKey(
        Gpu, null=True, blank=True, on_delete=models.PROTECT, related_name="delistings", verbose_name=_("GPU")
    )
    floor = models.CharField(_("floor"), max_length=12, choices=Floor.choices)
    reason: Any = models.JSONField(
        _("because"), default=dict
    )  # as Gpu.delisted_reason: ``reliability.floors`` says it in words
    started_at = models.DateTimeField(_("started at"))
    ended_at = models.DateTimeField(_("ended at"), null=True, blank=True)
    told_at = models.DateTimeField(_("told at"), null=True, blank=True)

    objects: Any = DelistingQuerySet.as_manager()

    class Meta:
        verbose_name = _("delisting")
        verbose_name_plural = _("delistings")
        constraints = [
            models.UniqueConstraint(
                fields=["machine", "gpu", "floor"],
                condition=Q(ended_at=None),
                nulls_distinct=False,
                name="one_open_delisting",
            ),
            models.CheckConstraint(
                name="delisting_ends_later", condition=Q(ended_at=None) | Q(ended_at__gte=F("started_at"))
            ),
        ]
        indexes = [models.Index(fields=["machine", "-started_at"], name="delisting_recent")]

    def __str__(self) -> str:
        return f"{self.gpu or self.machine} {self.get_floor_display()}"


class FloorWaiverQuerySet(models.QuerySet["FloorWaiver"]):
    def valid(self, at: datetime) -> Self:
        return self.filter(revoked_at=None, at__lte=at, until__gt=at)


class FloorWaiver(models.Model):
    """An admin lets a machine or one of its GPUs stay on the market below one floor, for a reason and until a date."""

    machine = models.ForeignKey(
        Machine, on_delete=models.PROTECT, related_name="floor_waivers", verbose_name=_("machine")
    )
    gpu = models.ForeignKey(
        Gpu,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="floor_waivers",
        verbose_name=_("GPU"),
        help_text=_("empty: all GPUs of the machine"),
    )
    floor = models.CharField(_("floor"), max_length=12, choices=Floor.choices)
    reason = models.CharField(_("reason"), max_length=300, help_text=_("The provider reads it."))
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", verbose_name=_("waived by")
    )
    at = models.DateTimeField(_("waived at"))
    until = models.DateTimeField(_("until"))
    revoked_at = models.DateTimeField(_("revoked at"), null=True, blank=True)
    revoked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        verbose_name=_("revoked by"),
    )

    objects: Any = FloorWaiverQuerySet.as_manager()

    class Meta:
        verbose_name = _("floor waiver")
        verbose_name_plural = _("floor waivers")
        constraints = [
            models.CheckConstraint(name="waiver_has_length", condition=Q(until__gt=F("at"))),
            models.CheckConstraint(name="waiver_has_reason", condition=~Q(reason="")),
        ]
        indexes = [models.Index(fields=["machine", "-until"], name="waiver_of_machine")]

    def __str__(self) -> str:
        return f"{self.gpu or self.machine} {self.get_floor_display()}"


class MachineRisk(Machine):
    """The same machines, as the administration ranks them by risk."""

    class Meta:
        proxy = True
        verbose_name = _("machine by risk")
        verbose_name_plural = _("machines by risk")


class Anomaly(models.Model):
    """Something odd that a person should look at; it changes nothing by itself."""

    class Kind(models.TextChoices):
        DUPLICATE_UUID = "duplicate_uuid", _("one GPU on two machines")
        TOO_GOOD = "too_good", _("benchmark too good for its own history")
        JUMP = "jump", _("sudden jump between two benchmarks")
        CLOCK = "clock", _("clock off")
        GPU_COUNT = "gpu_count", _("number of GPUs changed")
        MANY_MACHINES = "many_machines", _("many machines by one key in a day")

    class State(models.TextChoices):
        OPEN = "open", _("open")
        DISMISSED = "dismissed", _("dismissed")
        CONFIRMED = "confirmed", _("confirmed")

    kind = models.CharField(_("kind"), max_length=16, choices=Kind.choices)
    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="anomalies", verbose_name=_("machine"))
    gpu = models.ForeignKey(
        Gpu, null=True, blank=True, on_delete=models.PROTECT, related_name="anomalies", verbose_name=_("GPU")
    )
    evidence: Any = models.JSONField(_("evidence"), default=dict)
    first_seen_at = models.DateTimeField(_("first seen at"))
    last_seen_at = models.DateTimeField(_("last seen at"))
    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.OPEN)
    note = models.CharField(_("note"), max_length=300, blank=True)
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        verbose_name=_("decided by"),
    )
    decided_at = models.DateTimeField(_("decided at"), null=True, blank=True)

    class Meta:
        verbose_name = _("anomaly")
        verbose_name_plural = _("anomalies")
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "machine", "gpu"],
                condition=Q(state="open"),
                nulls_distinct=False,
                name="one_open_anomaly",
            ),
        ]
        indexes = [models.Index(fields=["machine", "-last_seen_at"], name="anomaly_recent")]

    def __str__(self) -> str:
        return f"{self.get_kind_display()}: {self.gpu or self.machine}"


class Case(models.Model):
    """A question or an appeal: the contact and support channel, and how a decision of ours is appealed."""

    class Kind(models.TextChoices):
        INCIDENT = "incident", _("Appeal of an incident")
        FLOOR = "floor", _("Appeal of a delisting")
        BENCHMARK = "benchmark", _("Appeal of a benchmark")
        MONEY = "money", _("Money")
        OTHER = "other", _("Something else")

    class State(models.TextChoices):
        OPEN = "open", _("waits for our answer")
        ANSWERED = "answered", _("answered")
        CLOSED = "closed", _("closed")

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="cases", verbose_name=_("organisation")
    )
    opened_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", verbose_name=_("opened by")
    )
    kind = models.CharField(_("about"), max_length=10, choices=Kind.choices)
    subject = models.CharField(_("subject"), max_length=120)
    # What it is about, as the page that linked here named it: an incident's, machine's, GPU's, rental's or payout's id.
    reference = models.CharField(_("reference"), max_length=80, blank=True)
    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.OPEN)
    opened_at = models.DateTimeField(_("opened at"), default=timezone.now)
    # Since when it waits for us; moves with each message of the person.
    changed_at = models.DateTimeField(_("last message at"), default=timezone.now)
    closed_at = models.DateTimeField(_("closed at"), null=True, blank=True)

    class Meta:
        verbose_name = _("case")
        verbose_name_plural = _("cases")
        indexes = [
            models.Index(fields=["organisation", "-changed_at"], name="case_recent"),
            models.Index(fields=["changed_at"], condition=Q(state="open"), name="case_waiting"),
        ]

    def __str__(self) -> str:
        return self.subject

    def get_absolute_url(self) -> str:
        return reverse("reliability:case", args=[self.public_id])


class CaseMessage(models.Model):
    """One message of a case; never edited."""

    case = models.ForeignKey(Case, on_delete=models.PROTECT, related_name="messages", verbose_name=_("case"))
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", verbose_name=_("author")
    )
    from_staff = models.BooleanField(_("from our team"), default=False)
    text = models.TextField(_("text"))
    at = models.DateTimeField(_("at"))

    class Meta:
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        ordering = ["at", "pk"]
        indexes = [models.Index(fields=["case", "at"], name="case_message_order")]

    def __str__(self) -> str:
        return f"{self.case} {self.at:%Y-%m-%d %H:%M}"

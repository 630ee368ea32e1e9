"""Scores of machines, and what they rest on beside connections, jobs and benchmark runs."""

from collections.abc import Iterable
from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import F, Q, Subquery
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _

from providers.models import Gpu, Machine

FIRST_COUNTING = 2  # the version of the score's formula that counts where no admin has ever switched


class ScoreQuerySet(models.QuerySet["Score"]):
    def counting(self) -> Self:
        """Those of the version that counts now."""
        switched = FormulaSwitch.objects.order_by("-at", "-pk").values("version")[:1]
        return self.filter(version=Coalesce(Subquery(switched), FIRST_COUNTING))

    def latest_of(self, machines: Iterable[Any]) -> dict[int, "Score"]:
        """The newest score that counts of each machine that has one, by the machine's key, in one query."""
        newest = self.counting().filter(machine__in=machines).order_by("machine", "-at").distinct("machine")
        return {score.machine_id: score for score in newest}


class Score(models.Model):
    """A machine's reliability as computed at a time by one version of the formula: 0 to 100, and its three parts 0 to 1."""

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="scores", verbose_name=_("machine"))
    at = models.DateTimeField(_("at"))
    version = models.PositiveSmallIntegerField(_("formula version"))
    score = models.FloatField(_("score, 0 to 100"))
    uptime = models.FloatField(_("uptime, 0 to 1"))
    completion = models.FloatField(_("completion, 0 to 1"))
    consistency = models.FloatField(_("consistency, 0 to 1"))
    new = models.BooleanField(_("new"), default=False)
    margin = models.FloatField(_("margin, ±"), null=True)  # nine of ten; null in version 1
    # Hours, jobs and runs; "cards": each GPU's own score by its public id; "digest" of the events it was computed from.
    inputs: Any = models.JSONField(_("inputs"), default=dict)

    objects: Any = ScoreQuerySet.as_manager()

    class Meta:
        verbose_name = _("score")
        verbose_name_plural = _("scores")
        constraints = [models.UniqueConstraint(fields=["machine", "at", "version"], name="score_once")]
        indexes = [
            models.Index(fields=["machine", "-at"], name="score_recent"),
            models.Index(fields=["machine", "version", "-at"], name="score_of_version"),
        ]

    def __str__(self) -> str:
        return f"{self.machine} {self.score:.2f}"


class Availability(models.Model):
    """From a time on, what stands between a GPU and its next renter: append-only, in force until the next row.

    Written by ``reliability.availability``, which says what each state counts as.
    """

    class State(models.TextChoices):
        AVAILABLE = "available", _("available")
        HIDDEN = "hidden", _("hidden by its provider")
        DRAINING = "draining", _("draining")
        HUNG = "hung", _("its driver hangs")
        FAILED = "failed", _("failed")
        DELISTED = "delisted", _("below a floor")
        UNMEASURED = "unmeasured", _("has to be measured first")
        KEPT = "kept", _("kept by its provider")
        GONE = "gone", _("no longer found on the host")
        UNADMITTED = "unadmitted", _("not admitted")
        PAUSED = "paused", _("paused by our team")

    gpu = models.ForeignKey(
        Gpu, on_delete=models.PROTECT, db_index=False, related_name="availability", verbose_name=_("GPU")
    )
    at = models.DateTimeField(_("from"))
    state = models.CharField(_("state"), max_length=12, choices=State.choices)

    class Meta:
        verbose_name = _("availability")
        verbose_name_plural = _("availability")
        indexes = [
            models.Index(fields=["gpu", "-at", "-id"], name="availability_of_gpu"),
            models.Index(fields=["-at"], name="availability_recent"),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_id} {self.state}"


class Pause(models.Model):
    """An admin keeps a machine off the market, and why. Its declared time counts neither for nor against it."""

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="pauses", verbose_name=_("machine"))
    started_at = models.DateTimeField(_("from"))
    ended_at = models.DateTimeField(_("until"), null=True, blank=True)
    reason = models.CharField(_("because"), max_length=300)
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", verbose_name=_("paused by")
    )
    ended_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", verbose_name=_("ended by")
    )

    class Meta:
        verbose_name = _("pause")
        verbose_name_plural = _("pauses")
        constraints = [
            models.UniqueConstraint(fields=["machine"], condition=Q(ended_at=None), name="one_open_pause"),
            models.CheckConstraint(name="pause_has_reason", condition=~Q(reason="")),
        ]

    def __str__(self) -> str:
        return f"{self.machine} {self.started_at:%Y-%m-%d %H:%M}"


class Excuse(models.Model):
    """A stretch that an admin takes out of a machine's uptime, and why; counts from ``recorded_at`` on. Append-only."""

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="excuses", verbose_name=_("machine"))
    started_at = models.DateTimeField(_("from"))
    ended_at = models.DateTimeField(_("until"))
    reason = models.CharField(_("because"), max_length=300)
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", verbose_name=_("by")
    )
    recorded_at = models.DateTimeField(_("recorded at"))

    class Meta:
        verbose_name = _("excused time")
        verbose_name_plural = _("excused times")
        constraints = [
            models.CheckConstraint(name="excuse_has_length", condition=Q(ended_at__gt=F("started_at"))),
            models.CheckConstraint(name="excuse_has_reason", condition=~Q(reason="")),
        ]
        indexes = [
            models.Index(fields=["machine", "-ended_at"], name="excuse_of_machine"),
            models.Index(fields=["-recorded_at"], name="excuse_recorded"),
        ]

    def __str__(self) -> str:
        return f"{self.machine} {self.started_at:%Y-%m-%d %H:%M}"


class ScoreTerms(models.Model):
    """What the policy said of the score, from a time on. Append-only, so that a past score can be computed again."""

    effective_from = models.DateTimeField(_("in force from"), unique=True)
    half_life_days = models.PositiveSmallIntegerField(_("half-life, days"))
    window_days = models.PositiveSmallIntegerField(_("window, days"))
    notice_hours = models.PositiveSmallIntegerField(_("maintenance notice, hours"))
    budget_hours = models.PositiveSmallIntegerField(_("excused maintenance, hours a month"))

    class Meta:
        verbose_name = _("terms of the score")
        verbose_name_plural = _("terms of the score")

    def __str__(self) -> str:
        return f"{self.effective_from:%Y-%m-%d %H:%M}"


class FormulaSwitch(models.Model):
    """From a time on this version of the score's formula counts; newer ones run in its shadow. Append-only."""

    version = models.PositiveSmallIntegerField(_("version"))
    at = models.DateTimeField(_("from"))
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", verbose_name=_("by")
    )
    reason = models.CharField(_("because"), max_length=300)

    class Meta:
        verbose_name = _("formula of the score")
        verbose_name_plural = _("formulas of the score")
        constraints = [models.CheckConstraint(name="switch_has_reason", condition=~Q(reason=""))]

    def __str__(self) -> str:
        return str(self.version)


class DailyUptime(models.Model):
    """One UTC day of one machine, all its cards together, in card-seconds: declared, of it excused, and of the rest available."""

    machine = models.ForeignKey(
        Machine, on_delete=models.CASCADE, db_index=False, related_name="days", verbose_name=_("machine")
    )
    day = models.DateField(_("day"))
    declared_s = models.FloatField(_("declared, card-seconds"))
    excused_s = models.FloatField(_("excused, card-seconds"))
    available_s = models.FloatField(_("available, card-seconds"))

    class Meta:
        verbose_name = _("day of uptime")
        verbose_name_plural = _("days of uptime")
        constraints = [models.UniqueConstraint(fields=["machine", "day"], name="uptime_day_once")]

    def __str__(self) -> str:
        return f"{self.machine_id} {self.day}"

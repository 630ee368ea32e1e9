"""Machines and their GPUs, the schedule they declare, and planned maintenance."""

import uuid
from datetime import datetime, timedelta
from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils.timezone import now
from django.utils.translation import gettext_lazy as _

from gpunex.policy.models import Tier
from providers.models.applications import ApplicationEntry, Provider
from providers.models.catalogue import GpuVariant
from providers.models.keys import EnrolmentKey


class MachineQuerySet(models.QuerySet["Machine"]):
    def live(self) -> Self:
        """Not retired: it may come back at any time."""
        return self.filter(retired_at=None)

    def connected(self, at: datetime, offline_seconds: int) -> Self:
        return self.live().filter(last_seen_at__gt=at - timedelta(seconds=offline_seconds))


class Machine(models.Model):
    """A host that runs the agent. ``revision`` moves with every change of what it should run."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    provider = models.ForeignKey(
        Provider, on_delete=models.PROTECT, related_name="machines", verbose_name=_("provider")
    )
    entry = models.ForeignKey(
        ApplicationEntry,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="machines",
        verbose_name=_("approved entry"),
    )
    enrolled_with = models.ForeignKey(
        EnrolmentKey, on_delete=models.PROTECT, related_name="machines", verbose_name=_("enrolled with")
    )
    name = models.CharField(_("name"), max_length=63)
    fingerprint = models.CharField(_("fingerprint"), max_length=80)
    simulated = models.BooleanField(_("simulated"), default=False)
    tier = models.CharField(_("tier offered as"), max_length=16, choices=Tier.choices)
    # Why it is below its provider's tier: {"host": […], "measured": […]} of providers.tiers.Shortfall; empty lists where it is not.
    tier_reasons: Any = models.JSONField(_("below its provider's tier because"), default=dict, blank=True)
    country = models.CharField(_("country"), max_length=2, blank=True)
    city = models.CharField(_("city"), max_length=80, blank=True)
    datacenter_region = models.CharField(_("datacenter region"), max_length=80, blank=True)
    ups = models.BooleanField(_("UPS"), default=False)

    secret_hash = models.CharField(_("secret, SHA-256"), max_length=64, unique=True)
    old_secret_hash = models.CharField(_("old secret, SHA-256"), max_length=64, blank=True)
    old_secret_until = models.DateTimeField(_("old secret valid until"), null=True, blank=True)

    agent_version = models.CharField(_("agent version"), max_length=20, blank=True)
    boot_id = models.CharField(_("boot id"), max_length=64, blank=True)
    host: Any = models.JSONField(_("host facts"), default=dict)  # the protocol's Inventory.host as last reported
    cuda_version = models.CharField(_("CUDA version"), max_length=12, blank=True)
    driver_version = models.CharField(_("driver version"), max_length=24, blank=True)
    # How far its clock is ahead of ours, smoothed; one that is far from it waits beside it for the next beat to confirm it.
    clock_offset_ms = models.IntegerField(_("clock offset, ms"), null=True, blank=True)
    clock_candidate_ms = models.IntegerField(_("clock perhaps ahead by, ms"), null=True, blank=True)
    nvml = models.CharField(_("NVML"), max_length=8, default="ok")

    revision = models.BigIntegerField(_("revision"), default=0)
    enrolled_at = models.DateTimeField(_("enrolled at"), default=now)
    last_seen_at = models.DateTimeField(_("last seen at"), null=True, blank=True)
    connected_since = models.DateTimeField(_("connected since"), null=True, blank=True)
    offline_since = models.DateTimeField(_("offline since"), null=True, blank=True)
    lost_at = models.DateTimeField(_("lost at"), null=True, blank=True)
    # Its connection keeps breaking: its offers wait until then.
    unsettled_until = models.DateTimeField(_("unsettled until"), null=True, blank=True)
    draining = models.BooleanField(_("draining"), default=False)
    hidden_at = models.DateTimeField(_("hidden by the provider at"), null=True, blank=True)
    paused_at = models.DateTimeField(_("paused by an admin at"), null=True, blank=True)
    retired_at = models.DateTimeField(_("retired at"), null=True, blank=True)

    objects: Any = MachineQuerySet.as_manager()

    class Meta:
        verbose_name = _("machine")
        verbose_name_plural = _("machines")
        constraints = [
            models.UniqueConstraint(
                fields=["provider", "fingerprint"], condition=Q(retired_at=None), name="one_machine_a_host"
            ),
            models.UniqueConstraint(
                fields=["provider", "name"], condition=Q(retired_at=None), name="machine_name_is_unique"
            ),
        ]
        # No index has last_seen_at: each heartbeat would write to every index of the table.

    def __str__(self) -> str:
        return self.name

    def is_connected(self, at: datetime, offline_seconds: int) -> bool:
        """Heard from within ``offline_seconds``."""
        return (
            self.retired_at is None
            and self.last_seen_at is not None
            and (at - self.last_seen_at).total_seconds() < offline_seconds
        )

    def is_unsettled(self, at: datetime) -> bool:
        """Its connection broke so often that its offers wait."""
        return self.unsettled_until is not None and at < self.unsettled_until


class GpuQuerySet(models.QuerySet["Gpu"]):
    def present(self) -> Self:
        return self.filter(removed_at=None)

    def offerable(self) -> Self:
        """Present, given to the platform, admitted, catalogued and not failing."""
        return self.present().filter(given=True, admitted=True, variant__isnull=False).exclude(health=Gpu.Health.FATAL)


class Gpu(models.Model):
    """One card, known by its UUID."""

    class Health(models.TextChoices):
        OK = "ok", _("healthy")
        DEGRADED = "degraded", _("degraded")
        FATAL = "fatal", _("failed")

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="gpus", verbose_name=_("machine"))
    uuid = models.CharField(_("GPU UUID"), max_length=80)
    index = models.PositiveSmallIntegerField(_("index"))
    variant = models.ForeignKey(
        GpuVariant, null=True, blank=True, on_delete=models.PROTECT, related_name="gpus", verbose_name=_("variant")
    )
    name = models.CharField(_("name by NVML"), max_length=96)
    vram_mib = models.PositiveIntegerField(_("VRAM, MiB"), null=True, blank=True)
    facts: Any = models.JSONField(_("facts"), default=dict)  # the protocol's Inventory.gpus[] as last reported
    given = models.BooleanField(_("given to the platform"), default=True)
    admitted = models.BooleanField(
        _("admitted"), default=False, help_text=_("within the approved model and quantity, or admitted by an admin")
    )
    health = models.CharField(_("health"), max_length=8, choices=Health.choices, default=Health.OK)
    health_reason = models.CharField(_("reason"), max_length=200, blank=True)
    # Set by reliability: the provider-visible reason why the GPU is off the market, and its score against its model.
    delisted_at = models.DateTimeField(_("delisted at"), null=True, blank=True)
    delisted_reason: Any = models.JSONField(_("delisted because"), null=True, blank=True)
    performance = models.FloatField(_("performance score, model = 100"), null=True, blank=True)
    benchmarked_at = models.DateTimeField(_("benchmarked at"), null=True, blank=True)
    first_seen_at = models.DateTimeField(_("first seen at"), default=now)
    removed_at = models.DateTimeField(_("gone since"), null=True, blank=True)

    objects: Any = GpuQuerySet.as_manager()

    class Meta:
        verbose_name = _("GPU")
        verbose_name_plural = _("GPUs")
        ordering = ["machine", "index"]
        constraints = [
            # Two live machines can't both have one card: the second report is a mistake or a lie.
            models.UniqueConstraint(fields=["uuid"], condition=Q(removed_at=None), name="gpu_uuid_lives_once"),
        ]

    def __str__(self) -> str:
        return f"{self.machine.name} #{self.index}"


class Schedule(models.Model):
    """A version of a machine's declared hours. Append-only: the version in force at a time is what counts for it."""

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="schedules", verbose_name=_("machine"))
    effective_from = models.DateTimeField(_("in force from"))
    timezone = models.CharField(_("time zone"), max_length=64)
    always = models.BooleanField(_("24/7"), default=True)
    windows: Any = models.JSONField(_("weekly hours"), default=list, blank=True)  # as ApplicationEntry.windows
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        verbose_name=_("created by"),
    )
    created_at = models.DateTimeField(_("created at"), default=now)

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        ordering = ["machine", "effective_from", "pk"]
        indexes = [models.Index(fields=["machine", "-effective_from"], name="schedule_in_force")]

    def __str__(self) -> str:
        return f"{self.machine} {self.effective_from:%Y-%m-%d}"


class MaintenanceWindow(models.Model):
    """Planned maintenance, told beforehand."""

    machine = models.ForeignKey(
        Machine, on_delete=models.PROTECT, related_name="maintenance", verbose_name=_("machine")
    )
    starts_at = models.DateTimeField(_("starts at"))
    ends_at = models.DateTimeField(_("ends at"))
    reason = models.CharField(_("reason"), max_length=200, blank=True)
    declared_at = models.DateTimeField(_("declared at"), default=now)
    declared_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        verbose_name=_("declared by"),
    )
    cancelled_at = models.DateTimeField(_("cancelled at"), null=True, blank=True)

    class Meta:
        verbose_name = _("maintenance window")
        verbose_name_plural = _("maintenance windows")
        constraints = [models.CheckConstraint(name="maintenance_has_length", condition=Q(ends_at__gt=F("starts_at")))]

    def __str__(self) -> str:
        return f"{self.machine} {self.starts_at:%Y-%m-%d %H:%M}"

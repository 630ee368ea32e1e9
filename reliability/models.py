"""What machines did: connections, telemetry, benchmarks, incidents; and the scores that follow from them."""

import uuid
from typing import Any

from django.conf import settings
from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from providers.models import Gpu, Machine, Workload


class Connection(models.Model):
    """A stretch in which a machine was heard from without a gap of more than the offline time."""

    machine = models.ForeignKey(
        Machine, on_delete=models.PROTECT, related_name="connections", verbose_name=_("machine")
    )
    boot_id = models.CharField(_("boot id"), max_length=64, blank=True)
    started_at = models.DateTimeField(_("started at"))
    ended_at = models.DateTimeField(
        _("ended at"), null=True, blank=True
    )  # the last proof of life, once silent too long

    class Meta:
        verbose_name = _("connection")
        verbose_name_plural = _("connections")
        constraints = [
            models.UniqueConstraint(fields=["machine"], condition=Q(ended_at=None), name="one_open_connection"),
            models.CheckConstraint(
                name="connection_ends_later", condition=Q(ended_at=None) | Q(ended_at__gte=models.F("started_at"))
            ),
        ]
        indexes = [models.Index(fields=["machine", "-started_at"], name="connection_recent")]

    def __str__(self) -> str:
        return f"{self.machine} {self.started_at:%Y-%m-%d %H:%M}"


class Watch(models.Model):
    """The one row (pk 1) that says when the platform last looked after its machines; a gap in it is the platform's own outage."""

    at = models.DateTimeField(_("looked at"))

    class Meta:
        verbose_name = verbose_name_plural = _("watch")
        constraints = [models.CheckConstraint(name="watch_is_one_row", condition=Q(pk=1))]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S}"


class PlatformOutage(models.Model):
    """A stretch in which the platform itself was down: nobody's silence in it counts."""

    started_at = models.DateTimeField(_("started at"))
    ended_at = models.DateTimeField(_("ended at"))

    class Meta:
        verbose_name = _("platform outage")
        verbose_name_plural = _("platform outages")
        constraints = [
            models.CheckConstraint(name="outage_has_length", condition=Q(ended_at__gt=models.F("started_at")))
        ]
        indexes = [models.Index(fields=["-ended_at"], name="outage_recent")]

    def __str__(self) -> str:
        return f"{self.started_at:%Y-%m-%d %H:%M}"


class Sample(models.Model):
    """One telemetry reading. Unknown is null, never 0."""

    machine = models.ForeignKey(Machine, on_delete=models.CASCADE, related_name="+")
    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="samples")
    at = models.DateTimeField()
    temperature_c = models.FloatField(null=True)
    power_w = models.FloatField(null=True)
    utilization_pct = models.FloatField(null=True)
    memory_used_mib = models.PositiveIntegerField(null=True)
    memory_total_mib = models.PositiveIntegerField(null=True)
    sm_clock_mhz = models.PositiveIntegerField(null=True)
    memory_clock_mhz = models.PositiveIntegerField(null=True)
    fan_pct = models.FloatField(null=True)
    throttle_reasons: Any = models.JSONField(default=list)

    class Meta:
        verbose_name = _("sample")
        verbose_name_plural = _("samples")
        constraints = [models.UniqueConstraint(fields=["gpu", "at"], name="sample_once")]
        indexes = [BrinIndex(fields=["at"], name="sample_at_brin")]

    def __str__(self) -> str:
        return f"{self.gpu_id} {self.at}"


class HealthEvent(models.Model):
    """An Xid, ECC error, lost card or the like, as the agent reported it; unique by the agent's id for it."""

    event_id = models.UUIDField(unique=True)
    machine = models.ForeignKey(
        Machine, on_delete=models.PROTECT, related_name="health_events", verbose_name=_("machine")
    )
    gpu = models.ForeignKey(
        Gpu, null=True, on_delete=models.PROTECT, related_name="health_events", verbose_name=_("GPU")
    )
    sequence = models.BigIntegerField(_("sequence"))
    kind = models.CharField(_("kind"), max_length=20)
    at = models.DateTimeField(_("at"))
    received_at = models.DateTimeField(_("received at"), default=timezone.now)
    data: Any = models.JSONField(_("data"), default=dict)

    class Meta:
        verbose_name = _("health event")
        verbose_name_plural = _("health events")
        indexes = [models.Index(fields=["machine", "-at"], name="health_event_recent")]

    def __str__(self) -> str:
        return f"{self.kind} {self.at:%Y-%m-%d %H:%M}"


class Benchmark(models.Model):
    """One run of the suite on one GPU, bound to a nonce that the server made."""

    class State(models.TextChoices):
        REQUESTED = "requested", _("requested")
        ACCEPTED = "accepted", _("accepted")
        REFUSED = "refused", _("refused")
        FAILED = "failed", _("failed")
        SKIPPED = "skipped", _("skipped")

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="benchmarks", verbose_name=_("GPU"))
    workload = models.ForeignKey(
        Workload, on_delete=models.PROTECT, related_name="benchmarks", verbose_name=_("workload")
    )
    nonce = models.CharField(_("nonce"), max_length=64)
    kernel_version = models.CharField(_("kernel version"), max_length=20)
    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.REQUESTED)
    reason = models.CharField(_("reason"), max_length=200, blank=True)
    simulated = models.BooleanField(_("simulated"), default=False)
    requested_at = models.DateTimeField(_("requested at"), default=timezone.now)
    received_at = models.DateTimeField(_("received at"), null=True, blank=True)
    fp16_tflops = models.FloatField(_("FP16, TFLOPS"), null=True)
    fp32_tflops = models.FloatField(_("FP32, TFLOPS"), null=True)
    tensor_tflops = models.FloatField(_("tensor cores, TFLOPS"), null=True)
    vram_read_gbps = models.FloatField(_("VRAM read, GB/s"), null=True)
    vram_write_gbps = models.FloatField(_("VRAM write, GB/s"), null=True)
    latency_ms = models.FloatField(_("latency, ms"), null=True)
    download_mbps = models.FloatField(_("download, Mbps"), null=True)
    upload_mbps = models.FloatField(_("upload, Mbps"), null=True)
    disk_read_mb_s = models.FloatField(_("SSD read, MB/s"), null=True)
    disk_write_mb_s = models.FloatField(_("SSD write, MB/s"), null=True)
    performance = models.FloatField(_("performance score, model = 100"), null=True)
    details: Any = models.JSONField(
        _("details"), default=dict
    )  # clocks, temperature, power, throttle reasons, sustained ratio

    class Meta:
        verbose_name = _("benchmark")
        verbose_name_plural = _("benchmarks")
        ordering = ["-requested_at", "-pk"]
        constraints = [models.UniqueConstraint(fields=["workload", "gpu"], name="benchmark_once_a_workload")]
        indexes = [models.Index(fields=["gpu", "-requested_at"], name="benchmark_recent")]

    def __str__(self) -> str:
        return f"{self.gpu} {self.requested_at:%Y-%m-%d %H:%M}"


class Incident(models.Model):
    """A break that is on the provider's side, with its evidence."""

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="incidents", verbose_name=_("machine"))
    key = models.CharField(_("key"), max_length=120, unique=True)
    cause = models.CharField(_("cause"), max_length=24)
    at = models.DateTimeField(_("at"))
    reference = models.UUIDField(_("reference"), null=True, blank=True)
    evidence: Any = models.JSONField(_("evidence"), default=dict)
    excused_at = models.DateTimeField(_("excused at"), null=True, blank=True)
    excused_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        verbose_name=_("excused by"),
    )
    excused_reason = models.CharField(_("excused because"), max_length=300, blank=True)

    class Meta:
        verbose_name = _("incident")
        verbose_name_plural = _("incidents")
        indexes = [models.Index(fields=["machine", "-at"], name="incident_recent")]

    def __str__(self) -> str:
        return f"{self.machine} {self.cause}"


class Outcome(models.Model):
    """How one customer's job ended, for the completion rate: written once, by the job's owner."""

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="outcomes", verbose_name=_("machine"))
    reference = models.UUIDField(_("reference"), unique=True)
    at = models.DateTimeField(_("at"))
    cause = models.CharField(_("cause"), max_length=24)
    provider_fault = models.BooleanField(_("provider's fault"))

    class Meta:
        verbose_name = _("job outcome")
        verbose_name_plural = _("job outcomes")
        indexes = [models.Index(fields=["machine", "-at"], name="outcome_recent")]

    def __str__(self) -> str:
        return f"{self.machine} {self.cause}"


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
    inputs: Any = models.JSONField(_("inputs"), default=dict)

    class Meta:
        verbose_name = _("score")
        verbose_name_plural = _("scores")
        constraints = [models.UniqueConstraint(fields=["machine", "at", "version"], name="score_once")]
        indexes = [models.Index(fields=["machine", "-at"], name="score_recent")]

    def __str__(self) -> str:
        return f"{self.machine} {self.score:.2f}"

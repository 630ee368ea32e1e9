"""What machines did: connections, telemetry, benchmarks, incidents; and the scores that follow from them."""

import uuid
from typing import Any

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
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
    # When the end was noticed. A score of a time before it took the machine for connected.
    closed_at = models.DateTimeField(_("end noticed at"), null=True, blank=True)

    class Meta:
        verbose_name = _("connection")
        verbose_name_plural = _("connections")
        constraints = [
            models.UniqueConstraint(fields=["machine"], condition=Q(ended_at=None), name="one_open_connection"),
            models.CheckConstraint(
                name="connection_ends_later", condition=Q(ended_at=None) | Q(ended_at__gte=models.F("started_at"))
            ),
        ]
        indexes = [
            models.Index(fields=["machine", "-started_at"], name="connection_recent"),
            models.Index(fields=["-started_at"], name="connection_begun"),
            models.Index(fields=["-closed_at"], name="connection_closed", condition=Q(closed_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.machine} {self.started_at:%Y-%m-%d %H:%M}"


class Gap(models.Model):
    """What lies between two stretches of a machine's connection, and what is known of it. It counts against uptime all the same."""

    class Kind(models.TextChoices):
        JOURNALLED = "journalled", _("network")  # the agent's own journal says that it ran through
        REBOOT = "reboot", _("restart of the host")
        UNKNOWN = "unknown", _("machine down, or the agent")
        PLATFORM = "platform", _("outage of the platform")

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="gaps", verbose_name=_("machine"))
    started_at = models.DateTimeField(_("started at"))  # the last proof of life before it
    ended_at = models.DateTimeField(_("ended at"))  # the first one after it
    kind = models.CharField(_("kind"), max_length=10, choices=Kind.choices)
    boot_id = models.CharField(_("boot id after it"), max_length=64, blank=True)
    evidence: Any = models.JSONField(_("evidence"), default=dict)  # the agent's journal as it told it, in its own time

    class Meta:
        verbose_name = _("gap")
        verbose_name_plural = _("gaps")
        constraints = [
            models.UniqueConstraint(fields=["machine", "started_at"], name="gap_once"),
            models.CheckConstraint(name="gap_ends_later", condition=Q(ended_at__gte=models.F("started_at"))),
        ]

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
    """A stretch in which the platform itself was down: nobody's silence in it counts. While it lasts, ``ended_at`` moves along."""

    class Kind(models.TextChoices):
        WATCH = "watch", _("the platform did not run")
        SILENCE = "silence", _("most machines fell silent at once")

    kind = models.CharField(_("kind"), max_length=8, choices=Kind.choices, default=Kind.WATCH)
    started_at = models.DateTimeField(_("started at"))
    ended_at = models.DateTimeField(_("ended at"))
    ongoing = models.BooleanField(_("ongoing"), default=False)
    recorded_at = models.DateTimeField(_("recorded at"), null=True, blank=True)  # null: when it ended
    evidence: Any = models.JSONField(_("evidence"), default=dict)

    class Meta:
        verbose_name = _("platform outage")
        verbose_name_plural = _("platform outages")
        constraints = [
            models.CheckConstraint(name="outage_has_length", condition=Q(ended_at__gt=models.F("started_at"))),
            models.UniqueConstraint(fields=["ongoing"], condition=Q(ongoing=True), name="one_ongoing_outage"),
        ]
        indexes = [models.Index(fields=["-ended_at"], name="outage_recent")]

    def __str__(self) -> str:
        return f"{self.started_at:%Y-%m-%d %H:%M}"


class Sample(models.Model):
    """One telemetry reading of one GPU. Unknown is null, never 0.

    The table is partitioned by UTC day (``reliability.partitions``). It has no foreign keys: making or dropping a day would
    lock ``providers_machine`` against every heartbeat. Written by ``reliability.telemetry`` alone.
    """

    pk = models.CompositePrimaryKey("gpu_id", "at")
    gpu = models.ForeignKey(
        Gpu, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="samples"
    )
    machine = models.ForeignKey(
        Machine, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
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
        indexes = [BrinIndex(fields=["at"], name="sample_at_brin")]

    def __str__(self) -> str:
        return f"{self.gpu_id} {self.at}"


class SampleHour(models.Model):
    """The samples of one GPU in one UTC hour. Least, mean and most are null where no sample told the reading.

    Partitioned by UTC month, without foreign keys, as ``Sample`` is.
    """

    pk = models.CompositePrimaryKey("gpu_id", "hour")
    gpu = models.ForeignKey(
        Gpu, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="sample_hours"
    )
    machine = models.ForeignKey(
        Machine, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    hour = models.DateTimeField()
    samples = models.PositiveIntegerField()
    temperature_least = models.FloatField(null=True)
    temperature_mean = models.FloatField(null=True)
    temperature_most = models.FloatField(null=True)
    power_least = models.FloatField(null=True)
    power_mean = models.FloatField(null=True)
    power_most = models.FloatField(null=True)
    utilization_least = models.FloatField(null=True)
    utilization_mean = models.FloatField(null=True)
    utilization_most = models.FloatField(null=True)
    memory_least = models.FloatField(null=True)  # MiB in use
    memory_mean = models.FloatField(null=True)
    memory_most = models.FloatField(null=True)
    held_back = models.FloatField()  # share of the samples in which something held the clocks back, 0 to 1
    too_hot = models.FloatField()  # of these, the share in which it was heat

    class Meta:
        verbose_name = _("hour of samples")
        verbose_name_plural = _("hours of samples")

    def __str__(self) -> str:
        return f"{self.gpu_id} {self.hour}"


class LateHour(models.Model):
    """An hour that was rolled up before these samples of it came: it is rolled up again."""

    machine = models.ForeignKey(Machine, on_delete=models.CASCADE, related_name="+")
    hour = models.DateTimeField()

    class Meta:
        verbose_name = _("late hour")
        verbose_name_plural = _("late hours")
        constraints = [models.UniqueConstraint(fields=["machine", "hour"], name="late_hour_once")]

    def __str__(self) -> str:
        return f"{self.machine_id} {self.hour}"


class Rollup(models.Model):
    """The one row (pk 1) that says until when samples are rolled up into hours."""

    until = models.DateTimeField(_("until"))

    class Meta:
        verbose_name = verbose_name_plural = _("rollup")
        constraints = [models.CheckConstraint(name="rollup_is_one_row", condition=Q(pk=1))]

    def __str__(self) -> str:
        return f"{self.until:%Y-%m-%d %H:%M}"


class HealthEvent(models.Model):
    """An Xid, ECC error, lost card or the like, as the agent reported it; unique by the agent's id for it."""

    class Severity(models.TextChoices):
        NOTE = "note", _("for the record")
        APPLICATION = "application", _("the program's own")
        DEGRADED = "degraded", _("degraded")
        FATAL = "fatal", _("fatal")

    event_id = models.UUIDField(unique=True)
    machine = models.ForeignKey(
        Machine, on_delete=models.PROTECT, related_name="health_events", verbose_name=_("machine")
    )
    gpu = models.ForeignKey(
        Gpu, null=True, on_delete=models.PROTECT, related_name="health_events", verbose_name=_("GPU")
    )
    sequence = models.BigIntegerField(_("sequence"))
    kind = models.CharField(_("kind"), max_length=20)
    severity = models.CharField(_("severity"), max_length=12, choices=Severity.choices, default=Severity.NOTE)
    at = models.DateTimeField(_("at"))
    received_at = models.DateTimeField(_("received at"), default=timezone.now)
    data: Any = models.JSONField(_("data"), default=dict)

    class Meta:
        verbose_name = _("health event")
        verbose_name_plural = _("health events")
        indexes = [
            models.Index(fields=["machine", "-at"], name="health_event_recent"),
            models.Index(
                fields=["gpu", "-at"], name="health_event_of_gpu", condition=Q(severity__in=["degraded", "fatal"])
            ),
        ]

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
    # Why it was asked for, and why it has no result: codes, whose words are ``reliability.benchmarks``'; and what the host said.
    trigger = models.CharField(_("asked for because"), max_length=10, blank=True)
    code = models.CharField(_("code"), max_length=24, blank=True)
    reason = models.CharField(_("reason"), max_length=200, blank=True)
    setup: Any = models.JSONField(
        _("measured with"), default=dict
    )  # driver, agent and card, as they were when it was asked for
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
    absolute = models.FloatField(_("performance across models, points"), null=True)
    details: Any = models.JSONField(
        _("details"), default=dict
    )  # clocks, temperature, power, throttle reasons, sustained ratio

    class Meta:
        verbose_name = _("benchmark")
        verbose_name_plural = _("benchmarks")
        ordering = ["-requested_at", "-pk"]
        constraints = [models.UniqueConstraint(fields=["workload", "gpu"], name="benchmark_once_a_workload")]
        indexes = [
            models.Index(fields=["gpu", "-requested_at"], name="benchmark_recent"),
            models.Index(fields=["gpu", "received_at"], name="benchmark_accepted", condition=Q(state="accepted")),
            models.Index(fields=["-received_at"], name="benchmark_heard", condition=Q(state="accepted")),
        ]

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
        indexes = [
            models.Index(fields=["machine", "-at"], name="incident_recent"),
            models.Index(fields=["reference"], name="incident_reference", condition=Q(reference__isnull=False)),
            models.Index(fields=["-excused_at"], name="incident_excused", condition=Q(excused_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.machine} {self.cause}"


class Outcome(models.Model):
    """How one customer's job ended, for the completion rate: written once, by the job's owner."""

    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="outcomes", verbose_name=_("machine"))
    reference = models.UUIDField(_("reference"), unique=True)
    at = models.DateTimeField(_("at"))
    cause = models.CharField(_("cause"), max_length=24)
    provider_fault = models.BooleanField(_("provider's fault"))
    recorded_at = models.DateTimeField(_("recorded at"), null=True)  # a lost machine's job ended before it was known
    cards: Any = ArrayField(
        models.BigIntegerField(), verbose_name=_("GPUs"), default=list
    )  # their keys; empty: not known

    class Meta:
        verbose_name = _("job outcome")
        verbose_name_plural = _("job outcomes")
        indexes = [
            models.Index(fields=["machine", "-at"], name="outcome_recent"),
            models.Index(fields=["-recorded_at"], name="outcome_recorded"),
        ]

    def __str__(self) -> str:
        return f"{self.machine} {self.cause}"


from reliability.models_quality import (  # noqa: E402  # models of the same app, in a file of their own
    Anomaly,
    Case,
    CaseMessage,
    Delisting,
    Floor,
    FloorWaiver,
    MachineRisk,
)
from reliability.models_scores import (  # noqa: E402
    FIRST_COUNTING,
    Availability,
    DailyUptime,
    Excuse,
    FormulaSwitch,
    Pause,
    Score,
    ScoreTerms,
)

__all__ = [
    "FIRST_COUNTING", "Anomaly", "Availability", "Case", "CaseMessage", "DailyUptime", "Delisting", "Excuse", "Floor", "FloorWaiver",
    "FormulaSwitch", "MachineRisk", "Pause", "Score", "ScoreTerms",
]  # fmt: skip

"""Who holds a GPU (GpuClaim), what a machine should run (Workload), and what it printed (WorkloadLog)."""

import uuid
from datetime import datetime
from typing import Any, Self

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import ArrayField, DateTimeRangeField, RangeOperators
from django.db import models
from django.db.models import F, Func, Q, Value
from django.db.models.fields import BigIntegerField
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from providers.models.machines import Gpu, Machine


class _Int8Range(Func):
    # int8range(x, x, '[]') lets a plain bigint stand in a GiST exclusion constraint without btree_gist.
    function = "int8range"
    output_field = BigIntegerField()

    def __init__(self, column: str) -> None:
        super().__init__(F(column), F(column), Value("[]"))


class GpuClaimQuerySet(models.QuerySet["GpuClaim"]):
    def current(self, at: datetime) -> Self:
        return self.filter(period__contains=at)


class GpuClaim(models.Model):
    """A GPU is held for a period. One exclusion constraint decides every race for it.

    Lane 0 is what runs; lane 1 is contract reservations, inside which lane 0 is for the holder alone.
    """

    class Kind(models.TextChoices):
        RENTAL = "rental", _("rental")
        BENCHMARK = "benchmark", _("benchmark")
        RESERVATION = "reservation", _("reservation")

    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="claims", verbose_name=_("GPU"))
    period = DateTimeRangeField(_("period"))
    lane = models.SmallIntegerField(_("lane"), default=0)
    kind = models.CharField(_("kind"), max_length=12, choices=Kind.choices)
    reference = models.UUIDField(_("reference"))

    objects: Any = GpuClaimQuerySet.as_manager()

    class Meta:
        verbose_name = _("GPU claim")
        verbose_name_plural = _("GPU claims")
        constraints = [
            ExclusionConstraint(
                name="gpu_claimed_once",
                expressions=[
                    (_Int8Range("gpu"), RangeOperators.OVERLAPS),
                    (_Int8Range("lane"), RangeOperators.OVERLAPS),
                    ("period", RangeOperators.OVERLAPS),
                ],
            ),
            models.CheckConstraint(
                name="claim_lane_by_kind",
                condition=Q(kind="reservation", lane=1) | (~Q(kind="reservation") & Q(lane=0)),
            ),
        ]
        indexes = [models.Index(fields=["reference"], name="claim_reference")]

    def __str__(self) -> str:
        return f"{self.gpu_id} {self.kind}"


class WorkloadQuerySet(models.QuerySet["Workload"]):
    def known_to_machine(self) -> Self:
        """What the agent is told: wanted to run, or to be stopped and not seen gone yet."""
        return self.exclude(observed=Workload.Observed.FINISHED)


class Workload(models.Model):
    """One container that a machine should run or stop. It knows neither rentals nor benchmarks.

    ``wanted`` is ours, ``observed`` the machine's last word. The two meet: a lost message changes nothing.

        assigned → accepted → pulling → creating → running → stopping → finished
    A step may be skipped, never taken back; ``finished`` is final.
    """

    class Kind(models.TextChoices):
        JOB = "job", _("job")
        BENCHMARK = "benchmark", _("benchmark")

    class Wanted(models.TextChoices):
        RUN = "run", _("run")
        STOP = "stop", _("stop")

    class Observed(models.TextChoices):
        ASSIGNED = "assigned", _("assigned")
        ACCEPTED = "accepted", _("accepted")
        PULLING = "pulling", _("pulling the image")
        CREATING = "creating", _("creating the container")
        RUNNING = "running", _("running")
        STOPPING = "stopping", _("stopping")
        FINISHED = "finished", _("finished")

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="workloads", verbose_name=_("machine"))
    kind = models.CharField(_("kind"), max_length=10, choices=Kind.choices)
    spec = models.BinaryField(
        _("spec, encrypted")
    )  # kit.secrets.encrypt of the protocol's spec: a renter's environment may hold secrets
    gpu_uuids: Any = ArrayField(models.CharField(max_length=80), verbose_name=_("GPU UUIDs"))
    wanted = models.CharField(_("wanted"), max_length=4, choices=Wanted.choices, default=Wanted.RUN)
    stop_at = models.DateTimeField(_("stop at"), null=True, blank=True)
    attempt = models.PositiveSmallIntegerField(_("attempt"), default=1)
    observed = models.CharField(_("observed"), max_length=10, choices=Observed.choices, default=Observed.ASSIGNED)
    observed_at = models.DateTimeField(_("observed at"), null=True, blank=True)
    progress = models.FloatField(_("progress of the pull, 0 to 1"), null=True, blank=True)
    container_started_at = models.DateTimeField(_("container started at"), null=True, blank=True)  # by the host's clock
    started_at = models.DateTimeField(_("first seen running at"), null=True, blank=True)  # by the server's clock
    proved_at = models.DateTimeField(_("seen running last at"), null=True, blank=True)  # by the server's clock
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)
    exit_code = models.IntegerField(_("exit code"), null=True, blank=True)
    cause = models.CharField(_("cause"), max_length=24, blank=True)
    message = models.CharField(_("message"), max_length=500, blank=True)
    created_at = models.DateTimeField(_("created at"), default=timezone.now)

    objects: Any = WorkloadQuerySet.as_manager()

    class Meta:
        verbose_name = _("workload")
        verbose_name_plural = _("workloads")
        constraints = [
            models.CheckConstraint(
                name="finished_has_cause",
                condition=~Q(observed="finished") | (~Q(cause="") & Q(finished_at__isnull=False)),
            )
        ]
        indexes = [models.Index(fields=["machine"], condition=~Q(observed="finished"), name="workload_open")]

    def __str__(self) -> str:
        return f"{self.kind} {self.public_id}"


class WorkloadLog(models.Model):
    """A piece of a workload's output: ``text`` begins at byte ``offset`` of the attempt's whole output."""

    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="log")
    attempt = models.PositiveSmallIntegerField()
    offset = models.BigIntegerField()
    length = models.PositiveIntegerField()
    text = models.TextField()
    received_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name = _("log piece")
        verbose_name_plural = _("log pieces")
        ordering = ["workload", "attempt", "offset"]
        constraints = [models.UniqueConstraint(fields=["workload", "attempt", "offset"], name="log_offset_once")]

    def __str__(self) -> str:
        return f"{self.workload_id}@{self.offset}"

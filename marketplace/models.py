"""What is offered (Listing), wanted (Request), agreed (Rental) and run (Job)."""

import uuid
from datetime import datetime
from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from billing.billable import Billable
from billing.models import Meter
from gpunex.accounts.models import Organisation
from gpunex.kit.money import UsdcField
from gpunex.kit.show import cut
from gpunex.policy.models import Tier
from providers.models import Gpu, GpuModel, Machine, Provider, Workload


class ModelPrice(models.Model):
    """What a provider asks for one GPU of a model for an hour. Rentals copy it, so a change harms nobody."""

    provider = models.ForeignKey(Provider, on_delete=models.PROTECT, related_name="prices", verbose_name=_("provider"))
    gpu_model = models.ForeignKey(
        GpuModel, on_delete=models.PROTECT, related_name="prices", verbose_name=_("GPU model")
    )
    price_micro = UsdcField(_("price, micro-USDC per GPU per hour"))
    set_at = models.DateTimeField(_("set at"))
    set_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        verbose_name=_("set by"),
    )
    current = models.BooleanField(_("current"), default=True)  # earlier prices stay as the history

    class Meta:
        verbose_name = _("price")
        verbose_name_plural = _("prices")
        constraints = [
            models.UniqueConstraint(
                fields=["provider", "gpu_model"], condition=Q(current=True), name="one_current_price"
            ),
            models.CheckConstraint(name="price_positive", condition=Q(price_micro__gt=0)),
        ]

    def __str__(self) -> str:
        return f"{self.provider} {self.gpu_model}"


class ListingQuerySet(models.QuerySet["Listing"]):
    def open(self, at: datetime) -> Self:
        """Offers that can be rented now, as far as the listing knows; ``start_rental`` reads the truth again."""
        return self.within_hours(at).filter(state=Listing.State.OFFERED, gpus_free__gt=0)

    def within_hours(self, at: datetime) -> Self:
        """Within the declared hours of its machine."""
        return self.filter(
            Q(offered_until=None) | Q(offered_until__gt=at), Q(offered_from=None) | Q(offered_from__lte=at)
        )

    def best_first(self) -> Self:
        return self.order_by("-rank", "price_micro", "pk")


class Listing(models.Model):
    """GPUs of one model on one machine, offered at one price: the provider's side of an offer.

    Everything below ``state`` is a copy kept fresh by a sweep and by the reports that change it, so that search reads one table.
    """

    class State(models.TextChoices):
        OFFERED = "offered", _("offered")
        UNPRICED = "unpriced", _("no price yet")
        BENCHMARKING = "benchmarking", _("waiting for its first benchmark")
        HIDDEN = "hidden", _("hidden")
        OFFLINE = "offline", _("offline")
        DELISTED = "delisted", _("delisted")
        RETIRED = "retired", _("retired")

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    machine = models.ForeignKey(Machine, on_delete=models.PROTECT, related_name="listings", verbose_name=_("machine"))
    gpu_model = models.ForeignKey(
        GpuModel, on_delete=models.PROTECT, related_name="listings", verbose_name=_("GPU model")
    )
    variant_name = models.CharField(_("variant"), max_length=80, blank=True)
    price_micro = UsdcField(_("price, micro-USDC per GPU per hour"), null=True, blank=True)
    state = models.CharField(_("state"), max_length=12, choices=State.choices, default=State.UNPRICED)
    tier = models.CharField(_("tier"), max_length=16, choices=Tier.choices)
    country = models.CharField(_("country"), max_length=2, blank=True)
    city = models.CharField(_("city"), max_length=80, blank=True)
    region = models.CharField(_("region (continent)"), max_length=2, blank=True)
    gpus_total = models.PositiveSmallIntegerField(_("GPUs"), default=0)
    gpus_free = models.PositiveSmallIntegerField(_("free GPUs"), default=0)
    vram_gib = models.PositiveSmallIntegerField(_("VRAM, GiB"))
    reliability = models.FloatField(_("reliability, 0 to 100"), null=True, blank=True)
    reliability_new = models.BooleanField(_("new"), default=True)
    performance = models.FloatField(_("performance, model = 100"), null=True, blank=True)
    rank = models.FloatField(_("rank, 0 to 100"), default=0)
    rank_factors: Any = models.JSONField(_("rank factors"), default=dict)
    cuda_version = models.CharField(_("CUDA version"), max_length=12, blank=True)
    download_mbps = models.FloatField(_("download, Mbps"), null=True, blank=True)
    upload_mbps = models.FloatField(_("upload, Mbps"), null=True, blank=True)
    disk_read_mb_s = models.FloatField(_("SSD read, MB/s"), null=True, blank=True)
    benchmarked_at = models.DateTimeField(_("benchmarked at"), null=True, blank=True)
    offered_from = models.DateTimeField(_("offered from"), null=True, blank=True)
    offered_until = models.DateTimeField(_("offered until"), null=True, blank=True)
    refreshed_at = models.DateTimeField(_("refreshed at"), null=True, blank=True)
    created_at = models.DateTimeField(_("created at"), default=timezone.now)

    objects: Any = ListingQuerySet.as_manager()

    class Meta:
        verbose_name = _("listing")
        verbose_name_plural = _("listings")
        constraints = [
            models.UniqueConstraint(fields=["machine", "gpu_model"], name="one_listing_a_model"),
            models.CheckConstraint(name="listing_price_positive", condition=Q(price_micro=None) | Q(price_micro__gt=0)),
            models.CheckConstraint(
                name="offered_has_price", condition=~Q(state="offered") | Q(price_micro__isnull=False)
            ),
        ]
        indexes = [models.Index(fields=["gpu_model", "-rank"], condition=Q(state="offered"), name="listing_offered")]

    def __str__(self) -> str:
        return _("%(gpus)s × %(model)s on %(machine)s") % {
            "gpus": self.gpus_total,
            "model": self.gpu_model,
            "machine": self.machine,
        }

    def get_absolute_url(self) -> str:
        return reverse("marketplace:offer", args=[self.public_id])

    @property
    def download_gbps(self) -> str:
        return _gbps(self.download_mbps)

    @property
    def upload_gbps(self) -> str:
        return _gbps(self.upload_mbps)


def _gbps(mbps: float | None) -> str:
    """As people say it: 10, 2.5, 0.94."""
    return "" if mbps is None else cut(mbps / 1000, 2).rstrip("0").rstrip(".")


class Request(models.Model):
    """What a renter wants run: image, command, GPUs, limits."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="requests", verbose_name=_("organisation")
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", verbose_name=_("created by")
    )
    key = models.CharField(_("idempotency key"), max_length=80)
    image = models.CharField(_("image"), max_length=300)
    command: Any = models.JSONField(_("command"), default=list)  # argument list; empty runs the image's own
    environment = models.BinaryField(_("environment, encrypted"), null=True)
    gpu_count = models.PositiveSmallIntegerField(_("GPUs"))
    gpu_model = models.ForeignKey(
        GpuModel, null=True, blank=True, on_delete=models.PROTECT, related_name="+", verbose_name=_("GPU model")
    )
    highest_price_micro = UsdcField(_("highest price, micro-USDC per GPU per hour"), null=True, blank=True)
    restartable = models.BooleanField(_("restartable"), default=False)
    stop_after_seconds = models.PositiveIntegerField(_("stop after, seconds"), null=True, blank=True)
    spend_at_most_micro = UsdcField(_("spend at most, micro-USDC"), null=True, blank=True)
    created_at = models.DateTimeField(_("created at"), default=timezone.now)

    class Meta:
        verbose_name = _("request")
        verbose_name_plural = _("requests")
        constraints = [
            models.UniqueConstraint(fields=["organisation", "key"], name="request_key_once"),
            models.CheckConstraint(name="request_wants_gpus", condition=Q(gpu_count__gte=1)),
        ]

    def __str__(self) -> str:
        return self.image


class RentalQuerySet(models.QuerySet["Rental"]):
    def open(self) -> Self:
        return self.exclude(state=Rental.State.ENDED)

    def with_work(self) -> Self:
        """With what decides how long it runs: its job's workload, its meter, its request."""
        return self.select_related("organisation", "listing__gpu_model", "meter", "request", "job__workload__machine")


class Rental(models.Model):
    """One agreement: one listing, its GPUs, a price, a fee, a meter. The price and fee are copies.

        starting → running → ending → ended
    ``starting`` is free; ``running`` is billed; ``ending`` (stop sent, not yet seen gone) and ``ended`` are free: see ``billing_at``.
    """

    class State(models.TextChoices):
        STARTING = "starting", _("starting")
        RUNNING = "running", _("running")
        ENDING = "ending", _("stopping")
        ENDED = "ended", _("ended")

    class Cause(models.TextChoices):
        COMPLETED = "completed", _("completed")
        EXITED = "exit_nonzero", _("the program ended with an error")
        OOM = "oom", _("out of memory")
        STOPPED = "stopped", _("stopped by the renter")
        DEADLINE = "deadline", _("its limit was reached")
        OUT_OF_MONEY = "out_of_money", _("the balance ran out")
        IMAGE_MISSING = "image_missing", _("the image was not found")
        IMAGE_DENIED = "image_denied", _("the image needs a login")
        IMAGE_INVALID = "image_invalid", _("the image can't be run")
        CUDA_TOO_OLD = "cuda_too_old", _("the image needs a newer CUDA version")
        SPEC_INVALID = "spec_invalid", _("the host refused the job's settings")
        GPU_LOST = "gpu_lost", _("a GPU failed")
        GPU_UNAVAILABLE = "gpu_unavailable", _("a GPU was not available on the host")
        DOCKER_FAILED = "docker_failed", _("the host could not run the container")
        DISK_FULL = "disk_full", _("the host's disk is full")
        HOST_RESTART = "host_restart", _("the host restarted")
        AGENT_SHUTDOWN = "agent_shutdown", _("the host left")
        MACHINE_LOST = "machine_lost", _("the host stopped answering")

    # Whose fault a cause is. Everything else is the renter's own doing.
    PROVIDER_CAUSES = frozenset(
        {"gpu_lost", "gpu_unavailable", "docker_failed", "disk_full", "host_restart", "agent_shutdown", "machine_lost"}
    )

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    request = models.ForeignKey(Request, on_delete=models.PROTECT, related_name="rentals", verbose_name=_("request"))
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="rentals", verbose_name=_("renter")
    )
    listing = models.ForeignKey(Listing, on_delete=models.PROTECT, related_name="rentals", verbose_name=_("listing"))
    provider = models.ForeignKey(Provider, on_delete=models.PROTECT, related_name="rentals", verbose_name=_("provider"))
    price_micro = UsdcField(_("price, micro-USDC per GPU per hour"))
    fee_bps = models.PositiveSmallIntegerField(_("fee, basis points"))
    tier = models.CharField(_("tier"), max_length=16, choices=Tier.choices)
    # The end of the declared hours it began in, None around the clock. A copy: a schedule that changes later harms nobody.
    window_until = models.DateTimeField(_("hours end at"), null=True, blank=True)
    gpu_count = models.PositiveSmallIntegerField(_("GPUs"))
    gpus: Any = models.ManyToManyField(Gpu, through="RentalGpu", related_name="rentals")
    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.STARTING)
    meter = models.OneToOneField(
        Meter, null=True, blank=True, on_delete=models.PROTECT, related_name="rental", verbose_name=_("meter")
    )
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    running_at = models.DateTimeField(_("running since"), null=True, blank=True)
    stop_asked_at = models.DateTimeField(_("stop asked at"), null=True, blank=True)
    ended_at = models.DateTimeField(_("ended at"), null=True, blank=True)
    cause = models.CharField(
        _("cause"), max_length=20, choices=Cause.choices, blank=True
    )  # while ending: why it was told to
    provider_fault = models.BooleanField(_("provider's fault"), default=False)

    objects: Any = RentalQuerySet.as_manager()

    class Meta:
        verbose_name = _("rental")
        verbose_name_plural = _("rentals")
        ordering = ["-created_at", "-pk"]
        constraints = [
            models.CheckConstraint(
                name="ended_has_cause", condition=~Q(state="ended") | (~Q(cause="") & Q(ended_at__isnull=False))
            ),
            models.CheckConstraint(name="rental_price_positive", condition=Q(price_micro__gt=0, gpu_count__gte=1)),
        ]
        indexes = [
            models.Index(fields=["organisation", "-created_at"], name="rental_recent"),
            models.Index(fields=["listing"], condition=~Q(state="ended"), name="rental_open"),
            models.Index(fields=["listing", "-running_at"], name="rental_of_listing"),
            models.Index(fields=["provider", "-created_at"], name="rental_of_provider"),
        ]

    def __str__(self) -> str:
        return _("rental %(id)s") % {"id": self.public_id.hex[:8]}

    def get_absolute_url(self) -> str:
        return reverse("marketplace:rental", args=[self.public_id])

    @property
    def short_id(self) -> str:
        """As people say it: r-7f2c01ab."""
        return f"r-{self.public_id.hex[:8]}"

    @property
    def rate_micro_per_hour(self) -> int:
        """What all its GPUs together cost for an hour."""
        return self.price_micro * self.gpu_count

    @property
    def billable(self) -> bool:
        """Whether this state costs the renter money, if its host is heard from and the balance covers it."""
        return self.state == self.State.RUNNING

    def billing_at(self, at: datetime, *, offline_seconds: int) -> Billable:
        """Whether ``at``, now or later than all that is known, is billed, and why. Wants ``with_work``."""
        if self.state == self.State.STARTING:
            return Billable.STARTING
        if self.state == self.State.ENDING:
            return Billable.ENDING
        if self.state == self.State.ENDED:
            if self.meter_id is None:
                return Billable.NOT_RUN
            return Billable.BROKEN if self.provider_fault else Billable.ENDED
        if self.meter is not None and self.meter.funded_until <= at:
            return Billable.UNFUNDED
        if not self.job.workload.machine.is_connected(at, offline_seconds):
            return Billable.SILENT
        return Billable.RUNNING


class RentalGpu(models.Model):
    """A GPU of a rental, in the order that its statement line is split by."""

    rental = models.ForeignKey(Rental, on_delete=models.CASCADE, related_name="+")
    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="+")
    position = models.PositiveSmallIntegerField()

    class Meta:
        ordering = ["position"]
        constraints = [models.UniqueConstraint(fields=["rental", "gpu"], name="rental_gpu_once")]

    def __str__(self) -> str:
        return f"{self.rental_id}:{self.position}"


class Job(models.Model):
    """The one container run of a rental: the rental's side of a workload."""

    rental = models.OneToOneField(Rental, on_delete=models.PROTECT, related_name="job", verbose_name=_("rental"))
    workload = models.OneToOneField(Workload, on_delete=models.PROTECT, related_name="job", verbose_name=_("workload"))

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")

    def __str__(self) -> str:
        return _("job of %(rental)s") % {"rental": self.rental}

"""The GPU catalogue: what people choose (GpuModel), what is detected (GpuVariant), what is expected of it."""

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _


class GpuModel(models.Model):
    """What people choose and price: "H100 80GB"."""

    class Klass(models.TextChoices):
        DATACENTER = "datacenter", _("datacenter")
        WORKSTATION = "workstation", _("workstation")
        CONSUMER = "consumer", _("consumer")

    slug = models.SlugField(_("slug"), max_length=40, unique=True)
    name = models.CharField(_("name"), max_length=60, unique=True)
    vram_gib = models.PositiveSmallIntegerField(_("VRAM, GiB"))
    klass = models.CharField(_("class"), max_length=12, choices=Klass.choices)
    position = models.PositiveSmallIntegerField(_("position in lists"), default=100)
    active = models.BooleanField(_("offered in the application form"), default=True)

    class Meta:
        verbose_name = _("GPU model")
        verbose_name_plural = _("GPU models")
        ordering = ["position", "name"]

    def __str__(self) -> str:
        return self.name


class GpuVariant(models.Model):
    """The card as detected: a NVML name and a VRAM range tell variants of one model apart (SXM, PCIe, NVL)."""

    model = models.ForeignKey(GpuModel, on_delete=models.PROTECT, related_name="variants", verbose_name=_("GPU model"))
    name = models.CharField(_("name"), max_length=80, unique=True)
    nvml_names: Any = models.JSONField(
        _("NVML names"), default=list, help_text=_("exact product names that NVML reports")
    )
    vram_mib_least = models.PositiveIntegerField(_("VRAM at least, MiB"))
    vram_mib_most = models.PositiveIntegerField(_("VRAM at most, MiB"))
    cores = models.PositiveIntegerField(_("CUDA cores"), null=True, blank=True)
    memory_bus_bits = models.PositiveIntegerField(_("memory bus, bits"), null=True, blank=True)
    power_w = models.PositiveIntegerField(_("board power, W"), null=True, blank=True)

    class Meta:
        verbose_name = _("GPU variant")
        verbose_name_plural = _("GPU variants")
        constraints = [
            models.CheckConstraint(
                name="variant_vram_range", condition=Q(vram_mib_least__lte=models.F("vram_mib_most"))
            )
        ]

    def __str__(self) -> str:
        return self.name


class VariantExpectation(models.Model):
    """What a variant should measure with one version of our kernels. TFLOPS, and GB/s (10⁹ bytes a second)."""

    variant = models.ForeignKey(
        GpuVariant, on_delete=models.CASCADE, related_name="expectations", verbose_name=_("GPU variant")
    )
    kernel_version = models.CharField(_("kernel version"), max_length=20)
    fp16_tflops = models.FloatField(_("FP16, TFLOPS"))
    fp32_tflops = models.FloatField(_("FP32, TFLOPS"))
    tensor_tflops = models.FloatField(_("tensor cores, TFLOPS"))
    vram_read_gbps = models.FloatField(_("VRAM read, GB/s"))
    vram_write_gbps = models.FloatField(_("VRAM write, GB/s"))

    class Meta:
        verbose_name = _("expected values")
        verbose_name_plural = _("expected values")
        constraints = [models.UniqueConstraint(fields=["variant", "kernel_version"], name="expectation_is_unique")]

    def __str__(self) -> str:
        return f"{self.variant} · {self.kernel_version}"

"""The numbers of the business: what an admin changes without code, and every page and mail reads from here.

``Policy`` is one row of platform-wide numbers, ``TierPolicy`` one row per tier. Rentals and payouts copy what they
agreed to (price, fee), so a change here reaches new ones only.
"""

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from gpunex.kit.money import UsdcField


class Tier(models.TextChoices):
    COMMUNITY = "community", _("Community")
    ENTERPRISE = "enterprise", _("Enterprise")


def default_payout_countries() -> list[str]:
    """Where bank payouts go at first: the countries of SEPA with the euro, and the United States."""
    return [
        "AT",
        "BE",
        "BG",
        "CY",
        "DE",
        "EE",
        "ES",
        "FI",
        "FR",
        "GR",
        "HR",
        "IE",
        "IT",
        "LT",
        "LU",
        "LV",
        "MT",
        "NL",
        "PT",
        "SI",
        "SK",
        "US",
    ]


class Policy(models.Model):
    """The platform's one row (pk 1)."""

    review_days_least = models.PositiveSmallIntegerField(_("review, business days at least"), default=1)
    review_days_most = models.PositiveSmallIntegerField(_("review, business days at most"), default=3)
    enrolment_token_days = models.PositiveSmallIntegerField(_("enrolment token valid, days"), default=7)
    weekly_minimum_micro = UsdcField(_("weekly payout from, USDC"), default=20_000_000)
    monthly_minimum_micro = UsdcField(_("monthly payout from, USDC"), default=5_000_000)
    payout_cap_micro = UsdcField(_("highest single payout without a second admin, USDC"), default=10_000_000_000)
    run_cap_micro = UsdcField(_("highest payout run without a second admin, USDC"), default=50_000_000_000)
    payout_countries = models.JSONField(
        _("bank payouts to these countries (ISO 3166)"), default=default_payout_countries
    )
    rate_hours = models.PositiveSmallIntegerField(_("an exchange rate is good for, hours"), default=24)
    wallet_cool_down_hours = models.PositiveSmallIntegerField(
        _("change of payout destination waits, hours"), default=48
    )
    deposit_sweep_micro = UsdcField(_("deposits are collected from, USDC"), default=1_000_000)
    warning_hours_early = models.PositiveSmallIntegerField(_("first balance warning before the end, hours"), default=24)
    warning_hours_late = models.PositiveSmallIntegerField(_("last balance warning before the end, hours"), default=1)
    payouts_paused = models.BooleanField(_("payouts paused (kill switch)"), default=False)
    heartbeat_seconds = models.PositiveSmallIntegerField(_("heartbeat every, seconds"), default=10)
    offline_seconds = models.PositiveSmallIntegerField(_("offline after silence of, seconds"), default=45)
    lost_seconds = models.PositiveSmallIntegerField(_("lost after silence of, seconds"), default=600)
    runway_seconds = models.PositiveIntegerField(_("a rental needs money for, seconds"), default=3600)
    score_half_life_days = models.PositiveSmallIntegerField(_("reliability half-life, days"), default=14)
    score_window_days = models.PositiveSmallIntegerField(_("reliability window, days"), default=90)
    maintenance_notice_hours = models.PositiveSmallIntegerField(_("maintenance notice, hours"), default=24)
    maintenance_hours_a_month = models.PositiveSmallIntegerField(_("excused maintenance, hours a month"), default=8)
    benchmark_every_hours = models.PositiveSmallIntegerField(_("benchmark again after, hours"), default=24)
    benchmark_repeat_minutes = models.PositiveSmallIntegerField(
        _("repeat a failed benchmark after, minutes"), default=10
    )
    cuda_least = models.CharField(_("driver's CUDA version at least"), max_length=12, default="12.4")
    docker_least = models.CharField(_("Docker at least"), max_length=20, default="25")
    toolkit_least = models.CharField(_("NVIDIA Container Toolkit at least"), max_length=20, default="1.17.8")
    runc_least = models.CharField(
        _("runc at least"), max_length=60, default="1.2.8 1.3.3", help_text=_("one version for each release line")
    )
    runc_accepted = models.JSONField(
        _("older runc versions that are accepted"),
        default=list,
        blank=True,
        help_text=_("a distribution's own builds into which the fixes were carried back, as runc --version names them"),
    )
    sla_community_minutes = models.PositiveSmallIntegerField(_("service credit community, minutes"), default=30)
    sla_enterprise_minutes = models.PositiveSmallIntegerField(_("service credit enterprise, minutes"), default=120)

    class Meta:
        verbose_name = verbose_name_plural = _("platform policy")
        constraints = [models.CheckConstraint(name="policy_is_one_row", condition=Q(pk=1))]

    def __str__(self) -> str:
        return "GPUnex"

    @classmethod
    def load(cls) -> "Policy":
        """The row, made with the defaults of the specification if it is not there yet."""
        return cls.objects.get_or_create(pk=1)[0]


# Specification table K. Migration 0001 seeds the rows from it; after that the rows are the truth.
TIER_DEFAULTS: dict[str, dict[str, Any]] = {
    Tier.COMMUNITY: {
        "fee_bps": 1000,
        "cpu_cores_per_gpu": 2,
        "memory_gb_per_gpu": 8,
        "ssd_free_gb": 128,
        "ssd_read_mb_s": 500,
        "network_mbps": 100,
        "ups_required": False,
        "commitment_months": 3,
        "uptime_floor_bps": 9000,
        "always_available": False,
        "benchmark_floor_bps": 8000,
    },
    Tier.ENTERPRISE: {
        "fee_bps": 800,
        "cpu_cores_per_gpu": 4,
        "memory_gb_per_gpu": 32,
        "ssd_free_gb": 500,
        "ssd_read_mb_s": 1000,
        "network_mbps": 1000,
        "ups_required": True,
        "commitment_months": 6,
        "uptime_floor_bps": 9800,
        "always_available": True,
        "benchmark_floor_bps": 9000,
    },
}


class TierPolicy(models.Model):
    """What a tier asks of a machine and costs its provider. Shares in basis points (1 % = 100)."""

    tier = models.CharField(_("tier"), max_length=16, choices=Tier.choices, unique=True)
    fee_bps = models.PositiveSmallIntegerField(_("platform fee, basis points"))
    cpu_cores_per_gpu = models.PositiveSmallIntegerField(_("CPU cores per GPU"))
    memory_gb_per_gpu = models.PositiveSmallIntegerField(_("memory per GPU, GB"))
    ssd_free_gb = models.PositiveIntegerField(_("free SSD, GB"))
    ssd_read_mb_s = models.PositiveIntegerField(_("SSD read, MB/s"))
    network_mbps = models.PositiveIntegerField(_("internet each way, Mbps"))
    ups_required = models.BooleanField(_("UPS required"))
    commitment_months = models.PositiveSmallIntegerField(_("commitment, months"))
    uptime_floor_bps = models.PositiveSmallIntegerField(_("uptime floor, basis points"))
    always_available = models.BooleanField(_("available 24/7"))
    benchmark_floor_bps = models.PositiveSmallIntegerField(_("benchmark floor, basis points of expected"))

    class Meta:
        verbose_name = _("tier policy")
        verbose_name_plural = _("tier policies")
        constraints = [
            models.CheckConstraint(name="tier_fee_below_half", condition=Q(fee_bps__lte=5000)),
        ]

    def __str__(self) -> str:
        return self.get_tier_display()

    @classmethod
    def of(cls, tier: str) -> "TierPolicy":
        return cls.objects.get(tier=tier)

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from gpunex.kit.registers import TellingAdmin
from gpunex.policy.models import Policy, TierPolicy


@admin.register(Policy)
class PolicyAdmin(TellingAdmin):
    """One row: its list is its page."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Policy | None = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return redirect(reverse("admin:policy_policy_change", args=[Policy.load().pk]))


@admin.register(TierPolicy)
class TierPolicyAdmin(TellingAdmin):
    list_display = [
        "tier",
        "fee_bps",
        "network_mbps",
        "ups_required",
        "commitment_months",
        "uptime_floor_bps",
        "benchmark_floor_bps",
    ]
    readonly_fields = ["tier"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: TierPolicy | None = None) -> bool:
        return False

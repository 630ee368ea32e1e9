from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from gpunex.kit.registers import TellingAdmin
from gpunex.policy.models import Policy, TierPolicy
from payouts.notices import alert

# What keeps one administrator, or one stolen session, from moving much money alone.
GUARDS = ("payout_cap_micro", "run_cap_micro", "wallet_cool_down_hours", "rate_hours", "payouts_paused")


@admin.register(Policy)
class PolicyAdmin(TellingAdmin):
    """One row: its list is its page."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Policy | None = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return redirect(reverse("admin:policy_policy_change", args=[Policy.load().pk]))

    def save_model(self, request: HttpRequest, obj: Policy, form: Any, change: bool) -> None:
        """Every administrator is told who moved a guard of the money, from what to what."""
        super().save_model(request, obj, form, change)
        moved = [name for name in form.changed_data if name in GUARDS]
        if moved:
            at = timezone.now()
            changes = [
                format_lazy(
                    "{}: {} → {}",
                    form.fields[name].label,
                    form.fields[name].prepare_value(form[name].initial),
                    form.fields[name].prepare_value(form.cleaned_data[name]),
                )
                for name in moved
            ]
            alert(
                key=f"guards:{at.isoformat()}",
                what=_("limits were changed"),
                detail=_("%(by)s changed in the policy: %(changes)s"),
                data={"by": request.user.email, "changes": format_lazy("; ".join(["{}"] * len(changes)), *changes)},
                at=at,
            )


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

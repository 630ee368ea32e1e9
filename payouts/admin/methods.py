"""Where payouts go and how often: to be looked at."""

from django.contrib import admin

from gpunex.kit.registers import ReadOnlyAdmin
from payouts.models import PayoutMethod, PayoutPreference


@admin.register(PayoutMethod)
class PayoutMethodAdmin(ReadOnlyAdmin):
    list_display = [
        "organisation",
        "rail",
        "address",
        "masked",
        "country",
        "created_by",
        "created_at",
        "active_from",
        "removed_at",
    ]
    list_filter = ["rail"]
    search_fields = ["organisation__name", "=address"]
    list_select_related = ["organisation", "created_by"]
    exclude = ["details"]


@admin.register(PayoutPreference)
class PayoutPreferenceAdmin(ReadOnlyAdmin):
    list_display = ["organisation", "cadence", "next_cadence", "rail", "next_rail"]
    list_filter = ["cadence", "rail"]
    search_fields = ["organisation__name"]

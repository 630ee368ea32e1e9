"""What the team sees of the market: listings, prices, rentals. All of it follows from elsewhere, so nothing is edited here."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from unfold.admin import ModelAdmin, TabularInline

from gpunex.kit import show
from marketplace.models import Listing, ModelPrice, Rental, RentalGpu


class ReadOnly:
    """Rows that only rules write."""

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Listing)
class ListingAdmin(ReadOnly, ModelAdmin):
    list_display = (
        "machine",
        "gpu_model",
        "state",
        "tier",
        "country",
        "price",
        "gpus_free",
        "gpus_total",
        "rank",
        "refreshed_at",
    )
    list_filter = ("state", "tier", "gpu_model", "region")
    search_fields = ("machine__name", "machine__provider__organisation__name", "public_id")
    list_select_related = ("machine", "gpu_model")

    @admin.display(description=_("price, USDC"), ordering="price_micro")
    def price(self, listing: Listing) -> str:
        return show.price(listing.price_micro) if listing.price_micro is not None else ""


@admin.register(ModelPrice)
class ModelPriceAdmin(ReadOnly, ModelAdmin):
    list_display = ("provider", "gpu_model", "price", "current", "set_at", "set_by")
    list_filter = ("current", "gpu_model")
    search_fields = ("provider__organisation__name",)
    list_select_related = ("provider__organisation", "gpu_model", "set_by")

    @admin.display(description=_("price, USDC"), ordering="price_micro")
    def price(self, row: ModelPrice) -> str:
        return show.price(row.price_micro)


class RentalGpuInline(ReadOnly, TabularInline):
    model = RentalGpu
    extra = 0


@admin.register(Rental)
class RentalAdmin(ReadOnly, ModelAdmin):
    list_display = (
        "short_id",
        "organisation",
        "provider",
        "listing",
        "state",
        "cause",
        "provider_fault",
        "price",
        "charged",
        "created_at",
        "ended_at",
    )
    list_filter = ("state", "provider_fault", "cause", "tier")
    search_fields = ("public_id", "organisation__name", "provider__organisation__name", "listing__machine__name")
    list_select_related = ("organisation", "provider__organisation", "listing__machine", "listing__gpu_model", "meter")
    date_hierarchy = "created_at"
    inlines = (RentalGpuInline,)
    exclude = ("gpus",)

    @admin.display(description=_("price, USDC"), ordering="price_micro")
    def price(self, rental: Rental) -> str:
        return show.price(rental.price_micro)

    @admin.display(description=_("charged, USDC"))
    def charged(self, rental: Rental) -> str:
        return show.usdc(rental.meter.billed_gross_micro, fine=True) if rental.meter else ""

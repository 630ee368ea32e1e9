"""Floors: what is or was off the market, and what was waived."""

from collections.abc import Sequence

from django import forms
from django.contrib import admin
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from gpunex.kit.registers import DecidingAdmin, Decision, ReadOnlyAdmin
from reliability import floors, waivers
from reliability.models import Delisting, FloorWaiver


@admin.register(Delisting)
class DelistingAdmin(ReadOnlyAdmin):
    list_display = ["machine", "gpu", "floor", "why", "started_at", "ended_at", "told_at"]
    list_filter = ["floor", ("ended_at", admin.EmptyFieldListFilter)]
    list_select_related = ["machine", "gpu__machine"]
    search_fields = ["machine__name", "machine__provider__organisation__name", "gpu__uuid"]
    ordering = ["-started_at"]
    readonly_fields = ["why"]

    @admin.display(description=_lazy("why"))
    def why(self, delisting: Delisting) -> str:
        return floors.in_words(delisting.reason)[0]


@admin.register(FloorWaiver)
class FloorWaiverAdmin(DecidingAdmin):
    """Waivers are granted on a machine's own page, among the machines by risk."""

    list_display = ["machine", "gpu", "floor", "reason", "by", "at", "until", "revoked_at"]
    list_filter = ["floor", ("revoked_at", admin.EmptyFieldListFilter)]
    list_select_related = ["machine", "gpu__machine", "by"]
    search_fields = ["machine__name", "machine__provider__organisation__name"]
    ordering = ["-at"]

    def decisions(self, request: HttpRequest, row: FloorWaiver) -> Sequence[Decision]:
        at = timezone.now()
        if row.revoked_at is not None or row.until <= at or not request.user.has_perm("reliability.change_floorwaiver"):
            return []

        def revoke(_form: forms.Form) -> str:
            with transaction.atomic():
                waivers.revoke(waiver=row, by=request.user, at=at)
                floors.apply_now(machine=row.machine, at=at)
            return _("The waiver is revoked.")

        return [Decision("revoke", _("End this waiver now"), _("Revoke"), forms.Form(), revoke)]

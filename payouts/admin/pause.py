"""The kill switch, said above every list of what it stops."""

from typing import Any

from django.http import HttpRequest, HttpResponse

from gpunex.kit.registers import ReadOnlyAdmin
from gpunex.policy.models import Policy


class TellingPauseAdmin(ReadOnlyAdmin):
    list_before_template = "admin/payouts/paused.html"

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        context = dict(extra_context or {}) | {"paused": Policy.load().payouts_paused}
        return super().changelist_view(request, context)

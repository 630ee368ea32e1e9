"""Telling renters whose rental runs into planned maintenance of its host: once a rental and window, as early as can be.

New rentals end at its start by themselves (``providers.schedules.window_around``); those that began before it was announced
go on, and their host may go down under them.
"""

from datetime import datetime, timedelta

import structlog
from django.db import transaction

from gpunex.accounts.notices import notify
from gpunex.policy.models import Policy
from marketplace import notices
from marketplace.models import Rental
from providers.models import MaintenanceWindow

log = structlog.get_logger(__name__)


def warn(*, at: datetime) -> int:
    """The renters whose running rentals cross a window that is near. Returns how many rentals; a repeat tells nothing twice."""
    notice = timedelta(hours=max(24, Policy.load().maintenance_notice_hours))
    windows = MaintenanceWindow.objects.filter(cancelled_at=None, ends_at__gt=at, starts_at__lte=at + notice)
    warned = 0
    for window in windows.select_related("machine").order_by("starts_at", "pk"):
        crossing = Rental.objects.open().filter(listing__machine=window.machine, created_at__lt=window.ends_at)
        for rental in crossing.select_related("organisation", "listing__gpu_model").order_by("pk"):
            if rental.window_until is None or rental.window_until > window.starts_at:
                warned += _warn(rental, window, at)
    return warned


def _warn(rental: Rental, window: MaintenanceWindow, at: datetime) -> bool:
    try:
        with transaction.atomic():
            notify(
                organisation=rental.organisation,
                event=notices.MAINTENANCE,
                key=f"{notices.MAINTENANCE.name}:{window.pk}:{rental.public_id}",
                data={
                    "rental": str(rental.public_id),
                    "machine": window.machine.name,
                    "gpus": rental.gpu_count,
                    "model": rental.listing.gpu_model.name,
                    "starts_at": window.starts_at.isoformat(),
                    "ends_at": window.ends_at.isoformat(),
                },
                at=at,
            )
    except Exception:  # one that cannot be told never stops the rest
        log.exception("maintenance_warning_failed", rental=rental.pk, window=window.pk)
        return False
    return True

"""Planned maintenance as the market sees it: from its start the machine is off the market, and no new rental crosses it."""

from collections.abc import Iterable
from datetime import datetime

from providers.models import Machine, MaintenanceWindow


def of(machine: Machine, at: datetime) -> MaintenanceWindow | None:
    """The window that runs at ``at``, or the next one; None where none is announced."""
    standing = MaintenanceWindow.objects.filter(machine=machine, cancelled_at=None, ends_at__gt=at)
    return standing.order_by("starts_at", "pk").first()


def first_of(windows: Iterable[MaintenanceWindow], at: datetime) -> MaintenanceWindow | None:
    """``of`` for windows of one machine that are at hand."""
    standing = [window for window in windows if window.cancelled_at is None and window.ends_at > at]
    return min(standing, key=lambda window: (window.starts_at, window.pk), default=None)


def begun(window: MaintenanceWindow | None, at: datetime) -> bool:
    return window is not None and window.starts_at <= at


def cut(until: datetime | None, window: MaintenanceWindow | None) -> datetime | None:
    """The end of declared hours, or the start of the maintenance if that comes first."""
    if window is None:
        return until
    return window.starts_at if until is None else min(until, window.starts_at)

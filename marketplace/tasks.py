"""Sweeps of the marketplace. Late, twice or two at once is harmless."""

from celery import shared_task
from django.utils import timezone

from marketplace import lifecycle, listings, maintenance


@shared_task
def prove_rentals() -> int:
    """Meters follow the heartbeats, deadlines follow the money."""
    return lifecycle.prove(at=timezone.now())


@shared_task
def end_rentals() -> int:
    """What is over though nobody says so."""
    return lifecycle.end_overdue(at=timezone.now())


@shared_task
def refresh_listings() -> int:
    """What was missed, and what changes with time alone: silence, hours, the age of a benchmark, the market."""
    return listings.refresh(at=timezone.now())


@shared_task
def warn_of_maintenance() -> int:
    """Renters whose rental runs into announced maintenance."""
    return maintenance.warn(at=timezone.now())

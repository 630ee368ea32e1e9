"""The sweeps of payouts: late, twice or two at once is harmless."""

from celery import shared_task
from django.utils import timezone

from payouts import runs, usdc


@shared_task
def make_due_runs() -> int:
    """After a pause each missed run is made, oldest first."""
    return runs.make_due(at=timezone.now())


@shared_task
def advance_payouts() -> int:
    return usdc.advance(at=timezone.now())

"""Billing's sweeps: late, twice or two at once is harmless."""

from celery import shared_task
from django.utils import timezone

from billing import deposits, metering


@shared_task
def settle_meters() -> int:
    """Settling catches up by itself."""
    return metering.settle(at=timezone.now())


@shared_task
def find_deposits() -> int:
    return deposits.find_deposits(at=timezone.now())


@shared_task
def sweep_deposits() -> int:
    return deposits.sweep_deposits(at=timezone.now())

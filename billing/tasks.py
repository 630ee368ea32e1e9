"""Billing's sweeps: late, twice or two at once is harmless."""

from celery import shared_task
from django.utils import timezone

from billing import collecting, deposits, metering, references, statements, strays, warnings


@shared_task
def settle_meters() -> int:
    """Settling catches up by itself."""
    return metering.settle(at=timezone.now())


@shared_task
def find_deposits() -> int:
    return deposits.find_deposits(at=timezone.now())


@shared_task
def watch_deposit_requests() -> int:
    at = timezone.now()
    return references.open_accounts(at=at) + references.watch(at=at)


@shared_task
def find_strays() -> int:
    return strays.find_strays(at=timezone.now())


@shared_task
def sweep_deposits() -> int:
    return collecting.sweep_deposits(at=timezone.now())


@shared_task
def issue_statements() -> int:
    """Monthly statements of the months that are over; after a pause each missed one is issued, oldest first."""
    return statements.issue_months(at=timezone.now())


@shared_task
def balance_warnings() -> int:
    return warnings.warn(at=timezone.now())

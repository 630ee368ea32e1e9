"""Sweeps of reliability: see ``gpunex.celery`` for how often each runs."""

from celery import shared_task
from django.utils import timezone

from reliability import benchmarks, connections, health, scores


@shared_task
def watch_connections() -> dict[str, int]:
    """Machines that have fallen silent become offline, then lost."""
    return connections.watch(at=timezone.now())


@shared_task
def request_benchmarks() -> int:
    """Start the benchmarks that are due, and end those that nobody answers."""
    return benchmarks.request_due(at=timezone.now())


@shared_task
def refresh_scores() -> int:
    """Hourly for each machine, and soon after something that counts."""
    return scores.refresh(at=timezone.now())


@shared_task
def drop_old_samples() -> int:
    """Telemetry older than a week."""
    return health.drop_old_samples(at=timezone.now())

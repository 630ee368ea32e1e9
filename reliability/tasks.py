"""Sweeps of reliability: see ``gpunex.celery`` for how often each runs."""

from celery import shared_task
from django.utils import timezone

from reliability import benchmarks, connections, partitions, rollups, scores


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
def keep_telemetry() -> dict[str, dict[str, int]]:
    """Samples into hours; the days to come made, those that are over dropped."""
    at = timezone.now()
    return {
        "rolled": rollups.roll_up(at=at),
        "days": partitions.keep_up(partitions.SAMPLES, at=at),
        "months": partitions.keep_up(partitions.HOURS, at=at),
    }


@shared_task
def tell_clocks() -> int:
    """Machines whose clock is off."""
    return connections.tell_clocks(at=timezone.now())

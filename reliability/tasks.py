"""Sweeps of reliability: see ``gpunex.celery`` for how often each runs."""

from celery import shared_task
from django.utils import timezone

from reliability import anomalies, benchmarks, connections, days, floors, partitions, rollups, scores

HOURLY_SCORES = 5000  # a sweep; what just happened comes before them


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
    return scores.refresh(at=timezone.now() - scores.SETTLED, most=HOURLY_SCORES)


@shared_task
def keep_days() -> dict[str, int]:
    """Days of uptime for lists, and old scores thinned out."""
    at = timezone.now()
    return {"days": days.keep_up(at=at), "thinned": scores.thin(at=at)}


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


@shared_task
def judge_floors() -> int:
    """Uptime and software against their floors, waivers that have run out."""
    return floors.sweep(at=timezone.now())


@shared_task
def look_for_anomalies() -> int:
    """What our team should look at."""
    return anomalies.look(at=timezone.now())

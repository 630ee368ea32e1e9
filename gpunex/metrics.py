"""GET /metrics for Prometheus: what waits, what runs, how late the clock is. Behind a token, since it tells the business.

Each figure is read from the rows when it is asked for, so that every web process answers the same.
"""

import time
from collections.abc import Iterator

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.cache import cache
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from billing.models import Deposit, Meter
from gpunex.celery import SWEEPS
from gpunex.kit.secrets import same
from gpunex.outbox.models import Message
from gpunex.policy.models import Policy
from marketplace.models import Listing, Rental
from payouts.models import Payout
from providers.models import Application, Machine


class _Rows(Collector):
    """The figures, each with its sentence; names end in their unit."""

    def collect(self) -> Iterator[Metric]:
        at = timezone.now()
        policy = Policy.load()
        counts = {
            "machines_connected": (
                "Machines heard from within the offline time",
                Machine.objects.connected(at, policy.offline_seconds),
            ),
            "listings_offered": ("Listings with a GPU to rent now", Listing.objects.open(at)),
            "rentals_running": ("Rentals whose job runs", Rental.objects.filter(state=Rental.State.RUNNING)),
            "meters_open": ("Meters that may still be billed", Meter.objects.filter(closed=False)),
            "mails_waiting": ("Mails that are due and not sent", Message.objects.due(at)),
            "mails_failed": ("Mails given up", Message.objects.filter(state=Message.State.FAILED)),
            "applications_overdue": ("Applications past their review time", Application.objects.overdue(at)),
            "deposits_unmatched": (
                "Deposits whose owner is unknown",
                Deposit.objects.filter(state=Deposit.State.UNMATCHED),
            ),
            "payouts_open": ("Payouts on their way", Payout.objects.filter(state__in=Payout.OPEN_STATES)),
            "payouts_in_review": ("Payouts that wait for a person", Payout.objects.filter(state=Payout.State.REVIEW)),
        }
        for name, (sentence, rows) in counts.items():
            yield GaugeMetricFamily(f"gpunex_{name}", sentence, value=rows.count())
        yield from self._sweeps()

    def _sweeps(self) -> Iterator[Metric]:
        age = GaugeMetricFamily("gpunex_sweep_age_seconds", "Seconds since a sweep last ended", labels=["sweep"])
        took = GaugeMetricFamily("gpunex_sweep_duration_seconds", "How long its last run took", labels=["sweep"])
        for key, seen in cache.get_many([f"sweep:{name}" for name in SWEEPS]).items():
            age.add_metric([key.removeprefix("sweep:")], max(0.0, time.time() - seen["at"]))
            took.add_metric([key.removeprefix("sweep:")], seen["seconds"])
        yield age
        yield took


@login_not_required
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """``Authorization: Bearer <METRICS_TOKEN>``; without that setting, or with another token, the address does not exist."""
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not settings.METRICS_TOKEN or not same(given, settings.METRICS_TOKEN):
        raise Http404
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Rows())
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

"""The front page: what this is, what is free, from which price; for renters first, and for owners of GPUs."""

from datetime import datetime
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from gpunex.policy.models import Policy, TierPolicy
from marketplace import market
from providers import places
from providers.models import GpuModel


@login_not_required
@require_safe
def front(request: HttpRequest) -> HttpResponse:
    at = timezone.now()
    rows = _board(at)
    tiers = {tier.tier: tier for tier in TierPolicy.objects.all()}
    pulse = market.pulse(at=at)
    return render(
        request,
        "marketplace/front.html",
        {
            "nav": "front",
            "at": at,
            "rows": rows,
            "free": sum(row["free"] for row in rows),
            "total": sum(row["total"] for row in rows),
            "pulse": pulse,
            "beat": _beat(pulse.rented),
            "regions": [(code, places.region_name(code)) for code in places.REGIONS if code != "AN"],
            "policy": Policy.load(),
            "keeps": {name: (10_000 - tier.fee_bps) / 100 for name, tier in tiers.items()},
        },
    )


def _board(at: datetime) -> list[dict[str, Any]]:
    """A line for each model of the catalogue that is offered, or was rented lately."""
    supply, rented, days = market.supply(at=at), market.rented(at=at), market.daily_medians(at=at)
    rows = []
    for model in GpuModel.objects.all():
        here, prices, history = supply.get(model.pk), rented.get((model.pk, "world", "")), days.get(model.pk, [])
        if here is None and prices is None:
            continue
        lowest = here.lowest_micro if here else None
        ends = [price for price in (prices and prices.p10, prices and prices.p90, lowest) if price]
        medians = [median for _day, median, _count in history]
        rows.append(
            {
                "model": model,
                "free": here.free if here else 0,
                "total": here.total if here else 0,
                "lowest": lowest,
                "prices": prices,
                "low": min(ends, default=0) * 95 // 100,
                "high": max(ends, default=0) * 105 // 100,
                "medians": medians,
                "change": 100 * (medians[-1] - medians[0]) / medians[0] if len(medians) > 1 else None,
            }
        )
    return rows


def _beat(rented: list[int]) -> list[tuple[str, str]]:
    """A stroke a quarter of an hour: its place and its top, in the drawing's units of 720 × 100."""
    top, step = max([*rented, 1]), 720 / max(len(rented), 1)
    return [(f"{index * step + step / 2:.1f}", f"{100 - 92 * count / top:.1f}") for index, count in enumerate(rented)]

"""Market prices, public: what is asked and what was paid, by model, region and tier, each with its sample size."""

from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from gpunex.kit import show
from gpunex.kit.svg import Chart
from marketplace import market
from marketplace.models import Listing
from providers import places
from providers.models import GpuModel


@login_not_required
@require_safe
def prices(request: HttpRequest) -> HttpResponse:
    at = timezone.now()
    models = {model.pk: model for model in GpuModel.objects.all()}
    rows = [row for row in market.table(at=at) if row.model in models]
    chosen = next((model for model in models.values() if model.slug == request.GET.get("model")), None)
    if chosen is not None:
        rows = [row for row in rows if row.model == chosen.pk]
    rows.sort(key=lambda row: (models[row.model].position, models[row.model].name, row.region, row.tier))
    shown = [{"model": models[row.model], "region": places.region_name(row.region), "row": row} for row in rows]
    context = {
        "nav": "prices",
        "at": at,
        "models": [model for model in models.values() if model.active],
        "chosen": chosen,
        "rows": shown,
        "days": market.DAYS,
        "listings": Listing.objects.filter(state=Listing.State.OFFERED).count(),
        **(_history(chosen, at) if chosen else {}),
    }
    return render(request, "marketplace/prices.html", context)


def _history(model: GpuModel, at: Any) -> dict[str, Any]:
    days = market.daily_medians(at=at, gpu_model=model).get(model.pk, [])
    if len(days) < 2:
        return {"history": days}
    chart = Chart(
        values=[median / 1_000_000 for _day, median, _count in days],
        label=_("Median price rented a day over 30 days, from %(first)s to %(last)s USDC per GPU per hour")
        % {"first": show.price(days[0][1]), "last": show.price(days[-1][1])},
        ticks=[
            show.day_text(days[0][0], year=False),
            show.day_text(days[len(days) // 2][0], year=False),
            show.day_text(days[-1][0], year=False),
        ],
    )
    return {"history": days, "chart": chart}

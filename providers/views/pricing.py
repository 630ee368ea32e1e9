"""The tab Pricing: a price for each model, what is kept of it, what the market suggests, where it would rank."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from billing.metering import fee_of
from gpunex.kit import show
from gpunex.kit.refusals import Refusal
from gpunex.policy.models import TierPolicy
from marketplace import listings, market, placing, pricing
from marketplace.forms import PricesForm
from marketplace.models import Listing, ModelPrice
from providers import places
from providers.models import GpuModel
from providers.views.access import provider_page


@provider_page
@require_http_methods(["GET", "HEAD", "POST"])
def prices(request: HttpRequest) -> HttpResponse:
    desk = request.desk
    models = _models(desk)
    form = PricesForm(request.POST if request.method == "POST" else None, models=models, current=desk.prices)
    if request.method == "POST" and form.is_valid():
        _save(request, form)
        return redirect("providers:pricing")
    chosen = next((model for model in models if model.slug == request.GET.get("model")), models[0] if models else None)
    if request.headers.get("HX-Request") and "try" in request.GET and chosen is not None:
        return render(
            request, "marketplace/pricing.html#where", _where(desk, chosen, request.GET["try"]) | {"chosen": chosen}
        )
    tier = TierPolicy.of(desk.provider.tier)
    context = {
        "nav": "pricing",
        "form": form,
        "tier_policy": tier,
        "fee_percent": tier.fee_bps / 100,
        "keep_percent": (10_000 - tier.fee_bps) / 100,
        "rows": [_row(desk, model, form) for model in models],
        "chosen": chosen,
        "history": ModelPrice.objects.filter(provider=desk.provider)
        .select_related("gpu_model", "set_by")
        .order_by("-set_at", "-pk")[:20],
        **(_market(desk, chosen) if chosen else {}),
        **(_where(desk, chosen, request.GET.get("try", "")) if chosen else {}),
    }
    return render(request, "marketplace/pricing.html", context, status=422 if form.is_bound else 200)


def _models(desk: Any) -> list[GpuModel]:
    """The models of the provider's cards, and those it has a price for."""
    return list(GpuModel.objects.filter(pk__in=[*desk.fleet.models, *desk.prices]).order_by("position", "name"))


def _save(request: HttpRequest, form: PricesForm) -> None:
    desk = request.desk
    for model in form.models:
        price = form.cleaned_data.get(model.slug)
        if not price or desk.prices.get(model.pk) == price:
            continue
        pricing.set_price(provider=desk.provider, gpu_model=model, price_micro=price, by=request.user, at=desk.at)
        messages.success(
            request,
            _("%(model)s now asks %(price)s for new rentals.") % {"model": model.name, "price": show.price(price)},
        )
    listings.refresh(at=desk.at, machines=desk.provider.machines.live())


def _place_of(desk: Any, model: GpuModel) -> tuple[str, str]:
    """Region and country that the provider's cards of a model stand in: where most of them are."""
    machine = desk.provider.machines.live().filter(gpus__variant__model=model).order_by("country").first()
    country = machine.country if machine else ""
    return places.region_of(country), country


def _row(desk: Any, model: GpuModel, form: PricesForm) -> dict[str, Any]:
    region, country = _place_of(desk, model)
    price = desk.prices.get(model.pk)
    mine = Listing.objects.filter(machine__provider=desk.provider, gpu_model=model).exclude(state=Listing.State.RETIRED)
    best = placing.best_listing(provider=desk.provider, gpu_model=model)
    counts = list(mine.values_list("gpus_total", "gpus_free", "machine__name", "tier"))
    fee_bps = TierPolicy.of(counts[0][3] if counts else desk.provider.tier).fee_bps
    return {
        "model": model,
        "field": form[model.slug],
        "keep_micro": price - fee_of(price, fee_bps) if price else None,
        "recommendation": pricing.recommend(gpu_model=model, region=region, country=country, at=desk.at),
        "total": sum(total for total, *_rest in counts),
        "rented": sum(
            card.standing == "rented"
            for host in desk.fleet.hosts
            for card in host.cards
            if card.model and card.model.pk == model.pk
        ),
        "hosts": [name for _total, _free, name, _tier in counts],
        "placing": placing.place_at(best, price_micro=price, others=placing.others_of(best, at=desk.at))
        if best and price and best.rank_factors
        else None,
    }


def _market(desk: Any, model: GpuModel) -> dict[str, Any]:
    """What the recommendation rests on."""
    region, country = _place_of(desk, model)
    recommendation = pricing.recommend(gpu_model=model, region=region, country=country, at=desk.at)
    where = {
        "country": places.country_name(country),
        "region": places.region_name(region),
        "world": _("the world"),
    }.get(recommendation.basis, "")
    prices = recommendation.prices
    return {
        "recommendation": recommendation,
        "where": where,
        "you_micro": desk.prices.get(model.pk),
        "asked": market.asked(at=desk.at, gpu_model=model).get((model.pk, "region", region)),
        "rented_prices": market.rented(at=desk.at, gpu_model=model).get((model.pk, "region", region)),
        "low": min(price for price in (prices.p10, desk.prices.get(model.pk)) if price) * 95 // 100 if prices else None,
        "high": max(price for price in (prices.p90, desk.prices.get(model.pk)) if price) * 105 // 100
        if prices
        else None,
    }


def _where(desk: Any, model: GpuModel, typed: str) -> dict[str, Any]:
    """The place at the price that is tried, and at some others around it."""
    best = placing.best_listing(provider=desk.provider, gpu_model=model)
    price, refused = desk.prices.get(model.pk), ""
    if typed.strip():
        try:
            price = pricing.parse_price(typed)
        except Refusal as refusal:
            refused = str(refusal)
    if best is None or not best.rank_factors or price is None or refused:
        return {"tried": None, "try_refused": refused, "try_text": typed, "ladder": []}
    others = placing.others_of(best, at=desk.at)
    return {
        "tried": placing.place_at(best, price_micro=price, others=others, look=True),
        "try_text": typed or show.price(price).replace(",", ""),
        "try_refused": "",
        "ladder": _ladder(best, price, others, desk),
    }


def _ladder(best: Listing, price: int, others: list[tuple[float, int]], desk: Any) -> list[dict[str, Any]]:
    fee_bps = TierPolicy.of(best.tier).fee_bps
    now = desk.prices.get(best.gpu_model_id)
    tried = sorted(
        {
            price,
            *(price * share // 100 // 10_000 * 10_000 for share in (85, 90, 95, 105, 110, 115)),
            *([now] if now else []),
        }
    )
    return [
        {
            "placing": placing.place_at(best, price_micro=each, others=others),
            "keep_micro": each - fee_of(each, fee_bps),
            "mine": each == price,
            "now": each == now,
        }
        for each in tried
        if each > 0
    ]

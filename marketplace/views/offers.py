"""Finding an offer, reading it, and renting it. Reading needs no account."""

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Count, Min, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_POST, require_safe

from gpunex.accounts.organisations import may_act
from gpunex.kit.money import parse_usdc
from gpunex.kit.refusals import Refusal
from gpunex.kit.show import cut
from gpunex.policy.models import TierPolicy
from marketplace import containers, credits, limits, market, quotes, ranking, rentals, search
from marketplace.forms import FilterForm, RentForm, seconds_of
from marketplace.models import Listing, ModelPrice, Rental
from marketplace.rank_words import factors_of
from marketplace.uptime import days_of
from providers import places
from providers.models import GpuModel
from reliability import score as formula
from reliability import scores
from reliability.models import Benchmark, Score

_WEIGHTS = {"uptime": formula.UPTIME, "completion": formula.COMPLETION, "consistency": formula.CONSISTENCY}


@login_not_required
@require_safe
def offers(request: HttpRequest) -> HttpResponse:
    at = timezone.now()
    form = FilterForm(request.GET)
    form.is_valid()
    found = form.found
    page = Paginator(
        found.offers(at).select_related("machine__provider__organisation", "gpu_model"), search.PAGE
    ).get_page(request.GET.get("page"))
    why = next((listing for listing in page if str(listing.public_id) == request.GET.get("why")), None)
    here = found.matching().filter(state=Listing.State.OFFERED)
    context = {
        "nav": "market",
        "at": at,
        "form": form,
        "found": found,
        "chips": [(condition.words, _without(request, condition.name)) for condition in found.conditions],
        "page": page,
        "why": why,
        "why_factors": factors_of(why) if why else [],
        "lowest": page.paginator.count and found.offers(at).order_by().aggregate(lowest=Min("price_micro"))["lowest"],
        "totals": here.aggregate(free=Sum("gpus_free"), total=Sum("gpus_total")),
        "elsewhere": _elsewhere(found, at),
        **_place(found, at),
    }
    response = render(request, "marketplace/offers.html", context, status=422 if found.errors else 200)
    patch_vary_headers(response, ["HX-Request"])
    return response


def _without(request: HttpRequest, name: str) -> str:
    """The same search without one filter."""
    query = request.GET.copy()
    for key in (name, "page", "why"):
        query.pop(key, None)
    return f"?{query.urlencode()}" if query else request.path


def _place(found: search.Search, at: datetime) -> dict[str, Any]:
    """The market of the model that was searched for, where it was."""
    conditions = {condition.name: condition for condition in found.conditions}
    if "model" not in conditions:
        return {"model": None}
    model = GpuModel.objects.get(name=conditions["model"].words)
    region = conditions["region"].text.removeprefix("region = ") if "region" in conditions else ""
    basis = "region" if region else "world"
    return {
        "model": model,
        "region": region,
        "rented": market.rented(at=at, gpu_model=model).get((model.pk, basis, region)),
        "occupancy": market.occupancy(gpu_model=model, basis=basis, place=region, at=at),
    }


def _elsewhere(found: search.Search, at: datetime) -> list[tuple[str, int]]:
    """What fits and cannot be rented now, by reason."""
    states = Listing.State
    closed = found.matching().exclude(state__in=(states.RETIRED, states.UNPRICED, states.OFFERED)).order_by()
    by_state = {row["state"]: row["count"] for row in closed.values("state").annotate(count=Count("pk"))}
    offered = found.matching().filter(state=states.OFFERED)
    shut = offered.exclude(pk__in=Listing.objects.within_hours(at).values("pk")).count()
    full = offered.filter(pk__in=Listing.objects.within_hours(at).values("pk"), gpus_free=0).count()
    counts = [("hours", shut), ("rented", full), *sorted(by_state.items())]
    return [(reason, count) for reason, count in counts if count]


@login_not_required
@require_safe
def offer(request: HttpRequest, public_id: UUID) -> HttpResponse:
    listing = _listing(public_id)
    if request.headers.get("HX-Request") and "quote" in request.GET:
        response = render(
            request,
            "marketplace/offer.html#quote",
            {"listing": listing, "quote": _quote(request, listing, request.GET)},
        )
    else:
        form = RentForm(listing=listing, again=_again(request))
        response = render(request, "marketplace/offer.html", _offer_context(request, listing, form))
    patch_vary_headers(response, ["HX-Request"])
    return response


@require_POST
def rent(request: HttpRequest, public_id: UUID) -> HttpResponse:
    if not may_act(request.user, request.organisation):
        raise PermissionDenied
    listing = _listing(public_id)
    form = RentForm(request.POST, listing=listing)
    code = ""
    if form.is_valid():
        wanted = form.cleaned_data
        try:
            rental = rentals.start_rental(
                organisation=request.organisation,
                by=request.user,
                listing=listing,
                gpu_count=wanted["gpus"],
                image=wanted["reference"],
                command=wanted["command"],
                environment=wanted["environment"],
                stop_after_seconds=wanted["stop_after"],
                spend_at_most_micro=wanted["spend_at_most"],
                key=wanted["key"],
                expected_price_micro=wanted["price"],
                at=timezone.now(),
            )
        except Refusal as refusal:
            form.add_error(None, str(refusal))
            code = refusal.code
        else:
            return redirect(rental)
    context = _offer_context(request, _listing(public_id), form) | {"refused": code}
    return render(request, "marketplace/offer.html", context, status=422)


@login_not_required
@require_POST
def check(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """The offer with the quote for what was typed, and nothing rented: what the page does by itself where JavaScript runs.

    A POST, so that a command and its secrets never stand in an address.
    """
    listing = _listing(public_id)
    form = RentForm(request.POST, listing=listing)
    if form.is_valid() and listing.price_micro:
        wanted = form.cleaned_data
        try:
            limits.check(
                stop_after_seconds=wanted["stop_after"],
                spend_at_most_micro=wanted["spend_at_most"],
                rate_micro_per_hour=listing.price_micro * wanted["gpus"],
            )
        except Refusal as refusal:
            form.add_error(None, str(refusal))
    context = _offer_context(request, listing, form) | {"checked": form.is_valid()}
    return render(request, "marketplace/offer.html", context, status=200 if form.is_valid() else 422)


def _listing(public_id: UUID) -> Listing:
    """A listing that may be offered, with the price of this moment: a copy that is seconds old would be agreed to unseen."""
    listings = Listing.objects.exclude(state=Listing.State.RETIRED)
    listing: Listing = get_object_or_404(
        listings.select_related("machine__provider__organisation", "gpu_model"), public_id=public_id
    )
    listing.price_micro = quotes.price_of(listing)
    return listing


def _again(request: HttpRequest) -> Rental | None:
    """The rental that is to be run again: one's own only, and its environment holds secrets of those who may rent."""
    try:
        wanted = UUID(request.GET.get("again", ""))
    except ValueError:
        return None
    if not request.user.is_authenticated or not may_act(request.user, request.organisation):
        return None
    return Rental.objects.select_related("request").filter(organisation=request.organisation, public_id=wanted).first()


def _offer_context(request: HttpRequest, listing: Listing, form: RentForm) -> dict[str, Any]:
    at = timezone.now()
    machine = listing.machine
    # What the form agrees to is the price that the page shows; after a refusal that is the new one.
    if form.is_bound:
        form.data = dict(form.data.items()) | {"price": str(listing.price_micro)}
    benchmark = (
        Benchmark.objects.filter(
            gpu__machine=machine, gpu__variant__model=listing.gpu_model, state=Benchmark.State.ACCEPTED
        )
        .select_related("gpu__variant")
        .order_by("-received_at")
        .first()
    )
    score = scores.latest(machine)
    history = list(
        ModelPrice.objects.filter(provider=machine.provider, gpu_model=listing.gpu_model).order_by("-set_at")[:10]
    )
    best = (
        Listing.objects.open(at)
        .filter(gpu_model=listing.gpu_model, region=listing.region)
        .values_list("rank", "price_micro")
    )
    ended = Rental.objects.filter(listing=listing, state=Rental.State.ENDED).aggregate(
        count=Count("pk"), gpus=Sum("gpu_count")
    )
    return {
        "nav": "market",
        "at": at,
        "listing": listing,
        "form": form,
        "open": Listing.objects.open(at).filter(pk=listing.pk).exists(),
        "within_hours": Listing.objects.within_hours(at).filter(pk=listing.pk).exists(),
        "host": machine.host,
        "memory_gib": (machine.host.get("memory_mib") or 0) // 1024,
        "country": places.country_name(listing.country),
        "region": places.region_name(listing.region),
        "benchmark": benchmark,
        "measures": _measures(benchmark),
        "score": score,
        "parts": _parts(score) if score else [],
        "uptime": days_of(machine, at=at),
        "history": history,
        "past": ended["count"],
        "place": ranking.place_of(listing.rank, listing.price_micro or 0, best),
        "places": len(best),
        "factors": factors_of(listing),
        "tier_policy": TierPolicy.of(listing.tier),
        "credit_minutes": credits.minutes_of(listing.tier),
        "quote": _quote(
            request,
            listing,
            form.data
            if form.is_bound
            else {name: str(form[name].value()) for name in ("gpus", "stop_after", "spend_at_most")},
        ),
        "templates": containers.TEMPLATES,
    }


def _measures(benchmark: Benchmark | None) -> list[dict[str, Any]]:
    """Each figure of a run beside what the model should reach."""
    if benchmark is None or benchmark.gpu.variant is None:
        return []
    expected = benchmark.gpu.variant.expectations.filter(kernel_version=benchmark.kernel_version).first()
    names = (
        ("tensor_tflops", "TFLOPS"),
        ("fp16_tflops", "TFLOPS"),
        ("fp32_tflops", "TFLOPS"),
        ("vram_read_gbps", "GB/s"),
        ("vram_write_gbps", "GB/s"),
    )
    found = []
    for name, unit in names:
        value, should = getattr(benchmark, name), getattr(expected, name, None)
        if value is not None:
            found.append(
                {
                    "name": name,
                    "value": value,
                    "unit": unit,
                    "expected": should,
                    "share": value / should if should else None,
                }
            )
    return found


def _parts(score: Score) -> list[dict[str, Any]]:
    """The score's parts, cut to hundredths; a hundredth that cutting lost goes to the part that lost most, so that they sum."""
    exact = {name: 100 * weight * getattr(score, name) for name, weight in _WEIGHTS.items()}
    hundredths = {name: int(points * 100 + 1e-6) for name, points in exact.items()}
    missing = int(sum(exact.values()) * 100 + 1e-6) - sum(hundredths.values())
    for name in sorted(exact, key=lambda name: hundredths[name] - exact[name] * 100)[:missing]:
        hundredths[name] += 1
    return [
        {
            "name": name,
            "share": getattr(score, name),
            "points": cut(hundredths[name] / 100, 2),
            "of": round(100 * weight),
        }
        for name, weight in _WEIGHTS.items()
    ]


def _quote(request: HttpRequest, listing: Listing, typed: Any) -> quotes.Quote | None:
    """The quote for what is typed so far. Nothing that is typed can break it."""
    if listing.price_micro is None:
        return None
    count = _read(int, typed.get("gpus"), 1)
    seconds = _read(seconds_of, typed.get("stop_after"), None)
    return quotes.quote(
        listing=listing,
        gpu_count=count if 1 <= count <= listing.gpus_total else 1,
        organisation=request.organisation if request.user.is_authenticated and request.organisation else None,
        stop_after_seconds=seconds if seconds and seconds <= limits.LONGEST_SECONDS else None,
        spend_at_most_micro=_read(parse_usdc, typed.get("spend_at_most"), None) or None,
        at=timezone.now(),
    )


def _read(read: Callable[[str], Any], text: Any, otherwise: Any) -> Any:
    """A quote follows what is being typed, so half a number is no error yet."""
    try:
        return read(str(text)) if text else otherwise
    except (Refusal, ValueError):
        return otherwise

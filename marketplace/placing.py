"""Where a listing would stand at another price: the real ranking, with only its own price factor changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from marketplace import ranking
from marketplace.models import Listing
from providers.models import GpuModel, Provider

CENT = 10_000
MOST_STEPS = 20_000


@dataclass(frozen=True)
class Placing:
    """``better_micro``: the highest price in whole cents, below the one tried, that gives a better place; None if none does."""

    price_micro: int
    place: int
    places: int
    rank: float
    better_micro: int | None = None


def best_listing(*, provider: Provider, gpu_model: GpuModel) -> Listing | None:
    """The provider's best ranked priced listing of a model: the one its place is told for."""
    mine = Listing.objects.filter(machine__provider=provider, gpu_model=gpu_model, price_micro__isnull=False)
    return (
        mine.exclude(state=Listing.State.RETIRED).select_related("gpu_model", "machine").order_by("-rank", "pk").first()
    )


def others_of(listing: Listing, *, at: datetime) -> list[tuple[float, int]]:
    """Rank and price of the offers of other providers that it stands beside: its model in its region."""
    beside = Listing.objects.open(at).filter(gpu_model=listing.gpu_model_id, region=listing.region)
    priced = beside.exclude(machine__provider=listing.machine.provider_id).filter(price_micro__isnull=False)
    return [(rank, price) for rank, price in priced.values_list("rank", "price_micro") if price is not None]


def place_at(listing: Listing, *, price_micro: int, others: Sequence[tuple[float, int]], look: bool = False) -> Placing:
    """Its place among ``others`` if it asked ``price_micro``; ``look`` also finds the nearest price that would move it up."""
    rank = rank_at(listing, price_micro=price_micro)
    place = ranking.place_of(rank, price_micro, others)
    better = None
    if look and place > 1:
        start = (price_micro - 1) // CENT * CENT
        for price in range(start, max(0, start - MOST_STEPS * CENT), -CENT):
            if ranking.place_of(rank_at(listing, price_micro=price), price, others) < place:
                better = price
                break
    return Placing(price_micro=price_micro, place=place, places=len(others) + 1, rank=rank, better_micro=better)


def rank_at(listing: Listing, *, price_micro: int) -> float:
    points, against = listing.rank_factors["points"], listing.rank_factors["market"]
    price = ranking.price_points(price_micro, p10=against["p10"], p90=against["p90"])
    return ranking.Factors(**{**points, "price": price}).total

"""What a provider asks: setting a price, and the recommendation that stands beside it and is never imposed.

A price is per provider and GPU model, in whole micro-USDC per GPU per hour. A new one takes the place of the current one,
which stays as history; rentals copied theirs, so a change reaches new rentals only.

**Recommendation.** It rests on the narrowest place that has enough of a market: the country, else the region, else the
world, else the model's list price. Rented prices of the last 7 days count first, because they were paid; where there are
too few, the prices asked now. From their percentiles 25 and 75 it takes a point by how full the market is: nobody
renting means the 25th, everybody the 75th, half the middle.

>>> market = Percentiles(count=40, p10=1_840_000, p25=1_970_000, p50=2_120_000, p75=2_310_000, p90=2_580_000)
>>> point(market, occupancy=0.5), point(market, occupancy=1.0), point(market, occupancy=0.0)
(2120000, 2310000, 1970000)
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import User
from gpunex.kit.money import MICRO, NotAnAmount, parse_usdc
from gpunex.kit.refusals import Refusal
from marketplace import market
from marketplace.market import Percentiles
from marketplace.models import ModelPrice
from providers.models import GpuModel, Provider

HIGHEST_MICRO = 1_000 * MICRO
ENOUGH = 5  # fewer prices than this are a coincidence, not a market
STEP_MICRO = 10_000  # a recommendation is said in whole cents


class PriceNotValid(Refusal):
    code = "price_invalid"
    message = _("A price is between 0.000001 and 1,000 USDC per GPU per hour.")


def parse_price(text: str) -> int:
    """What was typed, as micro-USDC. Raises NotAnAmount for "10,000", "1,5", "-1", "0.0000001"; PriceNotValid for 0.

    >>> parse_price("2.05")
    2050000
    """
    price_micro = parse_usdc(text)
    if not 0 < price_micro <= HIGHEST_MICRO:
        raise PriceNotValid
    return price_micro


@transaction.atomic
def set_price(
    *, provider: Provider, gpu_model: GpuModel, price_micro: int, by: User | None, at: datetime
) -> ModelPrice:
    """Ask ``price_micro`` from now on. The same price again changes nothing. Raises PriceNotValid.

    Listings learn of it by ``listings.refresh``; the caller runs it in the same request.
    """
    if not 0 < price_micro <= HIGHEST_MICRO:
        raise PriceNotValid
    Provider.objects.select_for_update(no_key=True).get(pk=provider.pk)
    current = ModelPrice.objects.filter(provider=provider, gpu_model=gpu_model, current=True).first()
    if current is not None:
        if current.price_micro == price_micro:
            return current
        current.current = False
        current.save(update_fields=["current"])
    return ModelPrice.objects.create(
        provider=provider, gpu_model=gpu_model, price_micro=price_micro, set_by=by, set_at=at
    )


Basis = Literal["country", "region", "world", "catalogue"]
Evidence = Literal["rented", "asked", "list"]

# USDC per GPU per hour at which nothing is known of the market yet: list prices seen at marketplaces in 2025, by class.
# A model's own is its class's, scaled by its memory.
_LIST_PRICE_MICRO_PER_GIB = {"datacenter": 18_000, "workstation": 10_000, "consumer": 14_000}


@dataclass(frozen=True)
class Recommendation:
    """A price and what it rests on: where, how many prices of which kind, and how full the market there is (0 to 1)."""

    price_micro: int
    basis: Basis
    evidence: Evidence
    prices: Percentiles | None
    occupancy: float | None
    days: int = market.DAYS

    @property
    def sample(self) -> int:
        return self.prices.count if self.prices else 0


def recommend(*, gpu_model: GpuModel, region: str, at: datetime, country: str = "") -> Recommendation:
    """The recommended price for a model at a place. ``region`` is a continent's code, ``country`` an ISO code or empty."""
    rented = market.rented(at=at, gpu_model=gpu_model)
    asked = market.asked(at=at, gpu_model=gpu_model)
    places: list[tuple[Basis, str]] = [("country", country), ("region", region), ("world", "")]
    for basis, place in places:
        if basis != "world" and not place:
            continue
        key = (gpu_model.pk, basis, place)
        found: list[tuple[Evidence, Percentiles | None]] = [("rented", rented.get(key)), ("asked", asked.get(key))]
        for evidence, prices in found:
            if prices is not None and prices.count >= ENOUGH:
                occupancy = market.occupancy(gpu_model=gpu_model, basis=basis, place=place, at=at)
                price = point(prices, occupancy=0.5 if occupancy is None else occupancy)
                return Recommendation(_to_step(price), basis, evidence, prices, occupancy)
    return Recommendation(_to_step(list_price(gpu_model)), "catalogue", "list", None, None)


def point(prices: Percentiles, *, occupancy: float) -> int:
    """Between the 25th and 75th percentile, by how full the market is; the median when it is half full."""
    fullness = round(min(1.0, max(0.0, occupancy)) * 1000)
    if fullness <= 500:
        return prices.p25 + (prices.p50 - prices.p25) * fullness // 500
    return prices.p50 + (prices.p75 - prices.p50) * (fullness - 500) // 500


def list_price(gpu_model: GpuModel) -> int:
    """Where nobody asks or rents yet: by class and memory."""
    return gpu_model.vram_gib * _LIST_PRICE_MICRO_PER_GIB.get(gpu_model.klass, 10_000)


def _to_step(price_micro: int) -> int:
    return max(STEP_MICRO, price_micro // STEP_MICRO * STEP_MICRO)


__all__ = ["NotAnAmount", "PriceNotValid", "Recommendation", "list_price", "parse_price", "recommend", "set_price"]

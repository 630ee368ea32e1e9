"""The rank of an offer: six factors that sum to 100 points. The same for everybody, and nothing random in it.

    reliability  40  the machine's score, from 80 (none) to 100 (all); a machine without a score yet counts as 90
    price        25  from the 90th percentile of its market (none) to the 10th (all)
    performance  15  measured against the model, from 80 % (none) to 100 % (all)
    commitment    8  months the provider committed to, of 12
    tier          7  enterprise 7, community 3
    freshness     5  measured within 6 hours (all), down to none after 7 days

The market of an offer is its model in its region: prices rented in the last 7 days if there are at least 5, else prices
asked now, else the same for the world. Where that gives no spread, 20 % around its middle does. Each factor is cut to a
tenth of a point, so that what is shown sums to the rank. Equal ranks: the cheaper first, then the older listing.

>>> market = Market(p10=1_840_000, p90=2_580_000, basis="region", evidence="rented", sample=214)
>>> factors = points(reliability=99.70, price_micro=2_050_000, market=market, performance=98.7, commitment_months=12, tier="enterprise", age_hours=3.0)
>>> factors == Factors(reliability=39.4, price=17.9, performance=14.0, commitment=8.0, tier=7.0, freshness=5.0)
True
>>> factors.total
91.3
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from math import floor
from typing import Any

from marketplace.market import Key, Percentiles

VERSION = "rank-1"
MOST = {"reliability": 40, "price": 25, "performance": 15, "commitment": 8, "tier": 7, "freshness": 5}
TIER_POINTS = {"enterprise": 7.0, "community": 3.0}
NEUTRAL_RELIABILITY = 90.0
FRESH_HOURS, STALE_HOURS = 6.0, 168.0
ENOUGH = 5


@dataclass(frozen=True)
class Market:
    """The prices an offer is held against, in micro-USDC, and where they come from."""

    p10: int
    p90: int
    basis: str  # "region" or "world"
    evidence: str  # "rented" or "asked"
    sample: int


@dataclass(frozen=True)
class Factors:
    reliability: float
    price: float
    performance: float
    commitment: float
    tier: float
    freshness: float

    @property
    def total(self) -> float:
        # In tenths and whole, so that the sum is exactly what the factors show.
        return sum(round(10 * getattr(self, field.name)) for field in fields(self)) / 10


def points(
    *,
    reliability: float | None,
    price_micro: int,
    market: Market,
    performance: float | None,
    commitment_months: int,
    tier: str,
    age_hours: float | None,
) -> Factors:
    """The factors of one offer. ``age_hours``: since its last accepted benchmark; None was never measured."""
    return Factors(
        reliability=_cut(40 * _share((NEUTRAL_RELIABILITY if reliability is None else reliability) - 80, 20)),
        price=price_points(price_micro, p10=market.p10, p90=market.p90),
        performance=_cut(15 * _share(0 if performance is None else performance - 80, 20)),
        commitment=_cut(8 * _share(commitment_months, 12)),
        tier=TIER_POINTS.get(tier, 0.0),
        freshness=0.0
        if age_hours is None
        else _cut(5 * _share(STALE_HOURS - max(age_hours, FRESH_HOURS), STALE_HOURS - FRESH_HOURS)),
    )


def price_points(price_micro: int, *, p10: int, p90: int) -> float:
    """What a price earns in a market.

    >>> price_points(1_840_000, p10=1_840_000, p90=2_580_000), price_points(2_600_000, p10=1_840_000, p90=2_580_000)
    (25.0, 0.0)
    """
    return _cut(25 * _share(p90 - price_micro, p90 - p10)) if p90 > p10 else 12.5


def market_for(
    *, model: int, region: str, price_micro: int, rented: dict[Key, Percentiles], asked: dict[Key, Percentiles]
) -> Market:
    """The market that an offer is held against. A lone offer is its own market and gets the middle."""
    region_key, world = (model, "region", region), (model, "world", "")
    for basis, key in (("region", region_key), ("world", world)):
        for evidence, table in (("rented", rented), ("asked", asked)):
            prices = table.get(key)
            if prices is not None and prices.count >= ENOUGH:
                return _with_spread(prices, basis, evidence)
    few = asked.get(region_key) or asked.get(world)
    return _with_spread(few or Percentiles(0, *[price_micro] * 5), "region", "asked")


def _with_spread(prices: Percentiles, basis: str, evidence: str) -> Market:
    if prices.p90 > prices.p10:
        return Market(prices.p10, prices.p90, basis, evidence, prices.count)
    return Market(prices.p50 - prices.p50 // 5, prices.p50 + prices.p50 // 5, basis, evidence, prices.count)


def as_json(factors: Factors, market: Market) -> dict[str, Any]:
    """As kept on the listing: the points, and what the price was held against."""
    return {"version": VERSION, "points": asdict(factors), "market": asdict(market)}


def place_of(rank: float, price_micro: int, others: Iterable[tuple[float, int]]) -> int:
    """The place that an offer of this rank and price takes among ``others`` (rank, price): 1 is the first.

    >>> place_of(88.0, 2_100_000, [(91.3, 2_050_000), (88.0, 2_000_000), (88.0, 2_200_000)])
    3
    """
    return 1 + sum(1 for other, price in others if (-other, price) < (-rank, price_micro))


def _share(value: float, whole: float) -> float:
    return min(1.0, max(0.0, value / whole))


def _cut(value: float) -> float:
    # A score is never rounded up; the hair undoes binary noise such as 13.999999999.
    return floor(value * 10 + 1e-6) / 10

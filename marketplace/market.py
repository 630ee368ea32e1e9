"""The market in numbers: prices asked and rented, by model and place, and how full it is. Reading only.

*Asked* is what open listings ask now, a listing counting once. *Rented* is what rentals agreed that began running in the
last 7 days, a rental counting once. Percentiles are prices that really occur (``percentile_disc``), so every figure can be
pointed at. A place is a country, a region (continent) or the world.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from providers.models import GpuModel

DAYS = 7

# (model's pk, "country" | "region" | "world", the place's code or "")
Key = tuple[int, str, str]


@dataclass(frozen=True)
class Percentiles:
    """Prices in micro-USDC per GPU per hour, of ``count`` listings or rentals."""

    count: int
    p10: int
    p25: int
    p50: int
    p75: int
    p90: int


_GROUPED = """
    SELECT gpu_model_id, country, region, count(*),
           percentile_disc(ARRAY[0.1, 0.25, 0.5, 0.75, 0.9]) WITHIN GROUP (ORDER BY price_micro)
      FROM ({rows}) AS prices
     GROUP BY GROUPING SETS ((gpu_model_id, country), (gpu_model_id, region), (gpu_model_id))
"""
_RENTED_ROWS = """
    SELECT listing.gpu_model_id, listing.country, listing.region, rental.price_micro
      FROM marketplace_rental rental JOIN marketplace_listing listing ON listing.id = rental.listing_id
     WHERE rental.running_at >= %s AND rental.running_at < %s {only}
"""
_ASKED_ROWS = """
    SELECT listing.gpu_model_id, listing.country, listing.region, listing.price_micro
      FROM marketplace_listing listing
     WHERE listing.state = 'offered' AND listing.price_micro IS NOT NULL {only}
"""


def rented(*, at: datetime, gpu_model: GpuModel | None = None, models: Iterable[int] | None = None, days: int = DAYS) -> dict[Key, Percentiles]:
    """Prices agreed by rentals that began running in the ``days`` before ``at``."""
    return _percentiles(_RENTED_ROWS, [at - timedelta(days=days), at], gpu_model, models)


def asked(*, at: datetime, gpu_model: GpuModel | None = None, models: Iterable[int] | None = None) -> dict[Key, Percentiles]:
    """Prices asked by listings that are offered, rented out at the moment or not."""
    return _percentiles(_ASKED_ROWS, [], gpu_model, models)


def _percentiles(rows: str, params: list[Any], gpu_model: GpuModel | None, models: Iterable[int] | None) -> dict[Key, Percentiles]:
    wanted = [gpu_model.pk] if gpu_model is not None else sorted(models) if models is not None else None
    only = "AND listing.gpu_model_id = ANY(%s)" if wanted is not None else ""
    with connection.cursor() as cursor:
        cursor.execute(_GROUPED.format(rows=rows.format(only=only)), [*params, *([wanted] if wanted is not None else [])])
        found: dict[Key, Percentiles] = {}
        for model, country, region, count, prices in cursor.fetchall():
            key = (model, "country", country) if country is not None else (model, "region", region) if region is not None else (model, "world", "")
            found[key] = Percentiles(count, *(int(price) for price in prices))
        return found


_OCCUPANCY = """
    WITH place AS (
        SELECT listing.id, listing.gpus_total, listing.created_at
          FROM marketplace_listing listing
         WHERE listing.gpu_model_id = %(model)s AND listing.state = 'offered' {where}
    ), rented AS (
        SELECT coalesce(sum(
                   extract(epoch FROM least(coalesce(rental.ended_at, %(at)s), %(at)s) - greatest(rental.running_at, %(since)s)) * rental.gpu_count
               ), 0) AS seconds
          FROM marketplace_rental rental JOIN place ON place.id = rental.listing_id
         WHERE rental.running_at < %(at)s AND coalesce(rental.ended_at, %(at)s) > %(since)s
    )
    SELECT (SELECT seconds FROM rented),
           (SELECT sum(gpus_total * extract(epoch FROM %(at)s - greatest(created_at, %(since)s))) FROM place)
"""


def occupancy(*, gpu_model: GpuModel, basis: str, place: str, at: datetime, days: int = DAYS) -> float | None:
    """The share of the GPU hours of a place's listings that were rented in the last ``days``, 0 to 1; None without listings."""
    where = {"country": "AND listing.country = %(place)s", "region": "AND listing.region = %(place)s"}.get(basis, "")
    params = {"model": gpu_model.pk, "place": place, "at": at, "since": at - timedelta(days=days)}
    with connection.cursor() as cursor:
        cursor.execute(_OCCUPANCY.format(where=where), params)
        used, offered = cursor.fetchone()
    return min(1.0, float(used) / float(offered)) if offered else None

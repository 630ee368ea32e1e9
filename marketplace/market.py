"""The market in numbers: prices asked and rented, by model and place, and how full it is. Reading only.

*Asked* is what open listings ask now, a listing counting once. *Rented* is what rentals agreed that began running in the
last 7 days, a rental counting once. Percentiles are prices that really occur (``percentile_disc``), so every figure can be
pointed at. A place is a country, a region (continent) or the world.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
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


def rented(
    *, at: datetime, gpu_model: GpuModel | None = None, models: Iterable[int] | None = None, days: int = DAYS
) -> dict[Key, Percentiles]:
    """Prices agreed by rentals that began running in the ``days`` before ``at``."""
    return _percentiles(_RENTED_ROWS, [at - timedelta(days=days), at], gpu_model, models)


def asked(
    *, at: datetime, gpu_model: GpuModel | None = None, models: Iterable[int] | None = None
) -> dict[Key, Percentiles]:
    """Prices asked by listings that are offered, rented out at the moment or not."""
    return _percentiles(_ASKED_ROWS, [], gpu_model, models)


def _percentiles(
    rows: str, params: list[Any], gpu_model: GpuModel | None, models: Iterable[int] | None
) -> dict[Key, Percentiles]:
    wanted = [gpu_model.pk] if gpu_model is not None else sorted(models) if models is not None else None
    only = "AND listing.gpu_model_id = ANY(%s)" if wanted is not None else ""
    with connection.cursor() as cursor:
        cursor.execute(
            _GROUPED.format(rows=rows.format(only=only)), [*params, *([wanted] if wanted is not None else [])]
        )
        found: dict[Key, Percentiles] = {}
        for model, country, region, count, prices in cursor.fetchall():
            key = (
                (model, "country", country)
                if country is not None
                else (model, "region", region)
                if region is not None
                else (model, "world", "")
            )
            found[key] = Percentiles(count, *(int(price) for price in prices))
        return found


_OCCUPANCY = """
    WITH place AS (
        SELECT listing.id, listing.gpus_total, listing.created_at
          FROM marketplace_listing listing
         WHERE listing.gpu_model_id = %(model)s AND listing.state <> 'retired' AND listing.price_micro IS NOT NULL {where}
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
    """The share of the GPU hours of a place's priced listings that were rented in the last ``days``, 0 to 1; None without any.

    A listing counts from its first day on, whether it was connected or not: an hour that nobody could rent was not rented.
    """
    where = {"country": "AND listing.country = %(place)s", "region": "AND listing.region = %(place)s"}.get(basis, "")
    params: dict[str, Any] = {"model": gpu_model.pk, "place": place, "at": at, "since": at - timedelta(days=days)}
    with connection.cursor() as cursor:
        cursor.execute(_OCCUPANCY.format(where=where), params)
        used, offered = cursor.fetchone()
    return min(1.0, float(used) / float(offered)) if offered else None


@dataclass(frozen=True)
class Supply:
    """Listings of one model that are offered: GPUs free now and in all, the lowest price asked for one that is free."""

    free: int
    total: int
    lowest_micro: int | None


def supply(*, at: datetime) -> dict[int, Supply]:
    """By GPU model, over the world: what can be rented now."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT gpu_model_id,
                   coalesce(sum(gpus_free) FILTER (WHERE open), 0), sum(gpus_total),
                   min(price_micro) FILTER (WHERE open AND gpus_free > 0)
              FROM (SELECT *, (offered_from IS NULL OR offered_from <= %(at)s) AND (offered_until IS NULL OR offered_until > %(at)s) AS open
                      FROM marketplace_listing WHERE state = 'offered') AS listing
             GROUP BY gpu_model_id
            """,
            {"at": at},
        )
        return {model: Supply(free, total, lowest) for model, free, total, lowest in cursor.fetchall()}


def daily_medians(
    *, at: datetime, days: int = 30, gpu_model: GpuModel | None = None
) -> dict[int, list[tuple[date, int, int]]]:
    """By GPU model: (day, median price rented, rentals) of each of the last ``days`` that had one, oldest first, in UTC."""
    only = "AND listing.gpu_model_id = %(model)s" if gpu_model is not None else ""
    found: dict[int, list[tuple[date, int, int]]] = {}
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            SELECT listing.gpu_model_id, (rental.running_at AT TIME ZONE 'UTC')::date AS day,
                   percentile_disc(0.5) WITHIN GROUP (ORDER BY rental.price_micro), count(*)
              FROM marketplace_rental rental JOIN marketplace_listing listing ON listing.id = rental.listing_id
             WHERE rental.running_at >= %(since)s AND rental.running_at < %(at)s {only}
             GROUP BY 1, 2 ORDER BY 1, 2
            """,  # noqa: S608 - a constant
            {"since": at - timedelta(days=days), "at": at, "model": gpu_model.pk if gpu_model else None},
        )
        for model, day, median, count in cursor.fetchall():
            found.setdefault(model, []).append((day, int(median), count))
    return found


@dataclass(frozen=True)
class Row:
    """One line of the public price table. ``asked`` and ``rented`` may be missing, never both."""

    model: int
    region: str
    tier: str
    free: int
    total: int
    asked: Percentiles | None
    rented: Percentiles | None


def table(*, at: datetime, days: int = DAYS) -> list[Row]:
    """Prices by model, region and tier, with how many prices each figure rests on."""
    prices = "percentile_disc(ARRAY[0.1, 0.25, 0.5, 0.75, 0.9]) WITHIN GROUP (ORDER BY price_micro)"
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            WITH asked AS (
                SELECT gpu_model_id AS model, region, tier, sum(gpus_free) AS free, sum(gpus_total) AS total, count(*) AS n, {prices} AS p
                  FROM marketplace_listing WHERE state = 'offered' GROUP BY 1, 2, 3
            ), rented AS (
                SELECT listing.gpu_model_id AS model, listing.region, rental.tier, count(*) AS n, {prices.replace("price_micro", "rental.price_micro")} AS p
                  FROM marketplace_rental rental JOIN marketplace_listing listing ON listing.id = rental.listing_id
                 WHERE rental.running_at >= %(since)s AND rental.running_at < %(at)s GROUP BY 1, 2, 3
            )
            SELECT model, region, tier, coalesce(free, 0), coalesce(total, 0), asked.n, asked.p, rented.n, rented.p
              FROM asked FULL JOIN rented USING (model, region, tier)
            """,  # noqa: S608 - constants
            {"since": at - timedelta(days=days), "at": at},
        )
        return [
            Row(model, region, tier, free, total, _some(asked_n, asked_p), _some(rented_n, rented_p))
            for model, region, tier, free, total, asked_n, asked_p, rented_n, rented_p in cursor.fetchall()
        ]


def _some(count: int | None, prices: Any) -> Percentiles | None:
    return Percentiles(count, *(int(price) for price in prices)) if count else None


@dataclass(frozen=True)
class Pulse:
    """The market at work: GPUs rented at the end of each quarter of an hour, oldest first; and what the last 30 days were like."""

    rented: list[int]
    median_start_seconds: int | None
    broken_share: float | None
    rentals: int


def pulse(*, at: datetime) -> Pulse:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH recent AS (
                SELECT running_at, coalesce(ended_at, 'infinity') AS until, gpu_count FROM marketplace_rental
                 WHERE running_at IS NOT NULL AND coalesce(ended_at, 'infinity') > %(at)s - interval '24 hours'
            )
            SELECT coalesce(sum(gpu_count), 0)
              FROM generate_series(%(at)s - interval '23 hours 45 minutes', %(at)s, interval '15 minutes') AS tick (t)
              LEFT JOIN recent ON running_at <= tick.t AND until > tick.t
             GROUP BY tick.t ORDER BY tick.t
            """,
            {"at": at},
        )
        rented_now = [int(count) for (count,) in cursor.fetchall()]
        cursor.execute(
            """
            SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM running_at - created_at)) FILTER (WHERE running_at IS NOT NULL),
                   avg(provider_fault::int) FILTER (WHERE state = 'ended'), count(*) FILTER (WHERE state = 'ended')
              FROM marketplace_rental WHERE created_at >= %(at)s - interval '30 days'
            """,
            {"at": at},
        )
        start, broken, ended = cursor.fetchone()
    return Pulse(rented_now, None if start is None else int(start), None if broken is None else float(broken), ended)

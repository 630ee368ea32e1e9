from collections.abc import Iterator

from django.db import connection
from django.test import Client
from django.utils import timezone

from marketplace import search
from tests.bench import rows
from tests.bench.measure import Measured, bench, lasts, median_seconds, queries_alone

QUERY = {"price_max": "1.8", "gpus": "2", "reliability_min": "92", "sort": "price"}


@bench("search")
def offers(*, listings: int = 10_000) -> Iterator[Measured]:
    """A filtered and sorted page of offers: the query alone, and the whole page as it is answered."""
    at = timezone.now()
    owned = rows.machines(rows.provider(at=at), listings, gpus=1, at=at)
    rows.listings(owned, at=at)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")

    def query() -> None:
        found = search.parse(QUERY).offers(at).select_related("machine__provider__organisation", "gpu_model")
        assert found.count() > search.PAGE
        assert len(found[: search.PAGE]) == search.PAGE

    bare = queries_alone(query)
    yield lasts(
        f"offers of {listings}: query",
        median_seconds(query),
        peer="the same SQL alone",
        peer_seconds=median_seconds(bare),
        at_most=3,
    )

    client = Client()

    def page() -> None:
        assert client.get("/offers", QUERY).status_code == 200

    bare = queries_alone(page)
    yield lasts(
        f"offers of {listings}: page",
        median_seconds(page),
        peer="its SQL alone",
        peer_seconds=median_seconds(bare),
        at_most=12,
    )

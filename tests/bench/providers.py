from collections.abc import Iterator

from django.db import connection
from django.test import Client
from django.utils import timezone

from tests.bench import rows
from tests.bench.measure import Measured, bench, lasts, median_seconds, queries_alone


@bench("providers")
def overview(*, machines: int = 200, gpus: int = 8) -> Iterator[Measured]:
    """The dashboard's first page of a provider with many machines."""
    at = timezone.now()
    owner = rows.provider(at=at)
    owned = rows.machines(owner, machines, gpus=gpus, at=at)
    rows.listings(owned, at=at)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    client = Client()
    client.force_login(owner.organisation.created_by, backend="django.contrib.auth.backends.ModelBackend")

    def page() -> None:
        assert client.get("/provider/").status_code == 200

    bare = queries_alone(page)
    yield lasts(
        f"overview of {machines} machines",
        median_seconds(page),
        peer="its SQL alone",
        peer_seconds=median_seconds(bare),
        at_most=12,
    )

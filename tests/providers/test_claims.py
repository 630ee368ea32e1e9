"""Who holds a GPU: races, periods, and what counts as free."""

import threading
import uuid
from datetime import datetime, timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from providers.claims import GpusTaken, claim_gpus, free_gpus, held_by, release
from providers.models import Gpu, GpuClaim
from tests.hosts import approved, connected

RENTAL, BENCHMARK = GpuClaim.Kind.RENTAL, GpuClaim.Kind.BENCHMARK


@pytest.mark.django_db
def test_a_gpu_is_held_until_it_is_released(now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    mine = uuid.uuid4()
    claims = claim_gpus(gpus=host.gpus[:1], kind=RENTAL, reference=mine, at=now)
    assert [claim.period.upper for claim in claims] == [None]
    assert list(held_by(mine)) == host.gpus[:1]
    assert list(free_gpus(host.machine, now)) == host.gpus[1:]
    assert release(reference=mine, at=now + timedelta(hours=1)) == 1
    assert release(reference=mine, at=now + timedelta(hours=2)) == 0
    assert list(held_by(mine)) == []
    assert len(free_gpus(host.machine, now + timedelta(hours=1))) == 2
    assert len(free_gpus(host.machine, now + timedelta(minutes=59))) == 1


@pytest.mark.django_db
def test_all_or_none_is_taken_and_the_callers_transaction_goes_on(now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    claim_gpus(gpus=host.gpus[1:], kind=BENCHMARK, reference=uuid.uuid4(), at=now)
    second = uuid.uuid4()
    with transaction.atomic(), pytest.raises(GpusTaken):
        claim_gpus(gpus=host.gpus, kind=RENTAL, reference=second, at=now)
    assert list(held_by(second)) == []
    assert Gpu.objects.count() == 2


@pytest.mark.django_db
def test_a_claim_from_the_past_meets_one_of_the_future(now: datetime) -> None:
    """An open claim is held for ever, so another that begins later, or earlier, meets it."""
    host = connected(approved(at=now), at=now, count=1)
    claim_gpus(gpus=host.gpus, kind=RENTAL, reference=uuid.uuid4(), at=now + timedelta(hours=1))
    for at in (now, now + timedelta(hours=2)):
        with pytest.raises(GpusTaken):
            claim_gpus(gpus=host.gpus, kind=RENTAL, reference=uuid.uuid4(), at=at)


@pytest.mark.django_db
def test_a_claim_without_length_leaves_nothing(now: datetime) -> None:
    host = connected(approved(at=now), at=now, count=1)
    mine = uuid.uuid4()
    claim_gpus(gpus=host.gpus, kind=RENTAL, reference=mine, at=now)
    assert release(reference=mine, at=now - timedelta(seconds=3)) == 1
    assert not GpuClaim.objects.exists()


@pytest.mark.django_db
def test_the_database_itself_refuses_two_claims_of_one_gpu(now: datetime) -> None:
    """Also for code that would go around claim_gpus; another lane is another matter."""
    host = connected(approved(at=now), at=now, count=1)
    values = {"gpu": host.gpus[0], "period": DateTimeTZRange(now, None), "reference": uuid.uuid4()}
    GpuClaim.objects.create(kind=RENTAL, **values)
    with transaction.atomic(), pytest.raises(IntegrityError, match="gpu_claimed_once"):
        GpuClaim.objects.create(kind=BENCHMARK, **values)
    GpuClaim.objects.create(kind=GpuClaim.Kind.RESERVATION, lane=1, **values)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "change",
    [{"given": False}, {"admitted": False}, {"variant": None}, {"health": "fatal"}, {"removed_at": "now"}],
)
def test_what_is_not_offerable_is_not_free(change: dict[str, object], now: datetime) -> None:
    host = connected(approved(at=now), at=now, count=1)
    assert len(free_gpus(host.machine, now)) == 1
    Gpu.objects.update(**{name: now if value == "now" else value for name, value in change.items()})
    assert len(free_gpus(host.machine, now)) == 0


@pytest.mark.usefixtures("committed")
@pytest.mark.case("marketplace-9")
def test_of_many_who_want_one_gpu_at_once_exactly_one_gets_it(now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    gpus, barrier = host.gpus, threading.Barrier(8)
    won: list[uuid.UUID] = []
    lost: list[Exception] = []

    def want(order: int) -> None:
        mine = uuid.uuid4()
        barrier.wait()
        try:
            claim_gpus(gpus=gpus if order % 2 else gpus[::-1], kind=RENTAL, reference=mine, at=now)
            won.append(mine)
        except Exception as error:
            lost.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=want, args=(order,)) for order in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert [type(error) for error in lost] == [GpusTaken] * 7
    assert GpuClaim.objects.count() == 2

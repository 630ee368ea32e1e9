"""Starting a rental: what is given, what is refused, and that a refusal leaves nothing behind."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone

from billing.ledger import NotEnoughMoney
from billing.models import Meter
from gpunex.accounts.models import Organisation
from gpunex.kit.refusals import Refusal
from marketplace import listings, pricing, rentals
from marketplace.containers import CudaTooOld, ImageNotValid
from marketplace.limits import LimitNotValid
from marketplace.models import Job, Listing, Rental, Request
from providers.claims import GpusTaken
from providers.models import Gpu, GpuClaim, Machine, Schedule, Workload
from providers.workloads import spec_of
from tests.marketplace.conftest import USDC, offer, provider, rent, renter_with


@pytest.mark.spec("F2", "F3")
def test_a_start_claims_the_cards_and_wants_the_container_run_there(
    renter: Organisation, listing: Listing, noon: datetime
):
    rental = rent(
        renter, listing, at=noon, gpu_count=2, command=["sh", "-c", "echo 'a\nb'"], environment={"TOKEN": "secret"}
    )
    workload = rental.job.workload
    assert rental.state == Rental.State.STARTING
    assert (rental.price_micro, rental.fee_bps, rental.tier) == (USDC, 1000, "community")
    assert spec_of(workload) == {
        "image": "ubuntu:24.04",
        "command": ["sh", "-c", "echo 'a\nb'"],
        "env": {"TOKEN": "secret"},
        "shm_mib": None,
    }
    assert sorted(workload.gpu_uuids) == sorted(listing.machine.gpus.values_list("uuid", flat=True))
    assert GpuClaim.objects.current(noon).filter(reference=rental.public_id).count() == 2
    assert Listing.objects.get(pk=listing.pk).gpus_free == 0
    assert rental.meter is None  # free until it runs
    assert b"secret" not in bytes(workload.spec)
    assert b"secret" not in bytes(rental.request.environment)


@pytest.mark.spec("D1")
def test_a_price_change_reaches_new_rentals_only(renter: Organisation, listing: Listing, noon: datetime):
    first = rent(renter, listing, at=noon)
    pricing.set_price(
        provider=listing.machine.provider, gpu_model=listing.gpu_model, price_micro=3 * USDC, by=None, at=noon
    )
    listings.refresh(at=noon, machines=[listing.machine])
    second = rent(renter, listing, at=noon, expected_price_micro=3 * USDC)
    first.refresh_from_db()
    assert (first.price_micro, second.price_micro) == (USDC, 3 * USDC)


@pytest.mark.case("marketplace-13")
def test_a_price_that_changed_while_looking_is_refused_and_named(
    renter: Organisation, listing: Listing, noon: datetime
):
    pricing.set_price(
        provider=listing.machine.provider, gpu_model=listing.gpu_model, price_micro=2_500_000, by=None, at=noon
    )
    with pytest.raises(rentals.PriceChanged, match=r"1\.00 to 2\.50"):
        rent(renter, listing, at=noon)  # the listing's copy still says 1.00
    _nothing_was_written(renter)


def _broken(name: str) -> Callable[[Listing, datetime], None]:
    def change(listing: Listing, at: datetime) -> None:
        host = Machine.objects.filter(pk=listing.machine_id)
        {
            "offline": lambda: host.update(last_seen_at=at - timedelta(seconds=46)),
            "never heard": lambda: host.update(last_seen_at=None),
            "hidden": lambda: host.update(hidden_at=at),
            "paused": lambda: host.update(paused_at=at),
            "draining": lambda: host.update(draining=True),
            "retired": lambda: host.update(retired_at=at),
            "driver hangs": lambda: host.update(nvml="hung"),
            "outside its hours": lambda: Schedule.objects.filter(machine=listing.machine_id).update(
                always=False, windows=[[0, "08:00", "09:00"]]
            ),
        }[name]()

    return change


@pytest.mark.spec("D2")
@pytest.mark.parametrize(
    "why", ["offline", "never heard", "hidden", "paused", "draining", "retired", "driver hangs", "outside its hours"]
)
def test_an_offer_that_is_gone_is_refused_though_its_listing_still_shows(
    renter: Organisation, listing: Listing, noon: datetime, why: str
):
    _broken(why)(listing, noon)
    with pytest.raises(rentals.NotOffered):
        rent(renter, listing, at=noon)
    _nothing_was_written(renter)


def test_simulated_hosts_are_rented_only_where_the_setting_allows_it(
    renter: Organisation, noon: datetime, monkeypatch: pytest.MonkeyPatch
):
    listing = offer(at=noon, simulated=True)
    monkeypatch.setattr(settings, "SIMULATED_MACHINES_IN_MARKET", False)
    with pytest.raises(rentals.NotOffered):
        rent(renter, listing, at=noon)
    listings.refresh(at=noon)
    listing.refresh_from_db()
    assert listing.state == Listing.State.HIDDEN


@pytest.mark.case("marketplace-21")
def test_a_card_that_failed_a_moment_ago_is_not_given(renter: Organisation, listing: Listing, noon: datetime):
    first, second = listing.machine.gpus.order_by("index")
    Gpu.objects.filter(pk=first.pk).update(health=Gpu.Health.FATAL)
    rental = rent(renter, listing, at=noon)
    assert rental.job.workload.gpu_uuids == [second.uuid]


@pytest.mark.parametrize(
    "changes", [{"delisted_at": "now"}, {"benchmarked_at": None}, {"admitted": False}, {"given": False}]
)
def test_cards_that_are_off_the_market_are_not_given(
    renter: Organisation, listing: Listing, noon: datetime, changes: dict[str, object]
):
    listing.machine.gpus.update(**{name: noon if value == "now" else value for name, value in changes.items()})
    with pytest.raises(Refusal):
        rent(renter, listing, at=noon)
    _nothing_was_written(renter)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"image": "https://hub.docker.com/x"}, ImageNotValid),
        ({"image": "Ubuntu 24.04"}, ImageNotValid),
        ({"image": "nvidia/cuda:13.0.1-base-ubuntu24.04"}, CudaTooOld),
        ({"gpu_count": 0}, rentals.TooManyGpus),
        ({"gpu_count": -1}, rentals.TooManyGpus),
        ({"gpu_count": 3}, rentals.TooManyGpus),
        ({"gpu_count": 10_000}, rentals.TooManyGpus),
        ({"stop_after_seconds": 0}, LimitNotValid),
        ({"spend_at_most_micro": 1}, LimitNotValid),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_and_nothing_is_written(
    renter: Organisation, listing: Listing, noon: datetime, changes: dict[str, object], refusal: type[Refusal]
):
    with pytest.raises(refusal):
        rent(renter, listing, at=noon, **changes)
    _nothing_was_written(renter)


def test_a_balance_below_an_hour_is_refused_and_nothing_is_written(listing: Listing, noon: datetime):
    poor = renter_with(USDC - 1, at=noon)
    with pytest.raises(NotEnoughMoney):
        rent(poor, listing, at=noon)
    _nothing_was_written(poor)


@pytest.mark.case("marketplace-15")
@pytest.mark.django_db
def test_an_hour_of_all_that_was_started_must_be_there_also_before_it_runs(noon: datetime):
    listing, organisation = offer(at=noon, gpus=4), renter_with(3 * USDC, at=noon)
    rent(organisation, listing, at=noon, gpu_count=2)
    with pytest.raises(NotEnoughMoney):
        rent(organisation, listing, at=noon, gpu_count=2)
    rent(organisation, listing, at=noon)


@pytest.mark.case("marketplace-8")
def test_the_same_key_is_the_same_rental_and_another_wish_under_it_is_refused(
    renter: Organisation, listing: Listing, noon: datetime
):
    first = rent(renter, listing, at=noon, key="form-1")
    assert rent(renter, listing, at=noon + timedelta(minutes=1), key="form-1") == first
    with pytest.raises(rentals.KeyReused):
        rent(renter, listing, at=noon, key="form-1", image="debian:13")
    assert Rental.objects.count() == 1


@pytest.mark.case("marketplace-7", "marketplace-8")
@pytest.mark.usefixtures("committed")
def test_a_double_click_starts_one_rental(now: datetime):
    listing, organisation = offer(at=now, gpus=4), renter_with(100 * USDC, at=now)
    results = _at_once([lambda: rent(organisation, listing, at=timezone.now(), key="one-form")] * 4)
    assert len({result.pk for result in results if isinstance(result, Rental)}) == 1
    assert all(isinstance(result, Rental) for result in results)
    assert GpuClaim.objects.count() == 1


@pytest.mark.case("marketplace-9")
@pytest.mark.usefixtures("committed")
def test_of_many_renters_racing_for_few_cards_exactly_as_many_win(now: datetime):
    listing = offer(at=now, gpus=2)
    organisations = [renter_with(10 * USDC, at=now) for _ in range(6)]
    results = _at_once([lambda org=org: rent(org, listing, at=timezone.now()) for org in organisations])
    won = [result for result in results if isinstance(result, Rental)]
    assert len(won) == 2
    assert all(isinstance(result, (GpusTaken, rentals.TooManyGpus)) for result in results if result not in won), results
    assert Request.objects.count() == Rental.objects.count() == Workload.objects.count() == 2
    assert len({uuid for rental in won for uuid in rental.job.workload.gpu_uuids}) == 2


@pytest.mark.usefixtures("committed")
def test_one_balance_cannot_start_more_at_once_than_it_carries(now: datetime):
    offers = [offer(at=now) for _ in range(4)]
    organisation = renter_with(2 * USDC, at=now)
    results = _at_once([lambda each=each: rent(organisation, each, at=timezone.now()) for each in offers])
    assert sum(isinstance(result, Rental) for result in results) == 2
    assert sum(isinstance(result, NotEnoughMoney) for result in results) == 2


@pytest.mark.usefixtures("committed")
def test_starts_and_sweeps_at_once_do_not_lock_each_other_out(now: datetime):
    owner = provider(at=now)
    offers = [offer(at=now, owner=owner, gpus=2) for _ in range(3)]
    organisation = renter_with(100 * USDC, at=now)
    steps: list[Callable[[], object]] = [
        lambda each=each: rent(organisation, each, at=timezone.now()) for each in offers for _ in range(2)
    ]
    steps += [lambda: listings.refresh(at=timezone.now())] * 4
    results = _at_once(steps)
    assert not [result for result in results if isinstance(result, Exception)], results


def _at_once(steps: list[Callable[[], object]]) -> list[object]:
    """Each in a thread and connection of its own, let go together; what it returned or raised."""
    results: list[object] = [None] * len(steps)
    barrier = threading.Barrier(len(steps))

    def run(index: int) -> None:
        try:
            barrier.wait(10)
            results[index] = steps[index]()
        except Exception as error:
            results[index] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(steps))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def _nothing_was_written(organisation: Organisation) -> None:
    for model in (Request, Rental, Job, Workload, GpuClaim, Meter):
        assert not model.objects.exists(), model

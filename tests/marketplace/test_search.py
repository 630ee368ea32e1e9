"""Search and ranking: the same offers as a filter in memory finds, in an order that can be computed by hand."""

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marketplace import listings, ranking
from marketplace.models import Listing
from marketplace.search import FILTERS, SORTS, parse
from providers import workloads
from providers.models import Gpu, GpuClaim, Machine, Schedule
from reliability.models import Benchmark, Score
from tests.marketplace.conftest import USDC, machine, offer, provider, rent


@pytest.fixture
def market(noon: datetime, db: None) -> list[Listing]:
    """A dozen offers that differ in everything one can filter by."""
    made = []
    models = ["l4-24gb", "h100-80gb", "rtx-4090-24gb"]
    for number in range(12):
        owner = provider(at=noon, tier="enterprise" if number % 3 == 0 else "community", months=(3, 6, 12)[number % 3])
        listing = offer(
            at=noon, owner=owner, price=200_000 * (number + 1), model=models[number % 3], gpus=1 + number % 4,
            country=("DE", "US", "JP")[number % 3], cuda_version=("12.4", "12.8", "13.0")[number % 3],
        )  # fmt: skip
        Listing.objects.filter(pk=listing.pk).update(
            reliability=80.0 + number, performance=None if number == 5 else 85.0 + number, download_mbps=100.0 * number, upload_mbps=50.0 * number,
            disk_read_mb_s=500.0 * number,
        )  # fmt: skip
        made.append(Listing.objects.get(pk=listing.pk))
    return made


def _least(column: str, times: float = 1.0) -> Callable[[Listing, float], bool]:
    return lambda listing, value: getattr(listing, column) is not None and getattr(listing, column) >= value * times


IN_MEMORY: dict[str, tuple[st.SearchStrategy[object], Callable[[Listing, object], bool]]] = {
    "model": (
        st.sampled_from(["l4-24gb", "h100-80gb", "a100-40gb"]),
        lambda listing, value: listing.gpu_model.slug == value,
    ),
    "gpus": (st.integers(1, 5), _least("gpus_free")),
    "region": (st.sampled_from(["EU", "NA", "AS", "AF"]), lambda listing, value: listing.region == value),
    "country": (st.sampled_from(["DE", "US", "EG"]), lambda listing, value: listing.country == value),
    "tier": (st.sampled_from(["enterprise", "community"]), lambda listing, value: listing.tier == value),
    "price_max": (
        st.integers(1, 300).map(lambda cents: f"{cents / 100:.2f}"),
        lambda listing, value: listing.price_micro <= round(float(value) * 100) * 10_000,
    ),
    "reliability_min": (st.integers(0, 100), _least("reliability")),
    "vram_min": (st.sampled_from([8, 24, 48, 80, 96]), _least("vram_gib")),
    "performance_min": (st.integers(0, 120), _least("performance")),
    "download_min": (st.sampled_from([0, 0.1, 0.5, 1]), _least("download_mbps", 1000)),
    "upload_min": (st.sampled_from([0, 0.1, 0.25]), _least("upload_mbps", 1000)),
    "disk_read_min": (st.sampled_from([0, 500, 3000]), _least("disk_read_mb_s")),
    "cuda_min": (
        st.sampled_from(["12", "12.8", "13.0", "13.1"]),
        lambda listing, value: (
            tuple(map(int, listing.cuda_version.split("."))) >= tuple(map(int, str(value).split(".")))
        ),
    ),
}


def test_every_filter_is_compared_with_a_filter_in_memory():
    assert set(IN_MEMORY) == set(FILTERS)


@pytest.mark.spec("F1")
@pytest.mark.case("marketplace-10", "marketplace-12")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_search_finds_what_a_filter_in_memory_finds(market: list[Listing], noon: datetime, data: st.DataObject):
    wanted = {
        name: data.draw(IN_MEMORY[name][0])
        for name in data.draw(st.sets(st.sampled_from(sorted(IN_MEMORY)), max_size=4))
    }
    sort = data.draw(st.sampled_from(sorted(SORTS)))
    search = parse({name: str(value) for name, value in wanted.items()} | {"sort": sort})
    assert not search.errors
    expected = {
        listing.pk for listing in market if all(IN_MEMORY[name][1](listing, value) for name, value in wanted.items())
    }
    found = list(search.offers(noon))
    assert {listing.pk for listing in found} == expected
    assert sorted(listing.place for listing in found) == list(range(1, len(found) + 1))
    for name in wanted:
        assert search.has(name)


def test_a_million_characters_are_an_error_like_any_other(db: None):
    assert "model" in parse({"model": "x" * 1_000_000}).errors
    assert "vram_min" in parse({"vram_min": "9" * 1_000_000}).errors


@pytest.mark.spec("D4", "I2")
def test_a_better_score_a_lower_price_a_longer_term_and_the_enterprise_tier_each_rank_higher():
    base = {
        "reliability": 90.0,
        "price_micro": 200,
        "performance": 90.0,
        "commitment_months": 6,
        "tier": "community",
        "age_hours": 50.0,
    }
    against = ranking.Market(p10=100, p90=300, basis="region", evidence="asked", sample=9)
    start = ranking.points(**base, market=against).total
    for change in (
        {"reliability": 95.0},
        {"price_micro": 150},
        {"performance": 95.0},
        {"commitment_months": 12},
        {"tier": "enterprise"},
        {"age_hours": 10.0},
    ):
        assert ranking.points(**base | change, market=against).total > start, change


@given(
    reliability=st.none() | st.floats(0, 100), price=st.integers(1, 10_000), performance=st.none() | st.floats(0, 200), months=st.integers(0, 36),
    tier=st.sampled_from(["enterprise", "community"]), age=st.none() | st.floats(0, 10_000), p10=st.integers(1, 5000), spread=st.integers(0, 5000),
)  # fmt: skip
def test_factors_stay_within_their_most_and_sum_to_the_rank(
    reliability, price, performance, months, tier, age, p10, spread
):
    against = ranking.Market(p10=p10, p90=p10 + spread, basis="region", evidence="asked", sample=1)
    factors = ranking.points(
        reliability=reliability,
        price_micro=price,
        market=against,
        performance=performance,
        commitment_months=months,
        tier=tier,
        age_hours=age,
    )
    values = ranking.as_json(factors, against)["points"]
    assert all(0 <= values[name] <= most for name, most in ranking.MOST.items())
    assert round(sum(values.values()), 6) == round(factors.total, 6)


def test_the_weights_sum_to_a_hundred():
    assert sum(ranking.MOST.values()) == 100


# --- listings --------------------------------------------------------------------------------------------------------


def state_after(listing: Listing, noon: datetime) -> str:
    listings.refresh(at=noon)
    return Listing.objects.get(pk=listing.pk).state


@pytest.mark.spec("D2", "C4")
@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"machine": {"retired_at": "now"}}, "retired"),
        ({"machine": {"last_seen_at": None}}, "offline"),
        ({"machine": {"hidden_at": "now"}}, "hidden"),
        ({"machine": {"paused_at": "now"}}, "hidden"),
        ({"machine": {"draining": True}}, "hidden"),
        ({"machine": {"nvml": "hung"}}, "hidden"),
        ({"gpus": {"admitted": False}}, "hidden"),
        ({"gpus": {"health": "fatal"}}, "delisted"),
        ({"gpus": {"delisted_at": "now"}}, "delisted"),
        ({"gpus": {"benchmarked_at": None}}, "benchmarking"),
        ({"gpus": {"removed_at": "now"}}, "retired"),
        ({"gpus": {"given": False}}, "retired"),
    ],
)
def test_each_reason_takes_an_offer_off_the_market_and_its_end_brings_it_back(
    listing: Listing, noon: datetime, change, state: str
):
    def apply(values: dict[str, object]) -> None:
        for what, columns in values.items():
            rows = (
                Machine.objects.filter(pk=listing.machine_id)
                if what == "machine"
                else Gpu.objects.filter(machine=listing.machine_id)
            )
            rows.update(**{name: noon if value == "now" else value for name, value in columns.items()})

    before = {
        "machine": Machine.objects.filter(pk=listing.machine_id).values(*change.get("machine", {"name": 0})).get(),
        "gpus": {
            name: Gpu.objects.filter(machine=listing.machine_id).values_list(name, flat=True).first()
            for name in change.get("gpus", {"given": 0})
        },
    }
    apply(change)
    assert state_after(listing, noon) == state
    assert not Listing.objects.open(noon).filter(pk=listing.pk).exists()
    apply(before)
    assert state_after(listing, noon) == "offered"


def test_a_model_without_a_price_is_not_offered(noon: datetime, db: None):
    host = machine(provider(at=noon), at=noon)
    listings.refresh(at=noon, machines=[host])
    assert Listing.objects.get().state == Listing.State.UNPRICED


def test_a_machine_with_two_models_has_two_listings(noon: datetime, db: None):
    owner = provider(at=noon)
    first = offer(at=noon, owner=owner)
    other = offer(at=noon, owner=owner, model="h100-80gb", price=2 * USDC)
    Gpu.objects.filter(machine=other.machine_id).update(machine=first.machine_id)
    listings.refresh(at=noon)
    assert Listing.objects.filter(machine=first.machine_id).count() == 2
    assert Listing.objects.get(pk=other.pk).state == Listing.State.RETIRED


def test_one_failed_card_leaves_the_others_on_offer(listing: Listing, noon: datetime):
    card = listing.machine.gpus.first()
    Gpu.objects.filter(pk=card.pk).update(health=Gpu.Health.FATAL)
    listings.refresh(at=noon, machines=[listing.machine])
    listing.refresh_from_db()
    assert (listing.state, listing.gpus_total, listing.gpus_free) == ("offered", 1, 1)


@pytest.mark.spec("D2")
def test_outside_its_hours_an_offer_is_not_found_and_inside_it_is(listing: Listing, noon: datetime):
    Schedule.objects.filter(machine=listing.machine).update(always=False, windows=[[2, "13:00", "15:00"]])
    listings.refresh(at=noon)
    assert not Listing.objects.open(noon).exists()
    assert Listing.objects.open(noon + timedelta(minutes=61)).exists()
    assert not Listing.objects.open(noon + timedelta(hours=3)).exists()


@pytest.mark.case("marketplace-22")
def test_free_cards_are_counted_from_claims_never_by_hand(renter, listing: Listing, noon: datetime):
    rent(renter, listing, at=noon)
    Listing.objects.filter(pk=listing.pk).update(gpus_free=7)
    listings.refresh(at=noon)
    listing.refresh_from_db()
    assert listing.gpus_free == listing.gpus_total - GpuClaim.objects.current(noon).count() == 1


def test_a_listing_copies_the_newest_score_and_benchmark(listing: Listing, noon: datetime):
    for hours, value in ((2, 91.5), (1, 97.25)):
        Score.objects.create(
            machine=listing.machine,
            at=noon - timedelta(hours=hours),
            version=2,
            score=value,
            uptime=1,
            completion=1,
            consistency=1,
        )
    card = listing.machine.gpus.first()
    workload = workloads.assign(machine=listing.machine, kind="benchmark", spec={}, gpus=[card], at=noon)
    Benchmark.objects.create(
        gpu=card,
        workload=workload,
        nonce="n",
        kernel_version="1",
        state="accepted",
        received_at=noon,
        download_mbps=940.0,
        disk_read_mb_s=2900.0,
    )
    listings.refresh(at=noon)
    listing.refresh_from_db()
    assert (listing.reliability, listing.reliability_new, listing.download_mbps, listing.disk_read_mb_s) == (
        97.25,
        False,
        940.0,
        2900.0,
    )


def test_refreshing_asks_a_fixed_number_of_questions(noon: datetime, db: None, django_assert_max_num_queries):
    owner = provider(at=noon)
    for _ in range(20):
        offer(at=noon, owner=owner, gpus=4)
    with django_assert_max_num_queries(22):
        listings.refresh(at=noon)


def test_a_refresh_that_changes_nothing_writes_nothing(listing: Listing, noon: datetime):
    listings.refresh(at=noon)
    assert listings.refresh(at=noon) == 0

"""Prices: set, kept as history, and recommended on what is known."""

from datetime import datetime, timedelta

import pytest

from gpunex.kit.money import NotAnAmount
from gpunex.kit.refusals import Refusal
from marketplace import market, pricing
from marketplace.models import ModelPrice, Rental
from marketplace.pricing import PriceNotValid, parse_price, recommend, set_price
from providers.models import GpuModel
from tests.marketplace.conftest import USDC, offer, provider, rent, renter_with, report


@pytest.mark.parametrize(
    ("text", "micro"),
    [("2.05", 2_050_000), ("0.000001", 1), ("1000", 1000 * USDC), (" 0.35 ", 350_000), ("٢٫٠٥", 2_050_000)],
)
def test_prices_that_people_type(text: str, micro: int):
    assert parse_price(text) == micro


@pytest.mark.parametrize(
    ("text", "refusal"),
    [("0", PriceNotValid), ("0.0", PriceNotValid), ("1000.000001", PriceNotValid), ("10,000", NotAnAmount), ("1,5", NotAnAmount),
     ("-1", NotAnAmount), ("0.0000001", NotAnAmount), ("", NotAnAmount), ("NaN", NotAnAmount), ("1e2", NotAnAmount)],
)  # fmt: skip
def test_prices_that_are_none(text: str, refusal: type[Refusal]):
    with pytest.raises(refusal):
        parse_price(text)


@pytest.mark.spec("D1")
def test_a_new_price_takes_the_place_of_the_old_one_which_stays(noon: datetime, db: None):
    owner, model = provider(at=noon), GpuModel.objects.get(slug="l4-24gb")
    set_price(provider=owner, gpu_model=model, price_micro=350_000, by=None, at=noon)
    set_price(provider=owner, gpu_model=model, price_micro=350_000, by=None, at=noon + timedelta(hours=1))
    set_price(
        provider=owner,
        gpu_model=model,
        price_micro=300_000,
        by=owner.organisation.created_by,
        at=noon + timedelta(hours=2),
    )
    assert list(ModelPrice.objects.order_by("pk").values_list("price_micro", "current")) == [
        (350_000, False),
        (300_000, True),
    ]
    with pytest.raises(PriceNotValid):
        set_price(provider=owner, gpu_model=model, price_micro=0, by=None, at=noon)


@pytest.mark.spec("D3")
@pytest.mark.case("marketplace-48")
def test_a_recommendation_rests_on_the_narrowest_place_with_enough_prices_and_says_which(noon: datetime, db: None):
    model = GpuModel.objects.get(slug="l4-24gb")
    assert (
        recommend(gpu_model=model, region="EU", at=noon).basis,
        recommend(gpu_model=model, region="EU", at=noon).sample,
    ) == ("catalogue", 0)
    for price in range(4):
        offer(at=noon, price=300_000 + 50_000 * price, country="FR")
    offer(at=noon, price=700_000, country="DE")
    found = recommend(gpu_model=model, region="EU", country="FR", at=noon + timedelta(minutes=1))
    assert (found.basis, found.evidence, found.sample, found.occupancy) == ("region", "asked", 5, 0.0)
    assert found.price_micro == 350_000  # nothing is rented: the 25th percentile
    offer(at=noon, price=450_000, country="FR")
    assert recommend(gpu_model=model, region="EU", country="FR", at=noon).basis == "country"
    assert recommend(gpu_model=model, region="NA", country="US", at=noon).basis == "world"


@pytest.mark.spec("D3")
def test_what_was_paid_counts_before_what_is_asked(noon: datetime, db: None):
    model, organisation = GpuModel.objects.get(slug="l4-24gb"), renter_with(100 * USDC, at=noon)
    for _ in range(5):
        report(rent(organisation, offer(at=noon, price=400_000, gpus=1), at=noon), "running", at=noon)
    for _ in range(5):
        offer(at=noon, price=900_000)
    at = noon + timedelta(hours=1)
    found = recommend(gpu_model=model, region="EU", at=at)
    assert (found.evidence, found.sample, found.price_micro) == ("rented", 5, 400_000)
    assert found.occupancy == pytest.approx(5 / 15)
    later = noon + timedelta(days=8)
    assert recommend(gpu_model=model, region="EU", at=later).evidence == "asked"


def test_occupancy_counts_hours_that_were_offered(noon: datetime, renter, listing):
    rental = rent(renter, listing, at=noon)
    report(rental, "running", at=noon)
    report(rental, "finished", at=noon + timedelta(hours=1), cause="completed", exit_code=0)
    assert market.occupancy(
        gpu_model=listing.gpu_model, basis="world", place="", at=noon + timedelta(hours=2)
    ) == pytest.approx(1 / 4)
    assert market.occupancy(gpu_model=listing.gpu_model, basis="country", place="US", at=noon) is None


def test_the_price_table_says_how_many_prices_each_figure_rests_on(noon: datetime, renter, listing):
    report(rent(renter, listing, at=noon), "running", at=noon)
    offer(at=noon, price=2 * USDC, country="US", owner=provider(at=noon, tier="enterprise"))
    rows = {(row.region, row.tier): row for row in market.table(at=noon + timedelta(minutes=1))}
    assert rows["EU", "community"].rented is not None
    assert (rows["EU", "community"].rented.count, rows["EU", "community"].asked.count) == (1, 1)
    assert rows["NA", "enterprise"].rented is None
    assert rows["NA", "enterprise"].asked.p50 == 2 * USDC


def test_the_pulse_counts_cards_rented_over_the_day(noon: datetime, renter, listing):
    rental = rent(renter, listing, at=noon, gpu_count=2)
    report(rental, "running", at=noon + timedelta(seconds=40))
    report(rental, "finished", at=noon + timedelta(hours=1), cause="gpu_lost")
    found = market.pulse(at=noon + timedelta(hours=2))
    assert len(found.rented) == 96
    assert (max(found.rented), found.rented[-1]) == (2, 0)
    assert (found.median_start_seconds, found.broken_share, found.rentals) == (40, 1.0, 1)
    assert Rental.objects.count() == 1


def test_every_model_of_the_catalogue_has_a_list_price(db: None):
    for model in GpuModel.objects.all():
        assert 0 < pricing.list_price(model) < pricing.HIGHEST_MICRO

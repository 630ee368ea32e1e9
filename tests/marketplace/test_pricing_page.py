"""The tab Pricing: what a provider types, and what it is told."""

import re

import pytest
from django.utils import timezone

from marketplace.models import Listing, ModelPrice
from providers.models import GpuModel, Provider
from tests.marketplace.conftest import USDC, machine, offer, provider, renter_with
from tests.marketplace.test_pages import LANGUAGES, member, visitor

PATH = "/provider/pricing"


@pytest.fixture
def owner(db: None) -> Provider:
    made = provider(at=timezone.now())
    machine(made, at=timezone.now(), model="l4-24gb")
    machine(made, at=timezone.now(), model="rtx-4090-24gb")
    return made


@LANGUAGES
@pytest.mark.spec("D1", "D3")
def test_a_price_is_set_and_its_offer_appears_at_once(owner: Provider, language: str):
    client = member(owner.organisation, language)
    assert client.get(PATH).status_code == 200
    answer = client.post(PATH, {"l4-24gb": "0.35", "rtx-4090-24gb": ""})
    assert answer.status_code == 302
    price = ModelPrice.objects.get()
    assert (price.gpu_model.slug, price.price_micro, price.set_by) == (
        "l4-24gb",
        350_000,
        owner.organisation.created_by,
    )
    assert Listing.objects.get(gpu_model__slug="l4-24gb").state == Listing.State.OFFERED
    text = client.get(PATH).content.decode()
    assert '0.31<span class="fine">5000</span>' in text  # what is kept of 0.35 after 10 %
    assert "0.35" in visitor().get("/offers").content.decode()


@LANGUAGES
@pytest.mark.parametrize("typed", ["0", "-1", "0.0000001", "10,000", "1,5", "1e3", "abc", "1001"])
def test_a_price_that_is_none_is_refused_beside_its_field_and_kept(owner: Provider, typed: str, language: str):
    client = member(owner.organisation, language)
    answer = client.post(PATH, {"l4-24gb": typed, "rtx-4090-24gb": "0.30"})
    assert answer.status_code == 422
    text = answer.content.decode()
    assert 'id="p-l4-24gb_error"' in text
    assert f'value="{typed}"' in text
    assert not ModelPrice.objects.exists()


def test_a_price_cannot_be_taken_away_only_replaced(owner: Provider):
    client = member(owner.organisation)
    client.post(PATH, {"l4-24gb": "0.35", "rtx-4090-24gb": ""})
    assert client.post(PATH, {"l4-24gb": "", "rtx-4090-24gb": ""}).status_code == 422
    client.post(PATH, {"l4-24gb": "0.30", "rtx-4090-24gb": ""})
    assert list(ModelPrice.objects.order_by("pk").values_list("price_micro", "current")) == [
        (350_000, False),
        (300_000, True),
    ]


@pytest.mark.spec("D4")
def test_where_would_i_rank_is_the_real_ranking(owner: Provider):
    at = timezone.now()
    for price in (300_000, 400_000, 500_000, 600_000, 700_000):
        offer(at=at, price=price)
    client = member(owner.organisation)
    client.post(PATH, {"l4-24gb": "0.90", "rtx-4090-24gb": ""})
    dear = _place(
        client.get(PATH, {"model": "l4-24gb", "try": "0.90"}, headers={"HX-Request": "true"}).content.decode()
    )
    cheap = _place(
        client.get(PATH, {"model": "l4-24gb", "try": "0.20"}, headers={"HX-Request": "true"}).content.decode()
    )
    assert (dear, cheap) == ((6, 6), (1, 6))
    client.post(PATH, {"l4-24gb": "0.20", "rtx-4090-24gb": ""})
    mine = Listing.objects.get(machine__provider=owner, gpu_model__slug="l4-24gb")
    assert Listing.objects.open(timezone.now()).filter(gpu_model=mine.gpu_model).best_first().first() == mine


def _place(text: str) -> tuple[int, int]:
    assert "<html" not in text
    match = re.search(r"Place (\d+) of (\d+)", text)
    assert match is not None
    return int(match[1]), int(match[2])


def test_a_price_tried_that_is_none_says_so(owner: Provider):
    client = member(owner.organisation)
    text = client.get(PATH, {"model": "l4-24gb", "try": "1,5"}, headers={"HX-Request": "true"}).content.decode()
    assert "is not an amount of USDC" in text


def test_who_is_no_provider_is_shown_the_way_to_become_one(db: None):
    client = member(renter_with(USDC, at=timezone.now()))
    assert client.get(PATH).headers["Location"] == "/roles"
    assert visitor().get(PATH).status_code == 302


def test_another_providers_models_are_not_priced(owner: Provider):
    other = provider(at=timezone.now(), name="Other")
    machine(other, at=timezone.now(), model="h100-80gb")
    member(owner.organisation).post(PATH, {"h100-80gb": "1.00", "l4-24gb": "0.35"})
    assert not ModelPrice.objects.filter(gpu_model=GpuModel.objects.get(slug="h100-80gb")).exists()

"""A quote is the bill, and says truly what a start needs and how long the balance lasts."""

import re
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from hypothesis import given, settings
from hypothesis import strategies as st

from billing import metering
from billing.billable import Billable
from billing.funding import FUNDED_AT_MOST
from billing.ledger import NotEnoughMoney
from billing.models import Meter
from gpunex.accounts.models import Organisation
from gpunex.policy.models import Policy
from marketplace import limits, pricing, quotes, rentals
from marketplace.models import Listing, Rental
from marketplace.rentals import NotOffered, PriceChanged, TooManyGpus
from providers.models import Machine, Schedule
from tests.marketplace.conftest import USDC, fund, offer, provider, rent, renter_with, report, run_for

BACKEND = "django.contrib.auth.backends.ModelBackend"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def client_of(organisation: Organisation) -> Client:
    client = Client()
    client.force_login(organisation.created_by, backend=BACKEND)
    return client


def text_of(body: bytes) -> str:
    """What is read, with a space between elements; the fine digits of an amount belong to it."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body.decode().replace('<span class="fine">', "")))


@pytest.mark.spec("F2", "G1")
def test_a_quote_says_the_price_the_fee_in_it_and_what_hours_cost(
    renter: Organisation, listing: Listing, noon: datetime
):
    found = quotes.quote(listing=listing, gpu_count=2, organisation=renter, at=noon, stop_after_seconds=5 * 3600)
    assert (found.price_micro, found.rate_micro_per_hour, found.fee_bps) == (USDC, 2 * USDC, 1000)
    assert (found.hour_micro, found.day_micro, found.stop_after_micro) == (2 * USDC, 48 * USDC, 10 * USDC)
    assert found.fee_micro(3600) == 2 * USDC // 10
    assert found.funds is not None
    assert found.funds.available_micro == 100 * USDC
    assert found.funds.needed_micro == 2 * USDC
    assert found.funds.lasts_seconds == 50 * 3600
    assert found.funds.short_micro == 0


def test_the_price_is_what_a_start_would_read_not_the_listings_copy(
    renter: Organisation, listing: Listing, noon: datetime
):
    pricing.set_price(
        provider=listing.machine.provider, gpu_model=listing.gpu_model, price_micro=370_000, by=None, at=noon
    )
    Listing.objects.filter(pk=listing.pk).update(price_micro=USDC)
    listing.refresh_from_db()
    found = quotes.quote(listing=listing, gpu_count=1, organisation=None, at=noon)
    assert (found.price_micro, found.funds) == (370_000, None)
    assert rent(renter, listing, at=noon, expected_price_micro=found.price_micro).price_micro == 370_000


def test_what_is_not_offered_has_no_quote(listing: Listing, noon: datetime):
    with pytest.raises(TooManyGpus):
        quotes.quote(listing=listing, gpu_count=3, organisation=None, at=noon)
    with pytest.raises(TooManyGpus):
        quotes.quote(listing=listing, gpu_count=0, organisation=None, at=noon)
    listing.machine.provider.prices.all().delete()
    with pytest.raises(NotOffered):
        quotes.quote(listing=listing, gpu_count=1, organisation=None, at=noon)


@pytest.mark.spec("F2")
@pytest.mark.parametrize("runway_seconds", [3600, 1800, 4217])
@pytest.mark.parametrize("price", [1, 370_001, 49_999_999])
def test_what_it_says_is_needed_is_what_a_start_asks_for(noon: datetime, db: None, runway_seconds: int, price: int):
    Policy.load()
    Policy.objects.update(runway_seconds=runway_seconds)
    cheap, wanted = offer(at=noon, price=333_333), offer(at=noon, price=price)
    renter = renter_with(400_000, at=noon)
    rent(renter, cheap, at=noon)  # it starts: its money is spoken for
    funds = quotes.funds(renter, extra_rate_micro_per_hour=2 * price, at=noon)
    assert funds.others_micro_per_hour == 333_333
    if funds.short_micro:
        with pytest.raises(NotEnoughMoney) as refused:
            rent(renter, wanted, at=noon, gpu_count=2)
        assert refused.value.needed_micro == funds.needed_micro
        assert refused.value.have_micro == funds.available_micro
        fund(renter, funds.short_micro, at=noon)
    assert rent(renter, wanted, at=noon, gpu_count=2).state == Rental.State.STARTING


@pytest.mark.spec("F2")
@pytest.mark.parametrize("seconds", [0, 1, 4217, 86_399])
@pytest.mark.parametrize("price", [1, 370_000, 1_234_567])
def test_how_long_it_lasts_is_until_when_the_meter_is_then_funded(noon: datetime, db: None, seconds: int, price: int):
    """One rental has run for a while, its last seconds not posted; another begins as quoted."""
    renter = renter_with(100 * USDC + 7, at=noon - timedelta(hours=1))
    first = rent(renter, offer(at=noon, price=999_983), at=noon)
    at = run_for(first, seconds, at=noon + timedelta(microseconds=123_457))
    wanted = offer(at=at, price=price)
    told = quotes.quote(listing=wanted, gpu_count=2, organisation=renter, at=at)
    second = rent(renter, wanted, at=at, gpu_count=2)
    report(second, "running", at=at)
    assert told.funds is not None
    for meter in Meter.objects.all():
        assert abs(meter.funded_until - told.funds.lasts_until) <= timedelta(microseconds=1)
    position = metering.position(renter, at=at)
    assert position.available_micro == told.funds.available_micro


def test_a_rental_that_is_starting_counts_as_if_it_ran(renter: Organisation, listing: Listing, noon: datetime):
    rent(renter, listing, at=noon)
    told = quotes.quote(listing=listing, gpu_count=1, organisation=renter, at=noon)
    assert told.funds is not None
    assert told.funds.others_micro_per_hour == USDC
    assert told.funds.lasts_seconds == 50 * 3600


@settings(max_examples=200, deadline=None)
@given(
    posted=st.integers(0, 10**12),
    meters=st.lists(
        st.tuples(st.integers(1, 10**9), st.integers(0, 10**7), st.integers(0, 999_999)), min_size=0, max_size=5
    ),
    rate=st.integers(1, 10**9),
)
def test_all_meters_together_cost_the_balance_up_to_then_and_more_than_it_a_second_later(
    posted: int, meters: list[tuple[int, int, int]], rate: int
):
    at = datetime(2026, 10, 14, 12, tzinfo=UTC)
    open_meters = [
        Meter(
            rate_micro_per_hour=each,
            started_at=at - timedelta(seconds=billed, microseconds=micros),
            billed_seconds=billed,
            billed_gross_micro=metering.gross_of(each, billed),
        )
        for each, billed, micros in meters
    ]
    until = quotes.lasts_until(open_meters, posted_micro=posted, rates_from_now=[rate], at=at)

    def bill(moment: datetime) -> int:
        whole = sum(
            metering.gross_of(meter.rate_micro_per_hour, max(0, (moment - meter.started_at) // timedelta(seconds=1)))
            - meter.billed_gross_micro
            for meter in open_meters
        )
        return whole + metering.gross_of(rate, max(0, (moment - at) // timedelta(seconds=1)))

    if until == at + FUNDED_AT_MOST:
        assert bill(until) <= posted
    elif until >= at:
        assert bill(until) <= posted
        # Whole seconds: each meter may wait for one more before it costs.
        assert bill(until + timedelta(seconds=2)) >= posted - (len(open_meters) + 1)


@pytest.mark.parametrize(
    ("stop_after", "spend", "by", "seconds"),
    [
        (3600, None, "stop_after", 3600),
        (None, 35 * USDC, "spend_at_most", 63_000),
        (86_400, 35 * USDC, "spend_at_most", 63_000),
        (600, 35 * USDC, "stop_after", 600),
        (None, None, None, None),
    ],
)
def test_the_first_limit_ends_it_and_the_most_is_what_its_seconds_cost(
    renter: Organisation,
    listing: Listing,
    noon: datetime,
    stop_after: int | None,
    spend: int | None,
    by: str | None,
    seconds: int | None,
):
    told = quotes.quote(
        listing=listing,
        gpu_count=2,
        organisation=renter,
        at=noon,
        stop_after_seconds=stop_after,
        spend_at_most_micro=spend,
    )
    if seconds is None:
        assert (told.end, told.most_micro) == (None, None)
        return
    assert told.end == quotes.End(seconds, str(by))
    assert told.most_micro == metering.gross_of(2 * USDC, seconds)
    assert spend is None or told.most_micro <= spend
    rental = rent(renter, listing, at=noon, gpu_count=2, stop_after_seconds=stop_after, spend_at_most_micro=spend)
    report(rental, "running", at=noon)
    rental = Rental.objects.with_work().get(pk=rental.pk)
    limit = limits.of(rental=rental, request=rental.request, meter=rental.meter)
    assert limit is not None
    assert limit.at == noon + timedelta(seconds=seconds)


def test_declared_hours_end_it_too(renter: Organisation, listing: Listing, noon: datetime):
    Schedule.objects.filter(machine=listing.machine).update(always=False, windows=[[2, "10:00", "13:30"]])
    listing.machine.refresh_from_db()
    told = quotes.quote(listing=listing, gpu_count=1, organisation=renter, at=noon, stop_after_seconds=9 * 3600)
    assert told.end == quotes.End(5400, "hours")
    assert told.most_micro == 9 * USDC  # of the renter's own limits: hours may be left before that


# --- the page --------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(db: None) -> Listing:
    return offer(at=timezone.now(), price=370_000, gpus=4)


@pytest.fixture
def shopper(db: None) -> Organisation:
    return renter_with(100 * USDC, at=timezone.now())


TYPED = {
    "gpus": "3",
    "template": "own",
    "image": "ubuntu:24.04",
    "command": "nvidia-smi",
    "environment": "TOKEN=very-secret",
    "stop_after": "24",
    "spend_at_most": "",
}


def hidden(page: str) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="(key|price)" value="([^"]*)"', page))


@pytest.mark.spec("F2", "G1")
def test_the_offer_page_quotes_before_renting_and_as_the_form_changes(here: Listing, shopper: Organisation):
    client = client_of(shopper)
    text = text_of(client.get(here.get_absolute_url()).content)
    assert "24 hours 8.880000" in text
    assert "10 % of the price is the platform’s; the provider bears it" in text
    assert "Your balance, available 100.000000" in text
    page = client.get(here.get_absolute_url() + "?quote=1&gpus=3&stop_after=1.5", headers={"HX-Request": "true"})
    assert b"<html" not in page.content
    text = text_of(page.content)
    assert "1.11 USDC" in text
    assert "1 h 30 min as long as it may run 1.665000" in text
    assert "Rent 3 GPUs for 1.11 USDC per hour" in text
    assert "HX-Request" in page.headers["Vary"]


def test_without_javascript_a_button_works_the_quote_out_and_rents_nothing(here: Listing, shopper: Organisation):
    client = client_of(shopper)
    typed = TYPED | hidden(client.get(here.get_absolute_url()).content.decode())
    page = client.post(reverse("marketplace:check", args=[here.public_id]), typed)
    assert page.status_code == 200
    text = text_of(page.content)
    assert "Nothing is rented until you press the button below." in text
    assert "1 day as long as it may run 26.640000" in text
    assert "Rent 3 GPUs for 1.11 USDC per hour" in text
    assert 'value="24"' in page.content.decode()
    assert Rental.objects.count() == 0
    wrong = client.post(reverse("marketplace:check", args=[here.public_id]), typed | {"stop_after": "soon"})
    assert wrong.status_code == 422
    assert 'value="soon"' in wrong.content.decode()
    for limit in ({"spend_at_most": "0"}, {"stop_after": "0"}, {"stop_after": "99999"}):
        refused = client.post(reverse("marketplace:check", args=[here.public_id]), typed | limit)
        assert refused.status_code == 422, limit
        assert "is between 1 minute and 366 days" in text_of(refused.content)


def test_who_is_not_signed_in_sees_the_price_and_no_balance(here: Listing):
    text = text_of(Client().get(here.get_absolute_url()).content)
    assert "24 hours 8.880000" in text
    assert "Your balance" not in text
    page = Client().post(reverse("marketplace:check", args=[here.public_id]), TYPED)
    assert page.status_code == 422  # it lacks the key that the form holds; nothing is rented either way


def test_a_balance_that_is_too_small_says_what_is_missing_before_renting(here: Listing, db: None):
    poor = renter_with(USDC // 4, at=timezone.now())
    text = text_of(client_of(poor).get(here.get_absolute_url()).content)
    assert "0.120000 USDC are missing to start." in text


@pytest.mark.parametrize(
    "query",
    [
        "gpus=9999999999999999999999",
        "gpus=-1",
        "stop_after=1e9",
        "stop_after=999999999999",
        "spend_at_most=٥",
        "spend_at_most=0",
    ],
)
def test_nothing_that_is_typed_breaks_the_quote(here: Listing, shopper: Organisation, query: str):
    page = client_of(shopper).get(f"{here.get_absolute_url()}?quote=1&{query}", headers={"HX-Request": "true"})
    assert page.status_code == 200
    assert "Rent 1 GPU for 0.37 USDC per hour" in text_of(page.content)


@pytest.mark.spec("D1", "G1")
def test_a_stale_price_is_refused_with_both_and_asked_again(here: Listing, shopper: Organisation):
    client = client_of(shopper)
    typed = TYPED | hidden(client.get(here.get_absolute_url()).content.decode())
    pricing.set_price(
        provider=here.machine.provider, gpu_model=here.gpu_model, price_micro=390_000, by=None, at=timezone.now()
    )
    page = client.post(reverse("marketplace:rent", args=[here.public_id]), typed)
    assert page.status_code == 422
    text = text_of(page.content)
    assert "The price changed from 0.37 to 0.39 USDC per GPU per hour while you were looking." in text
    assert "Rent 3 GPUs for 1.17 USDC per hour" in text
    assert Rental.objects.count() == 0
    again = typed | hidden(page.content.decode())
    assert again["price"] == "390000"
    assert client.post(reverse("marketplace:rent", args=[here.public_id]), again).status_code == 302
    assert Rental.objects.get().price_micro == 390_000


def test_a_start_refuses_a_price_that_was_not_shown(renter: Organisation, listing: Listing, noon: datetime):
    with pytest.raises(PriceChanged) as refused:
        rent(renter, listing, at=noon, expected_price_micro=USDC - 1)
    assert str(refused.value).startswith("The price changed from 0.999999 to 1.00 USDC")
    assert Rental.objects.count() == 0


# --- billable or not -------------------------------------------------------------------------------------------------


def standing(rental: Rental, at: datetime) -> Billable:
    return Rental.objects.with_work().get(pk=rental.pk).billing_at(at, offline_seconds=45)


@pytest.mark.spec("F3", "G1")
def test_each_state_says_whether_it_is_billed_and_why(renter: Organisation, listing: Listing, noon: datetime):
    rental = rent(renter, listing, at=noon)
    assert standing(rental, noon) == Billable.STARTING
    at = run_for(rental, 100, at=noon)
    assert standing(rental, at) == Billable.RUNNING
    assert standing(rental, at + timedelta(seconds=44)) == Billable.RUNNING
    assert standing(rental, at + timedelta(seconds=46)) == Billable.SILENT
    Meter.objects.update(funded_until=at)
    assert standing(rental, at) == Billable.UNFUNDED
    Meter.objects.update(funded_until=at + timedelta(hours=1))
    rentals.ask_to_stop(rental=rental, by=None, at=at)
    assert standing(rental, at) == Billable.ENDING
    report(rental, "finished", at=at + timedelta(seconds=5), cause="completed", exit_code=0)
    assert standing(rental, at + timedelta(seconds=5)) == Billable.ENDED
    assert [state for state in Billable if state.billed] == [Billable.RUNNING]


def test_an_end_before_it_ran_and_a_break_say_so(renter: Organisation, listing: Listing, noon: datetime):
    never = rent(renter, listing, at=noon)
    report(never, "finished", at=noon + timedelta(seconds=9), cause="image_missing")
    assert standing(never, noon + timedelta(seconds=9)) == Billable.NOT_RUN
    Machine.objects.update(last_seen_at=noon + timedelta(seconds=10))
    broken = rent(renter, listing, at=noon + timedelta(seconds=10))
    at = run_for(broken, 100, at=noon + timedelta(seconds=20))
    report(broken, "finished", at=at, cause="gpu_lost")
    assert standing(broken, at) == Billable.BROKEN


@pytest.mark.spec("F3")
def test_the_page_and_the_list_say_it(here: Listing, shopper: Organisation):
    now = timezone.now()
    rental = rent(shopper, here, at=now)
    client = client_of(shopper)
    assert "not billed Starting is free" in text_of(client.get(rental.get_absolute_url()).content)
    assert "Starting not billed" in text_of(client.get(reverse("marketplace:rentals")).content)
    run_for(rental, 1, at=now)
    assert "billed Each second that it is known to run is billed" in text_of(
        client.get(rental.get_absolute_url()).content
    )
    Machine.objects.update(last_seen_at=now - timedelta(minutes=2))
    assert "not billed The host is not heard from" in text_of(client.get(rental.get_absolute_url()).content)


def test_the_list_of_rentals_asks_the_same_questions_however_many_there_are(
    here: Listing, shopper: Organisation, django_assert_max_num_queries: object
):
    now = timezone.now()
    for _ in range(4):
        rental = rent(shopper, here, at=now, key=uuid.uuid4().hex)
        run_for(rental, 1, at=now)
    client = client_of(shopper)
    client.get(reverse("marketplace:rentals"))
    with django_assert_max_num_queries(14):  # type: ignore[operator]
        client.get(reverse("marketplace:rentals"))


def test_the_words_of_the_table_are_those_of_the_code():
    import billing.billable

    rows = re.findall(r"^    (\w+) +(yes|no) ", billing.billable.__doc__ or "", re.MULTILINE)
    assert [(code, said == "yes") for code, said in rows] == [(state.value, state.billed) for state in Billable]
    assert all(str(state.label).endswith(".") for state in Billable)


def test_a_quote_promises_no_other_provider(db: None, noon: datetime):
    mine, other = offer(at=noon, price=100), offer(at=noon, price=900, owner=provider(at=noon, name="Other"))
    assert quotes.price_of(mine) == 100
    assert quotes.price_of(other) == 900

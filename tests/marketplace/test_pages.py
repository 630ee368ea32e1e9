"""Pages of the marketplace over HTTP, in both languages, with and without an account."""

import re
import uuid
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from billing.metering import gross_of
from gpunex.accounts.models import Membership, Organisation
from marketplace import listings, pricing
from marketplace.models import Listing, Rental
from providers import workloads
from providers.models import Machine
from reliability.models import Benchmark, Sample
from tests.marketplace.conftest import USDC, offer, person, provider, rent, renter_with, report, run_for

LANGUAGES = pytest.mark.parametrize("language", ["en", "ar"])


def visitor(language: str = "en") -> Client:
    client = Client(headers={"accept-language": language})
    client.cookies["django_language"] = language
    return client


def member(organisation: Organisation, language: str = "en") -> Client:
    organisation.created_by.language = language
    organisation.created_by.save(update_fields=["language"])
    client = visitor(language)
    client.force_login(organisation.created_by, backend="django.contrib.auth.backends.ModelBackend")
    return client


def form_of(page: str) -> dict[str, str]:
    """What the rent form would send untouched."""
    found = dict(re.findall(r'<input type="hidden" name="(key|price)" value="([^"]*)"', page))
    return found | {
        "gpus": "1",
        "template": "cuda",
        "image": "",
        "command": "",
        "environment": "",
        "stop_after": "",
        "spend_at_most": "",
    }


@pytest.fixture
def here(db: None) -> Listing:
    return offer(at=timezone.now())


@pytest.fixture
def shopper(db: None) -> Organisation:
    return renter_with(100 * USDC, at=timezone.now())


@LANGUAGES
@pytest.mark.spec("F1", "J1")
@pytest.mark.parametrize(
    "path", ["/", "/offers", "/prices", "/offers?model=l4-24gb&region=EU&sort=price", "/prices?model=l4-24gb"]
)
def test_the_market_is_read_without_an_account_in_both_languages(here: Listing, language: str, path: str):
    page = visitor(language).get(path)
    assert page.status_code == 200
    text = page.content.decode()
    assert f'<html lang="{language}" dir="{"rtl" if language == "ar" else "ltr"}"' in text
    assert "L4 24GB" in text
    assert 'style="' not in text
    assert "<script>" not in text


@pytest.mark.parametrize("path", ["/", "/offers", "/prices"])
def test_an_empty_market_says_so(db: None, path: str):
    page = visitor().get(path)
    assert page.status_code == 200
    assert 'class="blank"' in page.content.decode()


@pytest.mark.case("marketplace-10")
@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("gpu=L4", "There is no filter called “gpu”. Did you mean “gpus”?"),
        ("vram_min=24+bananas", "“24 bananas” is not a number of GB."),
        ("model=h900", "“h900” is not known here."),
        ("price_max=1,5", "is not an amount of USDC"),
        ("reliability_min=101", "Between 0 and 100."),
        ("gpus=0", "Between 1 and 1,000."),
        ("sort=size", "“size” is not known here."),
        ("cuda_min=new", "“new” is not a number of CUDA."),
        ("region=XX", "“XX” is not known here."),
        ("region='; DROP TABLE marketplace_listing; --", "is not known here."),
    ],
)
def test_a_filter_that_is_not_understood_is_named_and_nothing_is_shown_as_found(here: Listing, query: str, said: str):
    page = visitor().get(f"/offers?{query}")
    assert page.status_code == 422
    text = page.content.decode()
    assert said in text
    assert here.machine.name not in text


def test_what_was_understood_is_said_back_and_can_be_taken_away(here: Listing):
    text = visitor().get("/offers?vram_min=24GB&price_max=2&sort=price").content.decode()
    assert "price &lt;= 2.00 and vram &gt;= 24 order by price" in text
    assert 'href="?price_max=2&amp;sort=price"' in text
    assert here.machine.name in text


@pytest.mark.spec("D4")
def test_the_reason_of_a_rank_sums_to_it(here: Listing):
    text = visitor().get(f"/offers?why={here.public_id}").content.decode()
    points = [float(value) for value in re.findall(r'<span class="pts"><bdi dir="ltr">([\d.]+)</bdi>', text)]
    assert len(points) == 7
    assert sum(round(10 * value) for value in points[:6]) == round(10 * points[6]) == round(10 * here.rank)


def test_the_list_and_the_front_page_ask_as_much_for_thirty_offers_as_for_one(
    here: Listing, django_assert_max_num_queries
):
    at = timezone.now()
    for _ in range(4):
        owner = provider(at=at)
        for _ in range(7):
            offer(at=at, owner=owner, gpus=1)
    for path, budget in (("/offers", 16), ("/", 9), ("/prices", 6)):
        with django_assert_max_num_queries(budget):
            assert visitor().get(path).status_code == 200


def test_offers_that_cannot_be_rented_now_are_counted_by_reason(here: Listing):
    at = timezone.now()
    away = offer(at=at)
    Machine.objects.filter(pk=away.machine_id).update(last_seen_at=at - timedelta(minutes=2))
    listings.refresh(at=at)
    text = visitor().get("/offers").content.decode()
    assert away.machine.name not in text
    assert "1 offline" in " ".join(text.split())


@LANGUAGES
def test_an_offer_shows_where_its_numbers_come_from(here: Listing, language: str):
    at = timezone.now()
    gpu = here.machine.gpus.first()
    workload = workloads.assign(machine=here.machine, kind="benchmark", spec={}, gpus=[gpu], at=at)
    Benchmark.objects.create(
        gpu=gpu, workload=workload, nonce="n", kernel_version="1", state="accepted", received_at=at - timedelta(hours=3), fp16_tflops=55.5,
        fp32_tflops=28.0, tensor_tflops=110.0, vram_read_gbps=280.0, vram_write_gbps=270.0, download_mbps=940.0, upload_mbps=500.0,
        latency_ms=2.1, disk_read_mb_s=2900.0, disk_write_mb_s=2100.0, details={"sm_clock_mhz": 1980, "temperature_c": 67},
    )  # fmt: skip
    page = visitor(language).get(here.get_absolute_url())
    text = page.content.decode()
    assert page.status_code == 200
    for number in ("110.0", "55.5", "1,980 MHz", "67 °C", here.machine.driver_version):
        assert number in text
    assert reverse("account_login") in text
    assert 'type="submit"><span>Rent' not in text


def test_a_retired_offer_and_an_unknown_one_are_not_found(here: Listing):
    Machine.objects.filter(pk=here.machine_id).update(retired_at=timezone.now())
    listings.refresh(at=timezone.now())
    assert visitor().get(here.get_absolute_url()).status_code == 404
    assert visitor().get(f"/offers/{uuid.uuid4()}").status_code == 404
    assert visitor().get("/offers/1").status_code == 404


def test_simulated_machines_say_so_wherever_they_show(shopper: Organisation):
    at = timezone.now()
    listing = offer(at=at, simulated=True)
    rental = rent(shopper, listing, at=at)
    client = member(shopper)
    for path in ("/offers", listing.get_absolute_url(), "/rentals", rental.get_absolute_url()):
        assert "imulated" in client.get(path).content.decode(), path


@pytest.mark.case("marketplace-13", "marketplace-15")
def test_the_quote_follows_what_is_typed_and_is_the_bill(here: Listing, shopper: Organisation):
    client = member(shopper)
    page = client.get(
        f"{here.get_absolute_url()}?quote=1&gpus=2&stop_after=1.5&spend_at_most=", headers={"HX-Request": "true"}
    ).content.decode()
    assert "<html" not in page
    assert "Rent 2 GPUs for" in page
    quoted = int(re.sub(r"\D", "", re.search(r"most you can be charged.*?class=\"money\">(.*?)</bdi>", page, re.S)[1]))  # type: ignore[index]
    answer = client.post(
        reverse("marketplace:rent", args=[here.public_id]),
        form_of(client.get(here.get_absolute_url()).content.decode()) | {"gpus": "2", "stop_after": "1.5"},
    )
    rental = Rental.objects.get()
    assert answer.headers["Location"] == rental.get_absolute_url()
    at = rental.created_at + timedelta(seconds=20)
    report(rental, "running", at=at)
    ended = report(
        rental,
        "finished",
        at=at + timedelta(hours=3),
        finished_at=at + timedelta(hours=2),
        cause="deadline",
        exit_code=143,
    )
    assert ended.meter.billed_gross_micro == quoted == gross_of(2 * USDC, 5400)


@LANGUAGES
@pytest.mark.spec("F2", "F3", "G1")
def test_a_renter_rents_watches_and_reads_the_bill(here: Listing, shopper: Organisation, language: str):
    client = member(shopper, language)
    page = client.get(here.get_absolute_url())
    answer = client.post(
        reverse("marketplace:rent", args=[here.public_id]),
        form_of(page.content.decode())
        | {"image": "ubuntu:24.04", "command": "echo <b>hello</b>", "environment": "TOKEN=secret"},
    )
    rental = Rental.objects.get()
    assert answer.headers["Location"] == rental.get_absolute_url()
    starting = client.get(rental.get_absolute_url()).content.decode()
    assert 'popovertarget="stop"' in starting
    at = timezone.now()
    report(rental, "running", at=at)
    workload = rental.job.workload
    workloads.append_log(workload=workload, attempt=1, offset=0, text="line one\n", at=at)
    Sample.objects.create(
        machine=here.machine,
        gpu=rental.gpus.get(),
        at=timezone.now(),
        temperature_c=64,
        power_w=61,
        utilization_pct=97,
        memory_used_mib=20480,
        memory_total_mib=23034,
    )
    running = client.get(rental.get_absolute_url()).content.decode()
    assert "line one" in running
    more = re.search(r'hx-get="(/rentals/[^"]+/log\?after=9)"', running)[1]  # type: ignore[index]
    workloads.append_log(workload=workload, attempt=1, offset=9, text="<b>two</b>\n", at=at)
    next_lines = client.get(more).content.decode()
    assert next_lines.startswith("&lt;b&gt;two&lt;/b&gt;\n<span hx-get=")
    fragment = client.get(reverse("marketplace:live", args=[rental.public_id])).content.decode()
    assert "<html" not in fragment
    assert "97" in fragment
    assert 'hx-swap-oob="true"' in fragment
    Machine.objects.filter(pk=here.machine_id).update(last_seen_at=at + timedelta(seconds=90))
    ended = report(
        rental,
        "finished",
        at=at + timedelta(seconds=90),
        finished_at=at + timedelta(seconds=90),
        cause="exit_nonzero",
        exit_code=3,
    )
    last = client.get(rental.get_absolute_url()).content.decode()
    assert ended.meter.billed_seconds == 90
    assert f'0.02<span class="fine">{gross_of(USDC, 90) % 10_000:04d}</span>' in last
    assert ">3</bdi>" in last
    assert f"again={rental.public_id}" in last
    assert "TOKEN" not in last
    assert (
        client.get(reverse("marketplace:log_file", args=[rental.public_id])).getvalue().decode()
        == "line one\n<b>two</b>\n"
    )
    assert rental.short_id in client.get("/rentals").content.decode()
    again = client.get(f"{here.get_absolute_url()}?again={rental.public_id}").content.decode()
    assert "echo &lt;b&gt;hello&lt;/b&gt;" in again


@LANGUAGES
@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"image": "https://hub.docker.com/r/x"}, "image"),
        ({"image": "Ubuntu"}, "image"),
        ({"template": "own"}, "image"),
        ({"command": "echo 'open"}, "command"),
        ({"environment": "no equals"}, "environment"),
        ({"environment": "NVIDIA_VISIBLE_DEVICES=all"}, "environment"),
        ({"stop_after": "-1"}, "stop_after"),
        ({"stop_after": "soon"}, "stop_after"),
        ({"spend_at_most": "1,5"}, "spend_at_most"),
        ({"gpus": "3"}, "gpus"),
        ({"gpus": "10000"}, "gpus"),
        ({"gpus": "-1"}, "gpus"),
    ],
)
def test_every_refusal_of_the_form_stands_beside_its_field_and_keeps_what_was_typed(
    here: Listing, shopper: Organisation, language: str, typed: dict[str, str], field: str
):
    client = member(shopper, language)
    answer = client.post(
        reverse("marketplace:rent", args=[here.public_id]),
        form_of(client.get(here.get_absolute_url()).content.decode()) | typed,
    )
    assert answer.status_code == 422
    text = answer.content.decode()
    assert f'id="r-{field}_error"' in text
    if field != "gpus":
        from django.utils.html import escape

        assert all(escape(value) in text for value in typed.values() if value != "own")
    assert not Rental.objects.exists()


def test_too_little_money_is_refused_with_the_way_to_the_balance(here: Listing):
    poor = renter_with(USDC - 1, at=timezone.now())
    client = member(poor)
    answer = client.post(
        reverse("marketplace:rent", args=[here.public_id]),
        form_of(client.get(here.get_absolute_url()).content.decode()),
    )
    assert answer.status_code == 422
    assert "This needs 1.00 USDC; the balance is 0.99 USDC." in answer.content.decode()
    assert not Rental.objects.exists()


def test_a_price_that_rose_is_shown_and_taken_only_by_a_second_press(here: Listing, shopper: Organisation):
    client = member(shopper)
    first = form_of(client.get(here.get_absolute_url()).content.decode())
    pricing.set_price(
        provider=here.machine.provider, gpu_model=here.gpu_model, price_micro=2 * USDC, by=None, at=timezone.now()
    )
    listings.refresh(at=timezone.now())
    answer = client.post(reverse("marketplace:rent", args=[here.public_id]), first)
    assert answer.status_code == 422
    assert "from 1.00 to 2.00" in answer.content.decode()
    second = client.post(reverse("marketplace:rent", args=[here.public_id]), form_of(answer.content.decode()))
    assert second.status_code == 302
    assert Rental.objects.get().price_micro == 2 * USDC


@pytest.mark.case("marketplace-8")
def test_the_same_form_sent_twice_is_one_rental(here: Listing, shopper: Organisation):
    client = member(shopper)
    filled = form_of(client.get(here.get_absolute_url()).content.decode())
    answers = [client.post(reverse("marketplace:rent", args=[here.public_id]), filled) for _ in range(2)]
    assert {answer.headers["Location"] for answer in answers} == {Rental.objects.get().get_absolute_url()}


def test_renting_needs_an_account_and_a_post(here: Listing, shopper: Organisation):
    path = reverse("marketplace:rent", args=[here.public_id])
    assert visitor().post(path, {}).headers["Location"].startswith(reverse("account_login"))
    assert member(shopper).get(path).status_code == 405


def test_a_stranger_finds_nothing_of_anothers_rental(here: Listing, shopper: Organisation):
    rental = rent(shopper, here, at=timezone.now(), environment={"TOKEN": "secret"}, image="debian:13")
    stranger = member(renter_with(USDC, at=timezone.now(), name="stranger"))
    for name in ("rental", "live", "log", "log_file"):
        assert stranger.get(reverse(f"marketplace:{name}", args=[rental.public_id])).status_code == 404, name
        assert visitor().get(reverse(f"marketplace:{name}", args=[rental.public_id])).status_code == 302, name
    assert stranger.post(reverse("marketplace:stop", args=[rental.public_id])).status_code == 404
    assert rental.short_id not in stranger.get("/rentals").content.decode()
    assert "debian:13" not in stranger.get(f"{here.get_absolute_url()}?again={rental.public_id}").content.decode()
    rental.refresh_from_db()
    assert rental.state == Rental.State.STARTING


def test_stopping_asks_first_and_then_says_what_happens(here: Listing, shopper: Organisation):
    rental = rent(shopper, here, at=timezone.now() - timedelta(minutes=10))
    run_for(rental, 300, at=timezone.now() - timedelta(minutes=8))
    client = member(shopper)
    assert client.get(reverse("marketplace:stop", args=[rental.public_id])).status_code == 405
    answer = client.post(reverse("marketplace:stop", args=[rental.public_id]), follow=True)
    assert "Nothing after this is charged" in answer.content.decode()
    rental.refresh_from_db()
    assert rental.state == Rental.State.ENDING
    assert client.post(reverse("marketplace:stop", args=[rental.public_id])).status_code == 302


@LANGUAGES
def test_a_break_is_explained_with_its_credit(here: Listing, shopper: Organisation, language: str):
    at = timezone.now() - timedelta(hours=2)
    rental = rent(shopper, here, at=timezone.now())
    until = run_for(rental, 3600, at=at)
    report(rental, "finished", at=until, cause="gpu_lost", message="Xid 79")
    text = member(shopper, language).get(rental.get_absolute_url()).content.decode()
    assert 'data-state="bad"' in text
    assert "Xid 79" in text
    assert "\N{MINUS SIGN}0.50" in text


def test_the_rental_pages_ask_a_fixed_number_of_questions(shopper: Organisation, django_assert_max_num_queries):
    at = timezone.now()
    listing = offer(at=at, gpus=8)
    rentals = [rent(shopper, listing, at=at) for _ in range(8)]
    for rental in rentals:
        report(rental, "running", at=at)
    client = member(shopper)
    with django_assert_max_num_queries(16):
        client.get("/rentals")
    with django_assert_max_num_queries(16):
        client.get(reverse("marketplace:live", args=[rentals[0].public_id]))


def test_a_log_without_end_is_cut_and_its_offset_is_never_believed(here: Listing, shopper: Organisation):
    rental = rent(shopper, here, at=timezone.now())
    for offset in range(0, 200_000, 50_000):
        workloads.append_log(
            workload=rental.job.workload, attempt=1, offset=offset, text=("x" * 99 + "\n") * 500, at=timezone.now()
        )
    client = member(shopper)
    page = client.get(rental.get_absolute_url()).content.decode()
    assert page.count("x" * 99) < 700
    assert "after=200000" in page
    for after in ("", "-1", "abc", "9" * 30, "٣", "200000"):
        assert client.get(reverse("marketplace:log", args=[rental.public_id]), {"after": after}).status_code == 200


@pytest.mark.parametrize("role", [Membership.Role.VIEWER, Membership.Role.BILLING])
def test_who_only_looks_or_only_pays_rents_and_stops_nothing_and_reads_no_secret(
    here: Listing, shopper: Organisation, role: str
):
    rental = rent(shopper, here, at=timezone.now(), environment={"TOKEN": "of-the-organisation"})
    client, onlooker = visitor(), person("onlooker")
    Membership.objects.create(user=onlooker, organisation=shopper, role=role)
    client.force_login(onlooker, backend="django.contrib.auth.backends.ModelBackend")
    page = client.get(here.get_absolute_url(), {"again": str(rental.public_id)}).content.decode()
    assert "of-the-organisation" not in page
    assert client.post(reverse("marketplace:rent", args=[here.public_id]), form_of(page)).status_code == 403
    assert client.post(reverse("marketplace:stop", args=[rental.public_id])).status_code == 403
    rental.refresh_from_db()
    assert (rental.state, Rental.objects.count()) == (Rental.State.STARTING, 1)

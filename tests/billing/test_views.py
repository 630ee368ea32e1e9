"""The balance and the earnings, as people see them."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from billing import deposits, metering
from gpunex.accounts.models import Organisation
from providers.models import Provider
from tests import chainkit
from tests.signin import confirm

from .conftest import USDC, fund, organisation, person, start_meter

BACKEND = "django.contrib.auth.backends.ModelBackend"


def text_of(body: bytes) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", body.decode()))


def client_of(org: Organisation) -> Client:
    """The organisation's maker at a browser, who confirmed a moment ago."""
    client = Client()
    client.force_login(org.created_by, backend=BACKEND)
    return confirm(client, org.created_by)


@pytest.fixture(autouse=True)
def mended(devchain: object, settings: Settings, tmp_path: Path) -> Iterator[None]:
    settings.TREASURY_KEY_FILE = chainkit.open_treasury(tmp_path)
    yield
    chainkit.faults(reset=True)


@pytest.fixture
def payer(db: None, now: datetime) -> Organisation:
    org = organisation("renter")
    fund(org, 100 * USDC, at=now)
    return org


@pytest.fixture
def earner(db: None, now: datetime) -> Organisation:
    org = organisation("provider")
    Provider.objects.create(organisation=org, tier="community", approved_at=now, commitment_months=3)
    return org


@pytest.mark.spec("F2")
def test_the_balance_page_shows_the_address_the_money_and_until_when_it_lasts(
    payer: Organisation, earner: Organisation, now: datetime
) -> None:
    meter = start_meter(payer, earner, at=now - timedelta(minutes=10), rate=6 * USDC)
    metering.prove(until={meter.pk: now})
    page = client_of(payer).get(reverse("billing:balance"))
    assert page.status_code == 200
    text = text_of(page.content)
    assert deposits.address_for(payer, at=now).owner in text
    assert "99.000000 USDC" in text
    assert "1.00 accruing" in text
    assert "USDC per hour" in text
    assert 'role="img" aria-label="QR code' in page.content.decode()


def test_the_history_sums_a_rentals_day_and_its_uppermost_balance_is_the_posted_one(
    payer: Organisation, earner: Organisation
) -> None:
    noon = datetime(2026, 10, 14, 12, tzinfo=UTC)
    meter = start_meter(payer, earner, at=noon, rate=USDC)
    for minutes in (20, 40, 60):
        metering.prove(until={meter.pk: noon + timedelta(minutes=minutes)})
        metering.settle_payer(organisation=payer, at=noon + timedelta(minutes=minutes))
    metering.close_meter(meter=meter, ended_at=noon + timedelta(hours=2), at=noon + timedelta(hours=2))
    text = text_of(client_of(payer).get(reverse("billing:balance")).content)
    assert text.count("7,200 s × 1.00 / 3600") == 1
    assert "−2.000000" in text
    assert "98.000000" in text
    charges = text_of(client_of(payer).get(reverse("billing:balance") + "?kind=deposits").content)
    assert "7,200 s" not in charges


def test_the_numbers_refresh_without_the_page(payer: Organisation) -> None:
    page = client_of(payer).get(reverse("billing:balance") + "?live=1", headers={"HX-Request": "true"})
    assert page.status_code == 200
    assert b"<html" not in page.content
    assert b'id="live"' in page.content
    assert "HX-Request" in page.headers["Vary"]


@pytest.mark.spec("F2")
def test_test_usdc_really_arrives(payer: Organisation, now: datetime) -> None:
    client = client_of(payer)
    page = client.post(reverse("billing:test_usdc"), {"amount": "12.5"})
    assert page.status_code == 302
    deposits.find_deposits(at=now)
    assert "112.500000 USDC" in text_of(client.get(reverse("billing:balance")).content)


@pytest.mark.parametrize("amount", ["", "0", "-5", "1e3", "NaN", "1.0000001", "10001", "abc"])
def test_an_amount_that_is_none_is_refused_beside_its_field_and_kept(payer: Organisation, amount: str) -> None:
    page = client_of(payer).post(reverse("billing:test_usdc"), {"amount": amount})
    assert page.status_code == 422
    assert b'class="error"' in page.content
    assert f'value="{amount}"' in page.content.decode() or not amount


def test_the_page_of_a_refused_amount_refreshes_the_balance_and_not_the_form(payer: Organisation) -> None:
    page = client_of(payer).post(reverse("billing:test_usdc"), {"amount": "much"})
    assert page.status_code == 422
    assert f'hx-get="{reverse("billing:balance")}?live=1"' in page.content.decode()
    assert 'href="/balance/test-usdc' not in page.content.decode()


def test_there_is_no_test_usdc_outside_the_demonstration(payer: Organisation, settings: Settings) -> None:
    settings.EMBEDDED = False
    assert client_of(payer).post(reverse("billing:test_usdc"), {"amount": "1"}).status_code == 404
    assert "Test USDC" not in text_of(client_of(payer).get(reverse("billing:balance")).content)


def test_the_pages_need_a_sign_in_and_the_dashboard_a_provider(db: None, payer: Organisation) -> None:
    for name in ("billing:balance", "providers:earnings", "providers:payouts"):
        assert "/login" in Client().get(reverse(name)).headers["Location"]
    for name in ("providers:earnings", "providers:payouts"):
        assert client_of(payer).get(reverse(name)).headers["Location"] == reverse("providers:roles")


@pytest.mark.spec("G2")
def test_earnings_show_posted_and_accruing_apart_and_every_table_sums(
    payer: Organisation, earner: Organisation, now: datetime
) -> None:
    start = max(now - timedelta(hours=2), datetime.combine(now.date(), datetime.min.time(), UTC))
    meter = start_meter(payer, earner, at=start, rate=7_000_001, fee_bps=1000, quantity=2)
    meter.labels |= {"gpus": [{"id": "GPU-a", "index": 0}, {"id": "GPU-b", "index": 1}]}
    meter.save()
    metering.prove(until={meter.pk: start + (now - start) / 2})
    metering.settle_payer(organisation=payer, at=now)
    metering.prove(until={meter.pk: now})
    client = client_of(earner)
    for query in ("", "?period=month", "?period=dates", f"?period=dates&first={now:%Y-%m-%d}&last={now:%Y-%m-%d}"):
        page = client.get(reverse("providers:earnings") + query)
        assert page.status_code == 200
        earned = page.context["earned"]
        meter.refresh_from_db()
        total = metering.accrued(meter)
        assert earned.earned_micro == total.net_micro
        assert earned.accruing.net_micro > 0 or now - start < timedelta(seconds=4)
        assert sum(amounts.net_micro for amounts in earned.models.values()) == total.net_micro
        assert sum(amounts.net_micro for amounts in earned.units.values()) == total.net_micro
        assert sum(amounts.fee_micro for amounts in earned.units.values()) == total.fee_micro
        assert sum(earned.days.values()) == total.net_micro
        assert "Accruing" in text_of(page.content)


def test_the_queries_of_the_earnings_do_not_grow_with_the_rentals(
    payer: Organisation, earner: Organisation, now: datetime, django_assert_max_num_queries: object
) -> None:
    for _ in range(6):
        meter = start_meter(payer, earner, at=now - timedelta(minutes=5), rate=1_000_000)
        metering.prove(until={meter.pk: now})
    metering.settle_payer(organisation=payer, at=now)
    client = client_of(earner)
    client.get(reverse("providers:earnings"))
    with django_assert_max_num_queries(30):  # type: ignore[operator]
        client.get(reverse("providers:earnings"))


@pytest.mark.parametrize(
    ("first", "last"), [("2026-10-14", "2026-10-01"), ("soon", "2026-10-01"), ("2020-01-01", "2026-01-01")]
)
def test_a_range_that_is_none_is_refused(earner: Organisation, first: str, last: str) -> None:
    page = client_of(earner).get(reverse("providers:earnings") + f"?period=dates&first={first}&last={last}")
    assert page.status_code == 422
    assert b'class="error"' in page.content


def test_days_that_are_still_to_come_hold_nothing(earner: Organisation, now: datetime) -> None:
    day = f"{now + timedelta(days=9):%Y-%m-%d}"
    page = client_of(earner).get(reverse("providers:earnings") + f"?period=dates&first={day}&last={day}")
    assert page.status_code == 200
    assert "Nothing earned in this time" in text_of(page.content)


@pytest.mark.spec("J1")
def test_the_pages_read_in_arabic(payer: Organisation, earner: Organisation) -> None:
    for org, name in ((payer, "billing:balance"), (earner, "providers:earnings"), (earner, "providers:payouts")):
        org.created_by.language = "ar"
        org.created_by.save()
        page = client_of(org).get(reverse(name))
        assert b'dir="rtl"' in page.content


def test_the_admin_pages_of_the_books_open(payer: Organisation, earner: Organisation, now: datetime) -> None:
    start_meter(payer, earner, at=now)
    deposits.address_for(payer, at=now)
    admin = person("admin", is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(admin, backend=BACKEND)
    for model in ("account", "transfer", "meter", "depositaddress", "deposit"):
        assert client.get(reverse(f"admin:billing_{model}_changelist")).status_code == 200, model
        assert client.get(reverse(f"admin:billing_{model}_add")).status_code == 403


def test_an_admin_gives_an_unmatched_deposit_to_its_owner(payer: Organisation, now: datetime) -> None:
    chainkit.give(str(chainkit.treasury.address()), 3 * USDC)
    deposits.find_deposits(at=now)
    deposit = deposits.Deposit.objects.get()
    client = Client()
    client.force_login(person("admin", is_staff=True, is_superuser=True), backend=BACKEND)
    url = reverse("admin:billing_deposit_change", args=[deposit.pk])
    assert "Give it to its owner" in text_of(client.get(url).content)
    assert client.post(url, {"owner": "nobody@example.org", "reason": "x"}).status_code == 422
    assert client.post(url, {"owner": payer.created_by.email, "reason": ""}).status_code == 422
    assert client.post(url, {"owner": payer.created_by.email, "reason": "wrote us"}).status_code == 302
    assert metering.position(payer, at=now).posted_micro == 103 * USDC

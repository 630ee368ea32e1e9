"""Adding USDC, as people see it: the balance page, requests and their state, and what administrators do about odd payments."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from html import unescape
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from billing import deposit_requests, deposits, metering, references, strays, treasury
from billing.models import Deposit, DepositRequest, StrayPayment
from gpunex.accounts.models import Organisation
from gpunex.chain import faucet, pay
from tests import chainkit

from .conftest import USDC, fund, organisation, person, start_meter
from .test_views import client_of, text_of

BACKEND = "django.contrib.auth.backends.ModelBackend"
pytestmark = pytest.mark.usefixtures("devchain")
LIST = "/balance/requests"


@pytest.fixture(autouse=True)
def mended(devchain: object, settings: Settings, tmp_path: Path) -> Iterator[None]:
    settings.TREASURY_KEY_FILE = chainkit.open_treasury(tmp_path)
    yield
    chainkit.faults(reset=True)


@pytest.fixture
def payer(db: None) -> Organisation:
    return organisation("renter")


@pytest.fixture
def client(payer: Organisation) -> Client:
    return client_of(payer)


@pytest.fixture
def admin(db: None) -> Client:
    client = Client()
    client.force_login(person("admin", is_staff=True, is_superuser=True), backend=BACKEND)
    return client


def made(client: Client, amount: str = "12.5") -> DepositRequest:
    page = client.post(LIST, {"amount": amount})
    assert page.status_code == 302
    request = DepositRequest.objects.latest("pk")
    assert page.headers["Location"] == f"{LIST}/{request.public_id}"
    return request


def url(request: DepositRequest, what: str = "") -> str:
    return f"{LIST}/{request.public_id}{what}"


# --- asking ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("F2")
def test_the_balance_page_offers_both_ways(client: Client, payer: Organisation, now: datetime) -> None:
    page = client.get(reverse("billing:balance"))
    text = text_of(page.content)
    assert deposits.address_for(payer, at=now).owner in text
    assert "By a payment link" in text
    assert "Earlier requests" in text
    made(client)
    assert "1 request waits for its payment" in text_of(client.get(reverse("billing:balance")).content)


@pytest.mark.spec("F2")
def test_a_request_shows_its_link_its_code_and_how_long_it_waits(
    client: Client, payer: Organisation, now: datetime
) -> None:
    request = made(client)
    page = client.get(url(request))
    body = unescape(page.content.decode())
    link = re.search(r'href="(solana:[^"]+)"', body)
    assert link is not None
    wanted = pay.read(link[1])
    assert (wanted.wallet, wanted.amount) == (deposits.address_for(payer, at=now).owner, 12_500_000)
    assert 'aria-label="QR code of the payment link"' in body
    text = text_of(page.content)
    assert "waiting for the payment" in text
    assert re.search(r"59 min \d+ s left|1 h left", text)
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("amount", "why"),
    [
        ("", "Write how much, for example 12.50."),
        ("0", "Choose an amount from 0.000001 to 1,000,000 USDC."),
        ("1000001", "Choose an amount from 0.000001 to 1,000,000 USDC."),
        *(
            (text, f"“{text}” is not an amount of USDC. Write it with a point and at most six decimals: 12.50.")
            for text in ("-5", "1e3", "NaN", "1.0000001", "1,5", "0x10", "+5")
        ),
    ],
)
def test_an_amount_that_is_none_is_refused_beside_its_field_and_kept(client: Client, amount: str, why: str) -> None:
    page = client.post(LIST, {"amount": amount})
    assert page.status_code == 422
    assert why in unescape(text_of(page.content))
    assert f'value="{amount}"' in page.content.decode() or not amount
    assert not DepositRequest.objects.exists()


@pytest.mark.parametrize(("typed", "micro"), [(" 1.5 ", 1_500_000), ("١٫٥", 1_500_000), ("1.005", 1_005_000)])
def test_an_amount_that_means_one_thing_is_taken(client: Client, typed: str, micro: int) -> None:
    assert made(client, typed).amount_micro == micro


def test_too_many_open_requests_are_refused_with_what_to_do(client: Client) -> None:
    for _ in range(deposit_requests.OPEN_AT_MOST):
        made(client)
    page = client.post(LIST, {"amount": "1"})
    assert page.status_code == 422
    assert "Pay or cancel one of them" in text_of(page.content)


# --- its state -------------------------------------------------------------------------------------------------------


def test_the_state_line_refreshes_and_reloads_the_page_once_it_is_paid(client: Client, now: datetime) -> None:
    request = made(client)
    live = re.search(r'hx-get="([^"]+)"', client.get(url(request)).content.decode())
    assert live is not None
    same = client.get(unescape(live[1]), headers={"HX-Request": "true"})
    assert b"<html" not in same.content
    assert "HX-Refresh" not in same.headers
    assert "HX-Request" in same.headers["Vary"]
    deposits.pay_with_test_wallet(request=request, at=now)
    references.watch(at=now + timedelta(seconds=5))
    assert client.get(unescape(live[1]), headers={"HX-Request": "true"}).headers["HX-Refresh"] == "true"
    page = client.get(url(request))
    text = text_of(page.content)
    assert "paid" in text
    assert "solana:" not in text
    assert b"hx-get" not in page.content
    assert Deposit.objects.get().signature[:4] in text
    assert "+12.500000" in text


@pytest.mark.parametrize(
    ("paid_micro", "words"),
    [(4 * USDC, "paid in part"), (30 * USDC, "paid"), (12_500_000, "paid")],
)
def test_part_of_it_and_more_than_it_are_said(client: Client, now: datetime, paid_micro: int, words: str) -> None:
    request = made(client)
    wallet = deposits.address_for(request.organisation, at=now).owner
    wanted = pay.read(deposit_requests.link(request, wallet=wallet))
    pay.pay(treasury.rpc(), chainkit.purse(paid_micro), replace(wanted, amount=paid_micro))
    references.watch(at=now + timedelta(seconds=5))
    text = text_of(client.get(url(request)).content)
    assert words in text
    assert (f"paid {paid_micro / USDC:.6f} of 12.500000 USDC" in text) == (paid_micro != 12_500_000)


def test_cancelled_expired_and_late_are_said(client: Client, payer: Organisation, now: datetime) -> None:
    request = made(client)
    assert client.post(url(request, "/cancel")).status_code == 302
    text = text_of(client.get(url(request)).content)
    assert "This request was cancelled" in text
    assert "solana:" not in text
    page = client.post(url(request, "/cancel"), follow=True)
    assert "waits for no payment any more" in text_of(page.content)
    old = deposit_requests.ask(organisation=payer, amount_micro=USDC, by=payer.created_by, at=now - timedelta(hours=2))
    # Even before a sweep has closed it.
    assert "The time for this request is up" in text_of(client.get(url(old)).content)
    deposits.pay_with_test_wallet(request=old, at=now)
    references.watch(at=now + timedelta(seconds=5))
    assert "paid late" in text_of(client.get(url(old)).content)
    listed = text_of(client.get(LIST).content)
    assert "paid late" in listed
    assert "cancelled" in listed


def test_another_token_is_said_on_the_request(client: Client, now: datetime) -> None:
    request, key = made(client), chainkit.purse()
    mint = chainkit.other_token(key, 100)
    wanted = pay.read(deposit_requests.link(request, wallet=deposits.address_for(request.organisation, at=now).owner))
    pay.pay(treasury.rpc(), key, replace(wanted, mint=mint, amount=100))
    references.watch(at=now + timedelta(seconds=5))
    text = text_of(client.get(url(request)).content)
    assert "Something else than USDC arrived" in text
    assert mint[:4] in text


@pytest.mark.spec("F2")
def test_the_demonstrations_wallet_pays_it(client: Client, now: datetime) -> None:
    request = made(client, "2.05")
    assert "Pay it with the demonstration’s wallet" in text_of(client.get(url(request)).content)
    assert client.post(url(request, "/pay")).status_code == 302
    references.watch(at=now + timedelta(seconds=5))
    request.refresh_from_db()
    assert request.state == DepositRequest.State.PAID
    page = client.post(url(request, "/pay"), follow=True)
    assert "waits for no payment any more" in text_of(page.content)


def test_while_the_chain_is_away_the_demonstrations_wallet_says_so(client: Client) -> None:
    request = made(client)
    chainkit.faults(rpc_down=True)
    page = client.post(url(request, "/pay"), follow=True)
    assert "did not answer" in text_of(page.content)


def test_outside_the_demonstration_nothing_pays_for_you(client: Client, settings: Settings) -> None:
    request = made(client)
    settings.EMBEDDED = False
    assert client.post(url(request, "/pay")).status_code == 404
    assert "demonstration’s wallet" not in text_of(client.get(url(request)).content)


# --- whose it is -----------------------------------------------------------------------------------------------------


def test_a_request_is_its_organisations_own(client: Client) -> None:
    request, stranger = made(client), client_of(organisation("stranger"))
    assert stranger.get(url(request)).status_code == 404
    assert stranger.post(url(request, "/cancel")).status_code == 404
    assert stranger.post(url(request, "/pay")).status_code == 404
    assert str(request.public_id)[:8] not in text_of(stranger.get(LIST).content)
    request.refresh_from_db()
    assert request.state == DepositRequest.State.OPEN


def test_the_pages_need_a_sign_in_and_the_right_method(client: Client) -> None:
    request = made(client)
    for path in (LIST, url(request)):
        assert "/login" in Client().get(path).headers["Location"]
    for what in ("/cancel", "/pay"):
        assert client.get(url(request, what)).status_code == 405
    assert client.post(url(request)).status_code == 405
    assert client.get(f"{LIST}/not-an-id").status_code == 404


def test_the_queries_do_not_grow_with_the_requests(
    client: Client, payer: Organisation, now: datetime, django_assert_max_num_queries: object
) -> None:
    for number in range(25):
        deposit_requests.ask(
            organisation=payer, amount_micro=USDC, by=payer.created_by, at=now - timedelta(hours=30 - number)
        )
    client.get(LIST)
    with django_assert_max_num_queries(14):  # type: ignore[operator]
        page = client.get(LIST)
    assert page.content.count(b"rowlink") == 20
    assert "1 to 20 of 25" in text_of(page.content)
    assert client.get(LIST + "?page=2").content.count(b"rowlink") == 5


@pytest.mark.spec("J1")
def test_the_pages_read_in_arabic(client: Client, payer: Organisation) -> None:
    request = made(client)
    payer.created_by.language = "ar"
    payer.created_by.save()
    for path in (LIST, url(request), reverse("billing:balance")):
        page = client.get(path)
        assert page.status_code == 200
        assert b'dir="rtl"' in page.content


# --- the balance page ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "state"), [(USDC, ""), (10 * USDC, "warn"), (99 * USDC, "bad")])
def test_a_balance_that_ends_soon_says_when_and_what_to_do(
    client: Client, payer: Organisation, now: datetime, rate: int, state: str
) -> None:
    fund(payer, 99 * USDC, at=now)
    start_meter(payer, organisation("provider"), at=now, rate=rate)
    body = client.get(reverse("billing:balance")).content.decode()
    assert ("The balance ends in" in body) == bool(state)
    if state:
        assert f'class="explain" data-state="{state}"' in body
        assert "Add USDC before then" in body


def test_the_balance_page_keeps_to_its_queries(
    client: Client, payer: Organisation, now: datetime, django_assert_max_num_queries: object
) -> None:
    fund(payer, 900 * USDC, at=now)
    for _ in range(6):
        meter = start_meter(payer, organisation("provider"), at=now - timedelta(minutes=5), rate=USDC)
        metering.prove(until={meter.pk: now})
        chainkit.give(deposits.address_for(payer, at=now).owner, USDC)
    deposits.find_deposits(at=now)
    made(client)
    client.get(reverse("billing:balance"))
    with django_assert_max_num_queries(24):  # type: ignore[operator]
        client.get(reverse("billing:balance"))


# --- administrators --------------------------------------------------------------------------------------------------


@pytest.mark.spec("F2")
def test_an_unmatched_deposit_comes_with_all_that_helps_to_find_its_owner(
    admin: Client, client: Client, payer: Organisation, now: datetime
) -> None:
    made(client, "7.25")
    key = chainkit.purse(9 * USDC)
    faucet.send_usdc(treasury.rpc(), key, treasury.mint(), deposits.address_for(payer, at=now).owner, USDC)
    faucet.send_usdc(treasury.rpc(), key, treasury.mint(), treasury.address(), 7_250_000, memo="for <b>renter</b> 7")
    deposits.find_deposits(at=now + timedelta(minutes=1))
    deposit = Deposit.objects.get(state=Deposit.State.UNMATCHED)
    page = admin.get(reverse("admin:billing_deposit_change", args=[deposit.pk]))
    body, text = page.content.decode(), unescape(text_of(page.content))
    assert "<b>renter" not in body
    assert "for <b>renter</b> 7" in text
    assert str(key.pubkey()) in text
    assert deposit.signature in text
    assert "7.250000" in text
    assert "sent from this wallet before" in text
    assert "asked for exactly this amount" in text
    assert text.count(deposits.address_for(payer, at=now).owner) >= 2


def test_an_unmatched_deposit_of_nobody_says_so(admin: Client, now: datetime) -> None:
    chainkit.give(treasury.address(), 3 * USDC)
    deposits.find_deposits(at=now)
    page = admin.get(reverse("admin:billing_deposit_change", args=[Deposit.objects.get().pk]))
    assert "Nobody that we know of." in text_of(page.content)


def test_a_signature_leads_to_the_explorer_where_there_is_one(admin: Client, now: datetime, settings: Settings) -> None:
    settings.SOLANA_EXPLORER = "https://explorer.example.org/tx/{signature}"
    chainkit.give(treasury.address(), 3 * USDC)
    deposits.find_deposits(at=now)
    deposit = Deposit.objects.get()
    page = admin.get(reverse("admin:billing_deposit_change", args=[deposit.pk]))
    assert f'href="https://explorer.example.org/tx/{deposit.signature}"' in page.content.decode()


def test_an_administrator_deals_with_a_stray_payment(admin: Client, payer: Organisation, now: datetime) -> None:
    row, key = deposits.address_for(payer, at=now), chainkit.purse()
    mint = chainkit.other_token(key, 1_234, decimals=2)
    pay.pay(treasury.rpc(), key, pay.TransferRequest(wallet=row.owner, amount=1_234, mint=mint))
    strays.find_strays(at=now)
    stray = StrayPayment.objects.get()
    assert "12.34" in text_of(admin.get(reverse("admin:billing_straypayment_changelist")).content)
    change = reverse("admin:billing_straypayment_change", args=[stray.pk])
    text = text_of(admin.get(change).content)
    assert "Deal with it" in text
    assert mint in text
    assert admin.post(change, {"note": ""}).status_code == 422
    assert admin.post(change, {"note": "sent back in 4xY…"}).status_code == 302
    stray.refresh_from_db()
    assert (stray.state, stray.note) == (StrayPayment.State.HANDLED, "sent back in 4xY…")
    assert stray.handled_by is not None
    assert "Deal with it" not in text_of(admin.get(change).content)


def test_the_admins_lists_open_and_nothing_is_added_by_hand(admin: Client, client: Client) -> None:
    request = made(client)
    for model in ("depositrequest", "straypayment", "depositaddress", "deposit"):
        assert admin.get(reverse(f"admin:billing_{model}_changelist")).status_code == 200, model
        assert admin.get(reverse(f"admin:billing_{model}_add")).status_code == 403
    assert admin.get(reverse("admin:billing_depositrequest_change", args=[request.pk])).status_code == 200

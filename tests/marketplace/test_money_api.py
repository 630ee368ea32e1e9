"""The money of the API: the same figures as the pages, for one's own organisation alone, as exact texts, as documented."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.core.cache import cache
from django.test import Client
from django.utils import timezone
from jsonschema import Draft202012Validator

from billing import metering
from billing.billable import Billable
from billing.models import Meter, Statement
from gpunex.accounts.models import Membership, Organisation
from gpunex.kit.money import as_decimal_string, parse_usdc
from marketplace.models import Listing, Rental
from providers.models import Machine
from tests.marketplace.conftest import USDC, offer, person, rent, renter_with, report, run_for

BACKEND = "django.contrib.auth.backends.ModelBackend"
PATHS = ("balance", "quotes?listing={listing}", "rentals", "rentals/{rental}", "earnings", "statements")


def client_of(organisation: Organisation, language: str = "en") -> Client:
    organisation.created_by.language = language
    organisation.created_by.save(update_fields=["language"])
    client = Client()
    client.force_login(organisation.created_by, backend=BACKEND)
    return client


def ask(client: Client, path: str, status: int = 200) -> dict[str, Any]:
    answer = client.get(f"/api/v1/{path}")
    assert answer.status_code == status, answer.content
    assert "application/json" in answer.headers["Content-Type"]
    assert "no-store" in answer.headers["Cache-Control"]
    found: dict[str, Any] = json.loads(answer.content, parse_float=_no_float)
    return found


def _no_float(text: str) -> None:
    raise AssertionError(f"a float in an answer: {text}")


@pytest.fixture(autouse=True)
def fresh_counts() -> None:
    cache.clear()


@pytest.fixture
def now(db: None) -> datetime:
    return timezone.now()


@pytest.fixture
def here(now: datetime) -> Listing:
    return offer(at=now, price=370_000, gpus=4)


@pytest.fixture
def shopper(now: datetime) -> Organisation:
    return renter_with(100 * USDC, at=now - timedelta(hours=2))


@pytest.fixture
def running(shopper: Organisation, here: Listing, now: datetime) -> Rental:
    rental = rent(shopper, here, at=now - timedelta(seconds=4300), gpu_count=3)
    run_for(rental, 4117, at=now - timedelta(seconds=4217))
    metering.settle_payer(organisation=shopper, at=now - timedelta(seconds=100))
    Meter.objects.update(proved_until=now)
    return Rental.objects.get(pk=rental.pk)


def statement_of(organisation: Organisation, number: int, at: datetime) -> Statement:
    return Statement.objects.create(
        kind=Statement.Kind.RENTER_MONTH,
        series="R",
        number=number,
        organisation=organisation,
        reference=f"2026-{number:02d}",
        period_start=at - timedelta(days=30),
        period_end=at,
        body={"lines": []},
        sha256="0" * 64,
        issued_at=at + timedelta(seconds=number),
    )


# --- who -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_nobody_reads_without_signing_in(running: Rental, here: Listing, path: str) -> None:
    answer = ask(Client(), path.format(listing=here.public_id, rental=running.public_id), status=401)
    assert answer == {"code": "not_signed_in", "message": "Sign in first."}


def test_strangers_see_nothing_of_it(running: Rental, shopper: Organisation, now: datetime) -> None:
    statement_of(shopper, 1, now)
    stranger = client_of(renter_with(0, at=now, name="stranger"))
    assert ask(stranger, "rentals")["total"] == 0
    assert ask(stranger, "statements")["items"] == []
    assert ask(stranger, "balance")["posted"] == "0.00"
    assert ask(stranger, f"rentals/{running.public_id}", status=404)["code"] == "not_found"
    assert ask(stranger, "earnings", status=403)["code"] == "not_a_provider"


def test_a_colleague_sees_what_the_organisation_has(running: Rental, shopper: Organisation, now: datetime) -> None:
    colleague = person("colleague")
    Membership.objects.create(user=colleague, organisation=shopper, role=Membership.Role.VIEWER, created_at=now)
    client = Client()
    client.force_login(colleague, backend=BACKEND)
    assert ask(client, "rentals")["total"] == 1


def test_somebody_without_an_organisation_is_told_what_to_do(db: None) -> None:
    client = Client()
    client.force_login(person("lonely"), backend=BACKEND)
    assert ask(client, "balance", status=403)["code"] == "no_organisation"


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_it_is_read_only(shopper: Organisation, method: str) -> None:
    answer = getattr(client_of(shopper), method)("/api/v1/balance")
    assert answer.status_code == 405
    assert answer.json()["code"] == "method_not_allowed"


def test_too_many_questions_are_turned_away_for_a_while(shopper: Organisation, monkeypatch: pytest.MonkeyPatch) -> None:
    from marketplace.api.base import Throttle

    monkeypatch.setattr(Throttle, "THROTTLE_RATES", {"api": "3/min"})
    client = client_of(shopper)
    for _ in range(3):
        ask(client, "balance")
    answer = client.get("/api/v1/balance")
    assert (answer.status_code, answer.json()["code"]) == (429, "throttled")
    assert 0 < int(answer.headers["Retry-After"]) <= 60
    ask(client_of(renter_with(0, at=timezone.now(), name="other")), "balance")


# --- what ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("F2", "G1")
def test_the_balance_is_that_of_the_page(running: Rental, shopper: Organisation, now: datetime) -> None:
    answer = ask(client_of(shopper), "balance")
    position = metering.position(shopper, at=now)
    assert position.accruing_micro > 0
    for name, micro in (
        ("posted", position.posted_micro),
        ("accruing", position.accruing_micro),
        ("available", position.available_micro),
        ("per_hour", 3 * 370_000),
    ):
        assert parse_usdc(answer[name]) == micro
    assert answer["lasts_until"].endswith("Z")
    assert (answer["running"], answer["currency"]) == (1, "USDC")


@pytest.mark.spec("F2", "G1")
def test_a_quote_has_the_costs_asked_for_and_the_fee_in_them(shopper: Organisation, here: Listing) -> None:
    answer = ask(client_of(shopper), f"quotes?listing={here.public_id}&gpu_count=3&hours=1.5&spend_at_most=1")
    assert answer["price_per_gpu_hour"] == "0.37"
    assert answer["price_per_hour"] == "1.11"
    assert answer["costs"] == [
        {"seconds": 3600, "amount": "1.11", "fee": "0.111"},
        {"seconds": 86_400, "amount": "26.64", "fee": "2.664"},
        {"seconds": 5400, "amount": "1.665", "fee": "0.1665"},
    ]
    assert (answer["fee_bps"], answer["fee_borne_by"]) == (1000, "provider")
    assert (answer["ends_by"], answer["ends_after_seconds"]) == ("spend_at_most", 3243)
    assert answer["most"] == as_decimal_string(metering.gross_of(1_110_000, 3243))
    assert answer["balance"]["needed_to_start"] == "1.11"
    assert answer["balance"]["missing"] == "0.00"
    assert answer["balance"]["lasts_seconds"] == 100 * USDC * 3600 // 1_110_000


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("", 422, "invalid"),
        ("listing=7", 422, "invalid"),
        ("listing=00000000-0000-4000-8000-000000000000", 404, "not_found"),
        ("listing={listing}&gpu_count=0", 422, "invalid"),
        ("listing={listing}&gpu_count=5", 422, "too_many_gpus"),
        ("listing={listing}&gpu_count=1.5", 422, "invalid"),
        ("listing={listing}&hours=1e3", 422, "invalid"),
        ("listing={listing}&hours=0", 422, "invalid"),
        ("listing={listing}&hours=NaN", 422, "invalid"),
        ("listing={listing}&spend_at_most=-5", 422, "invalid"),
        ("listing={listing}&spend_at_most=1.0000001", 422, "invalid"),
        ("listing={listing}&gpus=2", 422, "invalid"),
    ],
)
def test_a_question_that_makes_no_sense_is_told_why(
    shopper: Organisation, here: Listing, query: str, status: int, code: str
) -> None:
    answer = ask(client_of(shopper), "quotes?" + query.format(listing=here.public_id), status=status)
    assert answer["code"] == code
    assert answer["message"]
    assert (code == "invalid") == ("errors" in answer)


def test_what_has_no_price_has_no_quote(shopper: Organisation, here: Listing) -> None:
    here.machine.provider.prices.all().delete()
    assert ask(client_of(shopper), f"quotes?listing={here.public_id}", status=409)["code"] == "not_offered"


@pytest.mark.spec("F3", "G1")
def test_a_rental_says_what_it_costs_whether_it_is_billed_and_its_lines_sum(
    running: Rental, shopper: Organisation
) -> None:
    answer = ask(client_of(shopper), f"rentals/{running.public_id}")
    total = metering.accrued(Meter.objects.get())
    assert answer["seconds"] == total.seconds
    assert parse_usdc(answer["charged"]) == total.gross_micro
    assert parse_usdc(answer["fee"]) == total.fee_micro
    assert parse_usdc(answer["posted"]) + parse_usdc(answer["accruing"]) == total.gross_micro
    assert sum(parse_usdc(line["amount"]) for line in answer["lines"]) == total.gross_micro
    assert sum(line["seconds"] for line in answer["lines"]) == total.seconds
    assert [line["posted"] for line in answer["lines"]][-1] is False
    assert len(answer["gpus"]) == 3
    Machine.objects.update(last_seen_at=timezone.now())
    answer = ask(client_of(shopper), "rentals")["items"][0]
    assert (answer["billable"], answer["billable_code"]) == (True, "running")
    assert answer["billable_reason"] == str(Billable.RUNNING.label)
    Machine.objects.update(last_seen_at=timezone.now() - timedelta(minutes=2))
    answer = ask(client_of(shopper), "rentals")["items"][0]
    assert (answer["billable"], answer["billable_code"]) == (False, "silent")


def test_a_start_that_fails_and_a_break_are_in_the_list_with_their_reason(
    shopper: Organisation, here: Listing, now: datetime
) -> None:
    never = rent(shopper, here, at=now - timedelta(minutes=9))
    report(never, "finished", at=now - timedelta(minutes=8), cause="image_missing")
    broken = rent(shopper, here, at=now - timedelta(minutes=8))
    at = run_for(broken, 100, at=now - timedelta(minutes=7))
    report(broken, "finished", at=at, cause="gpu_lost")
    newest, oldest = ask(client_of(shopper), "rentals")["items"]
    assert (newest["billable_code"], newest["provider_fault"], newest["cause"]) == ("broken", True, "gpu_lost")
    assert newest["given_back"] == newest["charged"] != "0.00"
    assert (oldest["billable_code"], oldest["charged"], oldest["running_at"]) == ("not_run", "0.00", None)
    assert [row["id"] for row in ask(client_of(shopper), "rentals?state=running")["items"]] == []


def test_rentals_come_in_pages(shopper: Organisation, here: Listing, now: datetime) -> None:
    for minute in range(5):
        rental = rent(shopper, here, at=now - timedelta(minutes=20 - minute))
        report(rental, "finished", at=now - timedelta(minutes=20 - minute), cause="image_missing")
    client = client_of(shopper)
    first = ask(client, "rentals?per_page=2")
    assert (first["page"], first["pages"], first["total"], len(first["items"])) == (1, 3, 5, 2)
    seen, path = [], "rentals?per_page=2"
    while path:
        answer = ask(client, path)
        seen += [row["id"] for row in answer["items"]]
        path = (answer["next"] or "").partition("/api/v1/")[2]
    assert len(seen) == len(set(seen)) == 5
    assert ask(client, "rentals?page=9")["items"] == []
    for query in ("page=0", "per_page=101", "page=x", "state=sleeping"):
        assert ask(client, f"rentals?{query}", status=422)["code"] == "invalid"


def test_the_lists_ask_the_same_questions_however_long_they_are(
    shopper: Organisation, here: Listing, now: datetime, django_assert_max_num_queries: Callable[..., Any]
) -> None:
    for _ in range(4):
        rental = rent(shopper, here, at=now)
        run_for(rental, 1, at=now)
        statement_of(shopper, Statement.objects.count() + 1, now)
    client = client_of(shopper)
    ask(client, "rentals")
    with django_assert_max_num_queries(6):
        assert ask(client, "rentals")["total"] == 4
    with django_assert_max_num_queries(5):
        assert ask(client, "statements")["total"] == 4


@pytest.mark.spec("G2")
def test_earnings_sum_over_days_models_and_units_and_are_those_of_the_ledger(
    running: Rental, here: Listing, now: datetime
) -> None:
    client = client_of(here.machine.provider.organisation)
    total = metering.accrued(Meter.objects.get())
    first, after = (now - timedelta(days=1)).date(), (now + timedelta(days=2)).date()
    answers = [ask(client, f"earnings?from={first}&to={after}&zone={name}") for name in ("UTC", "Asia/Kathmandu")]
    for answer in answers:
        assert parse_usdc(answer["earned"]) == total.net_micro
        assert parse_usdc(answer["posted"]["earned"]) + parse_usdc(answer["accruing"]["earned"]) == total.net_micro
        for table in ("days", "models", "units"):
            assert sum(parse_usdc(row["earned"]) for row in answer[table]) == total.net_micro
        assert (
            parse_usdc(answer["posted"]["renters_paid"]) + parse_usdc(answer["accruing"]["renters_paid"])
            == total.gross_micro
        )
        assert len(answer["units"]) == 3
    assert [answer["zone"] for answer in answers] == ["UTC", "Asia/Kathmandu"]
    assert ask(client, "earnings")["zone"] == "UTC"


@pytest.mark.parametrize(
    "query",
    [
        "from=2026-10-14",
        "to=2026-10-14",
        "from=2026-10-14&to=2026-10-14",
        "from=2026-10-15&to=2026-10-14",
        "from=2020-01-01&to=2026-10-14",
        "from=0001-01-01&to=0001-01-02",
        "from=9998-01-01&to=9998-01-02",
        "from=soon&to=later",
        "zone=Mars/Base",
        "zone=../etc/passwd",
        "period=week",
    ],
)
def test_days_that_are_none_are_refused(here: Listing, query: str) -> None:
    answer = ask(client_of(here.machine.provider.organisation), f"earnings?{query}", status=422)
    assert answer["code"] == "invalid"


def test_a_day_of_a_zone_is_half_open_and_has_its_own_hours(here: Listing) -> None:
    client = client_of(here.machine.provider.organisation)
    answer = ask(client, "earnings?from=2026-03-29&to=2026-03-30&zone=Europe/Paris")
    assert (answer["start"], answer["end"]) == ("2026-03-28T23:00:00.000Z", "2026-03-29T22:00:00.000Z")
    assert [row["day"] for row in answer["days"]] == ["2026-03-29"]


def test_statements_are_listed_with_where_to_get_them(shopper: Organisation, now: datetime) -> None:
    statement_of(shopper, 1, now)
    newest = statement_of(shopper, 2, now)
    answer = ask(client_of(shopper), "statements")
    assert [row["number"] for row in answer["items"]] == ["R-000002", "R-000001"]
    first = answer["items"][0]
    assert first["id"] == str(newest.public_id)
    assert set(first["links"]) == {"page", "csv", "pdf", "json"}
    assert all(str(newest.public_id) in link for link in first["links"].values())


# --- how it is said --------------------------------------------------------------------------------------------------


@pytest.mark.spec("J1")
def test_messages_come_in_the_persons_language_and_codes_do_not(
    shopper: Organisation, here: Listing, running: Rental
) -> None:
    found = ask(client_of(shopper, "ar"), f"rentals/{running.public_id}")
    assert found["billable_code"] in {"running", "silent"}
    answer = client_of(shopper, "ar").get("/api/v1/rentals?page=0")
    assert answer.headers["Content-Language"] == "ar"
    assert answer.json()["code"] == "invalid"
    assert re.search(r"[\u0600-\u06ff]", json.dumps(answer.json()["errors"], ensure_ascii=False))


@pytest.mark.parametrize("path", [*PATHS, "quotes?listing={listing}&hours=2", "rentals?state=running&page=1"])
def test_answers_are_as_the_openapi_document_says(
    running: Rental, here: Listing, shopper: Organisation, now: datetime, path: str
) -> None:
    statement_of(shopper, 1, now)
    payee = here.machine.provider.organisation
    document = json.loads(client_of(shopper).get("/api/v1/openapi.json").content)
    assert document["openapi"].startswith("3.1")
    operation = document["paths"][f"/api/v1/{path.partition('?')[0]}".replace("{rental}", "{public_id}")]["get"]
    assert operation["security"]
    shape = operation["responses"]["200"]["content"]["application/json"]["schema"]
    answer = ask(
        client_of(payee if path == "earnings" else shopper),
        path.format(listing=here.public_id, rental=running.public_id),
    )
    Draft202012Validator(shape | {"components": document["components"]}).validate(answer)
    named = document["components"]["schemas"][shape["$ref"].rsplit("/", 1)[1]]
    assert set(named["properties"]) == set(answer) == set(named["required"])
    asked = {parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "query"}
    assert {name.partition("=")[0] for name in path.partition("?")[2].split("&") if name} <= asked


def test_the_agents_document_and_this_one_know_nothing_of_each_other(shopper: Organisation) -> None:
    client = client_of(shopper)
    agents = json.loads(client.get("/api/agent/v1/openapi.json").content)
    ours = json.loads(client.get("/api/v1/openapi.json").content)
    assert not set(agents["paths"]) & set(ours["paths"])
    assert set(ours["paths"]) == {
        "/api/v1/balance",
        "/api/v1/quotes",
        "/api/v1/rentals",
        "/api/v1/rentals/{public_id}",
        "/api/v1/earnings",
        "/api/v1/statements",
        "/api/v1/machines/{public_id}/reliability/explain",
        "/api/v1/machines/{public_id}/reliability/events",
    }
    assert "machineSecret" not in json.dumps(ours)


def test_earnings_never_fall_from_one_question_to_the_next(shopper: Organisation, db: None) -> None:
    begun = datetime(2026, 10, 14, 12, tzinfo=UTC)
    with time_machine.travel(begun, tick=False) as clock:
        listing = offer(at=begun, price=370_000, gpus=3)
        payer = renter_with(100 * USDC, at=begun)
        rental = rent(payer, listing, at=begun, gpu_count=3)
        report(rental, "running", at=begun)
        client, last = client_of(listing.machine.provider.organisation), 0
        for step in range(1, 15):
            at = begun + timedelta(seconds=301 * step)
            clock.move_to(at)
            metering.prove(until={Meter.objects.get().pk: at})
            if step % 4 == 0:
                metering.settle_payer(organisation=payer, at=at)
            earned = parse_usdc(ask(client, "earnings")["earned"])
            assert earned > last
            last = earned

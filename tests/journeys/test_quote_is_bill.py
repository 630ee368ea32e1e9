"""Quote = bill: one rental of odd seconds, and every place that says what it costs says the same micro-USDC.

Page and API before renting; then the rental runs its seconds under a moved clock, billed in ticks of odd lengths; then the rental page,
the list, the balance's line, the API, the ledger, the renter's statement and the provider's earnings.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from billing import ledger, metering, revenue, statement_lines, statements
from billing.ledger import Kind, Move
from billing.models import Account, Meter, Statement, Transfer
from gpunex.accounts.models import Organisation
from gpunex.kit import show
from gpunex.kit.money import as_decimal_string, parse_usdc
from marketplace import rentals
from marketplace.models import Listing, Rental
from providers import workloads
from providers.models import GpuModel, Machine, Workload
from tests.hosts import seed_again
from tests.marketplace.conftest import USDC, offer, provider, renter_with, report

NOON = datetime(2026, 10, 14, 12, tzinfo=UTC)
LATE = datetime(2026, 10, 31, 23, 31, 7, 250_000, tzinfo=UTC)  # over a midnight, a month's end, from within a second


def client_of(organisation: Organisation) -> Client:
    client = Client()
    client.force_login(organisation.created_by, backend="django.contrib.auth.backends.ModelBackend")
    return client


def text_of(body: bytes) -> str:
    """What is read; the fine digits of an amount belong to it."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body.decode().replace('<span class="fine">', "")))


def amount_beside(words: str, body: bytes) -> int:
    """The exact amount that a page says beside the label ``words``."""
    label = rf"<dt>\s*{re.escape(words)}(?:(?!</dt>).)*</dt>\s*<dd[^>]*>(.*?)</dd>"
    found = re.search(label, body.decode(), re.DOTALL)
    assert found is not None, f"no {words!r} on the page"
    amount = re.search(r"[\d,]+\.\d{6}", text_of(found[1].encode()))
    assert amount is not None, f"no exact amount beside {words!r}: {found[1]}"
    return parse_usdc(amount[0].replace(",", ""))


@pytest.fixture
def catalogue(db: None) -> None:
    """Stories come last: tests whose other processes had to see what was written may have flushed the catalogue before."""
    if not GpuModel.objects.exists():
        seed_again()


@pytest.mark.spec("F2", "G1", "G2")
@pytest.mark.parametrize(
    ("tier", "price", "gpus", "seconds", "begins", "by_limit"),
    [
        ("community", 370_000, 3, 4217, NOON, False),
        ("enterprise", 370_000, 3, 4217, NOON, True),
        ("community", 370_001, 3, 4217, LATE, True),
        ("enterprise", 1, 1, 3601, NOON, False),
        ("community", 49_999_999, 7, 61, LATE, False),
        ("enterprise", 999_983, 2, 100_003, NOON, True),
    ],
)
def test_the_quote_is_the_bill_everywhere_to_the_micro_usdc(
    catalogue: None, tier: str, price: int, gpus: int, seconds: int, begins: datetime, by_limit: bool
) -> None:
    cache.clear()
    with time_machine.travel(begins - timedelta(seconds=97), tick=False) as clock:
        listing = offer(
            at=begins, price=price, gpus=gpus, owner=provider(at=begins, tier=tier), tier=tier, last_seen_at=begins
        )
        renter = renter_with(5000 * USDC, at=begins - timedelta(hours=1))
        payee = listing.machine.provider.organisation
        tenant, owner = client_of(renter), client_of(payee)

        hours = as_decimal_string(-(-seconds * USDC // 3600))  # six decimals of an hour tell whole seconds apart
        quoted, fee_quoted = _quote(tenant, listing, gpus=gpus, hours=hours, seconds=seconds)
        assert quoted == price * gpus * seconds // 3600
        rental = _rent(tenant, listing, gpus=gpus, stop_after=hours if by_limit else "")
        _run(rental, begins=begins, seconds=seconds, by_limit=by_limit, move_to=clock.move_to)

        rental = Rental.objects.get(pk=rental.pk)
        cause = Rental.Cause.DEADLINE if by_limit else Rental.Cause.STOPPED
        assert (rental.state, rental.cause) == (Rental.State.ENDED, cause)
        clock.move_to(begins + timedelta(seconds=seconds + 60))
        _renter_pages_say(tenant, rental, quoted=quoted, seconds=seconds)
        _ledger_says(rental, renter, payee, quoted=quoted, fee=fee_quoted)
        _provider_sees(owner, payee, begins=begins, seconds=seconds, gpus=gpus, quoted=quoted, fee=fee_quoted)
        _statement_says(renter, rental, clock.move_to, quoted=quoted, fee=fee_quoted)
        assert ledger.verify_books().drift_micro == 0


def _quote(tenant: Client, listing: Listing, *, gpus: int, hours: str, seconds: int) -> tuple[int, int]:
    """What page and API say that the seconds cost, and the fee in it."""
    page = tenant.get(
        listing.get_absolute_url() + f"?quote=1&gpus={gpus}&stop_after={hours}", headers={"HX-Request": "true"}
    )
    said = tenant.get(f"/api/v1/quotes?listing={listing.public_id}&gpu_count={gpus}&hours={hours}").json()
    day, typed = said["costs"][1], said["costs"][2]
    assert (typed["seconds"], said["ends_after_seconds"], said["ends_by"]) == (seconds, seconds, "stop_after")
    assert parse_usdc(typed["amount"]) == parse_usdc(said["most"])
    assert parse_usdc(typed["amount"]) == amount_beside("The most you can be charged", page.content)
    assert parse_usdc(typed["amount"]) == amount_beside('<span class="nowrap">', page.content)
    assert parse_usdc(day["amount"]) == amount_beside("24 hours", page.content)
    return parse_usdc(typed["amount"]), parse_usdc(typed["fee"])


def _rent(tenant: Client, listing: Listing, *, gpus: int, stop_after: str) -> Rental:
    """Through the form of the page, at the price that it showed."""
    page = tenant.get(listing.get_absolute_url()).content.decode()
    typed = dict(re.findall(r'<input type="hidden" name="(key|price)" value="([^"]*)"', page)) | {
        "gpus": str(gpus),
        "template": "own",
        "image": "ubuntu:24.04",
        "command": "sleep 9999",
        "environment": "",
        "stop_after": stop_after,
        "spend_at_most": "",
    }
    answer = tenant.post(reverse("marketplace:rent", args=[listing.public_id]), typed)
    assert answer.status_code == 302, text_of(answer.content)
    return Rental.objects.get()


def _run(
    rental: Rental, *, begins: datetime, seconds: int, by_limit: bool, move_to: Callable[[datetime], None]
) -> None:
    """From the first running on, with heartbeats and settlements at odd moments, to a stop or the limit after exactly ``seconds``."""
    move_to(begins)
    report(rental, "pulling", at=begins)
    report(rental, "running", at=begins)
    passed, tick, at = 0, 17, begins
    while passed < seconds:
        passed = min(seconds, passed + tick)
        tick = tick * 3 % 7919 + 1
        at = begins + timedelta(seconds=passed)
        move_to(at)
        workload = Workload.objects.get(job__rental=rental)
        Machine.objects.update(last_seen_at=at)
        workloads.prove(machine=workload.machine, running={workload.public_id: (workload.attempt, None)}, at=at)
        rentals.prove(at=at)
        metering.settle_payer(organisation=rental.organisation, at=at)
    if not by_limit:
        rentals.ask_to_stop(rental=rental, by=None, at=at)
    report(
        rental,
        "finished",
        at=at + timedelta(seconds=7),
        finished_at=at + timedelta(seconds=4),
        cause="deadline" if by_limit else "stopped",
        exit_code=137,
    )


def _renter_pages_say(tenant: Client, rental: Rental, *, quoted: int, seconds: int) -> None:
    page = tenant.get(rental.get_absolute_url())
    assert amount_beside("Charged", page.content) == quoted
    assert f"{seconds:,} billed second" in text_of(page.content)
    assert sum(line["micro"] for line in page.context["bill"]) == quoted
    rows = tenant.get(reverse("marketplace:rentals"))
    assert rows.context["rows"][0]["cost_micro"] == quoted
    assert show.usdc(quoted, fine=True) in text_of(rows.content)

    said = tenant.get(f"/api/v1/rentals/{rental.public_id}").json()
    assert (parse_usdc(said["charged"]), said["seconds"]) == (quoted, seconds)
    assert (said["billable"], said["billable_code"]) == (False, "ended")
    assert sum(parse_usdc(line["amount"]) for line in said["lines"]) == quoted
    balance = tenant.get(reverse("billing:balance"))
    lines = [line for line in balance.context["page"] if line.is_charge]
    assert -sum(line.amount_micro for line in lines) == quoted
    if rental.rate_micro_per_hour >= 3600:  # below that a second may cost nothing, and nothing is posted for it
        assert sum(line.seconds for line in lines) == seconds
    assert parse_usdc(tenant.get("/api/v1/balance").json()["available"]) == 5000 * USDC - quoted


def _ledger_says(rental: Rental, renter: Organisation, payee: Organisation, *, quoted: int, fee: int) -> None:
    meter = Meter.objects.get()
    assert (meter.billed_gross_micro, meter.billed_fee_micro, meter.closed) == (quoted, fee, True)
    moved = dict.fromkeys((Move.CHARGE, Move.FEE), 0)
    for transfer in Transfer.objects.filter(reference=str(meter.public_id)):
        moved[Move(transfer.kind)] += transfer.amount_micro
    assert moved == {Move.CHARGE: quoted - fee, Move.FEE: fee}
    assert ledger.balance(ledger.account(Kind.RENTER_BALANCE, organisation=renter)) == 5000 * USDC - quoted
    assert ledger.balance(ledger.account(Kind.PROVIDER_PAYABLE, organisation=payee)) == quoted - fee


def _provider_sees(
    owner: Client, payee: Organisation, *, begins: datetime, seconds: int, gpus: int, quoted: int, fee: int
) -> None:
    """Gross = net + fee, on the page, in the sheet and in the API, and by unit in the order of the labels."""
    first, last = begins.date(), (begins + timedelta(seconds=seconds)).date()
    page = owner.get(reverse("providers:earnings") + f"?period=dates&first={first}&last={last}&zone=UTC")
    total = page.context["total"]
    assert (total.gross_micro, total.fee_micro, total.net_micro) == (quoted, fee, quoted - fee)
    assert amount_beside("You earned", page.content) == quoted - fee
    assert amount_beside("Renters paid", page.content) == quoted
    assert amount_beside("Platform fee", page.content) == fee
    units = sorted(page.context["earned"].units.items(), key=lambda row: row[0].index)
    assert [amounts.net_micro for _unit, amounts in units if amounts.net_micro or gpus == 1] == [
        micro for micro in revenue.split(quoted - fee, gpus) if micro or gpus == 1
    ]
    said = owner.get(f"/api/v1/earnings?from={first}&to={last + timedelta(days=1)}&zone=UTC").json()
    assert parse_usdc(said["earned"]) == quoted - fee
    assert parse_usdc(said["posted"]["renters_paid"]) == quoted
    assert sum(parse_usdc(unit["fee"]) for unit in said["units"]) == fee
    answer: Any = owner.get(reverse("providers:earnings_sheet") + f"?period=dates&first={first}&last={last}&zone=UTC")
    sheet = b"".join(answer.streaming_content).decode("utf-8-sig")
    rows = [line.split(",") for line in sheet.splitlines()[1:]]
    assert sum(parse_usdc(row[12]) for row in rows) == quoted
    assert sum(parse_usdc(row[13]) for row in rows) == fee
    assert sum(parse_usdc(row[14]) for row in rows) == quoted - fee


def _statement_says(
    renter: Organisation, rental: Rental, move_to: Callable[[datetime], None], *, quoted: int, fee: int
) -> None:
    """The month's statement, or the two of a rental over the month's end."""
    at = datetime(2026, 12, 2, tzinfo=UTC)
    move_to(at)
    statements.issue_months(at=at)
    issued = Statement.objects.filter(organisation=renter, kind=Statement.Kind.RENTER_MONTH).order_by("number")
    lines = [line for one in issued for line in one.body["lines"] if line["kind"] == "rental"]
    assert sum(line["gross_micro"] for line in lines) == quoted
    assert sum(line["fee_micro"] for line in lines) == fee
    assert -sum(line["amount_micro"] for line in lines) == quoted
    assert {line["rental"] for line in lines} == {str(rental.public_id)}
    assert sum(line["seconds"] for line in lines) == Meter.objects.get().billed_seconds
    assert {line["state"] for line in lines} == {"running"}
    account = Account.objects.get(kind=Kind.RENTER_BALANCE, organisation=renter)
    assert statement_lines.total(account, statement_lines.Span(first=0, last=10**15)) == 5000 * USDC - quoted

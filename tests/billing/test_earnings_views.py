"""The earnings page: which time it shows, that all it says sums, its sheet, and the payouts of it."""

import csv
import html
import io
import re
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from billing import metering, revenue
from billing.models import Meter, Statement
from gpunex.accounts.models import Organisation
from gpunex.kit import sheets
from gpunex.kit.money import parse_usdc
from payouts.models import Attempt, Cadence, Payout, PayoutPreference, PayoutRun, Rail
from providers.models import EnrolmentKey, Machine, Provider, Schedule

from .conftest import USDC, fund, organisation, start_meter

BACKEND = "django.contrib.auth.backends.ModelBackend"
NOW = datetime(2026, 10, 14, 15, 30, 7, tzinfo=UTC)  # a Wednesday


def client_of(org: Organisation) -> Client:
    client = Client()
    client.force_login(org.created_by, backend=BACKEND)
    return client


def text_of(body: bytes) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", body.decode().replace('<span class="fine">', ""))))


def page_of(client: Client, query: str = "", status: int = 200, headers: dict[str, str] | None = None) -> Any:
    page = client.get(reverse("providers:earnings") + query, headers=headers)
    assert page.status_code == status
    return page


def machine_of(provider: Provider, name: str, *, zone: str = "UTC") -> Machine:
    key = EnrolmentKey.objects.create(
        provider=provider,
        kind=EnrolmentKey.Kind.API_KEY,
        name="test",
        prefix=f"gpxk_{uuid.uuid4().hex[:8]}",
        hash=uuid.uuid4().hex * 2,
        created_by=provider.organisation.created_by,
    )
    machine = Machine.objects.create(
        provider=provider,
        enrolled_with=key,
        name=name,
        fingerprint=uuid.uuid4().hex,
        tier=provider.tier,
        country="DE",
        secret_hash=uuid.uuid4().hex * 2,
        enrolled_at=NOW,
    )
    Schedule.objects.create(machine=machine, effective_from=NOW - timedelta(days=30), timezone=zone, always=True)
    return machine


@pytest.fixture(autouse=True)
def at_now(db: None) -> Any:
    with time_machine.travel(NOW, tick=False) as clock:
        yield clock


@pytest.fixture
def payer() -> Organisation:
    org = organisation("renter")
    fund(org, 100_000 * USDC, at=NOW - timedelta(days=60))
    return org


@pytest.fixture
def earner() -> Organisation:
    org = organisation("provider")
    Provider.objects.create(organisation=org, tier="community", approved_at=NOW, commitment_months=3)
    return org


def ran(payer: Organisation, payee: Organisation, *, since: datetime, until: datetime, **fields: Any) -> Meter:
    """A rental that ran and ended, with labels of its own."""
    labels = fields.pop("labels", {})
    meter = start_meter(payer, payee, at=since, **fields)
    if labels:
        meter.labels |= labels
        meter.save(update_fields=["labels"])
    return metering.close_meter(meter=meter, ended_at=until, at=until)


# --- which time ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("G2", "H1")
@pytest.mark.parametrize(
    ("cadence", "query", "said", "start"),
    [
        (
            Cadence.WEEKLY,
            "",
            "This payout week, 12 Oct 2026 to 18 Oct 2026 , days in UTC.",
            datetime(2026, 10, 12, tzinfo=UTC),
        ),
        (
            Cadence.MONTHLY,
            "",
            "This payout month, 1 Oct 2026 to 31 Oct 2026 , days in UTC.",
            datetime(2026, 10, 1, tzinfo=UTC),
        ),
        (Cadence.MONTHLY, "?period=week", "This payout week, 12 Oct 2026", datetime(2026, 10, 12, tzinfo=UTC)),
        (Cadence.WEEKLY, "?period=year", "This payout week, 12 Oct 2026", datetime(2026, 10, 12, tzinfo=UTC)),
    ],
)
def test_it_opens_with_the_providers_own_payout_period_in_utc(
    earner: Organisation, cadence: Cadence, query: str, said: str, start: datetime
) -> None:
    PayoutPreference.objects.create(organisation=earner, cadence=cadence)
    page = page_of(client_of(earner), query)
    assert said in text_of(page.content)
    assert page.context["shown"].start == start


@pytest.mark.spec("G2")
def test_days_are_those_of_the_persons_zone_and_the_page_says_which(earner: Organisation, payer: Organisation) -> None:
    """An hour from 23:30 UTC on: in Berlin, two hours ahead in summer, all of it is of the next day."""
    since = datetime(2026, 10, 9, 22, 30, tzinfo=UTC)
    ran(payer, earner, since=since, until=since + timedelta(hours=1), rate=USDC, fee_bps=0)
    earner.created_by.timezone = "Europe/Berlin"
    earner.created_by.save()
    client = client_of(earner)
    page = page_of(client, "?period=dates&first=2026-10-10&last=2026-10-10")
    assert page.context["earned"].earned_micro == USDC
    assert "10 Oct 2026 to 10 Oct 2026 , both included, days of the time zone Europe/Berlin ." in text_of(page.content)
    assert page_of(client, "?period=dates&first=2026-10-09&last=2026-10-09").context["earned"].earned_micro == 0
    assert (
        page_of(client, "?period=dates&first=2026-10-09&last=2026-10-09&zone=UTC").context["earned"].earned_micro
        == USDC
    )


def test_without_a_zone_of_ones_own_it_is_that_of_most_machines(earner: Organisation) -> None:
    provider = Provider.objects.get()
    for name, zone in (("a", "Asia/Amman"), ("b", "Asia/Amman"), ("c", "UTC")):
        machine_of(provider, name, zone=zone)
    page = page_of(client_of(earner), "?period=dates")
    assert page.context["shown"].where.key == "Asia/Amman"
    assert 'value="Asia/Amman"' in page.content.decode()
    assert page.context["shown"].first_day == date(2026, 9, 15)


def test_a_zone_that_was_chosen_is_remembered(earner: Organisation) -> None:
    client = client_of(earner)
    page_of(client, "?period=dates&first=2026-10-10&last=2026-10-10&zone=Asia/Kathmandu")
    assert page_of(client, "?period=dates").context["shown"].where.key == "Asia/Kathmandu"
    assert page_of(client).context["shown"].where.key == "UTC"
    assert page_of(client_of(earner), "?period=dates").context["shown"].where.key == "UTC"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("first=2026-10-10&last=2026-10-01", "This day is before the first one."),
        ("first=2024-10-10&last=2026-10-01", "Choose at most a year."),
        ("first=soon&last=2026-10-01", "Enter a valid date."),
        ("first=2026-10-01", "This field is required."),
        ("first=1066-10-14&last=1066-10-14", "Choose a day from 2000-01-01 to 9990-12-31."),
        ("first=9999-12-31&last=9999-12-31", "Choose a day from 2000-01-01 to 9990-12-31."),
        ("first=2026-10-01&last=2026-10-01&zone=Mars/Base", "“Mars/Base” is not a time zone."),
        ("first=2026-10-01&last=2026-10-01&zone=../../etc/passwd", "is not a time zone."),
    ],
)
def test_days_that_are_none_are_refused_beside_their_field_and_kept(
    earner: Organisation, query: str, said: str
) -> None:
    page = page_of(client_of(earner), f"?period=dates&{query}", status=422)
    assert said in text_of(page.content)
    assert b'class="error"' in page.content
    for name, value in re.findall(r"(\w+)=([^&]*)", query):
        assert f'value="{value}"' in page.content.decode(), name
    assert client_of(earner).get(reverse("providers:earnings_sheet") + f"?period=dates&{query}").status_code == 422


@pytest.mark.case("money-F24")
def test_a_week_of_new_york_over_the_change_of_its_clocks_has_an_hour_less(
    earner: Organisation, payer: Organisation
) -> None:
    since = datetime(2026, 3, 6, tzinfo=UTC)
    fund(payer, 1000 * USDC, at=since)
    ran(payer, earner, since=since, until=since + timedelta(days=9), rate=USDC, fee_bps=0)
    page = page_of(client_of(earner), "?period=dates&first=2026-03-07&last=2026-03-09&zone=America/New_York")
    assert dict(page.context["days"]) == {
        date(2026, 3, 7): 24 * USDC,
        date(2026, 3, 8): 23 * USDC,
        date(2026, 3, 9): 24 * USDC,
    }
    apart = [
        page_of(client_of(earner), f"?period=dates&first=2026-03-0{day}&last=2026-03-0{day}&zone=America/New_York")
        .context["earned"]
        .earned_micro
        for day in (7, 8, 9)
    ]
    assert sum(apart) == page.context["earned"].earned_micro == 71 * USDC


# --- what it says ----------------------------------------------------------------------------------------------------


def exact_amounts(part: str) -> list[int]:
    return [parse_usdc(text.replace(",", "")) for text in re.findall(r"\d[\d,]*\.\d{6}", part)]


@pytest.mark.spec("G2")
@pytest.mark.case("money-F18")
def test_every_table_of_the_page_sums_to_what_was_earned(earner: Organisation, payer: Organisation) -> None:
    """Amounts that divide by no number of GPUs: as they are printed, they sum all the same."""
    since = datetime(2026, 10, 13, 1, 2, 3, tzinfo=UTC)
    for number, (model, gpus) in enumerate((("H100 80GB", 3), ("H100 80GB", 7), ("L4 24GB", 1))):
        labels = {
            "machine": f"fra-{number}",
            "model": model,
            "gpus": [{"id": f"GPU-{number}{index}", "index": index} for index in range(gpus)],
        }
        ran(
            payer,
            earner,
            since=since,
            until=since + timedelta(seconds=4217 + 1000 * number),
            rate=gpus * 370_001,
            fee_bps=1000,
            quantity=gpus,
            labels=labels,
        )
    page = page_of(client_of(earner))
    total = page.context["earned"].earned_micro
    assert total == sum(metering.accrued(meter).net_micro for meter in Meter.objects.all()) > 0
    body = page.content.decode().replace('<span class="fine">', "").replace("</span>", "")
    models = body.partition('id="mod"')[2].partition("</section>")[0]
    *rows, last = re.findall(r"<tr>.*?</tr>", models, re.DOTALL)[1:]
    assert [sum(column) for column in zip(*(exact_amounts(row) for row in rows), strict=True)] == exact_amounts(last)
    assert exact_amounts(last)[2] == total
    units = body.partition('id="unit"')[2].partition("</section>")[0]
    lists = re.findall(r"<h3.*?</ul>", units, re.DOTALL)
    assert len(lists) == 3
    for one in lists:
        heading, *amounts = exact_amounts(one)
        assert sum(amounts) == heading
    assert sum(exact_amounts(one)[0] for one in lists) == total
    days = body.partition("Earned per day</caption>")[2].partition("</table>")[0]
    assert sum(exact_amounts(days)) == total
    sums = text_of(page.content).partition("Renters paid")[2]
    paid, fee, earned = exact_amounts(sums)[:3]
    assert (paid - fee, earned) == (total, total)


@pytest.mark.spec("G2")
def test_the_live_part_shows_posted_and_accruing_apart_and_never_falls(
    earner: Organisation, payer: Organisation, at_now: Any
) -> None:
    meter = start_meter(payer, earner, at=NOW, rate=1_110_003, fee_bps=1000)
    client, last = client_of(earner), (-1, -1)
    for step in range(1, 30):
        at = NOW + timedelta(seconds=173 * step)
        at_now.move_to(at)
        metering.prove(until={meter.pk: at})
        if step % 6 == 0:
            metering.settle_payer(organisation=payer, at=at)
        page = page_of(client, "?live=1", headers={"HX-Request": "true"})
        assert b"<html" not in page.content
        posted, accruing = page.context["earned"].posted.net_micro, page.context["earned"].accruing.net_micro
        assert (posted, posted + accruing) >= last
        assert (accruing == 0) == (step % 6 == 0)
        words = text_of(page.content)
        earned = exact_amounts(words.partition("You earned")[2])[0]
        assert earned == posted + accruing == metering.accrued(Meter.objects.get()).net_micro
        assert exact_amounts(words.partition("Posted")[2])[0] == posted
        assert exact_amounts(words.partition("Accruing")[2])[0] == accruing
        last = posted, posted + accruing


def test_a_time_that_is_over_does_not_ask_again(earner: Organisation) -> None:
    client = client_of(earner)
    over = page_of(client, "?period=dates&first=2026-09-01&last=2026-09-30")
    assert 'hx-trigger="every 5s"' not in over.content.decode()
    assert 'hx-trigger="every 5s"' in page_of(client).content.decode()


def test_machines_come_in_pages_and_the_rest_of_the_query_stays(earner: Organisation, payer: Organisation) -> None:
    for number in range(23):
        since = NOW - timedelta(hours=2)
        labels = {"machine": f"fra-{number:02d}", "gpus": [{"id": f"GPU-{number}", "index": 0}]}
        ran(payer, earner, since=since, until=since + timedelta(minutes=1), rate=USDC, labels=labels)
    client = client_of(earner)
    page = page_of(client, "?period=month")
    assert len(page.context["machines"]) == 20
    assert "?period=month&amp;machines=2#unit" in page.content.decode()
    assert len(page_of(client, "?period=month&machines=2").context["machines"]) == 3
    assert len(page_of(client, "?period=month&machines=99").context["machines"]) == 3


def test_the_questions_do_not_grow_with_rentals_and_payouts(
    earner: Organisation, payer: Organisation, django_assert_max_num_queries: Callable[..., Any]
) -> None:
    for number in range(8):
        ran(payer, earner, since=NOW - timedelta(hours=2), until=NOW - timedelta(hours=1), rate=USDC)
        payout_of(earner, days=7 * number, state=Payout.State.PAID, signature=f"sig{number}")
    client = client_of(earner)
    page_of(client)
    with django_assert_max_num_queries(34):
        page_of(client, "?period=dates")


# --- the sheet -------------------------------------------------------------------------------------------------------


def rows_of(client: Client, query: str) -> list[dict[str, str]]:
    answer: Any = client.get(reverse("providers:earnings_sheet") + query)
    assert answer.status_code == 200
    assert answer.streaming
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="earnings-2026-10-')
    body = b"".join(answer.streaming_content)
    return list(csv.DictReader(io.StringIO(body.decode("utf-8-sig"))))


@pytest.mark.spec("G2")
def test_the_sheet_sums_to_the_page_and_runs_no_formula(earner: Organisation, payer: Organisation) -> None:
    labels = {
        "machine": '=HYPERLINK("http://evil.example","x")',
        "gpus": [{"id": "GPU-a", "index": 0}, {"id": "@SUM(A1)", "index": 1}, {"id": "GPU-c", "index": 2}],
    }
    ran(
        payer,
        earner,
        since=datetime(2026, 10, 12, 23, 0, 0, 400_000, tzinfo=UTC),
        until=datetime(2026, 10, 13, 2, 0, 7, tzinfo=UTC),
        rate=1_110_001,
        fee_bps=1000,
        quantity=3,
        labels=labels,
    )
    running = start_meter(payer, earner, at=NOW - timedelta(minutes=3), rate=7_777_777, fee_bps=800)
    metering.prove(until={running.pk: NOW})
    client = client_of(earner)
    for query in ("?period=week", "?period=dates&first=2026-10-12&last=2026-10-14&zone=Asia/Kathmandu"):
        page, rows = page_of(client, query), rows_of(client, query)
        total = page.context["total"]
        assert sum(parse_usdc(row["you earned, USDC"]) for row in rows) == total.net_micro
        assert sum(parse_usdc(row["platform fee, USDC"]) for row in rows) == total.fee_micro
        assert sum(parse_usdc(row["renter paid, USDC"]) for row in rows) == total.gross_micro
        assert sum(int(row["GPU seconds"]) for row in rows) == total.seconds
        assert {row["posted"] for row in rows} == {"posted", "accruing"}
        assert {row["time zone"] for row in rows} == {page.context["shown"].where.key}
        assert rows[0]["machine"].startswith("'=HYPERLINK")
        assert {row["GPU id"] for row in rows} >= {"'@SUM(A1)"}
    assert [row["day"] for row in rows_of(client, "?period=week")[:6]] == ["2026-10-12"] * 3 + ["2026-10-13"] * 3


def test_the_sheet_is_the_organisations_own(earner: Organisation, payer: Organisation) -> None:
    ran(payer, earner, since=NOW - timedelta(hours=2), until=NOW, rate=USDC)
    other = organisation("other")
    Provider.objects.create(organisation=other, tier="community", approved_at=NOW, commitment_months=3)
    assert rows_of(client_of(other), "?period=week") == []
    assert "/login" in Client().get(reverse("providers:earnings_sheet")).headers["Location"]
    answer = client_of(payer).get(reverse("providers:earnings_sheet"))
    assert answer.headers["Location"] == reverse("providers:roles")
    assert client_of(earner).post(reverse("providers:earnings_sheet")).status_code == 405


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("=1+1", "'=1+1"),
        ("+SUM(A1)", "'+SUM(A1)"),
        ("-2+3", "'-2+3"),
        ("@cmd", "'@cmd"),
        ("\t=1", "'\t=1"),
        ("\r\n=1", "'\r\n=1"),
        ("  =1", "'  =1"),
        ("\u200b=1", "'\u200b=1"),
        ("＝1", "'＝1"),
        ("-4.25", "-4.25"),
        ("+4", "+4"),
        ("-٤", "'-٤"),
        ("fra-1", "fra-1"),
        (7, "7"),
        (-7, "-7"),
        (None, ""),
        ("", ""),
        ("a\x00b", "ab"),
        (date(2026, 10, 14), "2026-10-14"),
        (NOW, "2026-10-14T15:30:07.000Z"),
    ],
)
def test_a_cell_is_a_text_a_number_or_a_moment_and_never_a_formula(value: object, written: str) -> None:
    assert sheets.cell(value) == written


def test_a_float_never_reaches_a_sheet() -> None:
    with pytest.raises(TypeError):
        sheets.cell(1.5)


def test_a_sheet_streams_piece_by_piece_also_under_asgi() -> None:
    from asgiref.sync import async_to_sync

    read: list[int] = []

    def rows() -> Any:
        for number in range(3 * sheets.ROWS_A_PIECE):
            read.append(number)
            yield [number]

    async def first_piece() -> bytes:
        async for piece in sheets.rows_as_csv(["n"], rows(), "n.csv"):
            return bytes(piece)
        return b""

    assert async_to_sync(first_piece)().startswith(b"\xef\xbb\xbfn\r\n0\r\n")
    assert len(read) == sheets.ROWS_A_PIECE


# --- payouts ---------------------------------------------------------------------------------------------------------


def payout_of(
    org: Organisation, *, days: int = 0, state: str, rail: str = Rail.USDC, signature: str = "", **fields: Any
) -> Payout:
    end = datetime(2026, 10, 12, tzinfo=UTC) - timedelta(days=days)
    kind = fields.pop("kind", PayoutRun.Kind.OFF_CYCLE)
    run = PayoutRun.objects.create(
        kind=kind, rail=rail, period_end=end, execute_on=end.date(), created_at=end, reason="test"
    )
    payout = Payout.objects.create(
        run=run,
        organisation=org,
        amount_micro=31_415_926,
        rail=rail,
        destination=fields.pop("destination", "7Yw1a2b3c4d5e6f7g8h9i1j2k3l4m5n6o7p8q9r1Kq3N"),
        state=state,
        reserved_at=end,
        **fields,
    )
    if signature:
        Attempt.objects.create(
            payout=payout,
            number=1,
            raw=b"",
            signature=signature,
            blockhash="x",
            last_valid_block_height=1,
            signed_at=end,
            fee_lamports=5_400,
        )
    return payout


def payouts_part(page: Any) -> str:
    body: str = page.content.decode().partition('id="pay"')[2].partition("</section>")[0]
    return body


@pytest.mark.spec("G2")
def test_payouts_say_their_state_where_to_look_and_what_it_cost(earner: Organisation, settings: Settings) -> None:
    settings.SOLANA_EXPLORER = "https://explorer.example/tx/{signature}"
    payout_of(earner, state=Payout.State.PAID, signature="5VERYLONGSIGNATUREofatransaction9xyz")
    payout_of(earner, days=7, state=Payout.State.APPROVED)
    payout_of(earner, days=14, state=Payout.State.FAILED, state_reason=Payout.Reason.FROZEN)
    payout_of(earner, days=21, state=Payout.State.EXPORTED, rail=Rail.SEPA, destination="DE·· ···· ···· 3000")
    part = payouts_part(page_of(client_of(earner)))
    text = text_of(part.encode())
    assert "https://explorer.example/tx/5VERYLONGSIGNATUREofatransaction9xyz" in part
    assert "Paid, final on chain" in text
    assert "0.0000054 SOL paid by GPUnex" in text
    assert "Approved" in text
    assert "not yet" in text
    assert "the wallet's USDC account is frozen by its issuer" in text
    assert "Handed to the bank" in text
    assert "DE·· ···· ···· 3000 SEPA bank transfer" in text
    assert text.count("31.415926") == 4
    assert ">7Yw1…Kq3N<" in part  # the whole address stands in the title alone, as on the Payouts page


def test_a_payout_leads_to_its_receipt_and_its_statement(earner: Organisation) -> None:
    payout = payout_of(earner, state=Payout.State.PAID, signature="sig")
    statement = Statement.objects.create(
        kind=Statement.Kind.PAYOUT,
        series="P",
        number=42,
        organisation=earner,
        reference=str(payout.public_id),
        period_start=NOW,
        period_end=NOW,
        body={},
        sha256="0" * 64,
    )
    part = payouts_part(page_of(client_of(earner)))
    assert reverse("providers:payout", args=[payout.public_id]) in part
    assert reverse("billing:statement", args=[statement.public_id]) in part
    assert "P-000042" in part


def test_payouts_come_in_pages_others_are_not_there_and_no_returns(earner: Organisation) -> None:
    for number in range(12):
        payout_of(earner, days=7 * number, state=Payout.State.PAID)
    payout_of(earner, state=Payout.State.PAID, kind=PayoutRun.Kind.RETURN)
    payout_of(organisation("other"), state=Payout.State.PAID)
    client = client_of(earner)
    page = page_of(client, "?period=month")
    assert (len(page.context["payouts"]), page.context["payout_page"].paginator.count) == (10, 12)
    assert "?period=month&amp;payouts=2#pay" in page.content.decode()
    assert len(page_of(client, "?payouts=2").context["payouts"]) == 2


@pytest.mark.spec("J1")
@pytest.mark.parametrize("query", ["", "?period=dates", "?period=month"])
def test_it_reads_in_arabic(earner: Organisation, payer: Organisation, query: str) -> None:
    ran(payer, earner, since=NOW - timedelta(hours=2), until=NOW, rate=USDC)
    payout_of(earner, state=Payout.State.PAID, signature="sig")
    earner.created_by.language = "ar"
    earner.created_by.save()
    page = page_of(client_of(earner), query)
    assert b'<html lang="ar" dir="rtl"' in page.content
    assert revenue.of(earner, start=NOW - timedelta(days=1), end=NOW + timedelta(days=1), at=NOW).earned_micro > 0

"""Statements as page, CSV and PDF: drawn from the body alone, in both languages, for those whose they are."""

import csv
import hashlib
import io
import json
import re
import uuid
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import translation

from billing import metering, statements
from billing.documents import pdf, sheet
from billing.documents.model import Document
from billing.models import Statement
from gpunex.accounts.models import Organisation, User
from gpunex.kit.money import parse_usdc
from gpunex.kit.sheets import csv_lines
from providers.models import Provider

from .conftest import USDC, fund, organisation, start_meter
from .test_statements import HOUR, pay
from .test_views import client_of, text_of


def body_of(lines: int, *, kind: str = "payout", name: str = "Palm Compute", reason: str = "") -> dict[str, Any]:
    """A statement's body with so many rental lines and one correction."""
    earning = kind == "payout"
    rows: list[dict[str, Any]] = [
        {
            "kind": "rental",
            "day": (datetime(2026, 10, 1, tzinfo=UTC) + timedelta(hours=number // 4)).date().isoformat(),
            "rental": str(uuid.UUID(int=number)),
            "meter": str(uuid.UUID(int=10**9 + number)),
            "model": "H100 80GB",
            "machine": f"fra-{number % 7}",
            "units": 1 + number % 8,
            "since_second": 0,
            "seconds": 3_600 + number,
            "rate_micro_per_hour": 2_500_000,
            "fee_bps": 800,
            "gross_micro": 2_500_000 + number,
            "fee_micro": 200_000,
            "amount_micro": 2_300_000 + number if earning else -2_500_000 - number,
            "state": "running",
        }
        for number in range(lines)
    ]
    rows.append(
        {
            "kind": "adjustment",
            "at": "2026-10-30T11:00:00Z",
            "transfer": 1,
            "reference": "11111111-2222",
            "amount_micro": 9_000_000_000,
            "reason": reason,
        }
    )
    closing = 12 + sum(row["amount_micro"] for row in rows)
    body: dict[str, Any] = {
        "version": 1,
        "kind": kind,
        "series": "P" if earning else "R",
        "number": 42,
        "organisation": {"id": str(uuid.UUID(int=1)), "name": name},
        "reference": str(uuid.UUID(int=2)) if earning else "2026-10",
        "period": {"start": "2026-10-01T00:00:00Z", "end": "2026-11-01T00:00:00Z"},
        "issued_at": "2026-11-01T00:41:12Z",
        "previous": {"number": "P-000041", "sha256": "0" * 64},
        "span": {"first": 1, "last": 2, "before": None, "seen_before": None, "seen_last": 0},
        "account": "provider.payable" if earning else "renter.balance",
        "opening_micro": 12,
        "lines": rows,
        "closing_micro": closing,
    }
    if earning:
        body |= {
            "run_kind": "cycle",
            "later_micro": 500_000,
            "kept_micro": 2_000,
            "payable_micro": closing - 502_000,
            "amount_micro": closing - 502_000,
            "carried_micro": 502_000,
        }
    return body


def unsaved(body: dict[str, Any]) -> Statement:
    return Statement(
        kind=body["kind"], series=body["series"], number=body["number"], body=body, sha256=statements.hash_of(body)
    )


def draw(body: dict[str, Any], language: str = "en", **options: str) -> bytes:
    with translation.override(language):
        return pdf.render(Document(unsaved(body)), **options)


class Read:
    """What a PDF of ours holds: the text of its pages as it was put down, and which glyphs stand for which letters."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.objects = {
            int(match[1]): match[2] for match in re.finditer(rb"(?s)\n(\d+) 0 obj\n(.*?)\nendobj", b"\n" + data)
        }
        self.pages = [body for body in self.objects.values() if re.search(rb"/Type /Page\b", body)]
        self.fonts = {
            match[1]: self._letters(int(match[2]))
            for body in self.objects.values()
            for match in re.finditer(rb"/(F\d+) (\d+) 0 R", body)
        }

    def _stream(self, number: int) -> bytes:
        body = self.objects[number]
        raw = re.search(rb"(?s)stream\n(.*)\nendstream", body)
        assert raw is not None
        return zlib.decompress(raw[1]) if b"FlateDecode" in body else raw[1]

    def _letters(self, font: int) -> dict[int, str]:
        number = re.search(rb"/ToUnicode (\d+) 0 R", self.objects[font])
        assert number is not None
        found = re.findall(rb"<([0-9A-Fa-f]{4})> <([0-9A-Fa-f]+)>", self._stream(int(number[1])))
        return {int(code, 16): bytes.fromhex(text.decode()).decode("utf-16-be") for code, text in found}

    def text(self, page: int) -> str:
        """The page's text, piece by piece in the order of drawing."""
        number = re.search(rb"/Contents (\d+) 0 R", self.pages[page])
        assert number is not None
        pieces, letters = [], {}
        for match in re.finditer(rb"(?s)/(F\d+) [\d.]+ Tf|\(((?:\\.|[^\\)])*)\)", self._stream(int(number[1]))):
            if match[1]:
                letters = self.fonts[match[1]]
                continue
            raw = re.sub(
                rb"(?s)\\(.)", lambda escaped: {b"r": b"\r", b"n": b"\n"}.get(escaped[1], escaped[1]), match[2]
            )
            pieces.append("".join(letters.get(int.from_bytes(raw[at : at + 2]), "�") for at in range(0, len(raw), 2)))
        return " ".join(pieces)

    def whole(self) -> str:
        return " ".join(self.text(page) for page in range(len(self.pages)))


# --- PDF -------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("G1", "J1")
def test_a_pdf_says_whose_it_is_what_it_adds_up_and_its_hash() -> None:
    body = body_of(3, reason="the machine was counted twice")
    whole = Read(draw(body, verify_url="https://gpunex.example/verify/x")).whole()
    for part in (
        "Payout statement",
        "P-000042",
        "Palm Compute",
        "1 Nov 2026, 00:00 UTC",
        "Rental, running",
        "H100 80GB",
        "2.300002",
        "Carried forward",
        "0.502000",
        "P-000041",
    ):
        assert part in whole
    joined = whole.replace(" ", "")
    assert statements.hash_of(body) in joined
    assert "https://gpunex.example/verify/x" in joined
    assert "themachinewascountedtwice" in joined


@pytest.mark.parametrize("language", ["en", "ar"])
def test_two_thousand_lines_take_pages_with_a_head_each_and_numbered(language: str) -> None:
    body = body_of(2_000)
    read = Read(draw(body, language))
    pages = len(read.pages)
    assert pages > 50
    if language == "en":
        for number in (0, 1, pages // 2, pages - 3):
            text = read.text(number)
            assert "Billed time" in text
            assert f"page {number + 1} of {pages}" in text
        whole = read.whole()
        assert all(f"{2_300_000 + number:07d}"[1:] in whole for number in (0, 999, 1_999))
        assert whole.count("r-00000000") == 2_000


@pytest.mark.spec("J1")
def test_an_arabic_pdf_is_shaped_and_set_from_right_to_left() -> None:
    data = draw(body_of(2, name="مركز النخيل للحوسبة", reason="احتُسبت الآلة مرتين"), "ar")
    assert b"GPUnexDocuments" in data
    read = Read(data)
    # A letter has a glyph for each place in a word: without shaping there would be one.
    shapes: dict[str, int] = {}
    for letters in read.fonts.values():
        for text in letters.values():
            shapes[text] = max(shapes.get(text, 0), sum(other == text for other in letters.values()))
    assert max(count for text, count in shapes.items() if text and "\u0621" <= text[0] <= "\u064a") >= 2
    # The first column stands at the right: the day of a line is drawn further right than its amount.
    stream = read._stream(int(re.search(rb"/Contents (\d+) 0 R", read.pages[0])[1]))  # type: ignore[index]
    places = [float(match[1]) for match in re.finditer(rb"BT ([\d.]+) [\d.]+ Td", stream)]
    assert max(places) > 400
    assert min(places) < 100


@pytest.mark.spec("J1")
def test_the_marks_of_arabic_stand_on_their_letters() -> None:
    """A mark is drawn at a height of its own: one that is left on the line stands beside its letter."""
    read = Read(draw(body_of(1), "ar"))
    stream = read._stream(int(re.search(rb"/Contents (\d+) 0 R", read.pages[0])[1]))  # type: ignore[index]
    titles = [line for line in stream.split(b"BT ")[1:] if b" Tm " in line]
    lifted = 0
    for line in titles:
        base = float(line.split()[1])
        lifted += any(float(match[1]) > base + 0.5 for match in re.finditer(rb"1 0 0 1 [\d.]+ ([\d.]+) Tm", line))
    assert lifted >= 2  # the notes below the lines have marks


@pytest.mark.parametrize("language", ["en", "ar"])
def test_the_sums_of_a_pdf_do_not_overlap(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[float, float, str]] = []
    write = pdf._Sheet._at

    def noted(self: Any, offset: float, width: float, text: str, **style: Any) -> float:
        top = self.y
        used = write(self, offset, width, text, **style)
        drawn.append((top, top + used, text))
        return used

    monkeypatch.setattr(pdf._Sheet, "_at", noted)
    body = body_of(1, kind="month")
    draw(body, language)
    with translation.override(language):
        labels = [figure.label for figure in Document(unsaved(body)).sums]
    places = [next((top, end) for top, end, text in reversed(drawn) if text == label) for label in labels]
    assert all(end <= top + 0.01 for (_top, end), (top, _end) in pairwise(places)), places


def test_a_name_in_a_script_without_a_font_does_not_stop_the_pdf() -> None:
    assert draw(body_of(1, name="計算 Ко́мпания 😀")).startswith(b"%PDF")


def test_an_unbroken_reason_of_three_hundred_letters_stays_in_its_column() -> None:
    assert len(Read(draw(body_of(1, reason="x" * 300))).pages) >= 1


def test_a_statement_without_lines_is_drawn(renter: Organisation, provider: Organisation, noon: datetime) -> None:
    body = body_of(0)
    body["lines"] = []
    assert "Nothing moved in this period." in Read(draw(body)).whole()


# --- CSV -------------------------------------------------------------------------------------------------------------


def table(body: dict[str, Any], language: str = "en") -> list[dict[str, str]]:
    with translation.override(language):
        data = b"".join(csv_lines(sheet.header(), list(sheet.rows(Document(unsaved(body))))))
    return list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"))))


@pytest.mark.spec("G1")
def test_the_csv_adds_up_to_the_same_micro_usdc() -> None:
    body = body_of(40)
    rows = table(body)
    assert (rows[0]["What"], rows[0]["Balance, USDC"]) == ("Opening balance", "0.000012")
    amounts = [parse_usdc(row["Amount, USDC"]) for row in rows if row["Amount, USDC"]]
    assert 12 + sum(amounts) == body["closing_micro"]
    closing = next(row for row in rows if row["What"] == "Closing balance")
    assert parse_usdc(closing["Balance, USDC"]) == body["closing_micro"]
    assert rows[1]["Billed seconds"] == "3600"
    assert rows[1]["Reference"] == str(uuid.UUID(int=0))
    assert rows[41]["Time (UTC)"] == "2026-10-30T11:00:00.000Z"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "\r@", " =", "＝"])
def test_what_people_wrote_never_runs_as_a_formula(start: str) -> None:
    text = f'{start}HYPERLINK("https://bad.example","x")'
    body = body_of(1, reason=text)
    body["lines"][0]["machine"] = text
    rows = table(body)
    assert rows[2]["Note"].startswith("'")
    assert rows[1]["Machine"].startswith("'")


def test_a_charge_is_a_negative_number_and_stays_one() -> None:
    assert table(body_of(1, kind="renter_month"))[1]["Amount, USDC"] == "-2.50"


# --- the pages -------------------------------------------------------------------------------------------------------


@pytest.fixture
def earner(db: None, noon: datetime) -> Organisation:
    org = organisation("provider")
    Provider.objects.create(organisation=org, tier="community", approved_at=noon, commitment_months=3)
    return org


@pytest.fixture
def month(earner: Organisation) -> Statement:
    renter = organisation("renter")
    start = datetime(2026, 9, 29, 6, tzinfo=UTC)
    fund(renter, 100 * USDC, at=start)
    meter = start_meter(renter, earner, at=start)
    metering.close_meter(meter=meter, ended_at=start + 5 * HOUR, at=start + 5 * HOUR)
    statements.issue_months(at=datetime(2026, 10, 1, 1, tzinfo=UTC))
    return Statement.objects.get()


def paths(statement: Statement) -> list[str]:
    names = ("statement", "statement_csv", "statement_pdf", "statement_json")
    return [reverse(f"billing:{name}", args=[statement.public_id]) for name in names]


@pytest.mark.spec("G1", "J1")
@pytest.mark.parametrize("language", ["en", "ar"])
def test_a_renter_opens_a_month_as_page_csv_and_pdf(month: Statement, language: str) -> None:
    User.objects.filter(pk=month.organisation.created_by_id).update(language=language)
    client = client_of(month.organisation)
    listing = client.get(reverse("billing:statements"))
    assert "R-000001" in listing.content.decode()
    assert f'lang="{language}"' in listing.content.decode()
    page, sheet_file, document, body = (client.get(path) for path in paths(month))
    text = text_of(page.content)
    for part in ("R-000001", "12.500000", "87.500000", "1 × H100 80GB", month.sha256, "5:00:00"):
        assert part in text
    assert b"R-000001" in b"".join(sheet_file.streaming_content)  # type: ignore[attr-defined]
    assert document["Content-Type"] == "application/pdf"
    assert document.content.startswith(b"%PDF")
    assert 'filename="gpunex-R-000001.pdf"' in document["Content-Disposition"]
    assert hashlib.sha256(body.content).hexdigest() == month.sha256
    assert json.loads(body.content)["closing_micro"] == 87_500_000


@pytest.mark.spec("H1")
def test_a_provider_finds_the_statement_of_a_payout(earner: Organisation, month: Statement, noon: datetime) -> None:
    statement = pay(earner, 10 * USDC, at=noon)
    client = client_of(earner)
    assert "P-000001" in client.get(reverse("billing:statements"), {"of": "payouts"}).content.decode()
    text = text_of(client.get(paths(statement)[0]).content)
    for part in ("Payout statement", "10.000000", "11.500000", "1.500000", "1.000000", "Proof for anyone"):
        assert part in text
    assert reverse("payouts:verify", args=[statement.reference]) in client.get(paths(statement)[0]).content.decode()


@pytest.mark.parametrize("number", range(4))
def test_nobody_else_opens_a_statement(month: Statement, earner: Organisation, number: int) -> None:
    path = paths(month)[number]
    assert client_of(organisation("stranger")).get(path).status_code == 404
    assert client_of(earner).get(path).status_code == 404
    assert Client().get(path).status_code == 302
    assert client_of(month.organisation).post(path).status_code == 405
    assert client_of(month.organisation).get(path.replace(str(month.public_id), str(uuid.uuid4()))).status_code == 404


def test_an_organisation_without_statements_is_told_when_the_first_comes(earner: Organisation) -> None:
    client = client_of(earner)
    assert "No statements yet" in text_of(client.get(reverse("billing:statements")).content)
    assert "No statements yet" in text_of(client.get(reverse("billing:statements"), {"of": "returns"}).content)
    assert client.get(reverse("billing:statements"), {"of": "x", "page": "-3"}).status_code == 200


def test_the_list_costs_the_same_whatever_its_length(
    earner: Organisation, month: Statement, noon: datetime, django_assert_max_num_queries: Callable[..., Any]
) -> None:
    for number in range(26):
        pay(earner, 1_000 + number, at=noon)
    client = client_of(earner)
    url = reverse("billing:statements")
    client.get(url, {"of": "payouts"})
    with django_assert_max_num_queries(24) as few:
        first = client.get(url, {"of": "payouts"})
    assert "P-000026" in first.content.decode()
    with django_assert_max_num_queries(len(few)):
        last = client.get(url, {"of": "payouts", "page": "2"})
    assert "P-000001" in last.content.decode()
    assert "P-000026" not in last.content.decode()


def test_a_long_statement_is_shown_a_hundred_lines_at_a_time(earner: Organisation, noon: datetime) -> None:
    body = body_of(2_000)
    row = Statement.objects.create(
        kind="payout",
        series="P",
        number=42,
        organisation=earner,
        reference=body["reference"],
        period_start=noon,
        period_end=noon,
        body=body,
        sha256=statements.hash_of(body),
    )
    client = client_of(earner)
    page = client.get(paths(row)[0]).content.decode()
    assert page.count("H100 80GB") == 100
    last = client.get(paths(row)[0], {"page": 21}).content.decode()
    assert last.count("H100 80GB") == 0
    assert text_of(last.encode()).count("Adjustment") == 1
    assert b"".join(client.get(paths(row)[1]).streaming_content).count(b"H100 80GB") == 2_000  # type: ignore[attr-defined]


def test_an_admin_finds_a_statement_by_its_number_and_sees_whether_it_holds(
    month: Statement, admin_client: Client
) -> None:
    listing = admin_client.get(reverse("admin:billing_statement_changelist"), {"q": "r-000001"})
    assert "2026-09" in listing.content.decode()
    assert (
        "2026-09"
        not in admin_client.get(reverse("admin:billing_statement_changelist"), {"q": "R-000002"})
        .content.decode()
        .split("result_list")[-1]
    )
    page = admin_client.get(reverse("admin:billing_statement_change", args=[month.pk]))
    assert "Everything fits." in page.content.decode()

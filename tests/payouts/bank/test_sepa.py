"""SEPA files: held to the schema with the names that people really have."""

from datetime import UTC, date, datetime
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from payouts.bank import sepa
from payouts.bank.latin import latin
from payouts.bank.sepa import Debtor, Line

from .conftest import IBAN, IBANS

AT = datetime(2026, 12, 1, 9, 30, tzinfo=UTC)
DEBTOR = Debtor(name="GPUnex", iban=IBAN)
NAMES = [
    "محمد بن عبد الله",
    "王小明",
    "Nour 🦊 Fox",
    "Müller & Söhne <GmbH> \"quoted\" 'single'",
    "x" * 200,
    "Ελένη Παπαδοπούλου",
    "Łukasz Żółć",
    "a//b///c/",
    "A\u200bB\u202eC",
]


def line(number: int, *, name: str = "Nour", cents: int = 1234, bic: str = "", text: str = "GPUnex payout") -> Line:
    return Line(
        end_to_end_id=f"GPX{number:032x}",
        cents=cents,
        name=latin(name, most=70),
        iban=IBANS[number % len(IBANS)],
        bic=bic,
        text=text,
    )


def write(lines: list[Line], *, debtor: Debtor = DEBTOR) -> str:
    return sepa.write(debtor=debtor, lines=lines, message_id="GPX-SEPA-1", execute_on=date(2026, 12, 2), at=AT)


def tree(text: str) -> ET.Element:
    return ET.fromstring(text.encode())


@pytest.mark.spec("H3")
def test_a_file_of_odd_names_passes_the_schema() -> None:
    text = write([line(number, name=name) for number, name in enumerate(NAMES)])
    assert sepa.is_valid(text) and text.isascii()
    written = [name.text or "" for name in tree(text).iterfind(".//{*}Cdtr/{*}Nm")]
    assert len(written) == len(NAMES) and all(1 <= len(name) <= 70 for name in written)
    assert not set('&<>"') & set("".join(written))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.text(min_size=1, max_size=100), st.integers(1, sepa.MOST_CENTS)), min_size=1, max_size=8))
def test_every_name_that_can_be_written_makes_a_valid_file_whose_sums_are_right(rows: list[tuple[str, int]]) -> None:
    lines = [line(number, name=name, cents=cents) for number, (name, cents) in enumerate(rows) if latin(name, most=70)]
    if not lines:
        return
    text = write(lines)
    assert sepa.is_valid(text)
    root = tree(text)
    cents = [round(float(amount.text or "") * 100) for amount in root.iterfind(".//{*}InstdAmt")]
    assert cents == [row.cents for row in lines]
    assert {sums.text for sums in root.iterfind(".//{*}CtrlSum")} == {sepa.as_text(sum(row.cents for row in lines))}
    assert {count.text for count in root.iterfind(".//{*}NbOfTxs")} == {str(len(lines))}


@pytest.mark.case("money-F50", "money-F52")
def test_without_a_bic_the_bank_is_said_to_be_left_out_and_with_one_it_is_named() -> None:
    text = write([line(1), line(2, bic="COBADEFFXXX")], debtor=Debtor(name="GPUnex", iban=IBAN, bic="DEUTDEFF"))
    assert sepa.is_valid(text)
    agents = tree(text).findall(".//{*}CdtrAgt/{*}FinInstnId")
    assert [agent.findtext("{*}Othr/{*}Id") for agent in agents] == ["NOTPROVIDED", None]
    assert [agent.findtext("{*}BICFI") for agent in agents] == [None, "COBADEFFXXX"]
    assert tree(text).findtext(".//{*}DbtrAgt/{*}FinInstnId/{*}BICFI") == "DEUTDEFF"


def test_each_line_carries_our_own_id_and_the_file_its_day() -> None:
    text = write([line(1), line(2)])
    ids = [element.text for element in tree(text).iterfind(".//{*}EndToEndId")]
    assert ids == ["GPX" + f"{number:032x}" for number in (1, 2)] and all(len(text or "") == 35 for text in ids)
    assert tree(text).findtext(".//{*}ReqdExctnDt/{*}Dt") == "2026-12-02"
    assert text == write([line(1), line(2)])


@pytest.mark.parametrize("bad", [line(1, name="🦊"), line(1, text=""), line(1, bic="NOBIC")])
def test_a_line_that_the_schema_refuses_is_noticed(bad: Line) -> None:
    assert not sepa.is_valid(write([line(2), bad]))

"""What a bank answers, read: every version, every way to name a transfer, and everything that is no answer."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payouts.bank import answers
from payouts.bank.answers import Line, Said

from . import replies

ID, OTHER = "GPX" + "a" * 32, "GPX" + "b" * 32


def only(data: bytes) -> Line:
    lines = answers.read(data).lines
    assert len(lines) == 1
    return lines[0]


@pytest.mark.spec("H3")
@pytest.mark.parametrize("namespace", [replies.PAIN_03, replies.PAIN_10])
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("ACTC", Said.ACCEPTED),
        ("ACCP", Said.ACCEPTED),
        ("ACSP", Said.ACCEPTED),
        ("ACSC", Said.SETTLED),
        ("ACCC", Said.SETTLED),
        ("RJCT", Said.REJECTED),
        ("PDNG", Said.NOTHING),
        ("WHAT", Said.NOTHING),
    ],
)
def test_a_status_report_says_what_became_of_a_transfer(code: str, said: Said, namespace: str) -> None:
    report = replies.status(ID, code, amount="12.34", reason="AC04", words="closed &  gone")
    line = only(replies.pain_002(report, message_id="M", namespace=namespace))
    assert line == Line(
        number=1,
        said=said,
        status=code,
        end_to_end_id=ID,
        currency="EUR",
        amount_cents=1234,
        reason="AC04 closed & gone",
    )


def test_a_status_of_the_whole_file_names_the_file_and_the_payments_own_word_is_the_more_exact_one() -> None:
    assert only(replies.pain_002(message_id="M-1", group="ACCP")).message_id == "M-1"
    line = only(replies.pain_002(message_id="M-1", group="ACCP", payment="RJCT", reason="AM04"))
    assert (line.said, line.message_id, line.reason) == (Said.REJECTED, "M-1", "AM04")


@pytest.mark.parametrize("namespace", [replies.CAMT_053, replies.CAMT_054])
def test_a_booking_that_leaves_the_account_is_a_transfer_that_settled(namespace: str) -> None:
    data = replies.camt(replies.entry("12.34", replies.tx(ID, "12.34"), reference="R1"), namespace=namespace)
    assert only(data) == Line(
        number=1,
        said=Said.SETTLED,
        status="BOOK DBIT",
        end_to_end_id=ID,
        currency="EUR",
        amount_cents=1234,
        bank_reference="R1",
        booked_on=date(2026, 12, 2),
    )


def test_older_statements_write_the_state_in_another_way() -> None:
    entry = replies.entry("12.34", replies.tx(ID), old=True)
    line = only(replies.camt(entry, namespace=replies.CAMT_053_OLD))
    assert (line.said, line.amount_cents) == (Said.SETTLED, 1234)


def test_a_booking_that_comes_back_is_a_return_with_its_reason() -> None:
    line = only(replies.camt(replies.entry("12.34", replies.tx(ID, returned="AC04", words="closed"), credit=True)))
    assert (line.said, line.reason, line.amount_cents) == (Said.RETURNED, "AC04 closed", 1234)


def test_what_is_not_booked_yet_says_nothing() -> None:
    for credit in (False, True):
        data = replies.camt(replies.entry("12.34", replies.tx(ID, "12.34"), state="PDNG", credit=credit))
        assert only(data).said == Said.NOTHING


def test_each_transfer_of_one_booking_is_a_line_with_its_own_amount() -> None:
    data = replies.camt(replies.entry("30.00", replies.tx(ID, "10.00"), replies.tx(OTHER, "20.00")))
    assert [(line.end_to_end_id, line.amount_cents) for line in answers.read(data).lines] == [(ID, 1000), (OTHER, 2000)]
    data = replies.camt(replies.entry("30.00", replies.tx(ID), replies.tx(OTHER)))
    assert [line.amount_cents for line in answers.read(data).lines] == [None, None]


def test_a_booked_sum_names_the_file() -> None:
    line = only(replies.camt(replies.entry("30.00", batch="GPX-SEPA-1")))
    assert (line.message_id, line.amount_cents, line.said) == ("GPX-SEPA-1", 3000, Said.SETTLED)


def test_an_id_that_a_bank_puts_elsewhere_is_found_unless_there_are_two() -> None:
    def found(remittance: str) -> str:
        return only(replies.camt(replies.entry("1.00", replies.tx("NOTPROVIDED", remittance=remittance)))).end_to_end_id

    assert found(f"RETURN OF {ID}") == ID
    assert found(f"{ID} {OTHER}") == ""
    assert found("rent") == ""


@pytest.mark.spec("H3")
def test_ach_returns_name_the_trace_number_and_a_notice_of_change_says_nothing() -> None:
    trace = "021000020000007"
    lines = answers.read(replies.ach_returns([("R03", trace, 1234), ("C01", trace, 0), ("R67", trace, 5)])).lines
    assert [(line.said, line.reason) for line in lines] == [
        (Said.RETURNED, "R03"),
        (Said.NOTHING, "C01"),
        (Said.NOTHING, "R67"),
    ]
    assert (lines[0].trace_number, lines[0].amount_cents, lines[0].currency) == (trace, 1234, "USD")


BOMB = b"""<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>
<Document xmlns="urn:iso:std:iso:20022:tech:xsd:pain.002.001.10"><CstmrPmtStsRpt>&b;</CstmrPmtStsRpt></Document>"""
OUTSIDE = b"""<?xml version="1.0"?><!DOCTYPE d [<!ENTITY x SYSTEM "file:///etc/passwd">]>
<Document xmlns="urn:iso:std:iso:20022:tech:xsd:pain.002.001.10"><CstmrPmtStsRpt>&x;</CstmrPmtStsRpt></Document>"""


@pytest.mark.parametrize(
    ("data", "refusal"),
    [
        (b"", answers.NotAnAnswer),
        (b"hello", answers.NotAnAnswer),
        (b"%PDF-1.7 ...", answers.NotAnAnswer),
        (b"\x00\x01\x02" * 100, answers.NotAnAnswer),
        (b"<html><body>404</body></html>", answers.NotAnAnswer),
        (b'<Document xmlns="urn:iso:std:iso:20022:tech:xsd:pain.008.001.08"/>', answers.NotAnAnswer),
        (b'<Document xmlns="urn:iso:std:iso:20022:tech:xsd:pain.001.001.09"/>', answers.OurOwnFile),
        (BOMB, answers.UnsafeXml),
        (OUTSIDE, answers.UnsafeXml),
        (replies.pain_002(replies.status(ID, "ACCP"))[:-40], answers.CutOff),
        (replies.ach_returns([("R03", "021000020000007", 1)])[:200], answers.CutOff),
        (replies.camt(), answers.NothingInIt),
        (replies.pain_002(), answers.NothingInIt),
        (b'<?xml version="1.0" encoding="no-such"?><Document/>', answers.NotAnAnswer),
        (b" " * (answers.MOST_BYTES + 1), answers.TooLarge),
    ],
)
def test_what_is_no_answer_is_refused_in_words(data: bytes, refusal: type[Exception]) -> None:
    with pytest.raises(refusal) as caught:
        answers.read(data)
    assert len(str(caught.value)) > 20


def test_a_file_of_more_lines_than_any_bank_sends_is_refused() -> None:
    with pytest.raises(answers.TooLarge):
        answers.read(replies.camt(*[replies.entry("1.00")] * (answers.MOST_LINES + 1)))


def test_deeply_nested_xml_is_no_way_to_bring_the_reader_down() -> None:
    with pytest.raises((answers.NotAnAnswer, answers.CutOff)):
        answers.read(b"<a>" * 100_000 + b"</a>" * 100_000)


@pytest.mark.parametrize(
    "text", ["", "1e3", "NaN", "-5", "1,50", "1.234", "1_000", "٥", "1" * 16, None, "0x10", "1.", ".5"]
)
def test_what_is_no_amount_to_the_cent_is_none(text: str | None) -> None:
    assert answers.cents_of(text) is None


@pytest.mark.parametrize(
    ("text", "cents"), [("12.34", 1234), (" 12 ", 1200), ("0.5", 50), ("12.34000", 1234), ("007.10", 710)]
)
def test_amounts_are_read_to_the_cent(text: str, cents: int) -> None:
    assert answers.cents_of(text) == cents


@given(st.binary(max_size=400))
def test_no_bytes_make_the_reader_fail_in_another_way_than_by_refusing(data: bytes) -> None:
    for start in (b"", b"101 ", b"<Document>"):
        with pytest.raises(answers.Refusal):
            answers.read(start + data)

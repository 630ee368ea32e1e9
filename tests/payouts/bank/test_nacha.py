"""NACHA files: looked at by a reader that shares nothing with the writer, column by column as the rules number them."""

from datetime import UTC, date, datetime
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payouts.bank import nacha
from payouts.bank.nacha import Entry, Origin, Returned

from .replies import ach_returns

AT = datetime(2026, 12, 1, 9, 30, tzinfo=UTC)
ORIGIN = Origin(
    name="GPUnex Inc", company_id="1123456789", routing="021000021", bank="JPMorgan Chase Bank NA Columbus Ohio"
)
ROUTINGS = ["021000021", "121000358", "322271627", "011401533", "091000019"]


def entry(number: int, *, cents: int = 1234, company: bool = False, savings: bool = False, name: str = "Nour") -> Entry:
    return Entry(
        trace_number=nacha.trace_number(ORIGIN.routing, number),
        routing=ROUTINGS[number % len(ROUTINGS)],
        account=f"{number:06d}",
        savings=savings,
        company=company,
        cents=cents,
        reference=f"REF{number}",
        name=name,
    )


def write(entries: list[Entry]) -> str:
    return nacha.write(origin=ORIGIN, entries=entries, effective=date(2026, 12, 2), modifier="A", at=AT)


def column(line: str, first: int, last: int) -> str:
    """Columns as the rules count them: from 1, both included."""
    return line[first - 1 : last]


def check(text: str) -> dict[str, int]:
    """Raises AssertionError for anything that a bank would refuse; returns what the file adds up to."""
    assert text.endswith("\n") and text.isascii()
    lines = text[:-1].split("\n")
    assert all(len(line) == 94 for line in lines) and len(lines) % 10 == 0
    header, body = lines[0], lines[1:]
    assert column(header, 1, 3) == "101" and column(header, 4, 4) == " " and column(header, 5, 13).isdigit()
    assert column(header, 35, 40) == "094101"
    while body[-1] == "9" * 94:
        body.pop()
    control = body.pop()
    assert control[0] == "9"
    batches = hash_sum = cents = count = 0
    batch: list[str] = []
    for line in body:
        batch.append(line)
        if line[0] != "8":
            continue
        start, *entries, end = batch
        assert start[0] == "5" and column(start, 2, 4) == "220" == column(end, 2, 4)
        assert column(start, 51, 53) in ("PPD", "CCD") and column(start, 79, 79) == "1"
        assert column(start, 41, 50) == column(end, 45, 54)
        assert column(start, 80, 94) == column(end, 80, 94) == f"{ORIGIN.routing[:8]}{batches + 1:07d}"
        traces = [column(line, 80, 94) for line in entries]
        assert traces == sorted(traces) and len(set(traces)) == len(traces)
        for line in entries:
            assert line[0] == "6" and column(line, 2, 3) in ("22", "32") and column(line, 79, 79) == "0"
            digits = [int(digit) for digit in column(line, 4, 12)]
            assert sum(w * d for w, d in zip((3, 7, 1) * 3, digits, strict=True)) % 10 == 0
        batch_hash = sum(int(column(line, 4, 11)) for line in entries)
        batch_cents = sum(int(column(line, 30, 39)) for line in entries)
        assert int(column(end, 5, 10)) == len(entries)
        assert int(column(end, 11, 20)) == batch_hash % 10**10
        assert (int(column(end, 21, 32)), int(column(end, 33, 44))) == (0, batch_cents)
        batches, hash_sum, cents, count = batches + 1, hash_sum + batch_hash, cents + batch_cents, count + len(entries)
        batch = []
    assert not batch
    assert int(column(control, 2, 7)) == batches
    assert int(column(control, 8, 13)) == len(lines) // 10
    assert int(column(control, 14, 21)) == count
    assert int(column(control, 22, 31)) == hash_sum % 10**10
    assert (int(column(control, 32, 43)), int(column(control, 44, 55))) == (0, cents)
    return {"batches": batches, "count": count, "cents": cents}


@pytest.mark.spec("H3")
def test_a_file_of_people_and_companies_has_a_batch_for_each() -> None:
    text = write([entry(1), entry(2, company=True, savings=True, cents=5), entry(3, cents=99)])
    assert check(text) == {"batches": 2, "count": 3, "cents": 1234 + 5 + 99}
    lines = text.split("\n")
    assert column(lines[0], 14, 23) == "1123456789" and column(lines[0], 24, 33) == "2612010930"
    assert column(lines[1], 70, 75) == "261202"
    assert [column(line, 2, 3) for line in lines if line[:1] == "6"] == ["22", "22", "32"]


@given(
    st.lists(
        st.tuples(st.integers(1, nacha.MOST_CENTS), st.booleans(), st.booleans(), st.text("ABC abc-.'", max_size=80)),
        min_size=1,
        max_size=40,
    )
)
def test_every_file_is_one_that_a_bank_takes(rows: list[tuple[int, bool, bool, str]]) -> None:
    entries = [
        entry(number, cents=cents, company=company, savings=savings, name=name)
        for number, (cents, company, savings, name) in enumerate(rows, start=1)
    ]
    assert check(write(entries))["cents"] == sum(cents for cents, *_rest in rows)


@pytest.mark.parametrize("count", [1, 5, 6, 7, 16, 500])
def test_files_are_filled_up_to_blocks_of_ten(count: int) -> None:
    assert check(write([entry(number) for number in range(1, count + 1)]))["count"] == count


def test_the_entry_hash_keeps_its_last_ten_digits() -> None:
    assert nacha.entry_hash(["999999992"] * 101) == f"{99999999 * 101 % 10**10:010d}"


def test_the_same_payouts_make_the_same_bytes_and_a_field_never_overflows_into_its_neighbour() -> None:
    entries = [entry(number, name="An Extraordinarily Long Name Of A Person") for number in range(1, 4)]
    assert write(entries) == write(list(reversed(entries)))
    with pytest.raises(ValueError, match="does not fit"):
        write([entry(1, cents=nacha.MOST_CENTS + 1)])


# --- returns ---------------------------------------------------------------------------------------------------------


def returned(*rows: tuple[str, str, int]) -> str:
    return ach_returns(rows).decode()


def test_returns_name_the_reason_and_the_trace_number_that_was_ours() -> None:
    trace = nacha.trace_number("021000021", 7)
    assert nacha.read_returns(returned(("R03", trace, 1234), ("C01", trace, 0))) == [
        Returned(line=4, code="R03", trace_number=trace, cents=1234),
        Returned(line=6, code="C01", trace_number=trace, cents=0),
    ]


@pytest.mark.parametrize(
    "mend", [lambda t: t.replace("\n", "\r\n"), lambda t: "\n".join(x.rstrip() for x in t.split("\n"))]
)
def test_returns_are_read_whatever_mail_did_to_their_lines(mend: object) -> None:
    text = returned(("R02", nacha.trace_number("021000021", 7), 5))
    assert callable(mend)
    assert [row.code for row in nacha.read_returns(mend(text))] == ["R02"]


@pytest.mark.parametrize("text", ["", "hello", "101", "101" + "x" * 200])
def test_what_is_no_such_file_is_refused(text: str) -> None:
    with pytest.raises(nacha.NotNacha):
        nacha.read_returns(text)


def test_a_file_that_was_cut_off_is_refused() -> None:
    lines = returned(("R02", nacha.trace_number("021000021", 7), 5)).split("\n")
    with pytest.raises(nacha.NotNacha):
        nacha.read_returns("\n".join(lines[:4]))


def test_a_file_of_our_own_holds_no_returns() -> None:
    assert nacha.read_returns(write([entry(1)])) == []


def test_batches_are_in_the_order_of_their_numbers() -> None:
    text = write([entry(2, company=True), entry(1)])
    kinds = [kind for kind, _lines in groupby(column(line, 51, 53) for line in text.split("\n") if line[:1] == "5")]
    assert kinds == ["PPD", "CCD"]

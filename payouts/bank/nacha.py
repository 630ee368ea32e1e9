"""US bank transfers as a NACHA file: credits only, to people (PPD) and to companies (CCD), each in a batch of its own.

A file is lines of 94 characters, in blocks of ten filled up with nines. Records: 1 file header, 5 batch header, 6 entry, 7 addenda,
8 batch control, 9 file control. The layout is Nacha's Operating Rules, appendix "ACH file exchange specifications".

An entry's trace number is the first eight digits of our bank's routing number and a number of ours: a return names it. Returned
entries come back in a file of the same form, each followed by an addenda 99 with the reason and the original trace number; a notice that
an account should be written differently is an addenda 98.

>>> entry_hash(["021000021", "121000358"])
'0014200037'
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

WIDTH = 94
BLOCK = 10
FILLER = "9" * WIDTH
CREDITS_ONLY = "220"
PEOPLE, COMPANIES = "PPD", "CCD"
TO_CHECKING, TO_SAVINGS = "22", "32"
DESCRIPTION = "PAYOUT"
MODIFIERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
MOST_CENTS = 9_999_999_999
TRACES = 10_000_000


@dataclass(frozen=True, slots=True)
class Origin:
    """Who sends: our company as our bank knows it, and that bank (``routing``, nine digits)."""

    name: str
    company_id: str
    routing: str
    bank: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One credit. ``name`` and ``reference`` are ASCII already."""

    trace_number: str
    routing: str
    account: str
    savings: bool
    company: bool
    cents: int
    reference: str
    name: str


@dataclass(frozen=True, slots=True)
class Returned:
    """What an answer says of one entry of ours: ``code`` as R03 (sent back) or C01 (to be written differently)."""

    line: int
    code: str
    trace_number: str
    cents: int


class NotNacha(ValueError):
    """The text is no NACHA file."""


def trace_number(routing: str, number: int) -> str:
    """
    >>> trace_number("021000021", 42)
    '021000020000042'
    """
    return f"{routing[:8]}{number % TRACES:07d}"


def write(*, origin: Origin, entries: Sequence[Entry], effective: date, modifier: str, at: datetime) -> str:
    """The file as text, the same for the same arguments. ``modifier`` tells apart the files of one day.

    Entries of a batch stand in the order of their trace numbers. Raises ValueError for an amount that a field cannot hold.
    """
    made = at.astimezone(UTC)
    records = [
        "101"
        + f" {origin.routing}"
        + f"{origin.company_id:>10.10}"
        + made.strftime("%y%m%d%H%M")
        + modifier
        + "094101"
        + _words(origin.bank, 23)
        + _words(origin.name, 23)
        + " " * 8
    ]
    batches = [
        (kind, [entry for entry in entries if entry.company == (kind == COMPANIES)]) for kind in (PEOPLE, COMPANIES)
    ]
    number = 0
    for kind, members in batches:
        if members:
            number += 1
            records += _batch(origin, kind, members, number=number, effective=effective)
    blocks = -(-(len(records) + 1) // BLOCK)
    records.append(
        "9"
        + _digits(number, 6)
        + _digits(blocks, 6)
        + _digits(len(entries), 8)
        + entry_hash(entry.routing for entry in entries)
        + _digits(0, 12)
        + _digits(sum(entry.cents for entry in entries), 12)
        + " " * 39
    )
    records += [FILLER] * (blocks * BLOCK - len(records))
    if any(len(record) != WIDTH for record in records):
        raise ValueError("a record is not 94 characters wide")
    return "\n".join(records) + "\n"


def _batch(origin: Origin, kind: str, entries: Sequence[Entry], *, number: int, effective: date) -> list[str]:
    ours = origin.routing[:8]
    company_id = f"{origin.company_id:<10.10}"
    day = effective.strftime("%y%m%d")
    header = (
        "5"
        + CREDITS_ONLY
        + _words(origin.name, 16)
        + " " * 20
        + company_id
        + kind
        + _words(DESCRIPTION, 10)
        + day
        + day
        + " " * 3
        + "1"
        + ours
        + _digits(number, 7)
    )
    control = (
        "8"
        + CREDITS_ONLY
        + _digits(len(entries), 6)
        + entry_hash(entry.routing for entry in entries)
        + _digits(0, 12)
        + _digits(sum(entry.cents for entry in entries), 12)
        + company_id
        + " " * 25
        + ours
        + _digits(number, 7)
    )
    return [header, *(_entry(entry) for entry in sorted(entries, key=lambda entry: entry.trace_number)), control]


def _entry(entry: Entry) -> str:
    return (
        "6"
        + (TO_SAVINGS if entry.savings else TO_CHECKING)
        + entry.routing
        + f"{entry.account:<17.17}"
        + _digits(entry.cents, 10)
        + f"{entry.reference:<15.15}"
        + _words(entry.name, 22)
        + "  0"
        + entry.trace_number
    )


def entry_hash(routings: Iterable[str]) -> str:
    """The sum of the banks' numbers without their check digits, its last ten digits."""
    return f"{sum(int(routing[:8]) for routing in routings):010d}"[-10:]


def _digits(number: int, width: int) -> str:
    text = f"{number:0{width}d}"
    if len(text) > width:
        raise ValueError(f"{number} does not fit into {width} digits")
    return text


def _words(text: str, width: int) -> str:
    return f"{text.upper():<{width}.{width}}"


# --- the bank's answer -----------------------------------------------------------------------------------------------


def read_returns(text: str) -> list[Returned]:
    """What the bank says of entries of ours. Raises NotNacha for a text that is something else, or is cut off."""
    lines = [line for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n") if line.strip()]
    if not lines or not lines[0].startswith("101") or any(len(line) != WIDTH for line in map(_padded, lines)):
        raise NotNacha("every line of a NACHA file has 94 characters, and the first begins with 101")
    lines = [_padded(line) for line in lines]
    if not any(line[0] == "9" and line != FILLER for line in lines):
        raise NotNacha("the file's last record is missing: it was cut off")
    return list(_returned(lines))


def _padded(line: str) -> str:
    """Editors and mail programs cut spaces off at the end."""
    return line.ljust(WIDTH)


def _returned(lines: Sequence[str]) -> Iterator[Returned]:
    entry = ""
    for number, line in enumerate(lines, start=1):
        if line[0] == "6":
            entry = line
        elif line[0] == "7" and line[1:3] in ("98", "99") and entry:
            amount = entry[29:39]
            yield Returned(
                line=number,
                code=line[3:6].strip(),
                trace_number=line[6:21].strip(),
                cents=int(amount) if amount.isascii() and amount.isdigit() else -1,
            )

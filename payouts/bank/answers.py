"""What a bank answers, read into lines: ISO 20022 pain.002, camt.053, camt.054, and files of ACH returns.

Each line says of one transfer, or of all of one of our files, what became of it. Nothing is believed here: the amounts are read to be
compared. Versions differ in their namespaces and in little else, so elements are found by their local names.

>>> status = Line(number=1, said=Said.REJECTED, status="RJCT", end_to_end_id="GPX00", reason="AC04")
>>> status.said.value, status.amount_cents
('rejected', None)
>>> cents_of("12.34"), cents_of("12.3"), cents_of("12.345"), cents_of("1e3"), cents_of("-1")
(1234, 1230, None, None, None)
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from functools import cached_property
from itertools import islice
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring
from django.utils.translation import gettext_lazy as _

from gpunex.kit.refusals import Refusal
from payouts.bank import nacha

MOST_BYTES = 10 * 1024 * 1024
MOST_LINES = 20_000
PAIN, CAMT_STATEMENT, CAMT_NOTIFICATION, ACH_RETURN = "pain.002", "camt.053", "camt.054", "ach-return"

_ROOT = re.compile(r"\{urn:iso:std:iso:20022:tech:xsd:(pain|camt)\.(\d{3})\.\d{3}\.\d{2}\}Document")
_AMOUNT = re.compile(r"(\d{1,15})(?:\.(\d{1,2})0{0,3})?", re.ASCII)
_OUR_ID = re.compile(r"\bGPX[0-9a-f]{32}\b")
# What may be an account's number in a bank's words: an IBAN, or many digits.
_NUMBER = re.compile(r"\b(?:[A-Z]{2}\d{2}(?: ?[A-Z0-9]{1,4}){2,8}|\d(?:[ -]?\d){7,})\b", re.ASCII)
_NUMBER_DIGITS = 9
_NO_ID = "NOTPROVIDED"

_ACCEPTED = {"ACTC", "ACCP", "ACSP", "ACWC", "ACWP", "ACFC"}
_SETTLED = {"ACSC", "ACCC"}
_REJECTED = {"RJCT", "CANC"}
# The bank saw the same thing twice. The first may well be paid, so the second's rejection must not give its money back.
DUPLICATES = frozenset({"AM05", "DUPL", "DU01", "DU02", "DU03", "DU04", "DU05", "R24"})
_BOOKED = "BOOK"
# R61 to R77 are between banks about a return; C-codes only ask to write the account differently.
_SENT_BACK = re.compile(r"R([0-4]\d|5[0-3]|8[0-5])")


class Said(StrEnum):
    """What a line says became of a transfer."""

    ACCEPTED = "accepted"
    SETTLED = "settled"
    REJECTED = "rejected"
    RETURNED = "returned"
    NOTHING = "nothing"  # nothing that moves a payout: received, pending, another entry of the account


class TooLarge(Refusal):
    code = "too_large"
    message = _("This file is larger than any answer of a bank. Nothing was read.")


class NotAnAnswer(Refusal):
    code = "not_an_answer"
    message = _(
        "This is not an answer that can be read here. It takes pain.002, camt.053 and camt.054 (XML), and ACH returns (NACHA). Nothing was changed."
    )


class OurOwnFile(Refusal):
    code = "our_own_file"
    message = _("This is a file for the bank, not its answer. Nothing was changed.")


class UnsafeXml(Refusal):
    code = "unsafe_xml"
    message = _(
        "The file brings definitions of its own, which no bank’s answer does. It was not read; ask the bank for it again."
    )


class CutOff(Refusal):
    code = "cut_off"
    message = _("The file ends in the middle, or is damaged. Download it from the bank again. Nothing was changed.")


class NothingInIt(Refusal):
    code = "nothing_in_it"
    message = _("There is no line about any transfer in this file. Nothing was changed.")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an answer. It names a transfer by ``end_to_end_id`` or ``trace_number``, or a whole file by ``message_id``."""

    number: int
    said: Said
    status: str  # as the bank wrote it
    end_to_end_id: str = ""
    trace_number: str = ""
    message_id: str = ""
    currency: str = ""
    amount_cents: int | None = None
    reason: str = ""
    bank_reference: str = ""
    booked_on: date | None = None


@dataclass(frozen=True)
class Answer:
    format: str
    lines: list[Line]

    @cached_property
    def by_id(self) -> dict[str, list[Line]]:
        """The lines that name a transfer, by its end-to-end id."""
        named: dict[str, list[Line]] = {}
        for line in self.lines:
            if line.end_to_end_id:
                named.setdefault(line.end_to_end_id, []).append(line)
        return named


def read(data: bytes) -> Answer:
    """Raises TooLarge, NotAnAnswer, OurOwnFile, UnsafeXml, CutOff, NothingInIt."""
    if len(data) > MOST_BYTES:
        raise TooLarge
    start = data.lstrip(b"\xef\xbb\xbf \t\r\n")
    answer = _read_ach(data) if start.startswith(b"101") else _read_xml(data)
    if not answer.lines:
        raise NothingInIt
    if len(answer.lines) > MOST_LINES:
        raise TooLarge
    return answer


def cents_of(text: str | None) -> int | None:
    """An amount of the bank in cents; None for anything that is not one to the cent."""
    match = _AMOUNT.fullmatch((text or "").strip())
    if match is None:
        return None
    return int(match[1]) * 100 + int((match[2] or "0").ljust(2, "0"))


# --- ACH -------------------------------------------------------------------------------------------------------------


def _read_ach(data: bytes) -> Answer:
    try:
        returned = nacha.read_returns(data.decode("ascii", errors="replace").lstrip("\ufffd"))
    except nacha.NotNacha as error:
        raise CutOff from error
    lines = [
        Line(
            number=entry.line,
            said=Said.RETURNED if _SENT_BACK.fullmatch(entry.code) else Said.NOTHING,
            status=entry.code,
            trace_number=entry.trace_number,
            currency="USD",
            amount_cents=entry.cents,
            reason=entry.code,
        )
        for entry in returned
    ]
    if not lines and b"\n6" in data:
        raise OurOwnFile
    return Answer(ACH_RETURN, lines)


# --- XML -------------------------------------------------------------------------------------------------------------


def _read_xml(data: bytes) -> Answer:
    try:
        root = fromstring(data, forbid_dtd=True)
    except DefusedXmlException as error:
        raise UnsafeXml from error
    except ParseError as error:
        raise (CutOff if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") else NotAnAnswer) from error
    except (ValueError, LookupError) as error:  # an encoding that nobody knows, or that its bytes are not in
        raise NotAnAnswer from error
    match = _ROOT.fullmatch(root.tag)
    name = f"{match[1]}.{match[2]}" if match else ""
    if name == "pain.001":
        raise OurOwnFile
    if name == PAIN:
        return Answer(PAIN, _numbered(_status_lines(root)))
    if name in (CAMT_STATEMENT, CAMT_NOTIFICATION):
        return Answer(name, _numbered(_entry_lines(root)))
    raise NotAnAnswer


def _numbered(lines: Iterator[Line]) -> list[Line]:
    """Raises TooLarge as soon as there are too many: reading on to the last would take minutes."""
    numbered = [replace(line, number=number) for number, line in enumerate(islice(lines, MOST_LINES + 1), start=1)]
    if len(numbered) > MOST_LINES:
        raise TooLarge
    return numbered


def _status_lines(root: Element) -> Iterator[Line]:
    """A report on our files: what the bank says of a file as a whole, of its payment, and of each transfer that it names."""
    for report in root.iterfind("{*}CstmrPmtStsRpt"):
        group = report.find("{*}OrgnlGrpInfAndSts")
        message_id = _text(group, "{*}OrgnlMsgId")
        payments = report.findall("{*}OrgnlPmtInfAndSts")
        # Each of our files has one payment: what is said of that is the more exact word on all of them.
        whole = next((payment for payment in payments if _text(payment, "{*}PmtInfSts")), group)
        status = _text(whole, "{*}PmtInfSts") or _text(whole, "{*}GrpSts")
        if whole is not None and status:
            yield Line(
                number=0,
                said=_said(status),
                status=status,
                message_id=message_id,
                reason=_reason(whole, "{*}StsRsnInf"),
            )
        for payment in payments:
            for tx in payment.iterfind("{*}TxInfAndSts"):
                status = _text(tx, "{*}TxSts") or _text(payment, "{*}PmtInfSts") or _text(group, "{*}GrpSts")
                amount = tx.find("{*}OrgnlTxRef/{*}Amt/{*}InstdAmt")
                yield Line(
                    number=0,
                    said=_said(status),
                    status=status,
                    end_to_end_id=_own_id(_text(tx, "{*}OrgnlEndToEndId"), tx),
                    currency=amount.get("Ccy", "") if amount is not None else "",
                    amount_cents=_cents(amount),
                    reason=_reason(tx, "{*}StsRsnInf"),
                    bank_reference=_text(tx, "{*}AcctSvcrRef"),
                )


def _said(status: str) -> Said:
    if status in _ACCEPTED:
        return Said.ACCEPTED
    if status in _SETTLED:
        return Said.SETTLED
    return Said.REJECTED if status in _REJECTED else Said.NOTHING


def _entry_lines(root: Element) -> Iterator[Line]:
    """The bookings of an account, each transfer within one by itself."""
    statements = [*root.iterfind("{*}BkToCstmrStmt/{*}Stmt"), *root.iterfind("{*}BkToCstmrDbtCdtNtfctn/{*}Ntfctn")]
    for entry in (entry for statement in statements for entry in statement.iterfind("{*}Ntry")):
        transactions = entry.findall("{*}NtryDtls/{*}TxDtls")
        for tx in transactions:
            yield _booking(entry, tx, alone=len(transactions) == 1)
        if not transactions:
            yield _booking(entry, None, alone=True)


def _booking(entry: Element, tx: Element | None, *, alone: bool) -> Line:
    amount = _first(tx, "{*}Amt", "{*}AmtDtls/{*}TxAmt/{*}Amt", "{*}AmtDtls/{*}InstdAmt/{*}Amt")
    if amount is None and alone:
        amount = entry.find("{*}Amt")
    direction = _text(tx, "{*}CdtDbtInd") or _text(entry, "{*}CdtDbtInd")
    state = _text(entry, "{*}Sts/{*}Cd") or _text(entry, "{*}Sts")
    reversed_ = _text(entry, "{*}RvslInd") in ("true", "1")
    # Asked for only where nothing stands beside it: searching thousands of transfers for each of them would take minutes.
    batch = entry.find("{*}NtryDtls/{*}Btch") if tx is None else None
    said = Said.NOTHING
    if state == _BOOKED and direction == "DBIT" and not reversed_:
        said = Said.SETTLED
    elif state == _BOOKED and direction == "CRDT":
        said = Said.RETURNED
    booked = _text(entry, "{*}BookgDt/{*}Dt") or _text(entry, "{*}BookgDt/{*}DtTm")
    return Line(
        number=0,
        said=said,
        status=" ".join(filter(None, [state, direction, "RVSL" if reversed_ else ""])),
        end_to_end_id=_own_id(_text(tx, "{*}Refs/{*}EndToEndId"), tx),
        message_id=_text(batch, "{*}PmtInfId") or _text(batch, "{*}MsgId"),
        currency=amount.get("Ccy", "") if amount is not None else "",
        amount_cents=_cents(amount),
        reason=_reason(tx, "{*}RtrInf"),
        bank_reference=_text(tx, "{*}Refs/{*}AcctSvcrRef") or (_text(entry, "{*}AcctSvcrRef") if alone else ""),
        booked_on=_day(booked),
    )


def _own_id(given: str, tx: Element | None) -> str:
    """The end-to-end id; where a bank puts another one in its place, the one of ours that it mentions, if it is only one."""
    if _OUR_ID.fullmatch(given) or tx is None:
        return given
    mentioned = {found for text in tx.itertext() for found in _OUR_ID.findall(text)}
    if len(mentioned) == 1:
        return mentioned.pop()
    return "" if given == _NO_ID else given


def _reason(parent: Element | None, path: str) -> str:
    """Code and words of why, as in "AC04 account closed"."""
    info = parent.find(path) if parent is not None else None
    code = _text(info, "{*}Rsn/{*}Cd") or _text(info, "{*}Rsn/{*}Prtry")
    return " ".join(filter(None, [code, masked(_text(info, "{*}AddtlInf"))]))[:140]


def masked(words: str) -> str:
    """A bank's own words go into mails and lists: account numbers in them only by their last digits.

    >>> masked("Konto DE89 3704 0044 0532 0130 00 erloschen"), masked("account 000123456789, 2 days, see AC04 ACCOUNT CLOSED")
    ('Konto •••• 3000 erloschen', 'account •••• 6789, 2 days, see AC04 ACCOUNT CLOSED')
    """

    def last(found: re.Match[str]) -> str:
        number = "".join(sign for sign in found[0] if sign.isalnum())
        return f"•••• {number[-4:]}" if sum(map(str.isdigit, number)) >= _NUMBER_DIGITS else found[0]

    return _NUMBER.sub(last, words)


def _first(parent: Element | None, *paths: str) -> Element | None:
    found = (parent.find(path) for path in paths) if parent is not None else iter(())
    return next((element for element in found if element is not None), None)


def _text(parent: Element | None, path: str) -> str:
    found = parent.find(path) if parent is not None else None
    return " ".join((found.text or "").split())[:140] if found is not None else ""


def _cents(amount: Element | None) -> int | None:
    return cents_of(amount.text) if amount is not None else None


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text[:10])
    except ValueError:
        return None

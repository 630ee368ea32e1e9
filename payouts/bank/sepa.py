"""SEPA credit transfers as ISO 20022 pain.001.001.09, held to the schema that the package ``sepaxml`` brings.

Written here because that package drops the creditor's bank where there is no BIC, invents its message ids and leaves ``&`` in names.
Amounts are cents as integers to the last; each line carries our own end-to-end id, by which the bank's answers are matched.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from xml.etree import ElementTree as ET

from sepaxml.validation import ValidationError, try_valid_xml

SCHEMA = "pain.001.001.09"
NAMESPACE = f"urn:iso:std:iso:20022:tech:xsd:{SCHEMA}"
MOST_CENTS = 99_999_999_999  # what SEPA carries in one transfer


@dataclass(frozen=True, slots=True)
class Debtor:
    """Whose account pays: ours."""

    name: str
    iban: str
    bic: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One transfer. Names and texts are in the Latin set already; ``bic`` may be empty."""

    end_to_end_id: str
    cents: int
    name: str
    iban: str
    bic: str
    text: str


def write(*, debtor: Debtor, lines: Sequence[Line], message_id: str, execute_on: date, at: datetime) -> str:
    """The file as text, the same for the same arguments. Says nothing about whether it is valid: see ``is_valid``."""
    document = ET.Element("Document", {"xmlns": NAMESPACE})
    root = ET.SubElement(document, "CstmrCdtTrfInitn")
    total = sum(line.cents for line in lines)

    header = ET.SubElement(root, "GrpHdr")
    _text(header, "MsgId", message_id)
    _text(header, "CreDtTm", at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    _text(header, "NbOfTxs", str(len(lines)))
    _text(header, "CtrlSum", as_text(total))
    _text(ET.SubElement(header, "InitgPty"), "Nm", debtor.name)

    payment = ET.SubElement(root, "PmtInf")
    _text(payment, "PmtInfId", message_id)
    _text(payment, "PmtMtd", "TRF")
    # One booking a transfer: a booked sum would hide which of them settled.
    _text(payment, "BtchBookg", "false")
    _text(payment, "NbOfTxs", str(len(lines)))
    _text(payment, "CtrlSum", as_text(total))
    _text(ET.SubElement(ET.SubElement(payment, "PmtTpInf"), "SvcLvl"), "Cd", "SEPA")
    _text(ET.SubElement(payment, "ReqdExctnDt"), "Dt", execute_on.isoformat())
    _text(ET.SubElement(payment, "Dbtr"), "Nm", debtor.name)
    _text(ET.SubElement(ET.SubElement(payment, "DbtrAcct"), "Id"), "IBAN", debtor.iban)
    _agent(payment, "DbtrAgt", debtor.bic)
    _text(payment, "ChrgBr", "SLEV")
    for line in lines:
        _transfer(payment, line)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(document, encoding="unicode") + "\n"


def is_valid(text: str) -> bool:
    """Whether the schema takes it."""
    try:
        try_valid_xml(text.encode(), SCHEMA)
    except ValidationError:
        return False
    return True


def as_text(cents: int) -> str:
    """Cents as the bank writes amounts.

    >>> as_text(5), as_text(123_456)
    ('0.05', '1234.56')
    """
    return f"{cents // 100}.{cents % 100:02d}"


def _transfer(payment: ET.Element, line: Line) -> None:
    tx = ET.SubElement(payment, "CdtTrfTxInf")
    identity = ET.SubElement(tx, "PmtId")
    _text(identity, "InstrId", line.end_to_end_id)
    _text(identity, "EndToEndId", line.end_to_end_id)
    amount = ET.SubElement(ET.SubElement(tx, "Amt"), "InstdAmt", {"Ccy": "EUR"})
    amount.text = as_text(line.cents)
    _agent(tx, "CdtrAgt", line.bic)
    _text(ET.SubElement(tx, "Cdtr"), "Nm", line.name)
    _text(ET.SubElement(ET.SubElement(tx, "CdtrAcct"), "Id"), "IBAN", line.iban)
    _text(ET.SubElement(tx, "RmtInf"), "Ustrd", line.text)


def _agent(parent: ET.Element, name: str, bic: str) -> None:
    """The bank. Without a BIC it is said to be left out: banks refuse the element's absence in this version."""
    institution = ET.SubElement(ET.SubElement(parent, name), "FinInstnId")
    if bic:
        _text(institution, "BICFI", bic)
    else:
        _text(ET.SubElement(institution, "Othr"), "Id", "NOTPROVIDED")


def _text(parent: ET.Element, name: str, text: str) -> None:
    ET.SubElement(parent, name).text = text

"""A statement as a CSV: one row a line, with its whole references, between a row for the opening and one for the closing balance."""

from collections.abc import Iterator

from django.utils.translation import gettext as _

from billing.documents.model import Document
from gpunex.kit.money import as_decimal_string


def header() -> list[str]:
    return [
        _("Statement"),
        _("Day (UTC)"),
        _("Time (UTC)"),
        _("What"),
        _("Reference"),
        _("Model"),
        _("Machine"),
        _("GPUs"),
        _("Billed seconds"),
        _("USDC per hour"),
        _("Renter paid, USDC"),
        _("Platform fee, USDC"),
        _("Amount, USDC"),
        _("Balance, USDC"),
        _("Note"),
    ]


def rows(document: Document) -> Iterator[list[object]]:
    """Amounts are exact decimal texts, times ISO 8601."""
    period, balance = document.body["period"], document.body["opening_micro"]
    # A payout's lines begin where the statement before it ended, whatever the day.
    yield _balance(document, "" if document.pays else period["start"], _("Opening balance"), balance)
    for row in document.rows:
        balance = row.balance_micro
        yield [
            document.number,
            row.day.isoformat(),
            row.at,
            row.title,
            row.reference,
            row.model,
            row.machine,
            row.units,
            row.seconds,
            _usdc(row.rate_micro),
            _usdc(row.gross_micro),
            _usdc(row.fee_micro),
            _usdc(row.amount_micro),
            _usdc(row.balance_micro),
            row.note,
        ]
    yield _balance(document, period["end"], _("Closing balance"), balance)
    if document.pays:
        yield _balance(document, period["end"], _("Carried forward"), document.body["carried_micro"])


def _balance(document: Document, at: str, title: str, micro: int) -> list[object]:
    empty: list[object] = [None] * 9
    return [document.number, at[:10], None, title, *empty, _usdc(micro), None]


def _usdc(micro: int | None) -> str | None:
    return None if micro is None else as_decimal_string(micro)

"""A statement in the reader's language: what page, CSV and PDF have in common, drawn from the frozen body alone.

Made anew whenever it is shown; nothing here reads the ledger. Texts are in the language that is active.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from billing.billable import Billable
from billing.ledger import Kind, Move
from billing.models import Statement
from gpunex.kit import show

_STATES = {str(Billable.RUNNING): _lazy("running")}


@dataclass(frozen=True, slots=True)
class Row:
    """One line. ``detail`` is Latin (models, machines, identifiers); ``note`` is a person's words. Only rentals have seconds and a rate."""

    kind: str
    day: date
    title: str
    amount_micro: int
    balance_micro: int  # after it
    detail: str = ""
    note: str = ""
    at: datetime | None = None
    reference: str = ""
    rental: str = ""
    seconds: int | None = None
    rate_micro: int | None = None  # per hour, of all units together
    gross_micro: int | None = None
    fee_micro: int | None = None
    model: str = ""
    machine: str = ""
    units: int | None = None
    late: bool = False  # of a time before the statement's own


@dataclass(frozen=True, slots=True)
class Sum:
    """A figure below the lines; ``strong`` ones are results, the others what leads to them."""

    label: str
    micro: int
    strong: bool = False


class Document:
    """One statement, ready to be drawn."""

    def __init__(self, statement: Statement) -> None:
        self.body: dict[str, Any] = statement.body
        self.sha256 = statement.sha256
        self.number = statement.full_number

    @property
    def earning(self) -> bool:
        """Whether it is about what a provider earned; else it is about a renter's balance."""
        return self.body["account"] == Kind.PROVIDER_PAYABLE

    @property
    def pays(self) -> bool:
        """Whether it belongs to a payout, or to a return of unused balance."""
        return self.body["kind"] == Statement.Kind.PAYOUT

    @property
    def title(self) -> str:
        if not self.pays:
            return _("Monthly statement")
        return _("Payout statement") if self.earning else _("Statement of returned balance")

    @property
    def issued_at(self) -> datetime:
        return datetime.fromisoformat(self.body["issued_at"])

    @property
    def organisation(self) -> str:
        return str(self.body["organisation"]["name"])

    @property
    def period(self) -> str:
        """A month by its days; a payout by its cut-off, since it covers everything since the one before."""
        start, end = self._moment("start"), self._moment("end")
        if self.pays:
            return _("Until %(end)s") % {"end": show.moment(end)}
        days = {"start": show.moment(start, "date"), "end": show.moment(end - timedelta(microseconds=1), "date")}
        return _("%(start)s to %(end)s, UTC") % days

    def _moment(self, name: str) -> datetime:
        return datetime.fromisoformat(self.body["period"][name])

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What stands above the lines: label and value."""
        rows = [
            (_("Number"), self.number),
            (_("For"), self.organisation),
            (_("Cut-off"), show.moment(self._moment("end"))) if self.pays else (_("Period"), self.period),
            (_("Issued"), show.moment(self.issued_at)),
        ]
        if self.pays:
            rows.append((_("Payout"), str(self.body["reference"])))
        if self.body["previous"]:
            rows.append((_("Follows on"), str(self.body["previous"]["number"])))
        return rows

    @property
    def columns(self) -> list[str]:
        """The heads of: day, what, time, price, what the renter paid (for who earned it), fee, amount."""
        earned = [_("Renter paid")] if self.earning else []
        last = _("You earned") if self.earning else _("Amount")
        fee = _("Platform fee") if self.earning else _("Platform fee in it")
        return [_("Day"), _("What"), _("Billed time"), _("USDC per hour"), *earned, fee, last]

    @cached_property
    def rows(self) -> Sequence[Row]:
        return list(self._rows())

    def _rows(self) -> Iterator[Row]:
        balance, start = self.body["opening_micro"], self._moment("start").date()
        for line in self.body["lines"]:
            balance += line["amount_micro"]
            yield self._rental(line, balance, start) if line["kind"] == "rental" else self._single(line, balance, start)

    def _rental(self, line: dict[str, Any], balance: int, start: date) -> Row:
        day = date.fromisoformat(line["day"])
        return Row(
            kind="rental",
            day=day,
            title=_("Rental, %(state)s") % {"state": _STATES.get(line["state"], line["state"])},
            detail=f"r-{line['rental'][:8]} · {line['units']} × {line['model']} · {line['machine']}",
            rental=line["rental"],
            reference=line["rental"],
            amount_micro=line["amount_micro"],
            balance_micro=balance,
            seconds=line["seconds"],
            rate_micro=line["rate_micro_per_hour"],
            gross_micro=line["gross_micro"],
            fee_micro=line["fee_micro"],
            model=line["model"],
            machine=line["machine"],
            units=line["units"],
            late=not self.pays and day < start,
        )

    def _single(self, line: dict[str, Any], balance: int, start: date) -> Row:
        at = datetime.fromisoformat(line["at"])
        reference = str(line["reference"])
        return Row(
            kind=line["kind"],
            day=at.date(),
            at=at,
            title=_title(line["kind"], earning=self.earning, income=line["amount_micro"] > 0),
            detail=_short(line["kind"], reference),
            note=str(line.get("reason", "")),
            reference=reference,
            rental=reference if line["kind"] == Move.CREDIT else "",
            amount_micro=line["amount_micro"],
            balance_micro=balance,
            late=not self.pays and at.date() < start,
        )

    @property
    def sums(self) -> list[Sum]:
        """From the opening balance to what is carried forward; each strong figure is the sum of those above it."""
        body = self.body
        rentals = sum(line["amount_micro"] for line in body["lines"] if line["kind"] == "rental")
        rest = sum(line["amount_micro"] for line in body["lines"] if line["kind"] != "rental")
        result = [Sum(_("Opening balance"), body["opening_micro"])]
        if self.earning:
            result += [Sum(_("Rentals, after the platform fee"), rentals), Sum(_("Everything else"), rest)]
        else:
            into = sum(line["amount_micro"] for line in body["lines"] if line["kind"] in (Move.DEPOSIT, Move.MATCH))
            result += [
                Sum(_("Deposits"), into),
                Sum(_("Rentals"), rentals),
                Sum(_("Credits, refunds, returns and corrections"), rest - into),
            ]
        result.append(Sum(_("Closing balance"), body["closing_micro"], strong=True))
        if self.pays:
            if body["later_micro"]:
                result.append(Sum(_("Came in after the cut-off"), -body["later_micro"]))
            if body["kept_micro"]:
                result.append(Sum(_("Kept back while rentals run"), -body["kept_micro"]))
            result += [
                Sum(_("Payable"), body["payable_micro"], strong=True),
                Sum(_("This payout") if self.earning else _("This return"), body["amount_micro"], strong=True),
                Sum(_("Carried forward"), body["carried_micro"]),
            ]
        return result

    @property
    def fee_micro(self) -> int:
        """The platform's part of all rentals on it."""
        return sum(line["fee_micro"] for line in self.body["lines"] if line["kind"] == "rental")

    @property
    def notes(self) -> list[str]:
        """What a reader must know about the lines."""
        notes = [
            _("A rental’s line is one day in UTC, in the state “running”. %(reason)s No other state is billed.")
            % {"reason": Billable.RUNNING.label},
            _("Amounts are in USDC, exact to six decimals. Price and fee of a rental stay as they were when it began."),
        ]
        if any(row.late for row in self.rows):
            notes.append(
                _("Lines marked as late are of days before this period; they became known after the last statement.")
            )
        return notes


def _short(kind: str, reference: str) -> str:
    """What identifies a line that is no rental, short enough for a cell; the CSV has it whole."""
    if kind == Move.CREDIT:
        return f"r-{reference[:8]}"
    return reference if len(reference) <= 20 else f"{reference[:8]}…{reference[-6:]}"


def _title(kind: str, *, earning: bool, income: bool) -> str:
    texts: dict[str, str] = {
        Move.DEPOSIT: _("Deposit"),
        Move.MATCH: _("Deposit"),
        Move.REFUND: _("Refund"),
        Move.RECOVERY: _("Owed from an earlier credit"),
        Move.WRITE_OFF: _("Adjustment"),
        Move.ADJUSTMENT: _("Adjustment"),
        Move.REVERSAL: _("Correction"),
        Move.RETURNED: _("Sent back by the bank"),
    }
    if earning:
        texts |= {
            Move.CREDIT: _("Credit to the renter of a rental that broke off"),
            Move.PAYOUT: _("Payout"),
            Move.BACK: _("Payout that did not go through"),
        }
    else:
        texts |= {
            Move.CREDIT: _("Credit for a provider’s fault"),
            Move.PAYOUT: _("Returned to your wallet"),
            Move.BACK: _("Return that did not go through"),
        }
    return texts.get(kind, _("Money in") if income else _("Money out"))

"""The bank's answer, carried out line by line.

1. A file is read once: the same bytes again give the result of the first time. If a server died in the middle, they finish it.
2. A line is matched by our own id (end-to-end id, trace number, or the id of one of our files), and by currency and amount. What does
   not match changes nothing: it is listed for an administrator, who is told of those that speak of our transfers and do not fit.
3. Each line is a transaction of its own; one bad line never stops the rest. Within a file what settled comes before what came back.
4. A booking that comes a second time with another reference of the bank is a second payment: never taken for a repetition.
5. The rejection of a duplicate says that the first one stands; it gives no money back.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import structlog
from django.db import IntegrityError, transaction
from django.utils.translation import gettext_lazy as _

from billing.ledger import ReasonMissing
from gpunex.accounts.models import User
from gpunex.kit import secrets, show
from gpunex.kit.conflicts import retrying
from gpunex.kit.refusals import Refusal
from payouts.approvals import StaffOnly
from payouts.bank import answers, verdicts
from payouts.bank.answers import DUPLICATES, Line, Said
from payouts.bank.files import settles_from
from payouts.bank.transfers import WITH_THE_BANK
from payouts.bank.verdicts import BookedTwice, DoesNotFit
from payouts.models import BankFile, BankImport, BankTransfer, Rail
from payouts.notices import alert

log = structlog.get_logger(__name__)

State = BankTransfer.State
KNOWN, NOTED, UNMATCHED, PROBLEM = "known", "noted", "unmatched", "problem"
# What a line did, in words for the result's page.
DID = {
    Said.ACCEPTED: _("accepted by the bank"),
    Said.SETTLED: _("settled: the payout is paid"),
    Said.REJECTED: _("rejected: the money is back in the earnings"),
    Said.RETURNED: _("sent back: the money is back in the earnings"),
    KNOWN: _("known already"),
    NOTED: _("changes nothing"),
    UNMATCHED: _("not about a payout of ours"),
    PROBLEM: _("does not fit, nothing was changed"),
}
WHY = {
    "no_such_transfer": _("no transfer of ours has this id"),
    "amount": _("the amount is another one"),
    "currency": _("the currency is another one"),
    "no_amount": _("the amount is missing or not to the cent"),
    "duplicate": _("the bank calls it a duplicate: look whether the first one was paid"),
    "twice": _("booked a second time: the payout may have been paid twice"),
    "not_with_the_bank": _("this payout was not in a file yet"),
    "batch_sum": _("the sum is not that of the file’s transfers"),
    "correction": _("the account should be written differently; the provider is to correct it"),
    "unknown_status": _("the status moves nothing"),
    "failed": _("it could not be carried out; it is in the log"),
}
BOOKINGS = (answers.CAMT_STATEMENT, answers.CAMT_NOTIFICATION)


class OnlyAch(Refusal):
    code = "only_ach"
    message = _("Import the bank’s statement instead: it says of each transfer what became of it.")


class NotHandedOver(Refusal):
    code = "not_handed_over"
    message = _("This file is not recorded as handed to the bank.")


class ReturnsStillDue(Refusal):
    code = "returns_still_due"
    message = _(
        "Until %(day)s banks may still send transfers of this file back. Import the returns first, then say that it settled."
    )


@dataclass(frozen=True, slots=True)
class Imported:
    """The stored answer with its lines, and whether it was read just now or is the one of an earlier time."""

    answer: BankImport
    new: bool


def read_answer(*, data: bytes, filename: str, by: User, at: datetime) -> Imported:
    """Read what the bank sent and do what it says. Raises StaffOnly, and what ``answers.read`` refuses a file for."""
    if not by.is_staff:
        raise StaffOnly
    sha256 = hashlib.sha256(data).hexdigest()
    row = BankImport.objects.filter(sha256=sha256).first()
    if row is not None and row.lines:
        return Imported(answer=row, new=False)
    answer = answers.read(data)
    if row is None:
        row = _claimed(answer.format, data=data, sha256=sha256, filename=filename, by=by, at=at)
    ours = _Ours(answer.lines)
    results = [result for line in _in_order(answer.lines) for result in _carry_out(line, answer, ours, by=by, at=at)]
    results.sort(key=lambda result: result["line"])
    # Whoever is first keeps the result: two at once did nothing twice, but the second saw only what was known.
    BankImport.objects.filter(pk=row.pk, lines=[]).update(lines=results)
    _mark_answered(results)
    _tell_of_problems(row, results, at=at)
    row.refresh_from_db()
    return Imported(answer=row, new=True)


def settle_ach_file(*, file: BankFile, by: User, note: str, at: datetime) -> int:
    """The bank's statement shows the file's debit, and the days for returns are over: what did not come back is paid.

    ACH has no word for "arrived"; silence is it. Returns how many settled. Raises StaffOnly, ReasonMissing, OnlyAch, NotHandedOver,
    ReturnsStillDue.
    """
    if not by.is_staff:
        raise StaffOnly
    if not note.strip():
        raise ReasonMissing
    if file.rail != Rail.ACH:
        raise OnlyAch
    if file.exported_at is None:
        raise NotHandedOver
    if at.date() <= settles_from(file):
        raise ReturnsStillDue(day=show.day_text(settles_from(file)))
    settled = 0
    for transfer in file.transfers.filter(state__in=WITH_THE_BANK).order_by("pk"):
        try:
            settled += retrying(verdicts.apply)(transfer=transfer, said=Said.SETTLED, reason=note.strip(), by=by, at=at)
        except DoesNotFit:
            log.info("ach_transfer_moved_meanwhile", transfer=transfer.end_to_end_id)
    BankFile.objects.filter(pk=file.pk).update(state=BankFile.State.ANSWERED)
    return settled


def _claimed(kind: str, *, data: bytes, sha256: str, filename: str, by: User, at: datetime) -> BankImport:
    """The answer's row, without lines until all of them are carried out."""
    try:
        with transaction.atomic():
            return BankImport.objects.create(
                sha256=sha256,
                filename=filename[:200],
                format=kind,
                content=secrets.encrypt(data.decode("latin-1")),
                imported_by=by,
                imported_at=at,
            )
    except IntegrityError:
        return BankImport.objects.get(sha256=sha256)


def _in_order(lines: Iterable[Line]) -> list[Line]:
    """What came back is carried out last: a statement may list it above the payment that it sends back."""
    return sorted(lines, key=lambda line: line.said == Said.RETURNED)


# --- one line --------------------------------------------------------------------------------------------------------


class _Ours:
    """The transfers that an answer's lines name, found at once: an account's statement has thousands of lines about others."""

    def __init__(self, lines: Iterable[Line]) -> None:
        lines = list(lines)
        rows = BankTransfer.objects.select_related("payout")
        self.by_id = {
            row.end_to_end_id: row
            for row in rows.filter(end_to_end_id__in={line.end_to_end_id for line in lines if line.end_to_end_id})
        }
        # Our numbers begin anew after ten million: the newest is meant.
        traces = {line.trace_number for line in lines if line.trace_number}
        self.by_trace = {row.trace_number: row for row in rows.filter(trace_number__in=traces).order_by("pk")}

    def of(self, line: Line) -> BankTransfer | None:
        if line.end_to_end_id:
            return self.by_id.get(line.end_to_end_id)
        return self.by_trace.get(line.trace_number)


def _carry_out(line: Line, answer: answers.Answer, ours: _Ours, *, by: User, at: datetime) -> Iterator[dict[str, Any]]:
    """What came of a line: one result, or one for each transfer of a file that it speaks of as a whole."""
    if line.message_id and not line.end_to_end_id:
        yield from _whole_file(line, answer, by=by, at=at)
        return
    transfer = ours.of(line)
    yield _result(line, transfer, *_judge(line, transfer, answer, by=by, at=at))


def _whole_file(line: Line, answer: answers.Answer, *, by: User, at: datetime) -> Iterator[dict[str, Any]]:
    """A word on all of one of our files: on every transfer of it that the answer does not name by itself."""
    file = BankFile.objects.filter(message_id=line.message_id).first()
    if file is None:
        yield _result(line, None, UNMATCHED, "no_such_transfer")
        return
    if line.said == Said.NOTHING:
        yield _result(line, None, NOTED, "")
        return
    if line.said == Said.REJECTED and _code(line) in DUPLICATES:
        yield _result(line, None, PROBLEM, "duplicate")
        return
    transfers = [
        row
        for row in file.transfers.select_related("payout").order_by("pk")
        if row.end_to_end_id not in answer.by_id and row.state != State.REJECTED
    ]
    if answer.format in BOOKINGS:
        total = sum(row.amount_cents for row in transfers)
        if line.amount_cents != total or any(row.currency != line.currency for row in transfers):
            yield _result(line, None, PROBLEM, "batch_sum")
            return
    for transfer in transfers:
        yield _result(line, transfer, *_apply(line, transfer, answer, by=by, at=at))


def _judge(
    line: Line, transfer: BankTransfer | None, answer: answers.Answer, *, by: User, at: datetime
) -> tuple[str, str]:
    """What the line did, and why if it did nothing. Both are keys of ``DID`` and ``WHY``; a why may be the words of a refusal."""
    if transfer is None:
        return UNMATCHED, "no_such_transfer"
    if answer.format == answers.ACH_RETURN and line.reason.startswith("C"):
        return PROBLEM, "correction"
    if line.said == Said.NOTHING:
        return NOTED, "unknown_status"
    if transfer.state == State.WAITING:
        return PROBLEM, "not_with_the_bank"
    if line.amount_cents is None and (answer.format != answers.PAIN or line.said == Said.SETTLED):
        return PROBLEM, "no_amount"
    if line.amount_cents is not None:
        if line.currency != transfer.currency:
            return PROBLEM, "currency"
        if line.amount_cents != transfer.amount_cents:
            return PROBLEM, "amount"
    if line.said in (Said.REJECTED, Said.RETURNED) and _code(line) in DUPLICATES:
        return PROBLEM, "duplicate"
    if answer.format in BOOKINGS and _listed_before(line, answer):
        return PROBLEM, "twice"
    return _apply(line, transfer, answer, by=by, at=at)


def _apply(line: Line, transfer: BankTransfer, answer: answers.Answer, *, by: User, at: datetime) -> tuple[str, str]:
    try:
        changed = retrying(verdicts.apply)(
            transfer=transfer,
            said=line.said,
            reason=line.reason,
            by=by,
            at=at,
            booked_on=_past(line.booked_on, at),
            booking=(answer.format, line.bank_reference) if answer.format in BOOKINGS else ("", ""),
        )
    except BookedTwice:
        return PROBLEM, "twice"
    except Refusal as refusal:
        return PROBLEM, str(refusal)
    except Exception:
        log.exception("bank_line_not_carried_out", transfer=transfer.end_to_end_id, line=line.number)
        return PROBLEM, "failed"
    return (line.said.value, "") if changed else (KNOWN, "")


def _listed_before(line: Line, answer: answers.Answer) -> bool:
    """Whether a line above says the same of the same transfer; only with one and the same reference is it one booking, told twice."""
    above = [
        other
        for other in answer.by_id.get(line.end_to_end_id, [])
        if other.said == line.said and other.number < line.number
    ]
    return any(not line.bank_reference or other.bank_reference != line.bank_reference for other in above)


def _code(line: Line) -> str:
    return line.reason.split(" ")[0]


def _past(day: date | None, at: datetime) -> date | None:
    """A bank's day of booking; one that is still to come is a slip."""
    return day if day is not None and day <= at.date() else None


def _result(line: Line, transfer: BankTransfer | None, did: str, why: str) -> dict[str, Any]:
    return {
        "line": line.number,
        "end_to_end_id": transfer.end_to_end_id if transfer else line.end_to_end_id[:35],
        "trace_number": line.trace_number,
        "message_id": line.message_id,
        "amount_cents": line.amount_cents,
        "currency": line.currency,
        "said": line.said.value,
        "status": line.status,
        "reason": line.reason,
        "bank_reference": line.bank_reference,
        "did": did,
        "why": why,
        "payout": str(transfer.payout.public_id) if transfer else "",
        "ours": transfer.amount if transfer else "",
    }


# --- afterwards ------------------------------------------------------------------------------------------------------


def _mark_answered(results: Iterable[dict[str, Any]]) -> None:
    touched = {
        result["end_to_end_id"] for result in results if result["payout"] and result["did"] not in (NOTED, PROBLEM)
    }
    files = BankTransfer.objects.filter(end_to_end_id__in=touched).values("file")
    BankFile.objects.filter(pk__in=files).update(state=BankFile.State.ANSWERED)


def _tell_of_problems(row: BankImport, results: Iterable[dict[str, Any]], *, at: datetime) -> None:
    count = Counter(result["did"] for result in results)[PROBLEM]
    if count:
        with transaction.atomic():
            alert(
                key=f"bank-import:{row.sha256}",
                what=_("an answer of the bank does not fit"),
                detail=_(
                    "%(filename)s has %(count)s lines that do not fit our transfers. Nothing was changed by them."
                ),
                data={"filename": row.filename, "count": count},
                at=at,
            )

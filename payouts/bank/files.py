"""Files for the bank: made once a payout, handed over by a person, the same bytes for ever.

1. A file is made of a cleared run's approved payouts that are in no file yet, on the run's day or later. Asked again, it is the same file;
   payouts that were approved later get a further one. The run's lock lets one administrator make it at a time.
2. A line that the bank would refuse is left out, its payout held for a person, and the file has all others: one bad line of a file makes
   banks refuse all of it.
3. What the file says (its hash, its id, its lines' amounts) cannot be changed any more; the database sees to that.
4. Handing over is recorded with who and when. It changes nothing about the file.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from django.conf import settings
from django.db import connection, transaction
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import User
from gpunex.kit import secrets, show
from gpunex.kit.refusals import Refusal
from gpunex.kit.time import next_business_day
from gpunex.policy.models import Policy
from payouts.approvals import StaffOnly
from payouts.bank import RAILS, details, nacha, sepa
from payouts.bank.latin import latin
from payouts.bank.transfers import doubt
from payouts.methods import details_of
from payouts.models import BankFile, BankTransfer, Payout, PayoutRun, Rail
from payouts.outcomes import hold, set_state
from payouts.periods import CALENDARS

NAME_LENGTHS = {Rail.SEPA: 70, Rail.ACH: 22}
# Banks send ACH credits back within two of their days; before that nothing says that one was taken.
RETURN_DAYS = 2
_ADVISORY_LOCK = 0x6750_0F11


class NotABankRun(Refusal):
    code = "not_a_bank_run"
    message = _("This run is paid on chain; there is no file for a bank.")


class PayoutsPaused(Refusal):
    code = "payouts_paused"
    message = _("Payouts are paused. End the pause in the platform policy first.")


class RunNotCleared(Refusal):
    code = "run_not_cleared"
    message = _("This run is not cleared yet: it is still being made, or waits for two administrators.")


class NotYet(Refusal):
    code = "not_yet"
    message = _("This run is paid on %(day)s; its file can be made from then on.")


class NothingForTheBank(Refusal):
    code = "nothing_for_the_bank"
    message = _("No approved payout of this run waits for a file.")


class AccountNotSetUp(Refusal):
    code = "account_not_set_up"
    message = _("Our own account is not set up for this. Missing or not valid in the environment: %(names)s.")


class FileNotValid(Refusal):
    code = "file_not_valid"
    message = _(
        "The file would not pass the bank’s schema, and no single line is the reason. Nothing was made; tell the developers."
    )


class HandedOverAlready(Refusal):
    code = "handed_over_already"
    message = _("%(who)s handed this file to the bank on %(when)s. Do not upload it again.")


class FileDamaged(Refusal):
    code = "file_damaged"
    message = _(
        "The stored bytes of %(file)s are not those that were made, or no key opens them. Send nothing; tell the developers."
    )


@dataclass(frozen=True, slots=True)
class Made:
    """The file (None if no line could go into one), whether it is new, and the payouts that had to be left out."""

    file: BankFile | None
    new: bool
    left_out: list[Payout] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Item:
    """A payout on its way into a file."""

    payout: Payout
    transfer: BankTransfer
    details: dict[str, str]


# --- making ----------------------------------------------------------------------------------------------------------


@transaction.atomic
def make(*, run: PayoutRun, by: User, at: datetime) -> Made:
    """The run's file. Two administrators at once get the same one.

    Raises StaffOnly, NotABankRun, PayoutsPaused, AccountNotSetUp, RunNotCleared, NotYet, NothingForTheBank, FileNotValid.
    """
    _may(by)
    run = PayoutRun.objects.select_for_update(no_key=True).get(pk=run.pk)
    if run.rail not in RAILS:
        raise NotABankRun
    if Policy.load().payouts_paused:
        raise PayoutsPaused
    if run.cleared_at is None or run.made_at is None:
        raise RunNotCleared
    if at.astimezone(UTC).date() < run.execute_on:
        raise NotYet(day=show.day_text(run.execute_on))
    _refuse_unless_set_up(run.rail)
    items, left_out = _ready(run, at=at)
    if not items and not left_out:
        last = run.bank_files.order_by("-pk").first()
        if last is None:
            raise NothingForTheBank
        return Made(file=last, new=False)
    items = _without_invalid(run, items, left_out, at=at)
    return Made(file=_write(run, items, by=by, at=at) if items else None, new=bool(items), left_out=left_out)


def _ready(run: PayoutRun, *, at: datetime) -> tuple[list[_Item], list[Payout]]:
    """Approved payouts that are in no file: those that can be paid as their accounts stand, and those that were held instead."""
    # Locked without joins, then looked at: see the house rule on locks.
    payouts = list(
        Payout.objects.select_for_update(no_key=True)
        .filter(run=run, state=Payout.State.APPROVED)
        .prefetch_related("method")
        .order_by("pk")
    )
    transfers = {
        row.payout_id: row
        for row in BankTransfer.objects.select_for_update(no_key=True).filter(
            payout__in=payouts, state=BankTransfer.State.WAITING, file=None
        )
    }
    items: list[_Item] = []
    left_out: list[Payout] = []
    for payout in payouts:
        transfer = transfers.get(payout.pk)
        if transfer is None:
            continue
        try:
            items.append(_Item(payout=payout, transfer=transfer, details=_details(payout, transfer)))
        except _Unpayable as unpayable:
            _leave_out(payout, reason=unpayable.reason, detail=str(unpayable), at=at)
            left_out.append(payout)
    return items, left_out


class _Unpayable(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def _details(payout: Payout, transfer: BankTransfer) -> dict[str, str]:
    method = payout.method
    if method is None:
        raise _Unpayable(Payout.Reason.ACCOUNT_NOT_PAYABLE, "no account")
    came_back = doubt(method)
    # Whoever let it go on has looked: it is not held for the same thing twice.
    looked_at = payout.resumed_at is not None
    if came_back is not None and not looked_at:
        raise _Unpayable(Payout.Reason.ACCOUNT_IN_DOUBT, came_back.bank_reason)
    try:
        account = details_of(method)
        details.check_still_payable(payout.rail, account, bank_too=not looked_at)
    except Refusal as refusal:
        raise _Unpayable(Payout.Reason.ACCOUNT_NOT_PAYABLE, str(refusal)) from refusal
    except (ValueError, KeyError) as error:  # its key is gone, or it was never complete
        raise _Unpayable(Payout.Reason.ACCOUNT_NOT_PAYABLE, "unreadable") from error
    most = sepa.MOST_CENTS if payout.rail == Rail.SEPA else nacha.MOST_CENTS
    if transfer.amount_cents > most:
        raise _Unpayable(Payout.Reason.ACCOUNT_NOT_PAYABLE, "more than one transfer carries")
    return account


def _without_invalid(run: PayoutRun, items: list[_Item], left_out: list[Payout], *, at: datetime) -> list[_Item]:
    """Only what the schema takes. The whole is looked at first; only where it fails each line by itself."""
    if run.rail != Rail.SEPA or not items or sepa.is_valid(_sepa_text(run, items, number=1, at=at)):
        return items
    if not sepa.is_valid(_sepa_text(run, [], number=1, at=at, trial=True)):
        raise FileNotValid
    valid = []
    for item in items:
        if sepa.is_valid(_sepa_text(run, [item], number=1, at=at)):
            valid.append(item)
        else:
            _leave_out(item.payout, reason=Payout.Reason.ACCOUNT_NOT_PAYABLE, detail="schema", at=at)
            left_out.append(item.payout)
    if len(valid) == len(items) or (valid and not sepa.is_valid(_sepa_text(run, valid, number=1, at=at))):
        raise FileNotValid
    return valid


def _leave_out(payout: Payout, *, reason: str, detail: str, at: datetime) -> None:
    hold(payout, reason=reason, detail=detail, at=at, key=f"bank:{at.isoformat()}")


def _write(run: PayoutRun, items: Sequence[_Item], *, by: User, at: datetime) -> BankFile:
    number = run.bank_files.count() + 1
    if run.rail == Rail.SEPA:
        text = _sepa_text(run, items, number=number, at=at)
    else:
        for item in items:
            item.transfer.trace_number = nacha.trace_number(settings.ACH_ORIGIN_ROUTING, item.transfer.pk)
        text = _ach_text(run, items, at=at)
    data = text.encode()
    file = BankFile.objects.create(
        run=run,
        rail=run.rail,
        message_id=message_id(run, number),
        content=secrets.encrypt(text),
        sha256=hashlib.sha256(data).hexdigest(),
        created_by=by,
        created_at=at,
    )
    for item in items:
        item.transfer.file, item.transfer.state = file, BankTransfer.State.IN_FILE
        item.transfer.save(update_fields=["file", "state", "trace_number"])
    return file


def message_id(run: PayoutRun, number: int) -> str:
    """At most 35 characters, another for each file."""
    return f"GPX-{run.rail.upper()}-{run.public_id.hex[:16]}-{number}"


def value_day(run: PayoutRun, made_at: datetime) -> date:
    """The day that the file asks the bank for: the run's, or the first on which banks are open if it is made later."""
    return next_business_day(max(run.execute_on, made_at.astimezone(UTC).date()), calendar=CALENDARS[run.rail])


def _sepa_text(run: PayoutRun, items: Iterable[_Item], *, number: int, at: datetime, trial: bool = False) -> str:
    """The file; on ``trial`` with a line to our own account, which tells whether its head is right."""
    debtor = sepa.Debtor(
        name=latin(settings.SEPA_DEBTOR_NAME, most=70),
        iban=details.read_iban(settings.SEPA_DEBTOR_IBAN),
        bic=details.read_bic(settings.SEPA_DEBTOR_BIC),
    )
    lines = [
        sepa.Line(
            end_to_end_id=item.transfer.end_to_end_id,
            cents=item.transfer.amount_cents,
            name=latin(item.details["name"], most=NAME_LENGTHS[Rail.SEPA]),
            iban=item.details["iban"],
            bic=item.details.get("bic", ""),
            text=f"GPUnex payout {item.payout.public_id}",
        )
        for item in items
    ]
    if trial:
        lines.append(
            sepa.Line(end_to_end_id="TRIAL", cents=1, name=debtor.name, iban=debtor.iban, bic="", text="trial")
        )
    return sepa.write(
        debtor=debtor, lines=lines, message_id=message_id(run, number), execute_on=value_day(run, at), at=at
    )


def _ach_text(run: PayoutRun, items: Iterable[_Item], *, at: datetime) -> str:
    origin = nacha.Origin(
        name=latin(settings.ACH_ORIGIN_NAME, most=23),
        company_id=settings.ACH_ORIGIN_ID,
        routing=settings.ACH_ORIGIN_ROUTING,
        bank=latin(settings.ACH_ORIGIN_BANK, most=23),
    )
    entries = [
        nacha.Entry(
            trace_number=item.transfer.trace_number,
            routing=item.details["routing"],
            account=item.details["account"],
            savings=item.details["account_type"] == details.SAVINGS,
            company=item.details.get("holder") == details.COMPANY,
            cents=item.transfer.amount_cents,
            reference=item.payout.public_id.hex[:15].upper(),
            name=latin(item.details["name"], most=NAME_LENGTHS[Rail.ACH]),
        )
        for item in items
    ]
    return nacha.write(origin=origin, entries=entries, effective=value_day(run, at), modifier=_modifier(at), at=at)


def _modifier(at: datetime) -> str:
    """Tells apart the ACH files of one day; whoever makes two at once waits for the other."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_ADVISORY_LOCK])
    day = datetime.combine(at.astimezone(UTC).date(), datetime.min.time(), UTC)
    today = BankFile.objects.filter(rail=Rail.ACH, created_at__gte=day, created_at__lt=day + timedelta(days=1)).count()
    return nacha.MODIFIERS[today % len(nacha.MODIFIERS)]


def missing_settings(rail: str) -> list[str]:
    """The names of our own account's settings that are missing or not valid."""
    checks = {
        Rail.SEPA: {"SEPA_DEBTOR_NAME": details.read_name, "SEPA_DEBTOR_IBAN": details.read_iban},
        Rail.ACH: {
            "ACH_ORIGIN_NAME": details.read_name,
            "ACH_ORIGIN_ID": _read_company_id,
            "ACH_ORIGIN_ROUTING": details.read_routing,
            "ACH_ORIGIN_BANK": details.read_name,
        },
    }[Rail(rail)]
    if rail == Rail.SEPA:
        checks["SEPA_DEBTOR_BIC"] = details.read_bic
    names = []
    for name, check in checks.items():
        try:
            check(getattr(settings, name))
        except Refusal:
            names.append(name)
    return names


def _read_company_id(text: str) -> str:
    if not (text.isascii() and text.isalnum() and len(text) == 10):
        raise AccountNotSetUp(names="ACH_ORIGIN_ID")
    return text


def _refuse_unless_set_up(rail: str) -> None:
    names = missing_settings(rail)
    if names:
        raise AccountNotSetUp(names=", ".join(names))


def _may(by: User) -> None:
    if not by.is_staff:
        raise StaffOnly


# --- handing over ----------------------------------------------------------------------------------------------------


def content(file: BankFile) -> bytes:
    """The file's bytes, the same each time. Raises FileDamaged."""
    try:
        data: bytes = secrets.decrypt(file.content).encode()
    except ValueError as error:
        raise FileDamaged(file=file.message_id) from error
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise FileDamaged(file=file.message_id)
    return data


def hand_out(file: BankFile) -> bytes:
    """``content`` for whoever takes it to the bank. Raises PayoutsPaused until it is recorded as handed over, FileDamaged."""
    if file.exported_at is None and Policy.load().payouts_paused:
        raise PayoutsPaused
    return content(file)


def filename(file: BankFile) -> str:
    return f"{file.message_id}.{'xml' if file.rail == Rail.SEPA else 'ach'}"


@transaction.atomic
def mark_exported(*, file: BankFile, by: User, at: datetime) -> BankFile:
    """It was handed to the bank. Raises StaffOnly, HandedOverAlready.

    Also while payouts are paused: what has happened is recorded, whatever holds now.
    """
    _may(by)
    file = BankFile.objects.select_for_update(no_key=True).get(pk=file.pk)
    if file.exported_at is not None:
        raise HandedOverAlready(who=str(file.exported_by), when=show.moment(file.exported_at))
    file.exported_by, file.exported_at = by, at
    if file.state == BankFile.State.CREATED:
        file.state = BankFile.State.EXPORTED
    file.save(update_fields=["exported_by", "exported_at", "state"])
    payouts = list(
        Payout.objects.select_for_update(no_key=True)
        .filter(pk__in=BankTransfer.objects.filter(file=file).values("payout"), state=Payout.State.APPROVED)
        .order_by("pk")
    )
    for payout in payouts:
        set_state(payout, Payout.State.EXPORTED)
    BankTransfer.objects.filter(payout__in=payouts, file=file, state=BankTransfer.State.IN_FILE).update(
        state=BankTransfer.State.EXPORTED
    )
    return file


def settles_from(file: BankFile) -> date:
    """The first day on which an ACH file may be said to have settled."""
    day = value_day(file.run, file.created_at)
    for _step in range(RETURN_DAYS):
        day = next_business_day(day + timedelta(days=1), calendar="FED")
    return day

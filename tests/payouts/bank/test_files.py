"""Files for the bank: one payout in one file, the same bytes for ever, and no bad line that sinks the others."""

import hashlib
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from django.core.management import call_command
from django.db import DatabaseError, transaction
from pytest_django import Settings

from billing.ledger import Kind
from gpunex.accounts.models import User
from gpunex.kit import secrets
from gpunex.outbox.models import Message
from gpunex.policy.models import Policy
from payouts import methods, review, runs
from payouts.approvals import StaffOnly, approve
from payouts.bank import details, files, sepa
from payouts.models import BankFile, BankTransfer, Cadence, Payout, PayoutRun, Rail
from tests.billing.test_ledger import together

from .conftest import IBAN, IBANS, USDC, earner, owned, person, quote
from .test_nacha import check

MONDAY = datetime(2026, 10, 19, tzinfo=UTC)
BEFORE = MONDAY - timedelta(days=3)
NOW = MONDAY + timedelta(hours=9)


@pytest.fixture
def rate(admin: User) -> None:
    for currency, micro in (("EUR", 1_085_000), ("USD", USDC)):
        quote(currency, micro, by=admin, at=MONDAY, ago=timedelta(minutes=30))


def made_run(rail: str = Rail.SEPA) -> PayoutRun:
    runs.make_due(at=MONDAY + timedelta(minutes=5))
    return PayoutRun.objects.get(rail=rail, cadence=Cadence.WEEKLY, period_end=MONDAY)


def xml(file: BankFile) -> ET.Element:
    return ET.fromstring(files.content(file))


@pytest.mark.spec("H3")
@pytest.mark.django_db
def test_a_run_makes_one_valid_file_of_all_its_approved_payouts(rate: None, admin: User) -> None:
    orgs = [earner(30 * USDC + number, at=BEFORE, iban=iban) for number, iban in enumerate(IBANS)]
    made = files.make(run=made_run(), by=admin, at=NOW)
    assert made.new and made.file is not None and made.left_out == []
    text = files.content(made.file).decode()
    assert sepa.is_valid(text)
    written = {
        (
            tx.findtext("{*}PmtId/{*}EndToEndId"),
            tx.findtext("{*}Amt/{*}InstdAmt"),
            tx.findtext("{*}CdtrAcct/{*}Id/{*}IBAN"),
        )
        for tx in xml(made.file).iterfind(".//{*}CdtTrfTxInf")
    }
    # 30 USDC at 1.085 are 27.64 euro and a rest that stays payable.
    assert written == {
        (f"GPX{payout.public_id.hex}", "27.64", methods.details_of(payout.method)["iban"])  # type: ignore[arg-type]
        for payout in Payout.objects.all()
    }
    assert len(written) == len(orgs)
    assert set(Payout.objects.values_list("amount_micro", flat=True)) == {29_989_400}
    assert owned(orgs[3], Kind.PROVIDER_PAYABLE) == 30 * USDC + 3 - 29_989_400
    assert set(BankTransfer.objects.values_list("state", flat=True)) == {"in_file"}


@pytest.mark.spec("H3")
@pytest.mark.django_db
def test_an_ach_run_makes_a_file_that_a_bank_takes_and_notes_the_trace_numbers(rate: None, admin: User) -> None:
    earner(30 * USDC, at=BEFORE, rail=Rail.ACH)
    earner(25_123_456, at=BEFORE, rail=Rail.ACH, holder=details.COMPANY, name="Nour & Söhne", account="0000987")
    file = files.make(run=made_run(Rail.ACH), by=admin, at=NOW).file
    assert file is not None
    text = files.content(file).decode()
    assert check(text) == {"batches": 2, "count": 2, "cents": 3000 + 2512}
    traces = set(BankTransfer.objects.values_list("trace_number", flat=True))
    assert traces == {line[79:94] for line in text.split("\n") if line[:1] == "6"}
    assert "NOUR + SOHNE" in text and "0000987" in text
    assert owned(Payout.objects.latest("pk").organisation, Kind.PROVIDER_PAYABLE) == 3_456


@pytest.mark.case("money-F47")
@pytest.mark.django_db
def test_made_again_or_downloaded_again_it_is_the_same_file(rate: None, admin: User, second_admin: User) -> None:
    earner(30 * USDC, at=BEFORE)
    run = made_run()
    first = files.make(run=run, by=admin, at=NOW)
    again = files.make(run=run, by=second_admin, at=NOW + timedelta(hours=5))
    assert first.file == again.file and not again.new
    assert first.file is not None
    data = files.content(first.file)
    assert data == files.content(BankFile.objects.get()) and hashlib.sha256(data).hexdigest() == first.file.sha256
    assert files.mark_exported(file=first.file, by=admin, at=NOW).state == BankFile.State.EXPORTED
    assert not files.make(run=run, by=admin, at=NOW + timedelta(days=1)).new
    assert BankFile.objects.count() == 1


@pytest.mark.case("money-F47", "money-F10")
@pytest.mark.usefixtures("committed")
def test_two_administrators_at_once_get_one_file(admin: User, second_admin: User) -> None:
    quote("EUR", USDC, by=admin, at=MONDAY, ago=timedelta(minutes=30))
    for iban in IBANS[:3]:
        earner(30 * USDC, at=BEFORE, iban=iban)
    run = made_run()
    results: list[Any] = together(4, lambda number: files.make(run=run, by=(admin, second_admin)[number % 2], at=NOW))
    assert {made.file.pk for made in results} == {BankFile.objects.get().pk}
    assert sum(made.new for made in results) == 1
    assert xml(BankFile.objects.get()).findtext(".//{*}NbOfTxs") == "3"


@pytest.mark.usefixtures("committed")
def test_handed_over_by_two_at_once_it_is_recorded_once(admin: User, second_admin: User) -> None:
    quote("EUR", USDC, by=admin, at=MONDAY, ago=timedelta(minutes=30))
    earner(30 * USDC, at=BEFORE)
    file = files.make(run=made_run(), by=admin, at=NOW).file
    results = together(2, lambda number: files.mark_exported(file=file, by=(admin, second_admin)[number], at=NOW))  # type: ignore[arg-type]
    assert sorted(type(result).__name__ for result in results) == ["BankFile", "HandedOverAlready"]
    assert Payout.objects.get().state == Payout.State.EXPORTED
    assert BankTransfer.objects.get().state == BankTransfer.State.EXPORTED


@pytest.mark.case("money-F49")
@pytest.mark.django_db
def test_one_bad_line_is_held_for_a_person_and_the_file_has_all_others(rate: None, admin: User) -> None:
    vanished = "DE17123456780000000001"
    good = earner(30 * USDC, at=BEFORE)
    for number in range(3):
        earner(30 * USDC + number, at=BEFORE, iban=IBANS[number])
    bad = earner(30 * USDC, at=BEFORE, iban=IBANS[1])
    method = methods.active_method(bad, NOW)
    assert method is not None
    kept = methods.details_of(method) | {"iban": vanished}  # its bank was in the register when it was entered
    type(method).objects.filter(pk=method.pk).update(details=secrets.encrypt(kept))
    run = made_run()
    made = files.make(run=run, by=admin, at=NOW)
    assert [payout.organisation for payout in made.left_out] == [bad]
    held = Payout.objects.get(organisation=bad)
    assert (held.state, held.state_reason) == (Payout.State.REVIEW, Payout.Reason.ACCOUNT_NOT_PAYABLE)
    assert BankTransfer.objects.get(payout=held).file is None
    assert made.file is not None and xml(made.file).findtext(".//{*}NbOfTxs") == "4"
    assert sepa.is_valid(files.content(made.file).decode())
    assert vanished.encode() not in files.content(made.file)
    assert Payout.objects.get(organisation=good).state == Payout.State.APPROVED
    assert Message.objects.filter(event="payouts_need_attention").exists()
    # A person takes it back: the money waits for an account that can be paid.
    with transaction.atomic():
        review.take_back(payout=held, by=admin, reason="the bank is gone", at=NOW)
        assert owned(bad, Kind.PROVIDER_PAYABLE) == 30 * USDC
        transaction.set_rollback(True)
    # Or has asked the bank, and lets it go on: it comes in a further file and is not held again.
    review.resume(payout=held, by=admin, reason="the bank was renamed", at=NOW)
    again = files.make(run=run, by=admin, at=NOW)
    assert again.new and again.left_out == [] and again.file != made.file


@pytest.mark.case("money-F49")
@pytest.mark.django_db
def test_a_line_that_only_the_schema_refuses_is_found_and_held(rate: None, admin: User) -> None:
    for iban in IBANS[:3]:
        earner(30 * USDC, at=BEFORE, iban=iban)
    run = made_run()
    items, left_out = files._ready(run, at=NOW)
    items[1].details["bic"] = "12345678901"
    kept = files._without_invalid(run, items, left_out, at=NOW)
    assert [item.payout for item in kept] == [items[0].payout, items[2].payout] and left_out == [items[1].payout]
    assert Payout.objects.get(pk=items[1].payout.pk).state == Payout.State.REVIEW
    assert Payout.objects.filter(state=Payout.State.APPROVED).count() == 2


@pytest.mark.django_db
def test_if_every_line_is_bad_there_is_no_file_and_each_payout_is_held(rate: None, admin: User) -> None:
    org = earner(30 * USDC, at=BEFORE)
    run = made_run()
    type(methods.active_method(org, NOW)).objects.update(details=b"not encrypted by us")  # type: ignore[union-attr]
    made = files.make(run=run, by=admin, at=NOW)
    assert made.file is None and len(made.left_out) == 1
    assert Payout.objects.get().state == Payout.State.REVIEW
    with pytest.raises(files.NothingForTheBank):
        files.make(run=run, by=admin, at=NOW)


@pytest.mark.django_db
def test_what_is_approved_later_comes_in_a_further_file_and_nothing_is_in_two(
    rate: None, admin: User, second_admin: User
) -> None:
    small = earner(30 * USDC, at=BEFORE)
    Policy.objects.update(payout_cap_micro=100 * USDC, run_cap_micro=10**12)
    large = earner(200 * USDC, at=BEFORE, iban=IBANS[1])
    run = made_run()
    first = files.make(run=run, by=admin, at=NOW).file
    waiting = Payout.objects.get(organisation=large)
    assert waiting.state == Payout.State.RESERVED
    approve(payout=waiting, by=admin, at=NOW)
    approve(payout=waiting, by=second_admin, at=NOW)
    second = files.make(run=run, by=admin, at=NOW + timedelta(hours=1)).file
    assert first and second and first != second and first.message_id != second.message_id
    assert {row.payout.organisation: row.file for row in BankTransfer.objects.all()} == {small: first, large: second}


@pytest.mark.spec("H1")
@pytest.mark.django_db
def test_a_file_is_made_neither_early_nor_for_a_run_that_is_not_cleared_nor_in_a_pause(rate: None, admin: User) -> None:
    earner(30 * USDC, at=BEFORE)
    run = made_run()
    for change, refusal in (
        ({"execute_on": date(2026, 10, 20)}, files.NotYet),
        ({"cleared_at": None}, files.RunNotCleared),
        ({"made_at": None}, files.RunNotCleared),
        ({"rail": Rail.USDC}, files.NotABankRun),
    ):
        with transaction.atomic():
            PayoutRun.objects.filter(pk=run.pk).update(**change)
            with pytest.raises(refusal):
                files.make(run=run, by=admin, at=NOW)
            transaction.set_rollback(True)
    Policy.objects.update(payouts_paused=True)
    with pytest.raises(files.PayoutsPaused):
        files.make(run=run, by=admin, at=NOW)
    Policy.objects.update(payouts_paused=False)
    with pytest.raises(StaffOnly):
        files.make(run=run, by=person(), at=NOW)
    assert not BankFile.objects.exists()


@pytest.mark.parametrize(
    ("rail", "change", "named"),
    [
        (Rail.SEPA, {"SEPA_DEBTOR_IBAN": ""}, "SEPA_DEBTOR_IBAN"),
        (Rail.SEPA, {"SEPA_DEBTOR_IBAN": "DE00", "SEPA_DEBTOR_NAME": ""}, "SEPA_DEBTOR_NAME, SEPA_DEBTOR_IBAN"),
        (Rail.SEPA, {"SEPA_DEBTOR_BIC": "X"}, "SEPA_DEBTOR_BIC"),
        (Rail.ACH, {"ACH_ORIGIN_ID": "12"}, "ACH_ORIGIN_ID"),
        (Rail.ACH, {"ACH_ORIGIN_ROUTING": "000000000", "ACH_ORIGIN_BANK": ""}, "ACH_ORIGIN_ROUTING, ACH_ORIGIN_BANK"),
    ],
)
@pytest.mark.django_db
def test_while_our_own_account_is_not_set_up_no_file_is_made_and_what_is_missing_is_named(
    rail: str, change: dict[str, str], named: str, rate: None, admin: User, settings: Settings
) -> None:
    earner(30 * USDC, at=BEFORE, rail=rail)
    run = made_run(rail)
    for name, value in change.items():
        setattr(settings, name, value)
    with pytest.raises(files.AccountNotSetUp, match=named):
        files.make(run=run, by=admin, at=NOW)


@pytest.mark.spec("H1")
@pytest.mark.django_db
def test_the_day_in_the_file_is_one_on_which_the_rails_banks_are_open(rate: None) -> None:
    run = PayoutRun(rail=Rail.SEPA, execute_on=date(2026, 12, 24))
    assert files.value_day(run, datetime(2026, 12, 24, 8, tzinfo=UTC)) == date(2026, 12, 24)
    assert files.value_day(run, datetime(2026, 12, 25, 8, tzinfo=UTC)) == date(2026, 12, 28)
    run.rail = Rail.ACH
    assert files.value_day(run, datetime(2026, 12, 25, 8, tzinfo=UTC)) == date(2026, 12, 28)
    assert files.value_day(run, datetime(2027, 7, 5, 8, tzinfo=UTC)) == date(2027, 7, 6)  # Independence Day is a Sunday


@pytest.mark.django_db
def test_what_the_bank_was_given_cannot_be_changed(rate: None, admin: User) -> None:
    earner(30 * USDC, at=BEFORE)
    file = files.make(run=made_run(), by=admin, at=NOW).file
    for change in (
        lambda: BankFile.objects.update(sha256="0" * 64),
        lambda: BankFile.objects.update(message_id="another"),
        lambda: BankTransfer.objects.update(amount_cents=1),
        lambda: BankTransfer.objects.update(end_to_end_id="another"),
        lambda: BankTransfer.objects.update(file=None),
        lambda: BankTransfer.objects.all().delete(),
        lambda: BankFile.objects.all().delete(),
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            change()
    assert file is not None
    BankFile.objects.update(content=secrets.encrypt("something else"))
    with pytest.raises(files.FileDamaged):
        files.content(BankFile.objects.get())


@pytest.mark.spec("H3")
@pytest.mark.django_db
def test_no_account_number_is_stored_or_mailed_in_clear(rate: None, admin: User) -> None:
    org = earner(30 * USDC, at=BEFORE)
    earner(30 * USDC, at=BEFORE, rail=Rail.ACH, account="000123456789")
    files.make(run=made_run(), by=admin, at=NOW)
    out = StringIO()
    call_command("dumpdata", "payouts", "outbox", "accounts.notice", stdout=out)
    assert IBAN not in out.getvalue() and "000123456789" not in out.getvalue()
    assert Payout.objects.get(organisation=org).destination == "DE•• •••• 3000"

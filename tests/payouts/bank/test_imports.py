"""What the bank's answer does: matched by id and amount, once, line by line, and never more than it says."""

from datetime import UTC, datetime, timedelta

import pytest
from pytest_django import DjangoAssertNumQueries

from billing import ledger
from billing.ledger import Kind, ReasonMissing
from billing.models import Transfer
from gpunex.accounts.models import Notice, User
from gpunex.outbox.models import Message
from payouts import methods, runs
from payouts.approvals import StaffOnly
from payouts.bank import files, imports, transfers, verdicts
from payouts.bank.answers import NotAnAnswer, OurOwnFile, Said
from payouts.models import BankFile, BankImport, BankTransfer, Payout, PayoutRun, Rail
from tests.billing.test_ledger import together

from .conftest import IBANS, USDC, earner, owned, person, quote
from .replies import CAMT_054, PAIN_03, ach_returns, camt, entry, pain_002, status, tx

MONDAY = datetime(2026, 10, 19, tzinfo=UTC)
BEFORE = MONDAY - timedelta(days=3)
NOW = MONDAY + timedelta(hours=9)
LATER = NOW + timedelta(days=2)
State = BankTransfer.State


def handed_over(count: int, *, by: User, rail: str = Rail.SEPA, usdc: int = 30) -> list[BankTransfer]:
    """Transfers that the bank has; each pays as many units as it cost."""
    quote("EUR" if rail == Rail.SEPA else "USD", USDC, by=by, at=MONDAY, ago=timedelta(minutes=30))
    for number in range(count):
        extra = {"iban": IBANS[number % len(IBANS)]} if rail == Rail.SEPA else {}
        earner((usdc + number) * USDC, at=BEFORE, rail=rail, **extra)
    runs.make_due(at=MONDAY + timedelta(minutes=5))
    run = PayoutRun.objects.get(rail=rail, cadence="weekly", period_end=MONDAY)
    file = files.make(run=run, by=by, at=NOW).file
    assert file is not None
    files.mark_exported(file=file, by=by, at=NOW)
    return list(BankTransfer.objects.select_related("payout__organisation").order_by("pk"))


def read(data: bytes, *, by: User, at: datetime = LATER) -> list[tuple[str, str]]:
    """What each line did, and why."""
    lines = imports.read_answer(data=data, filename="answer", by=by, at=at).answer.lines
    return [(line["did"], line["why"]) for line in lines]


def told(transfer: BankTransfer) -> tuple[str, str, str]:
    transfer.refresh_from_db()
    transfer.payout.refresh_from_db()
    return transfer.state, transfer.payout.state, transfer.bank_reason


def payable(transfer: BankTransfer) -> int:
    return owned(transfer.payout.organisation, Kind.PROVIDER_PAYABLE)


def in_transit(transfer: BankTransfer) -> int:
    code = ledger.account(
        Kind.IN_TRANSIT, organisation=transfer.payout.organisation, reference=transfer.payout.public_id
    )
    return ledger.balance(code)


def paid_by_bank() -> int:
    return ledger.balance(ledger.account(Kind.PAID_BANK))


@pytest.mark.spec("H3")
@pytest.mark.parametrize("namespace", [PAIN_03, "urn:iso:std:iso:20022:tech:xsd:pain.002.001.10"])
@pytest.mark.django_db
def test_each_transfer_goes_where_the_bank_says(namespace: str, admin: User) -> None:
    accepted, settled, rejected, pending = handed_over(4, by=admin)
    data = pain_002(
        status(accepted.end_to_end_id, "ACCP", amount="30.00"),
        status(settled.end_to_end_id, "ACSC", amount="31.00"),
        status(rejected.end_to_end_id, "RJCT", amount="32.00", reason="AC04", words="account closed"),
        status(pending.end_to_end_id, "PDNG"),
        status("SOMEBODY-ELSES", "ACSC", amount="1.00"),
        namespace=namespace,
    )
    assert [did for did, _why in read(data, by=admin)] == ["accepted", "settled", "rejected", "noted", "unmatched"]
    assert told(accepted) == (State.ACKNOWLEDGED, Payout.State.EXPORTED, "")
    assert told(settled) == (State.SETTLED, Payout.State.PAID, "")
    assert told(rejected) == (State.REJECTED, Payout.State.FAILED, "AC04 account closed")
    assert told(pending) == (State.EXPORTED, Payout.State.EXPORTED, "")
    assert [in_transit(row) for row in (accepted, settled, rejected, pending)] == [30 * USDC, 0, 0, 33 * USDC]
    assert [payable(row) for row in (accepted, settled, rejected, pending)] == [0, 0, 32 * USDC, 0]
    assert paid_by_bank() == 31 * USDC
    assert BankFile.objects.get().state == BankFile.State.ANSWERED
    assert (
        Notice.objects.get(organisation=settled.payout.organisation, event="bank_payout_paid").data["amount"]
        == "31.00 EUR"
    )
    assert not ledger.verify_books().problems


@pytest.mark.spec("H3")
@pytest.mark.django_db
def test_a_statement_settles_and_a_later_one_brings_the_money_back(admin: User) -> None:
    (transfer,) = handed_over(1, by=admin)
    org = transfer.payout.organisation
    booked = camt(entry("30.00", tx(transfer.end_to_end_id, "30.00"), reference="A1"))
    assert read(booked, by=admin) == [("settled", "")]
    assert told(transfer)[:2] == (State.SETTLED, Payout.State.PAID)
    assert transfer.settled_at == datetime(2026, 10, 21, 9, tzinfo=UTC)  # the bank's day is still to come: a slip
    back = camt(
        entry("30.00", tx(transfer.end_to_end_id, "30.00", returned="AC04", words="closed"), credit=True), number="2"
    )
    assert read(back, by=admin, at=LATER + timedelta(days=3)) == [("returned", "")]
    assert told(transfer) == (State.RETURNED, Payout.State.RETURNED, "AC04 closed")
    assert (payable(transfer), in_transit(transfer), paid_by_bank()) == (30 * USDC, 0, 0)
    assert Transfer.objects.get(key=f"payout:{transfer.payout.public_id}:returned").kind == "payout_returned"
    assert Notice.objects.filter(organisation=org, event="bank_payout_returned").count() == 1
    # Nothing more is sent to that account until its owner has spoken.
    method = methods.active_method(org, LATER)
    assert method is not None and transfers.doubt(method) == transfer
    transfers.confirm_account(method=method, by=org.created_by, at=LATER + timedelta(days=4))
    method.refresh_from_db()
    assert transfers.doubt(method) is None
    with pytest.raises(transfers.NothingToConfirm):
        transfers.confirm_account(method=method, by=org.created_by, at=LATER)
    with pytest.raises(methods.NotForThisRole):
        transfers.confirm_account(method=method, by=person(), at=LATER)


@pytest.mark.django_db
def test_a_return_in_the_same_file_as_the_payment_above_or_below_it_comes_after_it(admin: User) -> None:
    (transfer,) = handed_over(1, by=admin)
    data = camt(
        entry("30.00", tx(transfer.end_to_end_id, "30.00", returned="AC01"), credit=True, reference="B"),
        entry("30.00", tx(transfer.end_to_end_id, "30.00"), reference="A"),
    )
    assert read(data, by=admin) == [("returned", ""), ("settled", "")]
    assert told(transfer)[:2] == (State.RETURNED, Payout.State.RETURNED)
    assert payable(transfer) == 30 * USDC


@pytest.mark.django_db
def test_what_came_back_before_it_was_said_to_have_gone_was_never_paid(admin: User) -> None:
    (transfer,) = handed_over(1, by=admin)
    assert read(camt(entry("30.00", tx(transfer.end_to_end_id, returned="AC01"), credit=True)), by=admin) == [
        ("returned", "")
    ]
    assert told(transfer)[:2] == (State.RETURNED, Payout.State.FAILED)
    assert (payable(transfer), paid_by_bank()) == (30 * USDC, 0)
    # The older statement that shows the payment contradicts what we know: a person looks.
    ((did, why),) = read(camt(entry("30.00", tx(transfer.end_to_end_id, "30.00")), number="0"), by=admin)
    assert did == "problem" and "settled" in why
    assert (payable(transfer), paid_by_bank()) == (30 * USDC, 0)


@pytest.mark.django_db
def test_the_same_file_again_does_nothing_and_shows_the_first_result(admin: User, second_admin: User) -> None:
    (transfer,) = handed_over(1, by=admin)
    data = pain_002(status(transfer.end_to_end_id, "ACSC", amount="30.00"))
    first = imports.read_answer(data=data, filename="a.xml", by=admin, at=LATER)
    again = imports.read_answer(data=data, filename="b.xml", by=second_admin, at=LATER + timedelta(days=1))
    assert (first.new, again.new) == (True, False) and first.answer == again.answer
    assert BankImport.objects.count() == 1 and paid_by_bank() == 30 * USDC


@pytest.mark.django_db
def test_a_file_whose_reading_was_cut_off_is_finished_by_reading_it_again(admin: User) -> None:
    one, two = handed_over(2, by=admin)
    data = pain_002(
        status(one.end_to_end_id, "ACSC", amount="30.00"), status(two.end_to_end_id, "ACSC", amount="31.00")
    )
    read(data, by=admin)
    BankImport.objects.update(lines=[])  # as a server that died before the end leaves it
    assert read(data, by=admin) == [("known", ""), ("known", "")]
    assert paid_by_bank() == 61 * USDC


@pytest.mark.django_db
def test_the_same_word_from_several_files_counts_once(admin: User) -> None:
    (transfer,) = handed_over(1, by=admin)
    words = [
        pain_002(status(transfer.end_to_end_id, "ACCP", amount="30.00")),
        pain_002(status(transfer.end_to_end_id, "ACSC", amount="30.00")),
        pain_002(status(transfer.end_to_end_id, "ACSP", amount="30.00")),
        camt(entry("30.00", tx(transfer.end_to_end_id, "30.00"), reference="A1"), namespace=CAMT_054),
        camt(entry("30.00", tx(transfer.end_to_end_id, "30.00"), reference="A1")),
        camt(entry("30.00", tx(transfer.end_to_end_id, "30.00"), reference="A1"), number="2"),
    ]
    results = [read(data, by=admin)[0][0] for data in words]
    assert results == ["accepted", "settled", "known", "known", "known", "known"]
    assert paid_by_bank() == 30 * USDC


@pytest.mark.case("money-F47")
@pytest.mark.parametrize("first", ["statement", "report"])
@pytest.mark.django_db
def test_a_second_booking_of_the_same_payout_is_never_taken_for_a_repetition(first: str, admin: User) -> None:
    (transfer,) = handed_over(1, by=admin)
    if first == "report":
        read(pain_002(status(transfer.end_to_end_id, "ACSC", amount="30.00")), by=admin)
    paid = tx(transfer.end_to_end_id, "30.00")
    assert read(camt(entry("30.00", paid, reference="A1"), number="1"), by=admin)[0][0] in ("settled", "known")
    assert read(camt(entry("30.00", paid, reference="A2"), number="2"), by=admin) == [("problem", "twice")]
    assert read(camt(entry("30.00", paid), entry("30.00", paid), number="3"), by=admin)[1] == ("problem", "twice")
    assert paid_by_bank() == 30 * USDC
    assert Message.objects.filter(event="payouts_need_attention").count() == 2


@pytest.mark.case("money-F47")
@pytest.mark.parametrize("code", ["AM05", "DUPL", "DU01"])
@pytest.mark.django_db
def test_the_rejection_of_a_duplicate_gives_no_money_back(code: str, admin: User) -> None:
    transfer, _other = handed_over(2, by=admin)
    message_id = BankFile.objects.get().message_id
    assert read(pain_002(message_id=message_id, group="RJCT", reason=code), by=admin) == [("problem", "duplicate")]
    single = pain_002(status(transfer.end_to_end_id, "RJCT", amount="30.00", reason=code))
    assert read(single, by=admin) == [("problem", "duplicate")]
    assert told(transfer)[:2] == (State.EXPORTED, Payout.State.EXPORTED)
    assert payable(transfer) == 0


@pytest.mark.parametrize(
    ("amount", "currency", "why"),
    [
        ("30.01", "EUR", "amount"),
        ("3000", "EUR", "amount"),
        ("30.00", "USD", "currency"),
        ("30.005", "EUR", "no_amount"),
    ],
)
@pytest.mark.django_db
def test_an_amount_that_is_not_ours_changes_nothing_and_is_shown(
    amount: str, currency: str, why: str, admin: User
) -> None:
    transfer, other = handed_over(2, by=admin)
    data = camt(
        entry(amount, tx(transfer.end_to_end_id, amount, currency=currency), currency=currency),
        entry("31.00", tx(other.end_to_end_id, "31.00")),
    )
    assert read(data, by=admin) == [("problem", why), ("settled", "")]
    assert told(transfer)[:2] == (State.EXPORTED, Payout.State.EXPORTED)
    assert paid_by_bank() == 31 * USDC
    assert Message.objects.filter(event="payouts_need_attention").count() == 1


@pytest.mark.parametrize(
    ("before", "then"),
    [("RJCT", "ACSC"), ("RJCT", "ACCP"), ("ACSC", "RJCT")],
)
@pytest.mark.django_db
def test_a_word_that_contradicts_the_last_one_is_kept_as_a_problem(before: str, then: str, admin: User) -> None:
    (transfer,) = handed_over(1, by=admin)
    read(pain_002(status(transfer.end_to_end_id, before, amount="30.00", reason="AC04")), by=admin)
    state = told(transfer)
    ((did, why),) = read(pain_002(status(transfer.end_to_end_id, then, amount="30.00")), by=admin)
    assert did == "problem" and why
    assert told(transfer) == state
    assert payable(transfer) + paid_by_bank() == 30 * USDC


@pytest.mark.django_db
def test_a_word_on_the_whole_file_is_one_on_each_of_its_transfers_that_has_none_of_its_own(admin: User) -> None:
    first, second, third = handed_over(3, by=admin)
    message_id = BankFile.objects.get().message_id
    assert [did for did, _why in read(pain_002(message_id=message_id, group="ACTC"), by=admin)] == ["accepted"] * 3
    data = pain_002(
        status(second.end_to_end_id, "ACSC", amount="31.00"),
        message_id=message_id,
        group="RJCT",
        payment="RJCT",
        reason="AM04",
    )
    assert sorted(did for did, _why in read(data, by=admin)) == ["rejected", "rejected", "settled"]
    assert [told(row)[1] for row in (first, second, third)] == ["failed", "paid", "failed"]
    # The reason was ours: nobody has to look at an account.
    method = methods.active_method(first.payout.organisation, LATER)
    assert method is not None and transfers.doubt(method) is None
    assert read(pain_002(message_id="ANOTHER", group="RJCT"), by=admin) == [("unmatched", "no_such_transfer")]


@pytest.mark.django_db
def test_a_booked_sum_settles_the_file_only_to_the_cent(admin: User) -> None:
    handed_over(3, by=admin)
    message_id = BankFile.objects.get().message_id
    assert read(camt(entry("93.01", batch=message_id)), by=admin) == [("problem", "batch_sum")]
    assert read(camt(entry("93.00", batch=message_id)), by=admin) == [("settled", "")] * 3
    assert paid_by_bank() == 93 * USDC


@pytest.mark.django_db
def test_other_bookings_of_the_account_are_listed_and_touch_nothing(admin: User) -> None:
    handed_over(1, by=admin)
    data = camt(
        entry("12.00", reference="FEE"),
        entry("500.00", tx("INVOICE-1", "500.00"), credit=True),
        entry("30.00", tx("NOTPROVIDED", "30.00", remittance="GPUnex payout")),
    )
    assert [did for did, _why in read(data, by=admin)] == ["unmatched"] * 3
    assert Payout.objects.get().state == Payout.State.EXPORTED
    assert not Message.objects.filter(event="payouts_need_attention").exists()


@pytest.mark.django_db
def test_a_statement_of_thousands_of_other_bookings_is_read_at_once(
    admin: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    (transfer,) = handed_over(1, by=admin)
    others = [entry("1.00", tx(f"INVOICE-{number}", "1.00")) for number in range(2_000)]
    data = camt(*others, entry("30.00", tx(transfer.end_to_end_id, "30.00")))
    with django_assert_max_num_queries(60):
        results = read(data, by=admin)
    assert results[-1] == ("settled", "") and len(results) == 2_001


@pytest.mark.django_db
def test_an_answer_to_a_file_that_nobody_recorded_as_handed_over_counts(admin: User) -> None:
    quote("EUR", USDC, by=admin, at=MONDAY, ago=timedelta(minutes=30))
    earner(30 * USDC, at=BEFORE)
    runs.make_due(at=MONDAY + timedelta(minutes=5))
    run = PayoutRun.objects.get(rail=Rail.SEPA, period_end=MONDAY, cadence="weekly")
    waiting = BankTransfer.objects.get()
    assert read(pain_002(status(waiting.end_to_end_id, "ACSC", amount="30.00")), by=admin) == [
        ("problem", "not_with_the_bank")
    ]
    file = files.make(run=run, by=admin, at=NOW).file
    assert file is not None
    assert read(pain_002(status(waiting.end_to_end_id, "ACCP", amount="30.00")), by=admin) == [("accepted", "")]
    assert told(waiting)[:2] == (State.ACKNOWLEDGED, Payout.State.EXPORTED)
    file = files.mark_exported(file=file, by=admin, at=LATER)
    assert (file.state, file.exported_by) == (BankFile.State.ANSWERED, admin)


@pytest.mark.django_db
def test_one_line_that_fails_does_not_stop_the_rest(admin: User) -> None:
    first, second = handed_over(2, by=admin)
    # The first payout's money is gone from where it should be: settling it must fail, and only it.
    account = ledger.account(Kind.IN_TRANSIT, organisation=first.payout.organisation, reference=first.payout.public_id)
    ledger.post(
        key="theft", debit=account, credit=ledger.account(Kind.ADJUSTMENTS), amount_micro=1, kind="adjustment", at=NOW
    )
    data = pain_002(
        status(first.end_to_end_id, "ACSC", amount="30.00"), status(second.end_to_end_id, "ACSC", amount="31.00")
    )
    (one, _why), two = read(data, by=admin)
    assert one == "problem" and two == ("settled", "")
    assert told(first)[:2] == (State.EXPORTED, Payout.State.EXPORTED)


@pytest.mark.spec("H3")
@pytest.mark.django_db
def test_ach_returns_bring_back_what_they_name_and_silence_after_the_banks_days_settles_the_rest(admin: User) -> None:
    back, stays, noted = handed_over(3, by=admin, rail=Rail.ACH)
    file = BankFile.objects.get()
    early = NOW + timedelta(days=1)
    with pytest.raises(imports.ReturnsStillDue):
        imports.settle_ach_file(file=file, by=admin, note="statement of 19 October", at=early)
    data = ach_returns(
        [
            ("R03", back.trace_number, 3000),
            ("C01", noted.trace_number, 0),
            ("R03", "021000029999999", 5),
            ("R24", stays.trace_number, 3100),
        ]
    )
    assert read(data, by=admin) == [
        ("returned", ""),
        ("problem", "correction"),
        ("unmatched", "no_such_transfer"),
        ("problem", "duplicate"),
    ]
    assert told(back) == (State.RETURNED, Payout.State.FAILED, "R03")
    assert payable(back) == 30 * USDC
    after = datetime(2026, 10, 22, 9, tzinfo=UTC)
    with pytest.raises(ReasonMissing):
        imports.settle_ach_file(file=file, by=admin, note=" ", at=after)
    with pytest.raises(StaffOnly):
        imports.settle_ach_file(file=file, by=person(), note="x", at=after)
    assert imports.settle_ach_file(file=file, by=admin, note="statement of 19 October", at=after) == 2
    assert imports.settle_ach_file(file=file, by=admin, note="statement of 19 October", at=after) == 0
    assert told(stays)[:2] == (State.SETTLED, Payout.State.PAID)
    assert paid_by_bank() == 63 * USDC
    # Months later one comes back all the same.
    late = ach_returns([("R02", stays.trace_number, 3100)])
    assert read(late, by=admin, at=after + timedelta(days=50)) == [("returned", "")]
    assert told(stays)[:2] == (State.RETURNED, Payout.State.RETURNED)
    assert (payable(stays), paid_by_bank()) == (31 * USDC, 32 * USDC)


@pytest.mark.django_db
def test_silence_settles_nothing_of_sepa_nor_of_a_file_that_was_not_handed_over(admin: User) -> None:
    handed_over(1, by=admin)
    with pytest.raises(imports.OnlyAch):
        imports.settle_ach_file(file=BankFile.objects.get(), by=admin, note="x", at=LATER)
    BankFile.objects.update(exported_at=None)
    file = BankFile.objects.get()
    file.rail = Rail.ACH
    with pytest.raises(imports.NotHandedOver):
        imports.settle_ach_file(file=file, by=admin, note="x", at=LATER)


@pytest.mark.django_db
def test_what_is_no_answer_leaves_nothing_behind(admin: User) -> None:
    with pytest.raises(NotAnAnswer):
        read(b"hello", by=admin)
    handed_over(1, by=admin)
    with pytest.raises(OurOwnFile):
        read(files.content(BankFile.objects.get()), by=admin)
    with pytest.raises(StaffOnly):
        read(pain_002(message_id="M", group="ACCP"), by=person())
    assert not BankImport.objects.exists()


@pytest.mark.usefixtures("committed")
def test_two_administrators_importing_at_once_pay_once(admin: User, second_admin: User) -> None:
    rows = handed_over(3, by=admin)
    data = pain_002(
        status(rows[0].end_to_end_id, "ACSC", amount="30.00"),
        status(rows[1].end_to_end_id, "RJCT", amount="31.00", reason="AC04"),
        status(rows[2].end_to_end_id, "ACSC", amount="32.00"),
    )
    results = together(
        4,
        lambda number: (
            imports.read_answer(data=data, filename="a", by=(admin, second_admin)[number % 2], at=LATER).answer.pk
        ),
    )
    assert results == [BankImport.objects.get().pk] * 4
    assert paid_by_bank() == 62 * USDC and payable(rows[1]) == 31 * USDC
    assert not ledger.verify_books().problems


@pytest.mark.usefixtures("committed")
def test_settled_and_rejected_at_the_same_moment_one_of_them_holds(admin: User) -> None:
    (transfer,) = handed_over(1, by=admin)
    words = (Said.SETTLED, Said.REJECTED, Said.SETTLED, Said.REJECTED)
    results = together(
        4, lambda number: verdicts.apply(transfer=transfer, said=words[number], reason="", by=admin, at=LATER)
    )
    assert results.count(True) == 1
    assert {type(result).__name__ for result in results} == {"bool", "DoesNotFit"}
    assert paid_by_bank() + payable(transfer) == 30 * USDC and in_transit(transfer) == 0
    assert not ledger.verify_books().problems

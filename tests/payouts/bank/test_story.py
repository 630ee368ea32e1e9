"""A provider paid by bank, from the IBAN to the second payment after the bank sent the first one back. The books agree at every step."""

from datetime import UTC, date, datetime, timedelta
from xml.etree import ElementTree as ET

import pytest

from billing.ledger import Kind
from gpunex.accounts.models import User
from gpunex.demo import bank, people
from payouts import approvals, books, methods, runs
from payouts.bank import files, imports, proof, transfers
from payouts.models import BankFile, BankTransfer, Cadence, Payout, PayoutRun, Rail

from .conftest import USDC, credit, earner, owned, quote
from .replies import camt, entry, pain_002, status, tx

FIRST = datetime(2026, 11, 1, tzinfo=UTC)  # a Sunday: banks pay on Monday the 2nd


def books_agree() -> bool:
    assert proof.bank_check().off == {}
    return books.verify_books(with_chain=False).problems == []


def read(data: bytes, *, by: User, at: datetime) -> list[str]:
    answer = imports.read_answer(data=data, filename="answer.xml", by=by, at=at).answer
    assert books_agree()
    return [line["did"] for line in answer.lines]


@pytest.mark.spec("H1", "H3")
@pytest.mark.django_db
def test_a_provider_is_paid_in_euro_the_bank_sends_it_back_and_it_is_paid_again(
    admin: User, second_admin: User
) -> None:
    org = earner(100 * USDC + 1_234, at=FIRST - timedelta(days=20), cadence=Cadence.MONTHLY)
    # Without a fresh rate the run waits; it is not made at a stale one.
    quote("EUR", 1_100_000, by=admin, at=FIRST - timedelta(days=3))
    assert runs.make_due(at=FIRST + timedelta(minutes=5)) == 0
    quote("EUR", 1_085_000, by=admin, at=FIRST + timedelta(minutes=30), ago=timedelta(minutes=10))
    assert runs.make_due(at=FIRST + timedelta(hours=1)) == 1
    payout = Payout.objects.get()
    assert (payout.run.rail, payout.run.execute_on) == (Rail.SEPA, date(2026, 11, 2))
    assert (payout.amount_micro, payout.destination) == (99_993_600, "DE•• •••• 3000")
    transfer = payout.bank_transfer
    assert (transfer.amount, transfer.rate.micro_per_unit) == ("92.16 EUR", 1_085_000)
    assert owned(org, Kind.PROVIDER_PAYABLE) == 7_634 and books_agree()

    with pytest.raises(files.NotYet, match="2 Nov 2026"):
        files.make(run=payout.run, by=admin, at=FIRST + timedelta(hours=9))
    monday = FIRST + timedelta(days=1, hours=9)
    file = files.make(run=payout.run, by=admin, at=monday).file
    assert file is not None
    root = ET.fromstring(files.content(file))
    assert root.findtext(".//{*}ReqdExctnDt/{*}Dt") == "2026-11-02"
    assert root.findtext(".//{*}InstdAmt") == "92.16"
    files.mark_exported(file=file, by=second_admin, at=monday)
    assert books_agree()

    assert read(pain_002(message_id=file.message_id, group="ACCP"), by=admin, at=monday) == ["accepted"]
    paid = camt(entry("92.16", tx(transfer.end_to_end_id, "92.16"), reference="N1", day="2026-11-02"))
    assert read(paid, by=admin, at=monday + timedelta(days=1)) == ["settled"]
    payout.refresh_from_db()
    transfer.refresh_from_db()
    assert payout.state == Payout.State.PAID and transfer.settled_at == datetime(2026, 11, 2, tzinfo=UTC)

    back = entry("92.16", tx(transfer.end_to_end_id, "92.16", returned="AC04", words="closed"), credit=True)
    assert read(camt(back, number="2"), by=admin, at=monday + timedelta(days=4)) == ["returned"]
    payout.refresh_from_db()
    assert payout.state == Payout.State.RETURNED
    assert owned(org, Kind.PROVIDER_PAYABLE) == 100 * USDC + 1_234

    # The next run sends nothing to an account that its owner has not spoken about; the money waits.
    december = datetime(2026, 12, 1, tzinfo=UTC)
    credit(org, 5 * USDC, at=december - timedelta(days=1))
    quote("EUR", 1_090_000, by=admin, at=december, ago=timedelta(minutes=10))
    assert runs.make_due(at=december + timedelta(hours=1)) == 0
    assert PayoutRun.objects.filter(rail=Rail.SEPA, cadence=Cadence.MONTHLY, made_at__isnull=False).count() == 2
    method = methods.active_method(org, december)
    assert method is not None
    transfers.confirm_account(method=method, by=org.created_by, at=december + timedelta(days=2))

    january = datetime(2027, 1, 1, tzinfo=UTC)
    quote("EUR", 1_000_000, by=admin, at=january, ago=timedelta(minutes=10))
    assert runs.make_due(at=january + timedelta(hours=1)) == 1
    again = Payout.objects.latest("pk")
    # The euro fell by 8 % since the last rate: two people look at that before anything leaves.
    for one in (admin, second_admin):
        approvals.approve_run(run=again.run, by=one, at=january)
    again.run.refresh_from_db()
    assert (again.amount_micro, again.run.execute_on) == (105_000_000, date(2027, 1, 4))
    monday = datetime(2027, 1, 4, 9, tzinfo=UTC)
    second = files.make(run=again.run, by=admin, at=monday).file
    assert second is not None and second != file
    files.mark_exported(file=second, by=admin, at=monday)
    assert read(pain_002(status(again.bank_transfer.end_to_end_id, "ACSC", amount="105.00")), by=admin, at=monday) == [
        "settled"
    ]
    again.refresh_from_db()
    assert again.state == Payout.State.PAID
    assert owned(org, Kind.PROVIDER_PAYABLE) == 1_234
    assert BankTransfer.objects.count() == 2 and BankFile.objects.count() == 2


@pytest.mark.django_db
def test_the_proof_names_a_payout_that_does_not_stand_where_its_transfer_says(admin: User) -> None:
    quote("EUR", 1_085_000, by=admin, at=FIRST, ago=timedelta(minutes=10))
    earner(100 * USDC, at=FIRST - timedelta(days=20), cadence=Cadence.MONTHLY)
    runs.make_due(at=FIRST + timedelta(hours=1))
    payout = Payout.objects.get()
    assert proof.bank_check().off == {} and proof.bank_check().figure == "1 bank payouts"
    BankTransfer.objects.update(state=BankTransfer.State.REJECTED)
    assert proof.bank_check().off == {f"payout {payout.public_id}": payout.amount_micro}
    BankTransfer.objects.update(state=BankTransfer.State.WAITING)
    Payout.objects.update(amount_micro=payout.amount_micro + 1)
    assert proof.bank_check().off == {f"payout {payout.public_id}": 1}


@pytest.mark.parametrize(
    ("at", "states"),
    [
        (datetime(2026, 11, 30, 10, tzinfo=UTC), {("sepa", "paid", "settled"), ("ach", "approved", "in_file")}),
        (datetime(2026, 11, 28, 10, tzinfo=UTC), {("sepa", "approved", "waiting"), ("ach", "approved", "waiting")}),
    ],
)
@pytest.mark.django_db
def test_the_demonstration_pays_two_providers_by_bank_once_and_waits_on_a_saturday(
    at: datetime, states: set[tuple[str, str, str]]
) -> None:
    people.ensure_admin()
    for email in (bank.IN_EURO, bank.IN_DOLLARS):
        credit(people.ensure(people.Person("provider", email, "Nour")), 50 * USDC, at=at - timedelta(days=2))
    for _again in range(2):
        bank.open_accounts(at=at)
        bank.pay(at=at)
    assert set(Payout.objects.values_list("rail", "state", "bank_transfer__state")) == states
    assert Payout.objects.count() == 2 and books_agree()

"""The proof of the books: whatever is damaged behind the ledger's back is found, and where."""

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from billing import adjustments, debts, ledger, metering
from billing.ledger import Kind, Move, Posting
from billing.models import Account, Adjustment, Meter, ProviderDebt, Transfer
from gpunex.accounts.models import Organisation

from .conftest import USDC, person, start_meter

HOUR = timedelta(hours=1)


@pytest.fixture
def story(renter: Organisation, provider: Organisation, noon: datetime) -> Meter:
    """A charge, a credit that was half covered, a refund, a payout that was paid and one that came back, balance that went back."""
    meter = start_meter(renter, provider, at=noon, rate=10 * USDC)
    meter = metering.close_meter(meter=meter, ended_at=noon + HOUR, at=noon + HOUR)
    credits = ledger.account(Kind.CREDITS)
    payable = ledger.account(Kind.PROVIDER_PAYABLE, organisation=provider)
    balance = ledger.account(Kind.RENTER_BALANCE, organisation=renter)
    metering.note_refund(meter, 4 * USDC)
    metering.move_and_fund(
        organisation=renter,
        postings=[
            Posting("credit", credits, balance, 4 * USDC, Move.CREDIT, meter.reference),
            Posting("cover", payable, credits, USDC, Move.CREDIT, meter.reference),
        ],
        at=noon,
    )
    debts.owe(organisation=provider, reference=meter.reference, amount_micro=3 * USDC, at=noon)
    debts.recover(organisation=provider, at=noon, limit_micro=2 * USDC)
    first, second = (person(name, is_staff=True) for name in ("first", "second"))
    asked = adjustments.ask_refund(meter=meter, amount_micro=USDC, from_earnings=True, reason="x", by=first, at=noon)
    adjustments.make(adjustment=asked, by=second, at=noon)
    for source, ends in ((payable, (Kind.PAID_BANK, payable)), (balance, (Kind.PAID_CHAIN,))):
        owner = provider if source is payable else renter
        for end in ends:
            reference = str(uuid.uuid4())
            transit = ledger.account(Kind.IN_TRANSIT, organisation=owner, reference=reference)
            ledger.post(
                key=f"out:{reference}", debit=source, credit=transit, amount_micro=USDC, kind=Move.PAYOUT, at=noon
            )
            goes = end if isinstance(end, Account) else ledger.account(end)
            kind = Move.BACK if isinstance(end, Account) else Move.PAID
            ledger.post(key=f"end:{reference}", debit=transit, credit=goes, amount_micro=USDC, kind=kind, at=noon)
            if end == Kind.PAID_BANK:
                ledger.post(
                    key=f"returned:{reference}",
                    debit=goes,
                    credit=source,
                    amount_micro=USDC,
                    kind=Move.RETURNED,
                    at=noon,
                )
    meter.refresh_from_db()
    return meter


def found(name: str) -> dict[str, int]:
    [check] = [check for check in ledger.verify_books().checks if check.name == name]
    return check.off


def test_a_whole_story_is_proved_and_every_check_counts_something(story: Meter) -> None:
    report = ledger.verify_books()
    assert report.problems == []
    assert report.drift_micro == 0
    assert {check.figure.split()[0] for check in report.checks if "transfers" in check.figure} == {
        str(Transfer.objects.count())
    }
    assert len(report.checks) == 9


def test_a_damaged_balance_is_found_and_whose_it_is(story: Meter, renter: Organisation) -> None:
    Account.objects.filter(code=f"{Kind.RENTER_BALANCE}:{renter.public_id}").update(balance_micro=1)
    report = ledger.verify_books()
    assert report.drift_micro > 0
    assert f"{Kind.RENTER_BALANCE}:{renter.public_id}" in found("each balance is the sum of its transfers")
    assert found("the whole sums to zero")
    assert f"organisation {renter.public_id}" in found("each renter's money is on the balance, used or given back")


def test_a_meter_that_says_more_than_was_charged_is_found_on_the_meter_and_with_its_provider(
    story: Meter, provider: Organisation
) -> None:
    Meter.objects.filter(pk=story.pk).update(billed_gross_micro=story.billed_gross_micro + 5)
    assert found("each meter's bill is the sum of its charges") == {f"meter {story.public_id}": 5}
    assert found("each provider's earnings are payable, in transit or paid") == {
        f"organisation {provider.public_id}": -5
    }


def test_a_charge_that_no_meter_knows_is_found(story: Meter, renter: Organisation, provider: Organisation) -> None:
    ledger.post(
        key="ghost",
        debit=ledger.account(Kind.RENTER_BALANCE, organisation=renter),
        credit=ledger.account(Kind.PROVIDER_PAYABLE, organisation=provider),
        amount_micro=7,
        kind=Move.CHARGE,
        reference="no meter",
        at=story.started_at,
    )
    assert found("each meter's bill is the sum of its charges") == {"meter no meter": 7}
    assert found("each provider's earnings are payable, in transit or paid")


def test_a_charge_that_went_to_somebody_else_is_found(
    story: Meter, renter: Organisation, make_organisation: Callable[..., Organisation]
) -> None:
    other = ledger.account(Kind.PROVIDER_PAYABLE, organisation=make_organisation("other"))
    ledger.post(
        key="astray",
        debit=ledger.account(Kind.RENTER_BALANCE, organisation=renter),
        credit=other,
        amount_micro=7,
        kind=Move.CHARGE,
        reference=str(story.public_id),
        at=story.started_at,
    )
    Meter.objects.filter(pk=story.pk).update(billed_gross_micro=story.billed_gross_micro + 7)
    assert f"meter {story.public_id}" in found("each meter's bill is the sum of its charges")
    assert len(found("each provider's earnings are payable, in transit or paid")) == 2


@pytest.mark.parametrize("change", [-1, 1])
def test_a_meter_that_miscounts_what_was_given_back_is_found(story: Meter, change: int) -> None:
    Meter.objects.filter(pk=story.pk).update(refunded_micro=story.refunded_micro + change)
    assert found("what was given back of each meter is its credits and refunds, within its bill") == {
        f"meter {story.public_id}": 1
    }


def test_a_debt_that_is_not_what_the_credit_left_open_is_found(story: Meter) -> None:
    debt = ProviderDebt.objects.get()
    ProviderDebt.objects.filter(pk=debt.pk).update(amount_micro=debt.amount_micro + 2)
    assert found("each debt is what a credit left open") == {f"debt {debt.public_id}": 2}


def test_a_transfer_between_accounts_that_its_kind_has_no_business_with_is_found(
    renter: Organisation, noon: datetime
) -> None:
    ledger.post(
        key="odd",
        debit=ledger.account(Kind.TREASURY),
        credit=ledger.account(Kind.FEE),
        amount_micro=9,
        kind=Move.FEE,
        at=noon,
    )
    assert found("each transfer is of a kind that may move between its accounts") == {
        "fee from chain.treasury to platform.fee": 9
    }


def test_earnings_on_their_way_to_another_organisation_are_found(
    story: Meter, provider: Organisation, make_organisation: Callable[..., Organisation], noon: datetime
) -> None:
    transit = ledger.account(Kind.IN_TRANSIT, organisation=make_organisation("thief"), reference=uuid.uuid4())
    payable = ledger.account(Kind.PROVIDER_PAYABLE, organisation=provider)
    ledger.post(key="theft", debit=payable, credit=transit, amount_micro=3, kind=Move.PAYOUT, at=noon)
    assert found("each transfer is of a kind that may move between its accounts")


def test_the_proof_reads_the_transfers_once_and_asks_nothing_for_each_row(
    story: Meter, django_assert_max_num_queries: Callable[[int], object]
) -> None:
    with django_assert_max_num_queries(5):
        ledger.verify_books()


def test_corrections_of_every_kind_are_part_of_the_identity(
    story: Meter, renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    first, second = (person(name, is_staff=True) for name in ("third", "fourth"))
    charge = Transfer.objects.get(kind=Move.FEE)
    adjustments.make(
        adjustment=adjustments.ask_reversal(transfer=charge, reason="x", by=first, at=noon), by=second, at=noon
    )
    for debit, credit in (
        (ledger.account(Kind.LOSS), ledger.account(Kind.PROVIDER_PAYABLE, organisation=provider)),
        (ledger.account(Kind.RENTER_BALANCE, organisation=renter), ledger.account(Kind.ADJUSTMENTS)),
    ):
        asked = adjustments.ask(
            kind=Adjustment.Kind.ADJUSTMENT, debit=debit, credit=credit, amount_micro=11, reason="x", by=first, at=noon
        )
        adjustments.make(adjustment=asked, by=second, at=noon)
    assert ledger.verify_books().problems == []


def test_a_debt_that_was_made_away_with_is_found(story: Meter) -> None:
    ProviderDebt.objects.all().delete()
    assert found("each debt is what a credit left open")[f"credit of {story.reference}"] == 3 * USDC

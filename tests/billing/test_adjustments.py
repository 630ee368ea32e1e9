"""Corrections by hand: two people, a reason, both floors, never more back than was charged; whoever's money moved is told."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, transaction

from billing import adjustments, debts, ledger, metering
from billing.adjustments import RefundTooLarge
from billing.ledger import AlreadyReversed, Kind, Move, NotEnoughMoney, ReasonMissing
from billing.models import Account, Adjustment, Meter, ProviderDebt, Transfer
from gpunex.accounts.models import Notice, Organisation, User

from .conftest import USDC, fund, organisation, owned, person, start_meter
from .test_ledger import together

KIND, STATE = Adjustment.Kind, Adjustment.State
HOUR = timedelta(hours=1)


@pytest.fixture
def first(db: None) -> User:
    return person("first", is_staff=True)


@pytest.fixture
def second(db: None) -> User:
    return person("second", is_staff=True)


@pytest.fixture
def charged(renter: Organisation, provider: Organisation, noon: datetime) -> Meter:
    """An hour at 2.50 with a fee of 8 %: 2.30 to the provider, 0.20 to the platform."""
    meter = start_meter(renter, provider, at=noon)
    return metering.close_meter(meter=meter, ended_at=noon + HOUR, at=noon + HOUR)


def balance_of(org: Organisation) -> Account:
    return ledger.account(Kind.RENTER_BALANCE, organisation=org)


def earnings_of(org: Organisation) -> Account:
    return ledger.account(Kind.PROVIDER_PAYABLE, organisation=org)


def wanted(renter: Organisation, by: User, at: datetime, **other: Any) -> dict[str, Any]:
    return {
        "kind": KIND.ADJUSTMENT,
        "debit": ledger.account(Kind.ADJUSTMENTS),
        "credit": balance_of(renter),
        "amount_micro": 3 * USDC,
        "reason": "goodwill",
        "by": by,
        "at": at,
    } | other


# --- two people ------------------------------------------------------------------------------------------------------


def test_nothing_moves_before_a_second_administrator_makes_it(
    renter: Organisation, first: User, second: User, noon: datetime
) -> None:
    asked = adjustments.ask(**wanted(renter, first, noon))
    assert (asked.state, owned(renter)) == (STATE.ASKED, 100 * USDC)
    with pytest.raises(adjustments.SecondPersonNeeded):
        adjustments.make(adjustment=asked, by=first, at=noon)
    with pytest.raises(adjustments.StaffOnly):
        adjustments.make(adjustment=asked, by=person("renter"), at=noon)
    made = adjustments.make(adjustment=asked, by=second, at=noon)
    assert (made.state, made.decided_by, owned(renter)) == (STATE.MADE, second, 103 * USDC)
    row = made.transfer
    assert (row.actor, row.reason, row.data["asked_by"]) == (second, "goodwill", first.pk)
    with pytest.raises(adjustments.DecidedAlready):
        adjustments.make(adjustment=asked, by=second, at=noon)
    assert owned(renter) == 103 * USDC
    [notice] = Notice.objects.filter(organisation=renter, event="balance_raised")
    assert (notice.data["amount_micro"], notice.data["reason"]) == (3 * USDC, "goodwill")


def test_the_database_itself_wants_two_people(renter: Organisation, first: User, noon: datetime) -> None:
    asked = adjustments.ask(**wanted(renter, first, noon))
    with pytest.raises(DatabaseError, match="adjustment_made_by_second"), transaction.atomic():
        Adjustment.objects.filter(pk=asked.pk).update(
            state=STATE.MADE, decided_by=first, transfer=Transfer.objects.first()
        )


def test_only_staff_ask_and_only_with_a_reason(renter: Organisation, first: User, noon: datetime) -> None:
    with pytest.raises(adjustments.StaffOnly):
        adjustments.ask(**wanted(renter, person("someone"), noon))
    with pytest.raises(ReasonMissing):
        adjustments.ask(**wanted(renter, first, noon, reason="  "))
    assert not Adjustment.objects.exists()


def test_the_second_may_refuse_with_a_reason_and_the_first_may_withdraw(
    renter: Organisation, first: User, second: User, noon: datetime
) -> None:
    one, two = (adjustments.ask(**wanted(renter, first, noon, reason=reason)) for reason in ("goodwill", "an outage"))
    with pytest.raises(ReasonMissing):
        adjustments.refuse(adjustment=one, by=second, note="", at=noon)
    with pytest.raises(adjustments.SecondPersonNeeded):
        adjustments.refuse(adjustment=one, by=first, note="no", at=noon)
    refused = adjustments.refuse(adjustment=one, by=second, note="not our fault", at=noon)
    assert (refused.state, refused.decision_note) == (STATE.REFUSED, "not our fault")
    with pytest.raises(adjustments.NotYours):
        adjustments.withdraw(adjustment=two, by=second, at=noon)
    assert adjustments.withdraw(adjustment=two, by=first, at=noon).state == STATE.WITHDRAWN
    for over in (one, two):
        with pytest.raises(adjustments.DecidedAlready):
            adjustments.make(adjustment=over, by=second, at=noon)
    assert owned(renter) == 100 * USDC


@pytest.mark.django_db(transaction=True)
def test_two_administrators_at_once_make_it_once(noon: datetime) -> None:
    renter = organisation("renter")
    fund(renter, USDC, at=noon)
    asked = adjustments.ask(**wanted(renter, person("first", is_staff=True), noon))
    staff = [person(f"staff{number}", is_staff=True) for number in range(4)]
    results = together(4, lambda number: adjustments.make(adjustment=asked, by=staff[number], at=noon))
    assert sum(isinstance(result, Adjustment) for result in results) == 1
    assert sum(isinstance(result, adjustments.DecidedAlready) for result in results) == 3
    assert owned(renter) == 4 * USDC


# --- what may move ---------------------------------------------------------------------------------------------------


def test_both_floors_hold(
    renter: Organisation, provider: Organisation, first: User, second: User, noon: datetime
) -> None:
    out = ledger.account(Kind.ADJUSTMENTS)
    for source, amount in ((balance_of(renter), 100 * USDC + 1), (earnings_of(provider), 1)):
        asked = adjustments.ask(**wanted(renter, first, noon, debit=source, credit=out, amount_micro=amount))
        with pytest.raises(NotEnoughMoney):
            adjustments.make(adjustment=asked, by=second, at=noon)
        asked.refresh_from_db()
        assert asked.state == STATE.ASKED
    assert owned(renter) == 100 * USDC


def test_what_a_renter_used_already_is_not_taken_from_under_the_provider(
    renter: Organisation, provider: Organisation, first: User, second: User, noon: datetime
) -> None:
    meter = start_meter(renter, provider, at=noon, rate=50 * USDC, fee_bps=0)
    metering.prove(until={meter.pk: noon + HOUR})
    out = ledger.account(Kind.ADJUSTMENTS)
    asked = adjustments.ask(**wanted(renter, first, noon, debit=balance_of(renter), credit=out, amount_micro=60 * USDC))
    with pytest.raises(NotEnoughMoney):
        adjustments.make(adjustment=asked, by=second, at=noon + HOUR)
    less = adjustments.ask(**wanted(renter, first, noon, debit=balance_of(renter), credit=out, amount_micro=40 * USDC))
    adjustments.make(adjustment=less, by=second, at=noon + HOUR)
    meter.refresh_from_db()
    assert (owned(provider, Kind.PROVIDER_PAYABLE), owned(renter)) == (50 * USDC, 10 * USDC)
    assert meter.funded_until == noon + HOUR + timedelta(minutes=12)


def test_money_moves_from_one_renter_to_another_and_both_are_told(
    renter: Organisation, make_organisation: Callable[..., Organisation], first: User, second: User, noon: datetime
) -> None:
    other = make_organisation("other")
    asked = adjustments.ask(
        **wanted(other, first, noon, debit=balance_of(renter), reason="deposited for the wrong one")
    )
    adjustments.make(adjustment=asked, by=second, at=noon)
    assert (owned(renter), owned(other)) == (97 * USDC, 3 * USDC)
    assert Notice.objects.filter(organisation=renter, event="balance_lowered").count() == 1
    assert Notice.objects.filter(organisation=other, event="balance_raised").count() == 1
    assert ledger.verify_books().problems == []


@pytest.mark.parametrize("kind", [Kind.TREASURY, Kind.UNMATCHED, Kind.PAID_CHAIN, Kind.PAID_BANK])
def test_what_the_chain_or_a_bank_proves_is_not_moved_by_hand(
    renter: Organisation, first: User, noon: datetime, kind: Kind
) -> None:
    with pytest.raises(adjustments.NotAdjustable):
        adjustments.ask(**wanted(renter, first, noon, debit=ledger.account(kind)))


def test_from_and_to_are_two_accounts(renter: Organisation, first: User, noon: datetime) -> None:
    with pytest.raises(adjustments.SameAccount):
        adjustments.ask(**wanted(renter, first, noon, debit=balance_of(renter)))


# --- refunds ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("G1")
@pytest.mark.parametrize("from_earnings", [True, False])
def test_a_refund_gives_a_part_of_a_charge_back_and_is_kept_on_the_meter(
    charged: Meter, renter: Organisation, first: User, second: User, noon: datetime, from_earnings: bool
) -> None:
    asked = adjustments.ask_refund(
        meter=charged, amount_micro=USDC, from_earnings=from_earnings, reason="slow disk", by=first, at=noon
    )
    made = adjustments.make(adjustment=asked, by=second, at=noon)
    charged.refresh_from_db()
    assert (charged.refunded_micro, owned(renter)) == (USDC, 98_500_000)
    assert owned(charged.payee, Kind.PROVIDER_PAYABLE) == (1_300_000 if from_earnings else 2_300_000)
    assert (made.transfer.kind, made.transfer.reference) == (Move.REFUND, str(charged.public_id))
    assert Notice.objects.filter(organisation=renter, event="refund_made").count() == 1
    assert Notice.objects.filter(organisation=charged.payee, event="earnings_lowered").count() == int(from_earnings)
    assert ledger.verify_books().problems == []


def test_refunds_together_never_exceed_the_charge(charged: Meter, first: User, second: User, noon: datetime) -> None:
    def ask(micro: int) -> Adjustment:
        return adjustments.ask_refund(
            meter=charged, amount_micro=micro, from_earnings=False, reason="fault", by=first, at=noon
        )

    with pytest.raises(RefundTooLarge):
        ask(2_500_001)
    one, two = ask(1_500_000), ask(1_500_001)
    adjustments.make(adjustment=one, by=second, at=noon)
    with pytest.raises(RefundTooLarge) as caught:
        adjustments.make(adjustment=two, by=second, at=noon)
    assert caught.value.left_micro == 1_000_000
    assert "1.000000" in str(caught.value)
    adjustments.make(adjustment=ask(1_000_000), by=second, at=noon)
    charged.refresh_from_db()
    assert charged.refunded_micro == charged.billed_gross_micro == 2_500_000
    with pytest.raises(DatabaseError, match="meter_refund_within_gross"), transaction.atomic():
        Meter.objects.filter(pk=charged.pk).update(refunded_micro=2_500_001)


@pytest.mark.django_db(transaction=True)
def test_two_refunds_at_once_do_not_give_back_more_than_was_charged(noon: datetime) -> None:
    renter, provider = organisation("renter"), organisation("provider")
    first, second = person("first", is_staff=True), person("second", is_staff=True)
    fund(renter, 10 * USDC, at=noon)
    meter = start_meter(renter, provider, at=noon)
    metering.close_meter(meter=meter, ended_at=noon + HOUR, at=noon + HOUR)
    meter.refresh_from_db()
    asked = [
        adjustments.ask_refund(meter=meter, amount_micro=2 * USDC, from_earnings=False, reason=why, by=first, at=noon)
        for why in "abcd"
    ]
    results = together(4, lambda number: adjustments.make(adjustment=asked[number], by=second, at=noon))
    assert sum(isinstance(result, Adjustment) for result in results) == 1
    assert sum(isinstance(result, RefundTooLarge) for result in results) == 3
    assert owned(renter) == 9_500_000
    assert ledger.verify_books().problems == []


def test_a_refund_goes_to_who_was_charged_only(
    charged: Meter, make_organisation: Callable[..., Organisation], first: User, noon: datetime
) -> None:
    stranger = make_organisation("stranger")
    for debit, credit in (
        (ledger.account(Kind.CREDITS), balance_of(stranger)),
        (earnings_of(stranger), balance_of(charged.payer)),
        (ledger.account(Kind.LOSS), balance_of(charged.payer)),
    ):
        with pytest.raises(adjustments.WrongAccounts):
            adjustments.ask(
                **wanted(charged.payer, first, noon, kind=KIND.REFUND, debit=debit, credit=credit, meter=charged)
            )


# --- reversals -------------------------------------------------------------------------------------------------------


@pytest.mark.case("money-F31")
def test_a_charge_is_reversed_once_and_counts_as_given_back(
    charged: Meter, renter: Organisation, first: User, second: User, noon: datetime
) -> None:
    charge = Transfer.objects.get(kind=Move.CHARGE)
    asked = adjustments.ask_reversal(transfer=charge, reason="never ran", by=first, at=noon)
    with pytest.raises(adjustments.AskedAlready):
        adjustments.ask_reversal(transfer=charge, reason="again", by=first, at=noon)
    made = adjustments.make(adjustment=asked, by=second, at=noon)
    charged.refresh_from_db()
    assert (made.transfer.reverses, made.transfer.kind, charged.refunded_micro) == (charge, Move.REVERSAL, 2_300_000)
    assert owned(charged.payee, Kind.PROVIDER_PAYABLE) == 0
    with pytest.raises(AlreadyReversed):
        adjustments.ask_reversal(transfer=charge, reason="again", by=first, at=noon)
    with pytest.raises(RefundTooLarge):  # the fee is all that is left of it
        adjustments.ask_refund(meter=charged, amount_micro=200_001, from_earnings=False, reason="x", by=first, at=noon)
    assert ledger.verify_books().problems == []


def test_a_refund_that_was_a_mistake_is_reversed_and_can_be_given_anew(
    charged: Meter, renter: Organisation, first: User, second: User, noon: datetime
) -> None:
    asked = adjustments.ask_refund(
        meter=charged, amount_micro=2 * USDC, from_earnings=True, reason="wrong one", by=first, at=noon
    )
    refund = adjustments.make(adjustment=asked, by=second, at=noon).transfer
    back = adjustments.ask_reversal(transfer=refund, reason="of another rental", by=first, at=noon)
    adjustments.make(adjustment=back, by=second, at=noon)
    charged.refresh_from_db()
    assert (charged.refunded_micro, owned(renter)) == (0, 97_500_000)
    assert owned(charged.payee, Kind.PROVIDER_PAYABLE) == 2_300_000
    assert ledger.verify_books().problems == []


def test_a_deposit_is_not_reversed_since_it_is_on_chain(renter: Organisation, first: User, noon: datetime) -> None:
    deposit = Transfer.objects.get(kind=Move.DEPOSIT)
    with pytest.raises(adjustments.NotReversible):
        adjustments.ask_reversal(transfer=deposit, reason="x", by=first, at=noon)


# --- debts -----------------------------------------------------------------------------------------------------------


def test_a_debt_is_written_off_by_two_and_the_platform_bears_it(
    provider: Organisation, first: User, second: User, noon: datetime
) -> None:
    debt = debts.owe(organisation=provider, reference="rental", amount_micro=5 * USDC, at=noon)
    asked = adjustments.ask_write_off(debt=debt, reason="left for good", by=first, at=noon)
    with pytest.raises(adjustments.SecondPersonNeeded):
        adjustments.make(adjustment=asked, by=first, at=noon)
    adjustments.make(adjustment=asked, by=second, at=noon)
    debt.refresh_from_db()
    assert (debt.state, debt.closed_at, debts.open_debt(provider)) == (ProviderDebt.State.WRITTEN_OFF, noon, 0)
    assert ledger.balance(ledger.account(Kind.LOSS)) == -5 * USDC
    assert ledger.balance(ledger.account(Kind.CREDITS)) == 5 * USDC
    assert ledger.verify_books().problems == []
    with pytest.raises(adjustments.NoOpenDebt):
        adjustments.ask_write_off(debt=debt, reason="again", by=first, at=noon)


def test_a_debt_that_was_recovered_meanwhile_is_not_written_off_as_it_was(
    provider: Organisation, first: User, second: User, noon: datetime
) -> None:
    debt = debts.owe(organisation=provider, reference="rental", amount_micro=5 * USDC, at=noon)
    asked = adjustments.ask_write_off(debt=debt, reason="left for good", by=first, at=noon)
    adjustments.make(
        adjustment=adjustments.ask(**wanted(provider, first, noon, credit=earnings_of(provider), amount_micro=USDC)),
        by=second,
        at=noon,
    )
    with transaction.atomic():
        debts.recover(organisation=provider, at=noon, limit_micro=USDC)
    with pytest.raises(adjustments.NoOpenDebt):
        adjustments.make(adjustment=asked, by=second, at=noon)
    debt.refresh_from_db()
    assert debt.open_micro == 4 * USDC


@pytest.mark.django_db(transaction=True)
def test_a_form_that_is_sent_twice_at_once_asks_once(committed: None, noon: datetime) -> None:
    renter, first = organisation("renter"), person("first", is_staff=True)
    ledger.account(Kind.ADJUSTMENTS)
    fields = wanted(renter, first, noon)
    asked = together(4, lambda _number: adjustments.ask(**fields))
    assert sum(isinstance(one, adjustments.AskedAlready) for one in asked) == 3
    assert Adjustment.objects.count() == 1
    adjustments.ask(**fields | {"reason": "goodwill for another day"})
    assert Adjustment.objects.count() == 2

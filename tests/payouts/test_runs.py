"""Which payouts are made, when, and of how much: facts of the books, whatever the hour."""

import uuid
from datetime import UTC, date, datetime, timedelta

import pytest
from solders.keypair import Keypair

from billing import debts, ledger, metering
from billing.ledger import Kind, Move, NotEnoughMoney, Posting, ReasonMissing
from billing.models import Account, ProviderDebt, Statement, Transfer
from gpunex.accounts.models import Organisation, User
from gpunex.outbox.models import Message
from payouts import methods, payable, runs
from payouts.bank import rates
from payouts.models import Cadence, FxRate, Payout, PayoutMethod, PayoutPreference, PayoutRun, Rail
from tests.billing.conftest import fund, start_meter
from tests.billing.test_ledger import together
from tests.wallets import connect_wallet

from .conftest import USDC, organisation, owned, person

MONDAY = datetime(2026, 10, 19, tzinfo=UTC)
WEEK = timedelta(days=7)
BEFORE = MONDAY - timedelta(days=2)


def earner(
    micro: int, *, at: datetime, cadence: str = Cadence.WEEKLY, wallet: bool = True, rail: str = Rail.USDC
) -> Organisation:
    """Somebody who earned ``micro`` at ``at``."""
    org = organisation("provider")
    payable = ledger.account(Kind.PROVIDER_PAYABLE, organisation=org)
    Account.objects.filter(pk=payable.pk).update(created_at=at)
    if micro:
        credit(org, micro, at=at)
    if wallet and rail == Rail.USDC:
        connect_wallet(org, at=at)
    elif wallet:
        enter_bank(org, rail, at=at)
    PayoutPreference.objects.update_or_create(organisation=org, defaults={"cadence": cadence, "rail": rail})
    return org


def enter_bank(org: Organisation, rail: str, *, at: datetime) -> PayoutMethod:
    details = {"name": "Layla Mansour", "iban": "DE89370400440532013000", "bic": ""}
    if rail == Rail.ACH:
        details = {"name": "Layla Mansour", "routing": "021000021", "account": "123456789", "account_type": "checking"}
    return methods.keep_method(
        organisation=org,
        rail=rail,
        details=details,
        masked="•••• 3000",
        country="US" if rail == Rail.ACH else "DE",
        by=org.created_by,
        at=at,
    )


def credit(org: Organisation, micro: int, *, at: datetime) -> None:
    posting = Posting(
        key=str(uuid.uuid4()),
        debit=ledger.account(Kind.ADJUSTMENTS),
        credit=ledger.account(Kind.PROVIDER_PAYABLE, organisation=org),
        amount_micro=micro,
        kind=Move.ADJUSTMENT,
    )
    ledger.post_all([posting], at=at)


def quote(currency: str, micro_per_unit: int, *, at: datetime) -> FxRate:
    return rates.enter(
        currency=currency,
        micro_per_unit=micro_per_unit,
        source="a bank's page",
        quoted_at=at,
        by=person("treasurer", is_staff=True),
        at=at,
    )


# --- who and how much ------------------------------------------------------------------------------------------------


@pytest.mark.spec("H1")
@pytest.mark.django_db
def test_a_weekly_run_pays_who_earned_the_minimum_and_carries_over_the_rest() -> None:
    rich, poor, exact = (earner(micro, at=BEFORE) for micro in (50 * USDC, 20 * USDC - 1, 20 * USDC))
    homeless = earner(90 * USDC, at=BEFORE, wallet=False)
    assert runs.make_due(at=MONDAY + timedelta(minutes=3)) == 2
    assert set(Payout.objects.values_list("organisation", "amount_micro")) == {
        (rich.pk, 50 * USDC),
        (exact.pk, 20 * USDC),
    }
    assert owned(poor, Kind.PROVIDER_PAYABLE) == 20 * USDC - 1
    assert owned(homeless, Kind.PROVIDER_PAYABLE) == 90 * USDC
    credit(poor, 1, at=MONDAY + timedelta(days=1))
    assert runs.make_due(at=MONDAY + WEEK) == 1
    assert Payout.objects.get(organisation=poor).amount_micro == 20 * USDC


@pytest.mark.spec("H1")
@pytest.mark.django_db
def test_a_run_takes_what_was_earned_before_its_cut_off_and_nothing_later() -> None:
    org = earner(30 * USDC, at=MONDAY - timedelta(microseconds=1))
    credit(org, 7 * USDC, at=MONDAY)
    runs.make_due(at=MONDAY + timedelta(minutes=5))
    assert Payout.objects.get().amount_micro == 30 * USDC
    assert owned(org, Kind.PROVIDER_PAYABLE) == 7 * USDC


@pytest.mark.spec("H1", "G1")
@pytest.mark.django_db
def test_a_rental_over_the_cut_off_is_paid_up_to_it() -> None:
    renter = organisation("renter")
    org = earner(0, at=MONDAY - timedelta(days=1))
    fund(renter, 500 * USDC, at=MONDAY - timedelta(days=1))
    start = MONDAY - timedelta(hours=4)
    meter = start_meter(renter, org, at=start, rate=30 * USDC, fee_bps=1000)
    metering.prove(until={meter.pk: MONDAY + timedelta(minutes=10)})
    assert runs.make_due(at=MONDAY + timedelta(minutes=10)) == 1
    # Four hours less the fee; of it two hours' price stays while the rental runs. The ten minutes after are the next week's.
    payout = Payout.objects.get()
    assert payout.amount_micro == 108 * USDC - 60 * USDC
    assert owned(org, Kind.PROVIDER_PAYABLE) == 60 * USDC + 4_500_000
    body = Statement.objects.get(reference=str(payout.public_id)).body
    assert (body["later_micro"], body["kept_micro"], body["amount_micro"]) == (4_500_000, 60 * USDC, 48 * USDC)


@pytest.mark.spec("H1")
@pytest.mark.django_db
def test_a_provider_who_began_after_the_cut_off_is_in_the_next_run() -> None:
    old, new = earner(30 * USDC, at=BEFORE), earner(30 * USDC, at=MONDAY + timedelta(hours=1))
    assert runs.make_due(at=MONDAY + timedelta(hours=2)) == 1
    assert Payout.objects.get().organisation == old
    assert runs.make_due(at=MONDAY + WEEK) == 1
    assert Payout.objects.get(organisation=new).run.period_end == MONDAY + WEEK


# --- when ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("H1")
@pytest.mark.case("money-F55", "money-F25")
@pytest.mark.django_db
def test_what_was_missed_in_a_pause_is_made_once_each_oldest_first() -> None:
    org = earner(30 * USDC, at=MONDAY - timedelta(hours=1))
    credit(org, 40 * USDC, at=MONDAY + timedelta(days=1))
    late = MONDAY + 2 * WEEK + timedelta(days=1, hours=4)
    assert runs.make_due(at=late) == 2
    assert runs.make_due(at=late + timedelta(minutes=5)) == 0
    weekly = PayoutRun.objects.filter(cadence=Cadence.WEEKLY).order_by("period_end")
    assert list(weekly.values_list("period_end", flat=True)) == [MONDAY, MONDAY + WEEK, MONDAY + 2 * WEEK]
    assert [payout.amount_micro for payout in Payout.objects.order_by("run__period_end")] == [30 * USDC, 40 * USDC]


@pytest.mark.spec("H1")
@pytest.mark.case("money-F55")
@pytest.mark.django_db
def test_a_worker_down_from_sunday_night_to_tuesday_pays_monday_by_the_books_of_monday() -> None:
    org = earner(25 * USDC, at=BEFORE)
    assert runs.make_due(at=MONDAY - timedelta(minutes=10)) == 0
    credit(org, 9 * USDC, at=MONDAY + timedelta(hours=20))
    tuesday = MONDAY + timedelta(days=1, hours=4)
    assert runs.make_due(at=tuesday) == 1
    payout = Payout.objects.get()
    assert (payout.amount_micro, payout.run.period_end) == (25 * USDC, MONDAY)
    assert payout.run.execute_on == MONDAY.date()
    assert owned(org, Kind.PROVIDER_PAYABLE) == 9 * USDC


@pytest.mark.spec("H1")
@pytest.mark.django_db
def test_a_choice_made_while_the_run_was_late_counts_from_the_next_cut_off() -> None:
    org = earner(25 * USDC, at=BEFORE)
    methods.choose_cadence(
        organisation=org, cadence=Cadence.MONTHLY, by=org.created_by, at=MONDAY + timedelta(hours=30)
    )
    assert runs.make_due(at=MONDAY + timedelta(hours=31)) == 1
    assert PayoutPreference.objects.get(organisation=org).cadence == Cadence.WEEKLY
    credit(org, 25 * USDC, at=MONDAY + timedelta(days=2))
    assert runs.make_due(at=MONDAY + WEEK) == 1
    assert PayoutPreference.objects.get(organisation=org).cadence == Cadence.MONTHLY
    assert set(PayoutRun.objects.values_list("cadence", flat=True)) == {Cadence.WEEKLY}


@pytest.mark.spec("H1")
@pytest.mark.django_db
def test_a_cadence_counts_from_the_next_period_and_nobody_is_in_both_runs_of_one_monday() -> None:
    first_monday = datetime(2027, 2, 1, tzinfo=UTC)  # the 1st is a Monday: both cycles end
    before = first_monday - timedelta(days=3)
    org, other = earner(6 * USDC, at=before), earner(6 * USDC, at=before, cadence=Cadence.MONTHLY)
    weekly = earner(26 * USDC, at=before)
    methods.choose_cadence(organisation=org, cadence=Cadence.MONTHLY, by=org.created_by, at=before)
    assert runs.make_due(at=first_monday) == 2
    assert {(payout.organisation, payout.run.cadence) for payout in Payout.objects.all()} == {
        (other, Cadence.MONTHLY),
        (weekly, Cadence.WEEKLY),
    }
    assert PayoutPreference.objects.get(organisation=org).cadence == Cadence.MONTHLY
    assert PayoutRun.objects.filter(period_end=first_monday).count() == 2
    # A run of that Monday that is taken up again later finds the same people in it.
    PayoutRun.objects.update(made_at=None)
    assert runs.make_due(at=first_monday + timedelta(hours=1)) == 0
    assert runs.make_due(at=datetime(2027, 3, 1, tzinfo=UTC)) == 1
    assert Payout.objects.filter(organisation=org).get().run.cadence == Cadence.MONTHLY


@pytest.mark.spec("H1")
@pytest.mark.django_db
def test_both_cycles_of_one_monday_pay_each_provider_once_with_its_own_day() -> None:
    both = datetime(2026, 6, 1, tzinfo=UTC)
    weekly, monthly = (earner(40 * USDC, at=both - WEEK, cadence=cadence) for cadence in Cadence.values)
    runs.make_due(at=both + timedelta(minutes=1))
    made = {payout.organisation: payout.run for payout in Payout.objects.filter(run__period_end=both)}
    assert {org: run.cadence for org, run in made.items()} == {weekly: Cadence.WEEKLY, monthly: Cadence.MONTHLY}
    assert {run.execute_on for run in made.values()} == {date(2026, 6, 1)}


@pytest.mark.spec("H1", "H3")
@pytest.mark.django_db
def test_another_rail_counts_from_the_next_period_and_pays_there_once() -> None:
    org = earner(30 * USDC, at=BEFORE)
    enter_bank(org, Rail.SEPA, at=BEFORE - timedelta(days=3))
    methods.choose_rail(organisation=org, rail=Rail.SEPA, by=org.created_by, at=BEFORE)
    quote("EUR", 1_085_000, at=MONDAY)
    assert runs.make_due(at=MONDAY) == 1
    assert Payout.objects.get().rail == Rail.USDC
    credit(org, 100 * USDC, at=MONDAY + timedelta(days=1))
    quote("EUR", 1_085_000, at=MONDAY + WEEK)
    assert runs.make_due(at=MONDAY + WEEK) == 1
    payout = Payout.objects.get(rail=Rail.SEPA)
    assert (payout.destination, payout.run.execute_on) == ("•••• 3000", date(2026, 10, 26))
    # 92.16 euro at 1.085; what is less than a cent stays.
    assert (payout.bank_transfer.amount_cents, payout.amount_micro) == (9216, 99_993_600)
    assert owned(org, Kind.PROVIDER_PAYABLE) == 6_400
    assert ledger.verify_books().drift_micro == 0


@pytest.mark.spec("H1", "H3")
@pytest.mark.django_db
def test_a_bank_run_without_a_fresh_rate_waits_and_says_so_once_a_day_while_the_others_go_on() -> None:
    admin = person("admin", is_staff=True, is_superuser=True)
    bank, chain = earner(30 * USDC, at=BEFORE, rail=Rail.ACH), earner(30 * USDC, at=BEFORE)
    quote("USD", 1_000_000, at=MONDAY - timedelta(hours=30))
    for minutes in (0, 5, 10):
        runs.make_due(at=MONDAY + timedelta(minutes=minutes))
    assert Payout.objects.get().organisation == chain
    assert PayoutRun.objects.get(rail=Rail.ACH).made_at is None
    alerts = Message.objects.filter(to=admin.email, event="payouts_need_attention")
    assert alerts.count() == 1
    runs.make_due(at=MONDAY + timedelta(days=1))
    assert alerts.count() == 2
    quote("USD", 1_000_000, at=MONDAY + timedelta(days=1, hours=1))
    assert runs.make_due(at=MONDAY + timedelta(days=1, hours=2)) == 1
    payout = Payout.objects.get(organisation=bank)
    assert (payout.amount_micro, payout.run.period_end, payout.state) == (30 * USDC, MONDAY, Payout.State.APPROVED)


# --- debts and statements --------------------------------------------------------------------------------------------


@pytest.mark.spec("H1", "G1")
@pytest.mark.django_db
def test_debts_are_taken_before_the_payout_and_never_more_than_was_payable_at_the_cut_off() -> None:
    org = earner(30 * USDC, at=BEFORE)
    credit(org, 100 * USDC, at=MONDAY)
    debts.owe(organisation=org, reference="rental-1", amount_micro=4 * USDC, at=BEFORE)
    runs.make_due(at=MONDAY + timedelta(minutes=1))
    payout = Payout.objects.get()
    assert payout.amount_micro == 26 * USDC
    assert ProviderDebt.objects.get().state == ProviderDebt.State.RECOVERED
    body = Statement.objects.get(reference=str(payout.public_id)).body
    assert "recovery" in {line["kind"] for line in body["lines"]}
    debts.owe(organisation=org, reference="rental-2", amount_micro=500 * USDC, at=MONDAY)
    assert runs.make_due(at=MONDAY + WEEK) == 0
    # What it had then went into the debt; the rest of it is taken later.
    assert (owned(org, Kind.PROVIDER_PAYABLE), debts.open_debt(org)) == (0, 400 * USDC)
    assert ledger.verify_books().drift_micro == 0


@pytest.mark.spec("H1")
@pytest.mark.django_db
def test_each_payout_has_a_statement_that_its_memo_carries() -> None:
    orgs = [earner(micro * USDC, at=BEFORE) for micro in (30, 40)]
    runs.make_due(at=MONDAY)
    for org in orgs:
        payout = Payout.objects.get(organisation=org)
        statement = Statement.objects.get(reference=str(payout.public_id))
        assert payout.memo == f"gpunex:{payout.public_id}:{statement.sha256}"
        assert (statement.period_start, statement.period_end) == (MONDAY - WEEK, MONDAY)
        assert statement.body["amount_micro"] == payout.amount_micro


@pytest.mark.django_db
def test_a_statement_that_cannot_be_issued_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, fine = (earner(30 * USDC, at=BEFORE) for _ in range(2))
    debts.owe(organisation=broken, reference="rental", amount_micro=USDC, at=BEFORE)
    admin = person("admin", is_staff=True, is_superuser=True)
    # The books of one organisation disagree, which issuing a statement finds.
    Account.objects.filter(organisation=broken, kind=Kind.PROVIDER_PAYABLE).update(balance_micro=31 * USDC)
    assert runs.make_due(at=MONDAY) == 1
    assert Payout.objects.get().organisation == fine
    assert ProviderDebt.objects.get().recovered_micro == 0
    assert not Transfer.objects.filter(debit__organisation=broken).exists()
    run = PayoutRun.objects.get()
    assert run.made_at is None and run.cleared_at is not None
    assert Message.objects.filter(to=admin.email, event="payouts_need_attention").count() == 1
    Account.objects.filter(organisation=broken, kind=Kind.PROVIDER_PAYABLE).update(balance_micro=30 * USDC)
    assert runs.make_due(at=MONDAY + timedelta(minutes=5)) == 1
    assert PayoutRun.objects.get().made_at is not None
    assert Payout.objects.get(organisation=broken).amount_micro == 29 * USDC


# --- twice, or at once -----------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("money-F33", "money-F47")
def test_a_run_made_by_two_workers_at_once_pays_once() -> None:
    orgs = [earner(30 * USDC, at=MONDAY - timedelta(days=1)) for _ in range(3)]
    results = together(4, lambda _n: runs.make_due(at=MONDAY))
    assert [payout.organisation_id for payout in Payout.objects.order_by("organisation")] == [org.pk for org in orgs]
    runs.make_due(at=MONDAY + timedelta(minutes=5))
    assert Payout.objects.count() == 3
    assert Statement.objects.count() == 3
    assert ledger.verify_books().drift_micro == 0
    assert sum(result for result in results if isinstance(result, int)) <= 3


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("money-F10", "money-F27")
def test_two_admins_at_once_cannot_pay_the_same_money(at: datetime) -> None:
    admins = [person("admin", is_staff=True) for _ in range(4)]
    org = earner(30 * USDC, at=at)
    results = together(4, lambda number: runs.pay_off_cycle(organisation=org, by=admins[number], reason="now", at=at))
    assert sum(isinstance(result, Payout) for result in results) == 1
    assert owned(org, Kind.PROVIDER_PAYABLE) == 0


@pytest.mark.case("money-F26", "money-F33")
@pytest.mark.django_db
def test_twenty_sweeps_of_one_monday_pay_once() -> None:
    """Also where each fails after the fact and is tried again: what is made is a row, and rows are looked for first."""
    org = earner(30 * USDC, at=BEFORE)
    for step in range(20):
        PayoutRun.objects.update(made_at=None)
        runs.make_due(at=MONDAY + timedelta(seconds=step))
    assert Payout.objects.count() == 1
    assert owned(org, Kind.PROVIDER_PAYABLE) == 0


# --- by hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("H1")
def test_off_cycle_pays_below_the_minimum_and_needs_a_reason_staff_and_money(at: datetime, admin: User) -> None:
    org = earner(3 * USDC, at=at)
    with pytest.raises(ReasonMissing):
        runs.pay_off_cycle(organisation=org, by=admin, reason="  ", at=at)
    with pytest.raises(runs.StaffOnly):
        runs.pay_off_cycle(organisation=org, by=org.created_by, reason="mine", at=at)
    with pytest.raises(NotEnoughMoney):
        runs.pay_off_cycle(organisation=org, by=admin, reason="x", at=at, amount_micro=3 * USDC + 1)
    payout = runs.pay_off_cycle(organisation=org, by=admin, reason="x", at=at)
    assert (payout.amount_micro, payout.state, payout.run.reason) == (3 * USDC, Payout.State.APPROVED, "x")
    assert payout.run.cleared_at is not None
    with pytest.raises(runs.NothingToPay):
        runs.pay_off_cycle(organisation=org, by=admin, reason="again", at=at)
    with pytest.raises(runs.NoPayoutMethod):
        runs.pay_off_cycle(organisation=earner(USDC, at=at, wallet=False), by=admin, reason="x", at=at)


def test_off_cycle_to_a_bank_pays_whole_cents_on_its_business_day(admin: User) -> None:
    saturday = datetime(2026, 10, 24, 12, tzinfo=UTC)
    org = earner(3 * USDC, at=saturday, rail=Rail.SEPA)
    with pytest.raises(rates.RateMissing):
        runs.pay_off_cycle(organisation=org, by=admin, reason="x", at=saturday)
    quote("EUR", 1_085_000, at=saturday)
    payout = runs.pay_off_cycle(organisation=org, by=admin, reason="x", at=saturday)
    assert (payout.rail, payout.run.execute_on, payout.bank_transfer.amount_cents) == (
        Rail.SEPA,
        date(2026, 10, 26),
        276,
    )
    assert payout.amount_micro + owned(org, Kind.PROVIDER_PAYABLE) == 3 * USDC


def test_what_a_break_of_running_rentals_would_credit_stays_until_they_end(at: datetime, admin: User) -> None:
    org, renter = earner(30 * USDC, at=at), organisation("renter")
    fund(renter, 100 * USDC, at=at)
    meter = start_meter(payer=renter, payee=org, rate=2 * USDC, at=at)
    later = at + timedelta(hours=10)
    metering.prove(until={meter.pk: later})
    first = runs.pay_off_cycle(organisation=org, by=admin, reason="while it runs", at=later)
    meter.refresh_from_db()
    net = meter.billed_gross_micro - meter.billed_fee_micro
    # Two hours of it at the most: the credit of the enterprise tier.
    assert payable.kept_back(org) == 4 * USDC
    assert first.amount_micro == 30 * USDC + net - 4 * USDC
    metering.close_meter(meter=meter, ended_at=later, at=later)
    assert payable.kept_back(org) == 0
    assert runs.pay_off_cycle(organisation=org, by=admin, reason="it ended well", at=later).amount_micro == 4 * USDC
    assert ledger.verify_books().drift_micro == 0


def test_a_changed_wallet_waits_48_hours_and_never_redirects_what_is_under_way(at: datetime, admin: User) -> None:
    org, key = earner(30 * USDC, at=at, wallet=False), Keypair()
    first = connect_wallet(org, at=at, key=key)
    payout = runs.pay_off_cycle(organisation=org, by=admin, reason="x", at=at, amount_micro=USDC)
    second = connect_wallet(org, at=at)
    assert methods.active_method(org, at + timedelta(hours=47)) == first
    assert methods.active_method(org, at + timedelta(hours=48)) == second
    payout.refresh_from_db()
    assert (payout.destination, payout.method) == (first.address, first)
    with pytest.raises(methods.ConnectedAlready):
        connect_wallet(org, at=at, key=key)
    third = connect_wallet(org, at=at)
    assert methods.waiting_method(org, at) == third


@pytest.mark.spec("H1")
@pytest.mark.django_db
def test_what_comes_next_says_cut_off_day_and_rail() -> None:
    org = earner(0, at=BEFORE, cadence=Cadence.MONTHLY, rail=Rail.SEPA)
    coming = runs.next_payout(org, datetime(2028, 4, 12, tzinfo=UTC))
    assert coming == (Cadence.MONTHLY, datetime(2028, 5, 1, tzinfo=UTC), date(2028, 5, 2), Rail.SEPA)

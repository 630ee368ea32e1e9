"""When payouts are due, and how much: facts of the books, whatever the hour."""

import uuid
from datetime import UTC, date, datetime, timedelta

import pytest

from billing import ledger, metering
from billing.ledger import Kind, Move, NotEnoughMoney, Posting, ReasonMissing
from billing.models import Account
from gpunex.accounts.models import Organisation, User
from gpunex.policy.models import Policy
from payouts import methods, runs
from payouts.models import Cadence, Payout, PayoutPreference, PayoutRun
from tests import chainkit
from tests.billing.conftest import fund, start_meter
from tests.billing.test_ledger import together

from .conftest import USDC, organisation, owned, person

MONDAY = datetime(2026, 10, 19, tzinfo=UTC)
WEEK = timedelta(days=7)


def earner(micro: int, *, at: datetime, cadence: str = Cadence.WEEKLY, wallet: bool = True) -> Organisation:
    """Somebody who earned ``micro`` at ``at``."""
    org = organisation("provider")
    payable = ledger.account(Kind.PROVIDER_PAYABLE, organisation=org)
    Account.objects.filter(pk=payable.pk).update(created_at=at)
    if micro:
        credit(org, micro, at=at)
    if wallet:
        methods.connect_wallet(organisation=org, address=chainkit.wallet(), by=org.created_by, at=at)
    if cadence == Cadence.MONTHLY:
        PayoutPreference.objects.create(organisation=org, cadence=cadence)
    return org


def credit(org: Organisation, micro: int, *, at: datetime) -> None:
    posting = Posting(
        key=str(uuid.uuid4()),
        debit=ledger.account(Kind.ADJUSTMENTS),
        credit=ledger.account(Kind.PROVIDER_PAYABLE, organisation=org),
        amount_micro=micro,
        kind=Move.ADJUSTMENT,
    )
    ledger.post_all([posting], at=at)


@pytest.mark.spec("H1")
@pytest.mark.case("money-F48")
@pytest.mark.parametrize(
    ("year", "month", "day"),
    [(2026, 2, 2), (2026, 5, 1), (2026, 8, 3), (2026, 11, 2), (2027, 1, 4), (2028, 5, 1), (2029, 9, 4)],
)
def test_monthly_payouts_are_made_on_the_first_business_day(year: int, month: int, day: int) -> None:
    assert runs.execution_date(Cadence.MONTHLY, datetime(year, month, 1, tzinfo=UTC)) == date(year, month, day)


@pytest.mark.spec("H1")
def test_weekly_usdc_is_paid_on_monday_even_if_that_is_a_holiday() -> None:
    memorial_day = datetime(2026, 5, 25, tzinfo=UTC)
    assert runs.execution_date(Cadence.WEEKLY, memorial_day) == date(2026, 5, 25)


@pytest.mark.parametrize(
    ("after", "weekly", "monthly"),
    [
        (
            datetime(2026, 12, 31, 23, 59, tzinfo=UTC),
            datetime(2027, 1, 4, tzinfo=UTC),
            datetime(2027, 1, 1, tzinfo=UTC),
        ),
        (datetime(2028, 2, 28, 12, tzinfo=UTC), datetime(2028, 3, 6, tzinfo=UTC), datetime(2028, 3, 1, tzinfo=UTC)),
        (MONDAY, MONDAY + WEEK, datetime(2026, 11, 1, tzinfo=UTC)),
    ],
)
def test_periods_end_on_mondays_and_on_firsts(after: datetime, weekly: datetime, monthly: datetime) -> None:
    assert runs.next_period_end(Cadence.WEEKLY, after) == weekly
    assert runs.next_period_end(Cadence.MONTHLY, after) == monthly


@pytest.mark.spec("H1")
@pytest.mark.django_db
def test_a_weekly_run_pays_who_earned_the_minimum_and_carries_over_the_rest() -> None:
    before = MONDAY - timedelta(days=2)
    rich, poor, exact = (earner(micro, at=before) for micro in (50 * USDC, 20 * USDC - 1, 20 * USDC))
    homeless = earner(90 * USDC, at=before, wallet=False)
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
    assert Payout.objects.get().amount_micro == 108 * USDC - 60 * USDC
    assert owned(org, Kind.PROVIDER_PAYABLE) == 60 * USDC + 4_500_000


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
@pytest.mark.django_db
def test_a_cadence_counts_from_the_next_period_and_nobody_is_in_both_runs_of_one_monday() -> None:
    first_monday = datetime(2027, 2, 1, tzinfo=UTC)  # the 1st is a Monday: both cycles end
    org = earner(6 * USDC, at=first_monday - timedelta(days=3))
    PayoutPreference.objects.create(organisation=org, cadence=Cadence.WEEKLY, next_cadence=Cadence.MONTHLY)
    other = earner(6 * USDC, at=first_monday - timedelta(days=3), cadence=Cadence.MONTHLY)
    assert runs.make_due(at=first_monday) == 1
    assert Payout.objects.get().organisation == other
    assert PayoutPreference.objects.get(organisation=org).cadence == Cadence.MONTHLY
    assert PayoutRun.objects.filter(period_end=first_monday).count() == 2
    assert runs.make_due(at=datetime(2027, 3, 1, tzinfo=UTC)) == 1
    assert Payout.objects.filter(organisation=org).get().run.cadence == Cadence.MONTHLY


@pytest.mark.django_db
def test_one_row_that_fails_does_not_stop_the_run_and_is_made_by_the_next_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken, fine = (earner(30 * USDC, at=MONDAY - timedelta(days=1)) for _ in range(2))
    real = runs.payable_at

    def failing(org: Organisation, cut_off: datetime | None) -> int:
        if org == broken:
            raise RuntimeError("a bad row")
        return real(org, cut_off)

    monkeypatch.setattr(runs, "payable_at", failing)
    assert runs.make_due(at=MONDAY) == 1
    assert Payout.objects.get().organisation == fine
    monkeypatch.setattr(runs, "payable_at", real)
    assert runs.make_due(at=MONDAY + timedelta(minutes=5)) == 1
    assert Payout.objects.filter(organisation=broken).count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("money-F33", "money-F47")
def test_a_run_made_by_two_workers_at_once_pays_once() -> None:
    orgs = [earner(30 * USDC, at=MONDAY - timedelta(days=1)) for _ in range(3)]
    results = together(4, lambda _n: runs.make_due(at=MONDAY))
    assert [payout.organisation_id for payout in Payout.objects.order_by("organisation")] == [org.pk for org in orgs]
    runs.make_due(at=MONDAY + timedelta(minutes=5))
    assert Payout.objects.count() == 3
    assert ledger.verify_books().drift_micro == 0
    assert sum(result for result in results if isinstance(result, int)) <= 3


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
    with pytest.raises(runs.NothingToPay):
        runs.pay_off_cycle(organisation=org, by=admin, reason="again", at=at)
    with pytest.raises(runs.NoPayoutMethod):
        runs.pay_off_cycle(organisation=earner(USDC, at=at, wallet=False), by=admin, reason="x", at=at)


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
    assert runs.kept_back(org) == 4 * USDC
    assert first.amount_micro == 30 * USDC + net - 4 * USDC
    metering.close_meter(meter=meter, ended_at=later, at=later)
    assert runs.kept_back(org) == 0
    assert runs.pay_off_cycle(organisation=org, by=admin, reason="it ended well", at=later).amount_micro == 4 * USDC
    assert ledger.verify_books().drift_micro == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("money-F10", "money-F27")
def test_two_admins_at_once_cannot_pay_the_same_money(at: datetime) -> None:
    admins = [person("admin", is_staff=True) for _ in range(4)]
    org = earner(30 * USDC, at=at)
    results = together(4, lambda number: runs.pay_off_cycle(organisation=org, by=admins[number], reason="now", at=at))
    assert sum(isinstance(result, Payout) for result in results) == 1
    assert owned(org, Kind.PROVIDER_PAYABLE) == 0


@pytest.mark.spec("H1")
def test_a_cycle_payout_above_the_cap_waits_for_two_different_admins(
    at: datetime, admin: User, second_admin: User
) -> None:
    Policy.load()
    Policy.objects.update(payout_cap_micro=25 * USDC)
    earner(30 * USDC, at=MONDAY - timedelta(days=1))
    runs.make_due(at=MONDAY)
    payout = Payout.objects.get()
    assert payout.state == Payout.State.RESERVED
    assert runs.approve(payout=payout, by=admin, at=MONDAY).state == Payout.State.RESERVED
    with pytest.raises(runs.ApprovedAlready):
        runs.approve(payout=payout, by=admin, at=MONDAY)
    assert runs.approve(payout=payout, by=second_admin, at=MONDAY).state == Payout.State.APPROVED
    with pytest.raises(runs.NotWaiting):
        runs.approve(payout=payout, by=second_admin, at=MONDAY)


def test_a_changed_wallet_waits_48_hours_and_never_redirects_what_is_under_way(at: datetime, admin: User) -> None:
    org = earner(30 * USDC, at=at)
    first = methods.active_method(org, at)
    payout = runs.pay_off_cycle(organisation=org, by=admin, reason="x", at=at, amount_micro=USDC)
    second = methods.connect_wallet(organisation=org, address=chainkit.wallet(), by=org.created_by, at=at)
    assert methods.active_method(org, at + timedelta(hours=47)) == first
    assert methods.active_method(org, at + timedelta(hours=48)) == second
    payout.refresh_from_db()
    assert payout.destination == first.address
    with pytest.raises(methods.ConnectedAlready):
        methods.connect_wallet(organisation=org, address=first.address, by=org.created_by, at=at)
    third = methods.connect_wallet(organisation=org, address=chainkit.wallet(), by=org.created_by, at=at)
    assert methods.waiting_method(org, at) == third

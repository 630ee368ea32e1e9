"""Metering: exact whatever the ticks, never for what was not proved, never beyond the balance."""

import random
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing import ledger, metering
from billing.ledger import Kind, NotEnoughMoney
from billing.models import Meter, Transfer
from gpunex.accounts.models import Organisation

from .conftest import USDC, fund, organisation, owned, start_meter
from .test_ledger import together

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


def prove_and_settle(meter: Meter, until: datetime) -> None:
    metering.prove(until={meter.pk: until})
    metering.settle_payer(organisation=meter.payer, at=until)
    meter.refresh_from_db()


@given(
    rate=st.integers(1, 10_000_000_000),
    bps=st.integers(0, 5000),
    ticks=st.lists(st.integers(0, 1_000_000), min_size=1, max_size=30),
)
def test_any_ticks_come_to_the_same_total_and_the_parts_to_the_charge(rate: int, bps: int, ticks: list[int]) -> None:
    gross = net = fee = 0
    billed = (0, 0)
    for seconds in sorted(ticks):
        total = metering.gross_of(rate, seconds)
        total_fee = metering.fee_of(total, bps)
        d_gross, d_fee = total - billed[0], total_fee - billed[1]
        assert d_gross >= 0
        assert d_fee >= 0
        assert d_gross - d_fee >= 0
        gross, fee, net = gross + d_gross, fee + d_fee, net + d_gross - d_fee
        billed = (total, total_fee)
    assert gross == metering.gross_of(rate, max(ticks))
    assert net + fee == gross


@pytest.mark.spec("G1")
@pytest.mark.parametrize(
    ("rate", "bps", "seconds", "gross", "fee"),
    [(350_000, 800, 3600, 350_000, 28_000), (350_000, 800, 86_400, 8_400_000, 672_000)],
)
def test_the_known_vectors_come_out_exactly_at_random_ticks(
    renter: Organisation,
    provider: Organisation,
    noon: datetime,
    rate: int,
    bps: int,
    seconds: int,
    gross: int,
    fee: int,
) -> None:
    meter = start_meter(renter, provider, at=noon, rate=rate, fee_bps=bps)
    chance = random.Random(7)
    for tick in [*sorted(chance.sample(range(1, seconds), 12)), seconds]:
        prove_and_settle(meter, noon + tick * SECOND)
    assert (meter.billed_seconds, meter.billed_gross_micro, meter.billed_fee_micro) == (seconds, gross, fee)
    assert owned(renter) == 100 * USDC - gross
    assert owned(provider, Kind.PROVIDER_PAYABLE) == gross - fee
    assert ledger.balance(ledger.account(Kind.FEE)) == fee
    assert ledger.verify_books().drift_micro == 0


@pytest.mark.spec("G1")
def test_silence_is_not_billed(renter: Organisation, provider: Organisation, noon: datetime) -> None:
    meter = start_meter(renter, provider, at=noon)
    metering.prove(until={meter.pk: noon + 30 * SECOND})
    metering.settle_payer(organisation=renter, at=noon + HOUR)
    meter.refresh_from_db()
    assert meter.billed_seconds == 30
    assert metering.accrued(meter).seconds == 30


def test_a_proof_only_moves_forward(renter: Organisation, provider: Organisation, noon: datetime) -> None:
    meter = start_meter(renter, provider, at=noon)
    assert metering.prove(until={meter.pk: noon + 60 * SECOND}) == 1
    assert metering.prove(until={meter.pk: noon + 10 * SECOND}) == 0
    meter.refresh_from_db()
    assert meter.proved_until == noon + 60 * SECOND


def test_a_charge_needs_a_whole_second_and_fractions_are_not_lost(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    start = noon + timedelta(milliseconds=700)
    meter = start_meter(renter, provider, at=start, rate=3_600_000)
    prove_and_settle(meter, noon + timedelta(milliseconds=1600))
    assert meter.billed_seconds == 0
    prove_and_settle(meter, noon + timedelta(milliseconds=2700))
    assert (meter.billed_seconds, meter.billed_gross_micro) == (2, 2000)


def test_opening_twice_for_one_rental_is_one_meter(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    reference = uuid.uuid4()
    values = {
        "payer": renter,
        "payee": provider,
        "rate_micro_per_hour": 1,
        "quantity": 1,
        "fee_bps": 0,
        "reference": reference,
        "labels": {},
    }
    first = metering.open_meter(**values, at=noon)
    assert metering.open_meter(**values, at=noon + SECOND) == first
    assert Meter.objects.get().started_at == noon


@pytest.mark.spec("G1")
def test_the_first_end_wins_and_closing_again_changes_nothing(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    meter = start_meter(renter, provider, at=noon, rate=3_600_000)
    ended = metering.close_meter(meter=meter, ended_at=noon + 100 * SECOND, at=noon + 110 * SECOND)
    assert (ended.billed_seconds, ended.closed) == (100, True)
    again = metering.close_meter(meter=meter, ended_at=noon + 500 * SECOND, at=noon + 600 * SECOND)
    assert (again.ended_at, again.billed_seconds) == (noon + 100 * SECOND, 100)
    assert metering.prove(until={meter.pk: noon + HOUR}) == 0
    assert owned(renter) == 100 * USDC - 100_000


def test_an_end_before_the_start_charges_nothing(renter: Organisation, provider: Organisation, noon: datetime) -> None:
    meter = start_meter(renter, provider, at=noon)
    ended = metering.close_meter(meter=meter, ended_at=noon - HOUR, at=noon)
    assert (ended.billed_seconds, ended.closed) == (0, True)
    assert owned(renter) == 100 * USDC


@pytest.mark.spec("F2", "G1")
def test_a_start_needs_money_for_an_hour_of_all_that_runs(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    start_meter(renter, provider, at=noon, rate=60 * USDC)
    metering.check_runway(organisation=renter, extra_rate_micro_per_hour=40 * USDC, at=noon)
    with pytest.raises(NotEnoughMoney) as caught:
        metering.check_runway(
            organisation=renter, extra_rate_micro_per_hour=30 * USDC, pending_rates=[10 * USDC, USDC], at=noon
        )
    assert (caught.value.needed_micro, caught.value.have_micro) == (101 * USDC, 100 * USDC)


@pytest.mark.spec("F2")
def test_a_renter_without_any_money_is_refused(make_organisation, noon: datetime) -> None:
    with pytest.raises(NotEnoughMoney):
        metering.check_runway(organisation=make_organisation(), extra_rate_micro_per_hour=1, at=noon)


def test_ten_meters_on_one_balance_end_together_and_leave_it_at_nothing_or_next_to_it(noon: datetime, db: None) -> None:
    renter = organisation("renter")
    fund(renter, 1_000_003, at=noon)
    meters = [
        start_meter(renter, organisation(f"p{i}"), at=noon + i * SECOND, rate=333_333 + i, fee_bps=1000)
        for i in range(10)
    ]
    late = noon + 10 * HOUR
    metering.prove(until={meter.pk: late for meter in meters})
    metering.settle_payer(organisation=renter, at=late)
    left = owned(renter)
    assert 0 <= left < sum(meter.rate_micro_per_hour for meter in meters) // 3600 + 10
    ends = {metering.accrued(meter).seconds + (meter.started_at - noon).seconds for meter in Meter.objects.all()}
    assert max(ends) - min(ends) <= 1
    assert ledger.verify_books().drift_micro == 0
    assert metering.position(renter, at=late).available_micro >= 0


def test_uneven_proofs_do_not_let_one_meter_spend_what_another_is_owed(noon: datetime, db: None) -> None:
    renter, provider = organisation("renter"), organisation("provider")
    fund(renter, 1_000_000, at=noon)
    ahead = start_meter(renter, provider, at=noon, rate=3_600_000_00)
    behind = start_meter(renter, provider, at=noon, rate=3_600_000_00)
    metering.prove(until={ahead.pk: noon + 4 * SECOND})
    metering.settle_payer(organisation=renter, at=noon + 4 * SECOND)
    metering.prove(until={ahead.pk: noon + HOUR, behind.pk: noon + HOUR})
    metering.settle_payer(organisation=renter, at=noon + HOUR)
    assert owned(renter) >= 0
    assert sum(meter.billed_gross_micro for meter in Meter.objects.all()) <= 1_000_000


def test_a_deposit_prolongs_what_runs(renter: Organisation, provider: Organisation, noon: datetime) -> None:
    meter = start_meter(renter, provider, at=noon, rate=50 * USDC)
    assert meter.funded_until == noon + 2 * HOUR
    fund(renter, 100 * USDC, at=noon)
    meter.refresh_from_db()
    assert meter.funded_until == noon + 4 * HOUR
    position = metering.position(renter, at=noon)
    assert (position.posted_micro, position.burn_micro_per_hour, position.funded_until) == (
        200 * USDC,
        50 * USDC,
        noon + 4 * HOUR,
    )


def test_when_one_of_two_stops_the_other_is_funded_longer(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    first, second = (start_meter(renter, provider, at=noon, rate=50 * USDC) for _ in range(2))
    first.refresh_from_db()
    assert first.funded_until == noon + HOUR
    metering.close_meter(meter=first, ended_at=noon + HOUR / 2, at=noon + HOUR / 2)
    second.refresh_from_db()
    # 25 of the 100 are gone with the first; the other 75 carry the second alone, from its start.
    assert second.funded_until == noon + HOUR * 3 / 2


def test_run_time_beyond_the_balance_is_nobodys_charge(noon: datetime, db: None) -> None:
    renter, provider = organisation("renter"), organisation("provider")
    fund(renter, USDC, at=noon)
    meter = start_meter(renter, provider, at=noon, rate=USDC, fee_bps=1000)
    ended = metering.close_meter(meter=meter, ended_at=noon + 3 * HOUR, at=noon + 3 * HOUR)
    assert (ended.billed_seconds, ended.billed_gross_micro, ended.closed) == (3600, USDC, True)
    assert owned(renter) == 0
    assert owned(provider, Kind.PROVIDER_PAYABLE) == 900_000


def test_a_charge_never_spans_a_midnight(renter: Organisation, provider: Organisation) -> None:
    evening = datetime(2026, 10, 14, 23, 50, 0, 250_000, tzinfo=UTC)
    meter = start_meter(renter, provider, at=evening, rate=3_600_000)
    prove_and_settle(meter, evening + timedelta(minutes=30))
    days = {}
    for row in Transfer.objects.filter(kind="charge"):
        days[row.effective_at.date().day] = (row.data["from"], row.data["to"])
    assert days == {14: (0, 599), 15: (599, 1800)}
    assert meter.billed_gross_micro == 1_800_000


def test_the_sweep_settles_hourly_and_each_minute_near_the_end_of_the_money(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    calm = start_meter(renter, provider, at=noon, rate=USDC)
    poor = organisation("poor")
    fund(poor, USDC // 10, at=noon)
    short = start_meter(poor, provider, at=noon, rate=USDC)
    late = noon + 2 * 60 * SECOND
    metering.prove(until={calm.pk: late, short.pk: late})
    assert metering.settle(at=late) == 1
    calm.refresh_from_db()
    short.refresh_from_db()
    assert (calm.billed_seconds, short.billed_seconds) == (0, 120)
    assert metering.settle(at=late) == 0
    metering.prove(until={calm.pk: noon + HOUR})
    metering.settle(at=noon + HOUR)
    calm.refresh_from_db()
    assert calm.billed_seconds == 3600


@pytest.mark.django_db(transaction=True)
def test_one_payer_whose_books_refuse_does_not_stop_the_others(noon: datetime) -> None:
    provider = organisation("provider")
    payers = [organisation(f"payer{i}") for i in range(3)]
    meters = []
    for payer in payers:
        fund(payer, USDC, at=noon)
        meters.append(start_meter(payer, provider, at=noon, rate=3600))
    # A charge that is in the books although its meter does not know of it: its key stands in the way.
    ledger.post(
        key=f"meter:{meters[1].public_id}:60:net",
        debit=ledger.account(Kind.ADJUSTMENTS),
        credit=ledger.account(Kind.LOSS),
        amount_micro=1,
        kind="adjustment",
        at=noon,
    )
    metering.prove(until={meter.pk: noon + 60 * SECOND for meter in meters})
    assert metering.settle_payees(at=noon + 60 * SECOND) == 2
    assert [Meter.objects.get(pk=meter.pk).billed_seconds for meter in meters] == [60, 0, 60]


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("money-F26", "money-F33")
def test_settling_twice_at_once_bills_once(noon: datetime) -> None:
    provider = organisation("provider")
    payers = [organisation(f"payer{i}") for i in range(4)]
    meters = []
    for payer in payers:
        fund(payer, USDC, at=noon)
        meters += [start_meter(payer, provider, at=noon, rate=36_000) for _ in range(2)]

    def act(number: int) -> None:
        for step in range(1, 6):
            until = noon + (step * 10 + number) * SECOND
            metering.prove(until={meter.pk: until for meter in meters})
            metering.settle_payees(at=until)
            metering.settle_payer(organisation=payers[number % 4], at=until)

    assert not [result for result in together(4, act) if result is not None]
    metering.settle_payees(at=noon + HOUR)
    assert {meter.billed_seconds for meter in Meter.objects.all()} == {53}
    assert ledger.verify_books().drift_micro == 0


@pytest.mark.django_db(transaction=True)
def test_two_tabs_cannot_spend_the_last_hour_twice(noon: datetime) -> None:
    renter, provider = organisation("renter"), organisation("provider")
    fund(renter, USDC, at=noon)

    def start(_number: int) -> Meter:
        from django.db import transaction

        with transaction.atomic():
            metering.check_runway(organisation=renter, extra_rate_micro_per_hour=USDC, at=noon)
            return start_meter(renter, provider, at=noon, rate=USDC)

    results = together(4, start)
    assert sum(isinstance(result, Meter) for result in results) == 1
    assert sum(isinstance(result, NotEnoughMoney) for result in results) == 3


@pytest.mark.parametrize("session_zone", ["UTC", "Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize(
    ("start", "seconds"),
    [(datetime(2026, 3, 28, 23, 30, tzinfo=UTC), 7200), (datetime(2026, 10, 24, 22, 30, tzinfo=UTC), 14_400)],
)
@pytest.mark.case("money-F24")
def test_a_clock_change_changes_no_bill(
    renter: Organisation, provider: Organisation, start: datetime, seconds: int, session_zone: str
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('TimeZone', %s, true)", [session_zone])
    meter = start_meter(renter, provider, at=start, rate=USDC)
    prove_and_settle(meter, start + seconds * SECOND)
    assert (meter.billed_seconds, meter.billed_gross_micro) == (seconds, metering.gross_of(USDC, seconds))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_posted_and_accruing_only_grow_and_end_as_one_total(db: None, data: st.DataObject) -> None:
    noon = datetime(2026, 10, 14, 12, 0, tzinfo=UTC)
    renter, provider = organisation("renter"), organisation("provider")
    fund(renter, data.draw(st.integers(1, 3 * USDC)), at=noon)
    meter = start_meter(
        renter, provider, at=noon, rate=data.draw(st.integers(1, 5 * USDC)), fee_bps=data.draw(st.integers(0, 2000))
    )
    before, at = 0, noon
    for step in data.draw(st.lists(st.integers(0, 5000), max_size=8)):
        at += timedelta(milliseconds=step * 700)
        metering.prove(until={meter.pk: at})
        if data.draw(st.booleans()):
            metering.settle_payer(organisation=renter, at=at)
        earning = metering.earning(provider, at=at)
        assert earning.posted_micro + earning.accruing_micro >= before
        before = earning.posted_micro + earning.accruing_micro
        assert metering.position(renter, at=at).available_micro >= 0
    metering.close_meter(meter=meter, ended_at=at, at=at)
    assert owned(provider, Kind.PROVIDER_PAYABLE) == before

"""Metering: exact whatever the ticks, never for what was not proved, never beyond the balance."""

import random
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing import ledger, metering
from billing.ledger import Kind, NotEnoughMoney
from billing.models import Meter, Transfer
from gpunex.accounts.models import Organisation
from gpunex.kit.conflicts import retrying
from gpunex.kit.money import as_decimal_string, parse_usdc

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


@pytest.mark.case("money-F17", "money-F20", "money-F21")
@pytest.mark.parametrize(
    ("price", "hours", "exact"),
    [
        ("0.067", 55, "3.685"),
        ("2.01", 1, "2.01"),
        ("2.05", 3, "6.15"),
        ("4.02", 7, "28.14"),
        ("1.005", 9, "9.045"),
        ("4.1", 11, "45.10"),
        ("17.97", 1, "17.97"),
    ],
)
def test_what_floats_get_wrong_comes_out_exactly_in_quote_meter_and_ledger(
    renter: Organisation, provider: Organisation, noon: datetime, price: str, hours: int, exact: str
) -> None:
    rate, total = parse_usdc(price), parse_usdc(exact)
    assert metering.gross_of(rate, hours * 3600) == total
    meter = start_meter(renter, provider, at=noon, rate=rate, fee_bps=800)
    for hour in range(1, hours + 1):
        prove_and_settle(meter, noon + hour * HOUR)
    charged = Transfer.objects.filter(reference=str(meter.public_id)).aggregate(total=Sum("amount_micro"))["total"]
    assert (meter.billed_gross_micro, charged, owned(renter)) == (total, total, 100 * USDC - total)
    assert as_decimal_string(charged) == exact


@pytest.mark.case("money-F18")
def test_eighty_one_lines_sum_to_the_total_and_not_to_their_own_roundings(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    meter = start_meter(renter, provider, at=noon, rate=1_234_567, fee_bps=777)
    for line in range(1, 82):
        prove_and_settle(meter, noon + line * 41 * SECOND)
    lines = list(Transfer.objects.filter(kind="charge").values_list("amount_micro", flat=True))
    fees = list(Transfer.objects.filter(kind="fee").values_list("amount_micro", flat=True))
    assert len(lines) == 81
    assert sum(lines) + sum(fees) == metering.gross_of(1_234_567, 81 * 41) == meter.billed_gross_micro
    assert sum(fees) == metering.fee_of(meter.billed_gross_micro, 777)
    assert (
        81 * metering.gross_of(1_234_567, 41) != meter.billed_gross_micro
    )  # what pricing each line alone would have billed


@pytest.mark.case("money-F15", "money-F25")
def test_a_charges_key_names_its_window_so_windows_never_merge_and_no_time_of_day_makes_two(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    meter = start_meter(renter, provider, at=noon, rate=3_600_000)
    metering.prove(until={meter.pk: noon + 60 * SECOND})
    for milliseconds in (0, 3, 250):  # two jobs compute the same window, some milliseconds apart
        metering.settle_payer(organisation=renter, at=noon + 60 * SECOND + timedelta(milliseconds=milliseconds))
    prove_and_settle(meter, noon + 120 * SECOND)
    keys = list(Transfer.objects.filter(kind="charge").order_by("pk").values_list("key", flat=True))
    assert keys == [f"meter:{meter.public_id}:{seconds}:net" for seconds in (60, 120)]
    assert meter.billed_gross_micro == 120_000


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
def test_one_bad_meter_stops_neither_its_payers_other_rentals_nor_their_end(noon: datetime) -> None:
    payer, provider = organisation("payer"), organisation("provider")
    fund(payer, USDC, at=noon)
    good, bad, last = (start_meter(payer, provider, at=noon, rate=3600) for _ in range(3))
    ledger.post(
        key=f"meter:{bad.public_id}:60:net",
        debit=ledger.account(Kind.ADJUSTMENTS),
        credit=ledger.account(Kind.LOSS),
        amount_micro=1,
        kind="adjustment",
        at=noon,
    )
    minute = noon + 60 * SECOND
    metering.prove(until={meter.pk: minute for meter in (good, bad, last)})
    assert metering.settle_payees(at=minute) == 0
    assert [Meter.objects.get(pk=meter.pk).billed_seconds for meter in (good, bad, last)] == [60, 0, 60]
    # It ends all the same; the bad one stays open and due until somebody has put it right.
    assert metering.close_meter(meter=last, ended_at=minute, at=minute).closed
    assert not metering.close_meter(meter=bad, ended_at=minute, at=minute).closed
    assert metering.close_meter(meter=good, ended_at=minute, at=minute).billed_seconds == 60
    assert ledger.verify_books().problems == []


@pytest.mark.django_db(transaction=True)
def test_ten_rentals_deposits_and_settlements_at_once_never_overdraw_the_balance(noon: datetime) -> None:
    renter, providers = organisation("renter"), [organisation(f"p{i}") for i in range(3)]
    fund(renter, 2 * USDC, at=noon)
    meters: list[Meter] = []

    def act(number: int) -> None:
        if number < 10:
            meters.append(start_meter(renter, providers[number % 3], at=noon, rate=USDC + number, fee_bps=1000))
        for step in range(1, 6):
            at = noon + step * 20 * 60 * SECOND + number * SECOND
            if number == 10:
                fund(renter, USDC // 3, at=at)
            elif number == 11:
                metering.settle_payees(at=at)
            else:
                metering.prove(until={meter.pk: at for meter in list(meters)})
                metering.settle_payer(organisation=renter, at=at)
            if number in (3, 4) and step == 4:
                metering.close_meter(meter=meters[number - 3], ended_at=at, at=at)
            assert owned(renter) >= 0

    assert not [result for result in together(12, retrying(act)) if result is not None]
    late = noon + 10 * HOUR
    metering.prove(until={meter.pk: late for meter in Meter.objects.filter(closed=False)})
    metering.settle_payees(at=late)
    deposited = 2 * USDC + 5 * (USDC // 3)
    billed = sum(meter.billed_gross_micro for meter in Meter.objects.all())
    assert owned(renter) == deposited - billed
    assert 0 <= owned(renter) <= 10 * 300 + 10
    assert ledger.verify_books().problems == []


def test_given_back_is_kept_and_never_more_than_billed(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    meter = start_meter(renter, provider, at=noon, rate=3_600_000)
    prove_and_settle(meter, noon + 10 * SECOND)
    metering.note_refund(meter, 6000)
    with pytest.raises(metering.RefundTooLarge) as caught:
        metering.note_refund(meter, 4001)
    assert (meter.refunded_micro, caught.value.left_micro) == (6000, 4000)
    metering.note_refund(meter, -6000)
    with pytest.raises(metering.RefundTooLarge):
        metering.note_refund(meter, -1)
    assert Meter.objects.get(pk=meter.pk).refunded_micro == 0


@pytest.mark.parametrize(
    ("start", "end", "days"),
    [
        (
            datetime(2028, 2, 28, 12, tzinfo=UTC),
            datetime(2028, 3, 1, 12, tzinfo=UTC),
            {"02-28": 43_200, "02-29": 86_400, "03-01": 43_200},
        ),
        (
            datetime(2026, 12, 31, 23, 30, tzinfo=UTC),
            datetime(2027, 1, 1, 0, 30, tzinfo=UTC),
            {"12-31": 1800, "01-01": 1800},
        ),
        # 20:00 and 23:00 UTC are two dates in Paris, and one of ours.
        (datetime(2026, 5, 30, 20, tzinfo=UTC), datetime(2026, 5, 30, 23, tzinfo=UTC), {"05-30": 10_800}),
    ],
)
@pytest.mark.case("money-F23")
def test_leap_days_new_year_and_other_zones_neither_add_nor_lose_a_second(
    renter: Organisation, provider: Organisation, start: datetime, end: datetime, days: dict[str, int]
) -> None:
    meter = start_meter(renter, provider, at=start, rate=USDC)
    prove_and_settle(meter, end)
    found = {
        f"{row.effective_at.astimezone(UTC):%m-%d}": row.data["to"] - row.data["from"]
        for row in Transfer.objects.filter(kind="charge")
    }
    assert found == days
    assert meter.billed_gross_micro == metering.gross_of(USDC, sum(days.values()))


@pytest.mark.spec("H1")
@pytest.mark.parametrize("cut", [datetime(2026, 10, 19, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)])
def test_a_payouts_cut_off_splits_a_charge_so_each_second_is_in_one_period(
    renter: Organisation, provider: Organisation, cut: datetime
) -> None:
    meter = start_meter(renter, provider, at=cut - 90 * SECOND, rate=3_600_000, fee_bps=0)
    prove_and_settle(meter, cut + 30 * SECOND)
    before = Transfer.objects.filter(kind="charge", effective_at__lt=cut).aggregate(sum=Sum("amount_micro"))["sum"]
    after = Transfer.objects.filter(kind="charge", effective_at__gte=cut).aggregate(sum=Sum("amount_micro"))["sum"]
    assert (before, after) == (90_000, 30_000)


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

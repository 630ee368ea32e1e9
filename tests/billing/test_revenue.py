"""Earnings sum exactly: over any cut of a time, over units and models, and to what the ledger says."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from django.db import transaction
from hypothesis import example, given, settings
from hypothesis import strategies as st

from billing import ledger, metering, revenue
from billing.ledger import Kind, Move
from billing.models import Meter, Transfer
from gpunex.accounts.models import Organisation
from gpunex.kit.time import day_start, days_between

from .conftest import USDC, fund, start_meter

ZONES = ["UTC", "Europe/Paris", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "Africa/Cairo"]
NOON = datetime(2026, 10, 14, 12, tzinfo=UTC)


def meter_of(
    *, rate: int, fee_bps: int, quantity: int, started_at: datetime, seconds: int, billed: int, closed: bool = False
) -> Meter:
    """A meter that ran ``seconds``, of which ``billed`` are posted; not saved."""
    gross = metering.gross_of(rate, billed)
    return Meter(
        rate_micro_per_hour=rate,
        fee_bps=fee_bps,
        quantity=quantity,
        labels={
            "model": "H100 80GB",
            "machine": "fra-1",
            "gpus": [{"id": f"GPU-{n}", "index": n} for n in range(quantity)],
        },
        started_at=started_at,
        proved_until=started_at + timedelta(seconds=seconds),
        funded_until=started_at + timedelta(days=4000),
        billed_seconds=billed,
        billed_gross_micro=gross,
        billed_fee_micro=metering.fee_of(gross, fee_bps),
        closed=closed,
    )


@st.composite
def meters(draw: st.DrawFn) -> Meter:
    seconds = draw(st.integers(0, 9 * 86_400))
    return meter_of(
        rate=draw(st.integers(1, 50 * USDC)),
        fee_bps=draw(st.integers(0, 5000)),
        quantity=draw(st.integers(1, 9)),
        started_at=NOON + timedelta(microseconds=draw(st.integers(-20 * 86_400 * 10**6, 20 * 86_400 * 10**6))),
        seconds=seconds,
        billed=draw(st.integers(0, seconds)),
    )


@pytest.mark.spec("G2")
@settings(max_examples=150, deadline=None)
@given(meter=meters(), name=st.sampled_from(ZONES), cuts=st.lists(st.integers(-35 * 86_400, 40 * 86_400), max_size=6))
@example(
    meter=meter_of(rate=1, fee_bps=0, quantity=3, started_at=NOON - timedelta(microseconds=1), seconds=3600, billed=0),
    name="UTC",
    cuts=[],
)
def test_any_cut_of_a_time_into_parts_and_days_of_a_zone_sums_to_the_whole(
    meter: Meter, name: str, cuts: list[int]
) -> None:
    edges = [
        NOON - timedelta(days=40),
        *sorted(NOON + timedelta(seconds=cut) for cut in cuts),
        NOON + timedelta(days=40),
    ]
    total = metering.accrued(meter)
    whole = revenue.Amounts()
    units: dict[revenue.Unit, revenue.Amounts] = {}
    for start, end in pairwise(edges):
        for line in revenue.lines_of(meter, list(days_between(start, end, ZoneInfo(name)))):
            assert line.starts_at < line.ends_at
            whole.add(line.amounts)
            parts = dict(line.units())
            assert sum(part.net_micro for part in parts.values()) == line.amounts.net_micro
            assert sum(part.fee_micro for part in parts.values()) == line.amounts.fee_micro
            assert sum(part.seconds for part in parts.values()) == line.amounts.seconds
            assert all(min(part.net_micro, part.fee_micro, part.seconds) >= 0 for part in parts.values())
            for unit, part in parts.items():
                units.setdefault(unit, revenue.Amounts()).add(part)
    assert (whole.net_micro, whole.fee_micro) == (total.net_micro, total.fee_micro)
    assert whole.seconds == total.seconds * meter.quantity
    # Each unit over all parts is its largest-remainder share of the whole, in the order of the labels.
    expected = revenue.split(total.net_micro, meter.quantity)
    assert [units[unit].net_micro for unit in sorted(units, key=lambda unit: unit.index)] == expected[: len(units)]
    assert sum(expected) == sum(part.net_micro for part in units.values())


@pytest.mark.case("money-F18")
@given(micro=st.integers(0, 10**15), parts=st.integers(1, 81))
def test_a_split_sums_and_its_parts_differ_by_one_at_most(micro: int, parts: int) -> None:
    amounts = revenue.split(micro, parts)
    assert sum(amounts) == micro
    assert amounts == sorted(amounts, reverse=True)
    assert max(amounts) - min(amounts) <= 1


@given(totals=st.lists(st.integers(0, 10**12), min_size=2, max_size=6).map(sorted), parts=st.integers(1, 9))
def test_the_shares_of_a_growing_total_never_fall_and_add_up_over_time(totals: list[int], parts: int) -> None:
    grown = [0] * parts
    for before, after in pairwise(totals):
        more = revenue.shares(before, after, parts)
        assert sum(more) == after - before
        assert min(more) >= 0
        grown = [old + new for old, new in zip(grown, more, strict=True)]
    assert grown == revenue.shares(totals[0], totals[-1], parts)


# --- the ledger's word -----------------------------------------------------------------------------------------------


@pytest.fixture
def busy(renter: Organisation, provider: Organisation) -> list[Meter]:
    """Three meters over four days, settled now and then at odd seconds; one ends, two run on."""
    fund(renter, 10_000 * USDC, at=NOON)
    begun = [
        start_meter(renter, provider, at=NOON, rate=370_001 * 3, fee_bps=1000, quantity=3),
        start_meter(renter, provider, at=NOON + timedelta(hours=7, microseconds=370_000), rate=2_499_999),
        start_meter(renter, provider, at=NOON + timedelta(hours=9, seconds=13), rate=1, fee_bps=800),
    ]
    for minutes in range(11, 4 * 1440, 397):
        at = NOON + timedelta(minutes=minutes, microseconds=minutes)
        metering.prove(until={meter.pk: at for meter in begun})
        metering.settle_payer(organisation=renter, at=at)
        if minutes == 11 + 397 * 5:
            metering.close_meter(meter=begun[1], ended_at=at, at=at)
    at = NOON + timedelta(days=4)
    metering.prove(until={meter.pk: at for meter in begun})
    return [Meter.objects.get(pk=meter.pk) for meter in begun]


def posted_by(provider: Organisation, *, start: datetime, end: datetime) -> int:
    payable = ledger.account(Kind.PROVIDER_PAYABLE, organisation=provider)
    rows = Transfer.objects.filter(credit=payable, kind=Move.CHARGE, effective_at__gte=start, effective_at__lt=end)
    return sum(rows.values_list("amount_micro", flat=True))


@pytest.mark.spec("G1", "G2")
def test_whole_utc_days_are_the_ledgers_own_sums(provider: Organisation, busy: list[Meter]) -> None:
    at = NOON + timedelta(days=4)
    midnight = datetime(2026, 10, 14, tzinfo=UTC)
    for first, days in ((0, 1), (1, 1), (1, 2), (3, 1), (0, 5)):
        start, end = midnight + timedelta(days=first), midnight + timedelta(days=first + days)
        found = revenue.of(provider, start=start, end=end, at=at)
        assert found.posted.net_micro == posted_by(provider, start=start, end=end)
    whole = revenue.of(provider, start=midnight, end=midnight + timedelta(days=5), at=at)
    assert whole.earned_micro == sum(metering.accrued(meter).net_micro for meter in busy)
    assert whole.accruing.net_micro > 0
    assert sum(whole.days.values()) == whole.earned_micro
    for table in (whole.models, whole.units):
        assert sum(amounts.net_micro for amounts in table.values()) == whole.total.net_micro
        assert sum(amounts.fee_micro for amounts in table.values()) == whole.total.fee_micro


@pytest.mark.parametrize("name", ZONES)
def test_the_days_of_any_zone_sum_to_the_same(provider: Organisation, busy: list[Meter], name: str) -> None:
    where = ZoneInfo(name)
    start, end = day_start(date(2026, 10, 13), where), day_start(date(2026, 10, 20), where)
    whole = revenue.of(provider, start=start, end=end, at=NOON + timedelta(days=4), where=where)
    one_by_one = [
        revenue.of(provider, start=since, end=until, at=NOON + timedelta(days=4), where=where).earned_micro
        for _day, since, until in days_between(start, end, where)
    ]
    assert sum(one_by_one) == whole.earned_micro == sum(metering.accrued(meter).net_micro for meter in busy)
    assert [whole.days.get(day, 0) for day, *_rest in days_between(start, end, where)] == one_by_one


@pytest.mark.case("money-F23")
def test_two_hours_of_one_utc_day_are_of_two_days_in_paris_and_are_told_once(
    renter: Organisation, provider: Organisation
) -> None:
    """30 May 2026, 20:00 and 23:00 UTC: in Paris that is 22:00 of the 30th and 01:00 of the 31st."""
    for hour in (20, 23):
        begins = datetime(2026, 5, 30, hour, tzinfo=UTC)
        meter = start_meter(renter, provider, at=begins, rate=USDC, fee_bps=0)
        ends = begins + timedelta(minutes=30)
        metering.close_meter(meter=meter, ended_at=ends, at=ends)
    paris = ZoneInfo("Europe/Paris")
    start, end = day_start(date(2026, 5, 30), paris), day_start(date(2026, 6, 1), paris)
    found = revenue.of(provider, start=start, end=end, at=end, where=paris)
    assert found.days == {date(2026, 5, 30): USDC // 2, date(2026, 5, 31): USDC // 2}
    assert found.earned_micro == USDC


@pytest.mark.case("money-F24")
@pytest.mark.parametrize(
    ("name", "day", "hours"),
    [
        ("America/New_York", date(2026, 3, 7), 24),
        ("America/New_York", date(2026, 3, 8), 23),
        ("America/New_York", date(2026, 3, 9), 24),
        ("America/New_York", date(2026, 11, 1), 25),
        ("Europe/Paris", date(2026, 3, 29), 23),
        ("Europe/Paris", date(2026, 10, 25), 25),
        ("Africa/Cairo", date(2026, 4, 24), 23),
        ("UTC", date(2028, 2, 29), 24),
        ("UTC", date(2026, 12, 31), 24),
    ],
)
def test_a_day_has_the_hours_that_its_clocks_made_of_it(
    renter: Organisation, provider: Organisation, name: str, day: date, hours: int
) -> None:
    where = ZoneInfo(name)
    begins = day_start(day, where) - timedelta(hours=30)
    meter = start_meter(renter, provider, at=begins, rate=USDC, fee_bps=0)
    metering.close_meter(meter=meter, ended_at=begins + timedelta(hours=90), at=begins + timedelta(hours=90))
    start, end = day_start(day, where), day_start(day + timedelta(days=1), where)
    assert revenue.of(provider, start=start, end=end, at=end, where=where).days == {day: hours * USDC}


def test_a_range_is_half_open_to_the_second(renter: Organisation, provider: Organisation) -> None:
    meter = start_meter(renter, provider, at=NOON, rate=3600, fee_bps=0)  # one micro-USDC a second
    metering.close_meter(meter=meter, ended_at=NOON + timedelta(seconds=100), at=NOON + timedelta(seconds=100))

    def between(first: float, last: float) -> int:
        start, end = NOON + timedelta(seconds=first), NOON + timedelta(seconds=last)
        return revenue.of(provider, start=start, end=end, at=end).earned_micro

    assert between(0, 100) == 100
    assert between(0, 40) + between(40, 100) == 100
    assert (between(39.5, 40), between(40, 40.5), between(100, 200)) == (1, 0, 0)


@pytest.mark.spec("G2")
def test_what_is_shown_never_falls_while_it_runs_and_ends_at_the_final_total(
    renter: Organisation, provider: Organisation
) -> None:
    meter = start_meter(renter, provider, at=NOON, rate=1_110_003, fee_bps=1000, quantity=3)
    midnight = datetime(2026, 10, 14, tzinfo=UTC)
    running = [meter.pk]
    last, last_units, at = 0, dict[revenue.Unit, int](), NOON
    for step in range(1, 60):
        at = NOON + timedelta(seconds=97 * step)
        metering.prove(until=dict.fromkeys(running, at))
        if step % 7 == 0:
            metering.settle_payer(organisation=renter, at=at)
        if step == 30:  # somebody else begins on the same balance
            running.append(start_meter(renter, provider, at=at, rate=5_000_000).pk)
        found = revenue.of(provider, start=midnight, end=midnight + timedelta(days=1), at=at)
        assert found.earned_micro >= last
        assert all(found.units[unit].net_micro >= amount for unit, amount in last_units.items())
        last, last_units = found.earned_micro, {unit: part.net_micro for unit, part in found.units.items()}
    for open_meter in Meter.objects.filter(closed=False):
        metering.close_meter(meter=open_meter, ended_at=at, at=at)
    found = revenue.of(provider, start=midnight, end=midnight + timedelta(days=1), at=at)
    assert found.accruing == revenue.Amounts()
    assert found.earned_micro == last == ledger.balance(ledger.account(Kind.PROVIDER_PAYABLE, organisation=provider))


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        (Move.CREDIT, True),
        (Move.RECOVERY, True),
        (Move.REVERSAL, True),
        (Move.ADJUSTMENT, True),
        (Move.PAYOUT, False),
        (Move.BACK, False),
        (Move.RETURNED, False),
    ],
)
def test_credits_and_corrections_count_and_payouts_that_come_and_go_do_not(
    renter: Organisation, provider: Organisation, kind: Move, counts: bool
) -> None:
    meter = start_meter(renter, provider, at=NOON, rate=10 * USDC, fee_bps=0)
    at = NOON + timedelta(hours=1)
    metering.close_meter(meter=meter, ended_at=at, at=at)
    payable = ledger.account(Kind.PROVIDER_PAYABLE, organisation=provider)
    other = ledger.account(Kind.ADJUSTMENTS)
    with transaction.atomic():
        ledger.post(key="x", debit=payable, credit=other, amount_micro=3 * USDC, kind=kind, at=at)
        ledger.post(key="y", debit=other, credit=payable, amount_micro=USDC, kind=kind, at=at)
    found = revenue.of(provider, start=NOON, end=NOON + timedelta(days=1), at=at)
    assert found.other_micro == (-2 * USDC if counts else 0)
    assert found.earned_micro == found.total.net_micro + found.other_micro
    assert sum(found.days.values()) == found.earned_micro


def test_others_earnings_are_never_in_it(
    renter: Organisation, provider: Organisation, busy: list[Meter], make_organisation: Callable[..., Organisation]
) -> None:
    stranger = make_organisation("stranger")
    found = revenue.of(stranger, start=NOON - timedelta(days=9), end=NOON + timedelta(days=9), at=NOON)
    assert found == revenue.Revenue()
    assert (
        revenue.of(renter, start=NOON - timedelta(days=9), end=NOON + timedelta(days=9), at=NOON) == revenue.Revenue()
    )


def test_reading_asks_a_fixed_number_of_questions(
    provider: Organisation, busy: list[Meter], django_assert_num_queries: Callable[..., object]
) -> None:
    with django_assert_num_queries(2):  # type: ignore[attr-defined]
        revenue.of(
            provider, start=NOON - timedelta(days=200), end=NOON + timedelta(days=150), at=NOON + timedelta(days=4)
        )

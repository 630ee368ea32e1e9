"""The calendar of payouts: cut-offs in UTC, days of execution by each rail's banks."""

from datetime import UTC, date, datetime, timedelta

import pytest

from payouts import periods
from payouts.models import Cadence, Rail

MONDAY = datetime(2026, 10, 19, tzinfo=UTC)
WEEK = timedelta(days=7)


def monthly(year: int, month: int, rail: str) -> date:
    return periods.execution_date(Cadence.MONTHLY, datetime(year, month, 1, tzinfo=UTC), rail)


@pytest.mark.spec("H1")
@pytest.mark.case("money-F48")
@pytest.mark.parametrize(
    ("year", "month", "fed", "ecb"),
    [
        (2026, 2, 2, 2),
        (2026, 5, 1, 4),
        (2026, 8, 3, 3),
        (2026, 11, 2, 2),
        (2027, 1, 4, 4),
        (2028, 5, 1, 2),
        (2029, 9, 4, 3),
    ],
)
def test_monthly_payouts_are_made_on_the_first_business_day_of_each_rails_banks(
    year: int, month: int, fed: int, ecb: int
) -> None:
    assert monthly(year, month, Rail.USDC) == date(year, month, fed)
    assert monthly(year, month, Rail.ACH) == date(year, month, fed)
    assert monthly(year, month, Rail.SEPA) == date(year, month, ecb)


@pytest.mark.spec("H1")
def test_on_a_monday_that_is_a_holiday_usdc_is_paid_and_banks_pay_on_their_next_business_day() -> None:
    memorial_day, easter_monday = datetime(2026, 5, 25, tzinfo=UTC), datetime(2027, 3, 29, tzinfo=UTC)
    assert periods.execution_date(Cadence.WEEKLY, memorial_day, Rail.USDC) == date(2026, 5, 25)
    assert periods.execution_date(Cadence.WEEKLY, memorial_day, Rail.ACH) == date(2026, 5, 26)
    assert periods.execution_date(Cadence.WEEKLY, memorial_day, Rail.SEPA) == date(2026, 5, 25)
    assert periods.execution_date(Cadence.WEEKLY, easter_monday, Rail.USDC) == date(2027, 3, 29)
    assert periods.execution_date(Cadence.WEEKLY, easter_monday, Rail.SEPA) == date(2027, 3, 30)
    assert periods.execution_date(Cadence.WEEKLY, easter_monday, Rail.ACH) == date(2027, 3, 29)


@pytest.mark.case("money-F48")
def test_banks_work_on_a_friday_before_a_saturday_holiday_and_rest_on_the_monday_after_a_sunday_one() -> None:
    """Independence Day and Christmas on a Saturday move no bank holiday; on a Sunday they do."""
    assert monthly(2028, 1, Rail.ACH) == date(2028, 1, 3)  # 1 January 2028 is a Saturday
    assert periods.execution_date(Cadence.WEEKLY, datetime(2022, 12, 26, tzinfo=UTC), Rail.ACH) == date(2022, 12, 27)
    assert periods.execution_date(Cadence.WEEKLY, datetime(2023, 1, 2, tzinfo=UTC), Rail.ACH) == date(2023, 1, 3)


@pytest.mark.parametrize(
    ("after", "weekly", "first"),
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
def test_periods_end_on_mondays_and_on_firsts(after: datetime, weekly: datetime, first: datetime) -> None:
    assert periods.next_period_end(Cadence.WEEKLY, after) == weekly
    assert periods.next_period_end(Cadence.MONTHLY, after) == first
    assert periods.period_start(Cadence.WEEKLY, weekly) == weekly - WEEK
    assert periods.period_start(Cadence.MONTHLY, first).day == 1


@pytest.mark.case("money-F24", "money-F34")
@pytest.mark.parametrize("change", ["2026-03-08", "2026-03-29", "2026-10-25", "2026-11-01"])
def test_a_change_of_clocks_anywhere_moves_no_cut_off(change: str) -> None:
    """New York and Berlin put their clocks on and back within these weeks; the periods are UTC and last seven days each."""
    sunday = datetime.fromisoformat(change).replace(tzinfo=UTC)
    ends = periods.period_ends(Cadence.WEEKLY, after=sunday - WEEK, until=sunday + WEEK)
    assert [end - sunday for end in ends] == [timedelta(days=-6), timedelta(days=1)]
    assert all((end.hour, end.minute, end.weekday()) == (0, 0, 0) for end in ends)


@pytest.mark.case("money-F23")
def test_the_cut_off_is_the_same_whatever_the_zone_in_which_it_is_asked_for() -> None:
    """23:30 on a Sunday in Paris is still Sunday in UTC; 01:30 on Monday there is Sunday 23:30 in UTC."""
    from zoneinfo import ZoneInfo

    paris = ZoneInfo("Europe/Paris")
    for asked in (datetime(2026, 5, 31, 23, 30, tzinfo=paris), datetime(2026, 6, 1, 1, 30, tzinfo=paris)):
        assert periods.next_period_end(Cadence.WEEKLY, asked) == datetime(2026, 6, 1, tzinfo=UTC)
        assert periods.next_period_end(Cadence.MONTHLY, asked) == datetime(2026, 6, 1, tzinfo=UTC)

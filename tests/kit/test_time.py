from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest

from gpunex.kit.time import (
    add_business_days,
    first_business_day,
    is_business_day,
    iso_z,
    next_business_day,
    whole_seconds,
    zone,
)


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
def test_the_first_business_day_is_the_rails_own(year, month, fed, ecb):
    assert first_business_day(year, month, calendar="FED") == date(year, month, fed)
    assert first_business_day(year, month, calendar="ECB") == date(year, month, ecb)


@pytest.mark.case("money-F48")
def test_the_fed_is_open_on_the_friday_before_a_saturday_holiday():
    assert is_business_day(date(2020, 7, 3), calendar="FED")
    assert is_business_day(date(2021, 12, 24), calendar="FED")
    assert is_business_day(date(2026, 7, 3), calendar="FED")
    assert not is_business_day(date(2022, 12, 26), calendar="FED")
    assert not is_business_day(date(2023, 1, 2), calendar="FED")


@pytest.mark.spec("H1")
def test_a_bank_payout_on_a_monday_holiday_moves_to_tuesday():
    assert next_business_day(date(2026, 5, 25), calendar="FED") == date(2026, 5, 26)


@pytest.mark.spec("A6")
def test_review_time_counts_business_days_only():
    friday = datetime(2026, 11, 27, 15, 30, tzinfo=UTC)
    assert add_business_days(friday, 3) == datetime(2026, 12, 2, 15, 30, tzinfo=UTC)


@pytest.mark.case("money-F24")
def test_seconds_over_a_dst_change_are_the_real_ones():
    berlin = ZoneInfo("Europe/Berlin")
    spring = datetime(2026, 3, 29, 0, 30, tzinfo=berlin), datetime(2026, 3, 29, 3, 30, tzinfo=berlin)
    autumn = datetime(2026, 10, 25, 0, 30, tzinfo=berlin), datetime(2026, 10, 25, 3, 30, tzinfo=berlin)
    assert whole_seconds(*spring) == 7_200
    assert whole_seconds(*autumn) == 14_400


def test_whole_seconds_are_cut_and_never_negative():
    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert whole_seconds(start, start.replace(microsecond=999_999)) == 0
    assert whole_seconds(start.replace(second=5), start) == 0


def test_times_for_machines_end_with_z():
    assert iso_z(datetime(2026, 10, 14, 14, 5, 0, 123456, tzinfo=UTC)) == "2026-10-14T14:05:00.123Z"
    assert iso_z(None) is None


@pytest.mark.parametrize("name", ["Mars/Olympus", "../../etc/passwd", "", "CEST+3"])
def test_a_zone_that_does_not_exist_is_refused(name):
    with pytest.raises(ValueError, match="no IANA time zone"):
        zone(name)

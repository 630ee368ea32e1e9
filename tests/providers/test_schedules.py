"""Declared hours: windows, versions, and the days on which the clocks change."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunex.kit.spans import common, merged, seconds, without
from providers.models import Schedule
from providers.schedules import HORIZON, Hours, declared, declared_spans, edges, in_force, window_around
from tests.hosts import approved, connected


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def version(zone: str = "UTC", windows: list[Any] | None = None, since: str = "2026-01-01") -> Schedule:
    return Schedule(pk=1, effective_from=at(since), timezone=zone, always=windows is None, windows=windows or [])


def shown(spans: list[tuple[datetime, datetime]]) -> list[str]:
    return [f"{start:%a %H:%M}-{end:%a %H:%M}" for start, end in spans]


WEEK = (at("2026-06-01"), at("2026-06-08"))  # a Monday to the next


@pytest.mark.spec("D2")
@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([[0, "08:00", "12:00"]], ["Mon 08:00-Mon 12:00"]),
        ([[4, "22:00", "06:00"]], ["Fri 22:00-Sat 06:00"]),
        ([[0, "08:00", "12:00"], [0, "12:00", "14:00"]], ["Mon 08:00-Mon 14:00"]),
        ([[6, "22:00", "02:00"]], ["Mon 00:00-Mon 02:00", "Sun 22:00-Mon 00:00"]),
        ([[2, "00:00", "24:00"]], ["Wed 00:00-Thu 00:00"]),
        ([], []),
    ],
)
def test_windows_of_a_week(windows: list[Any], expected: list[str]) -> None:
    assert shown(Hours(zone=ZoneInfo("UTC"), windows=windows).spans(*WEEK)) == expected


@pytest.mark.spec("D2")
@pytest.mark.parametrize(
    ("day", "window", "hours", "why"),
    [
        ("2026-03-29", ["01:00", "05:00"], 3, "an hour is skipped"),
        ("2026-03-29", ["02:30", "05:00"], 2, "it opens within the hour that is skipped: at its end"),
        ("2026-03-29", ["01:00", "02:30"], 1, "it closes within the hour that is skipped: at its start"),
        ("2026-03-29", ["02:10", "02:50"], 0, "all of it is skipped"),
        ("2026-10-25", ["01:00", "05:00"], 5, "an hour is repeated"),
        ("2026-10-25", ["02:30", "05:00"], 3.5, "it opens at the first of two equal times"),
        ("2026-10-25", ["01:00", "02:30"], 2.5, "it closes at the second of two equal times"),
        ("2026-06-28", ["01:00", "05:00"], 4, "an ordinary day"),
    ],
)
def test_windows_keep_their_wall_clock_when_the_clocks_change(
    day: str, window: list[str], hours: float, why: str
) -> None:
    night = Hours(zone=ZoneInfo("Europe/Berlin"), windows=[[6, *window]])
    start = at(day) - timedelta(hours=12)
    assert seconds(night.spans(start, start + timedelta(days=2))) / 3600 == hours, why


@pytest.mark.parametrize(
    ("moment", "is_declared"),
    [
        ("2026-06-01 05:59:59", False),
        ("2026-06-01 06:00:00", True),
        ("2026-06-01 09:59:59", True),
        ("2026-06-01 10:00:00", False),
    ],
)
def test_a_window_is_half_open_and_in_the_providers_zone(moment: str, is_declared: bool) -> None:
    assert declared(version("Europe/Berlin", [[0, "08:00", "12:00"]]), at(moment)) is is_declared


def test_only_the_version_in_force_counts() -> None:
    early = version(windows=[[0, "08:00", "10:00"]])
    late = version(windows=[[0, "09:00", "12:00"]], since="2026-06-01 09:30")
    late.pk = 2
    assert shown(declared_spans([late, early], *WEEK)) == ["Mon 08:00-Mon 12:00"]
    assert shown(declared_spans([late], *WEEK)) == ["Mon 09:30-Mon 12:00"]
    assert declared_spans([], *WEEK) == []


@pytest.mark.parametrize(
    ("moment", "since", "until"),
    [
        ("2026-06-01 09:00", "Mon 08:00", "Mon 12:00"),
        ("2026-06-01 13:00", "Wed 20:00", "Thu 04:00"),
        ("2026-06-04 03:00", "Wed 20:00", "Thu 04:00"),
        ("2026-06-05 03:00", "Mon 08:00", "Mon 12:00"),
    ],
)
def test_edges_of_the_window_now_or_the_next_one(moment: str, since: str, until: str) -> None:
    start, end = edges([version(windows=[[0, "08:00", "12:00"], [2, "20:00", "04:00"]])], at(moment))
    assert start is not None
    assert end is not None
    assert (f"{start:%a %H:%M}", f"{end:%a %H:%M}") == (since, until)
    assert end > at(moment)


def test_always_has_no_edges_and_never_is_asked_again_later() -> None:
    moment = at("2026-06-01")
    assert edges([version()], moment) == (None, None)
    since, until = edges([version(windows=[])], moment)
    assert since == moment + HORIZON
    assert until is None


def test_always_ends_where_the_next_version_does_not_declare() -> None:
    narrower = version(windows=[[0, "08:00", "12:00"]], since="2026-06-03")
    narrower.pk = 2
    assert edges([version(), narrower], at("2026-06-01")) == (None, at("2026-06-03"))


@pytest.mark.django_db
def test_a_machine_begins_with_the_hours_of_its_entry(now: datetime) -> None:
    machine = connected(approved(at=now), at=now).machine
    assert window_around(machine, now + timedelta(minutes=1))[1] is None
    assert in_force(machine, now - timedelta(days=1)) is None
    first = in_force(machine, now + timedelta(days=1))
    assert first is not None
    assert first.always


moments = st.datetimes(datetime(2026, 3, 1), datetime(2026, 4, 30)).map(
    lambda moment: moment.replace(tzinfo=UTC, second=0, microsecond=0)
)
spans = st.lists(st.tuples(moments, moments).map(lambda pair: (min(pair), max(pair))), max_size=6)


@settings(max_examples=60)
@given(
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Africa/Cairo", "Asia/Kolkata", "Pacific/Apia"]),
    day=st.integers(0, 6),
    opens=st.integers(0, 23),
    length=st.integers(1, 23),
    moment=moments,
)
def test_the_clock_on_the_wall_decides(zone: str, day: int, opens: int, length: int, moment: datetime) -> None:
    """Against the slow way: look at a local clock. Windows and moments at half hours keep clear of skipped edges."""
    closes = (opens + length) % 24
    schedule = version(zone, [[day, f"{opens:02d}:00", f"{closes:02d}:00"]])
    wall = moment.astimezone(ZoneInfo(zone))
    minute, today = wall.hour * 60 + wall.minute, wall.weekday()
    start, end = opens * 60, closes * 60 or 24 * 60
    if end > start:
        expected = today == day and start <= minute < end
    else:
        expected = (today == day and minute >= start) or (today == (day + 1) % 7 and minute < end)
    # Within the two hours around a change of the clocks one wall-clock time may be two moments.
    steady = (moment - timedelta(hours=2)).astimezone(ZoneInfo(zone)).utcoffset() == (
        moment + timedelta(hours=2)
    ).astimezone(ZoneInfo(zone)).utcoffset()
    if steady:
        assert declared(schedule, moment) is expected


@given(left=spans, right=spans, probe=moments)
def test_spans_behave_like_sets_of_moments(left: list[Any], right: list[Any], probe: datetime) -> None:
    def holds(some: list[Any]) -> bool:
        return any(start <= probe < end for start, end in some)

    assert holds(merged(left)) == holds(left)
    assert holds(common(left, right)) == (holds(left) and holds(right))
    assert holds(without(left, right)) == (holds(left) and not holds(right))
    assert seconds(common(left, right)) + seconds(without(left, right)) == seconds(merged(left))

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.weeks import (
    NotAWindow,
    WindowsOverlap,
    check_windows,
    hours_of_windows,
    minutes_of_week,
    windows_of_hours,
)


@given(st.sets(st.integers(0, 167)))
def test_hours_become_windows_and_windows_the_same_hours(hours):
    windows = windows_of_hours(hours)
    check_windows(windows)
    assert hours_of_windows(windows) == hours
    assert minutes_of_week(windows) == 60 * len(hours)


@pytest.mark.parametrize(
    "windows",
    [
        [[0, "09:00", "09:00"]],
        [[7, "09:00", "10:00"]],
        [[-1, "09:00", "10:00"]],
        [[0, "24:00", "02:00"]],
        [[0, "9:00", "10:00"]],
        [[0, "09:60", "10:00"]],
        [[0, "09:00"]],
        [[True, "09:00", "10:00"]],
        [[0, None, "10:00"]],
    ],
)
def test_what_is_no_window_is_refused(windows):
    with pytest.raises(NotAWindow):
        check_windows(windows)


@pytest.mark.parametrize(
    "windows",
    [
        [[0, "09:00", "12:00"], [0, "11:59", "13:00"]],
        [[0, "22:00", "06:00"], [1, "05:00", "07:00"]],
        [[6, "22:00", "06:00"], [0, "05:00", "07:00"]],
        [[0, "09:00", "12:00"], [0, "09:00", "12:00"]],
    ],
)
def test_windows_that_overlap_are_refused_also_over_the_end_of_the_week(windows):
    with pytest.raises(WindowsOverlap):
        check_windows(windows)


def test_windows_that_touch_are_fine():
    check_windows(
        [
            [0, "22:00", "06:00"],
            [1, "06:00", "24:00"],
            [2, "00:00", "01:00"],
            [6, "22:00", "24:00"],
            [0, "00:00", "02:00"],
        ]
    )

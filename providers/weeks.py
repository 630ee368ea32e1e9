"""Weekly hours: the windows in which GPUs are offered, as a provider declares them.

A window is ``[weekday, "HH:MM", "HH:MM"]``, Monday is 0. An end before its start runs over midnight into the next day;
"24:00" ends the day. Windows of one week neither overlap nor stand empty.

>>> windows = windows_of_hours({18, 19, 20, 21, 22, 23, 24, 25})
>>> windows
[[0, '18:00', '02:00']]
>>> sorted(hours_of_windows(windows)) == [18, 19, 20, 21, 22, 23, 24, 25]
True
>>> minutes_of_week(windows)
480
"""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from django.utils.translation import gettext_lazy as _

from gpunex.kit.refusals import Refusal

DAY = 24 * 60
WEEK = 7 * DAY
HOURS_A_WEEK = 168
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)|24:00", re.ASCII)

Window = Sequence[Any]


class NotAWindow(Refusal):
    code = "not_a_window"
    message = _("A window of the week needs a day, a start and an end after it.")


class WindowsOverlap(Refusal):
    code = "windows_overlap"
    message = _("Two windows of the week overlap. Make one of both, or shorten one.")


def minute_of(clock: str) -> int:
    """Minutes since midnight of "HH:MM", "24:00" included. Raises NotAWindow."""
    if not isinstance(clock, str) or not _CLOCK.fullmatch(clock):
        raise NotAWindow
    hours, minutes = clock.split(":")
    return 60 * int(hours) + int(minutes)


def span(window: Window) -> tuple[int, int]:
    """Start and end in minutes of the week; the end may lie beyond its last minute. Raises NotAWindow."""
    if len(window) != 3 or window[0] not in range(7) or isinstance(window[0], bool):
        raise NotAWindow
    start, end = minute_of(window[1]), minute_of(window[2])
    if start in (end, DAY):
        raise NotAWindow
    if end < start:
        end += DAY
    return window[0] * DAY + start, window[0] * DAY + end


def check_windows(windows: Iterable[Window]) -> None:
    """Raises NotAWindow or WindowsOverlap; a week without windows is for the caller to judge."""
    spans = sorted(span(window) for window in windows)
    for (_start, end), (next_start, _next_end) in pairwise(spans):
        if next_start < end:
            raise WindowsOverlap
    # Sunday's window over midnight meets Monday's first.
    if len(spans) > 1 and spans[-1][1] - WEEK > spans[0][0]:
        raise WindowsOverlap


def minutes_of_week(windows: Iterable[Window]) -> int:
    """How long the windows are open in a week."""
    return sum(end - start for start, end in map(span, windows))


def windows_of_hours(hours: Iterable[int]) -> list[list[Any]]:
    """Whole hours of the week (0 is Monday 00:00) as the fewest windows; each one at most until the end of its next day.

    >>> windows_of_hours(range(24))
    [[0, '00:00', '24:00']]
    """
    chosen = sorted(set(hours))
    if any(hour not in range(HOURS_A_WEEK) for hour in chosen):
        raise NotAWindow
    if len(chosen) == HOURS_A_WEEK:
        return [[day, "00:00", "24:00"] for day in range(7)]
    runs: list[list[int]] = []
    for hour in chosen:
        if runs and runs[-1][-1] == hour - 1:
            runs[-1].append(hour)
        else:
            runs.append([hour])
    # A run over Sunday's midnight is one run.
    if len(runs) > 1 and runs[0][0] == 0 and runs[-1][-1] == HOURS_A_WEEK - 1:
        runs[-1] += [hour + HOURS_A_WEEK for hour in runs.pop(0)]
    windows = []
    for run in runs:
        start, end = run[0], run[-1] + 1
        while start < end:
            next_midnight = (start // 24 + 1) * 24
            # Over midnight only as far as the same time of day: a longer window would meet its own start.
            stop = end if end - start < 24 else next_midnight
            windows.append([start // 24 % 7, _clock(start % 24), "24:00" if stop % 24 == 0 else _clock(stop % 24)])
            start = stop
    return sorted(windows)


def hours_of_windows(windows: Iterable[Window]) -> set[int]:
    """The hours of the week that the windows touch."""
    return {
        minute // 60 % HOURS_A_WEEK for start, end in map(span, windows) for minute in range(start // 60 * 60, end, 60)
    }


def _clock(hour: int) -> str:
    return f"{hour:02d}:00"

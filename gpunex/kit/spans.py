"""Stretches of time: half-open ``(start, end)`` pairs of aware datetimes, kept in order and apart from each other.

>>> from datetime import UTC
>>> def at(hour): return datetime(2026, 3, 2, hour, tzinfo=UTC)
>>> day = merged([(at(8), at(12)), (at(11), at(14)), (at(20), at(22))])
>>> [(start.hour, end.hour) for start, end in day]
[(8, 14), (20, 22)]
>>> [(start.hour, end.hour) for start, end in without(day, [(at(9), at(10)), (at(21), at(23))])]
[(8, 9), (10, 14), (20, 21)]
>>> [(start.hour, end.hour) for start, end in common(day, [(at(13), at(21))])]
[(13, 14), (20, 21)]
>>> seconds(day)
28800.0
"""

from collections.abc import Iterable
from datetime import datetime

type Span = tuple[datetime, datetime]


def merged(spans: Iterable[Span]) -> list[Span]:
    """In order, overlapping and touching ones made one, empty ones dropped."""
    result: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return result


def common(left: Iterable[Span], right: Iterable[Span]) -> list[Span]:
    """What lies in both. Each side is merged first."""
    first, second = merged(left), merged(right)
    result: list[Span] = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            result.append((start, end))
        if first[i][1] <= second[j][1]:
            i += 1
        else:
            j += 1
    return result


def without(spans: Iterable[Span], holes: Iterable[Span]) -> list[Span]:
    """What lies in ``spans`` and in none of ``holes``."""
    gaps = merged(holes)
    result: list[Span] = []
    for start, end in merged(spans):
        at = start
        for hole_start, hole_end in gaps:
            if hole_end <= at:
                continue
            if hole_start >= end:
                break
            if at < hole_start:
                result.append((at, hole_start))
            at = max(at, hole_end)
        if at < end:
            result.append((at, end))
    return result


def seconds(spans: Iterable[Span]) -> float:
    """Their length together; the spans must not overlap."""
    return sum((end - start).total_seconds() for start, end in spans)

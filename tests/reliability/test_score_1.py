"""Version 1 of the score, which stays for what was stored by it, against a slow reference."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliability import score as current
from reliability import score_1 as score
from reliability.score_1 import Event

NOW = datetime(2026, 6, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def parts(**changes: Any) -> score.Parts:
    whole: dict[str, Any] = {"at": NOW, "declared": [], "connected": [], "excused": [], "jobs": [], "runs": []}
    return score.score(**whole | changes)


def ago(hours: float) -> datetime:
    return NOW - hours * HOUR


def test_a_machine_that_has_shown_nothing_stands_on_the_prior_and_is_new() -> None:
    found = parts()
    assert (found.uptime, found.completion, found.consistency) == pytest.approx((0.95, 0.95, 1.0))
    assert found.new is True
    assert found.score == pytest.approx(96.0)


def test_a_machine_without_fault_reaches_a_hundred() -> None:
    found = parts(
        declared=[(ago(90 * 24), NOW)],
        connected=[(ago(90 * 24), NOW)],
        jobs=[Event(ago(n), 1.0) for n in range(0, 600, 20)],
        runs=[Event(ago(24 * n), 1.0) for n in range(10)],
    )
    assert found.score == pytest.approx(100.0)
    assert found.new is False


def test_what_is_not_declared_or_is_excused_does_not_count() -> None:
    down = (ago(200), ago(100))
    connected_ = [(ago(1000), ago(200)), (ago(100), NOW)]
    bad = parts(declared=[(ago(1000), NOW)], connected=connected_)
    assert bad.uptime < 0.85
    assert parts(declared=[(ago(1000), NOW)], connected=connected_, excused=[down]).uptime == pytest.approx(1.0)
    assert parts(declared=[(ago(1000), down[0]), (down[1], NOW)], connected=connected_).uptime == pytest.approx(1.0)


def test_a_fault_weighs_half_after_two_weeks_and_nothing_after_ninety_days() -> None:
    def lost(days: float) -> float:
        """Points that an outage of ten hours costs when it is so long ago."""
        end = ago(24 * days)
        kept = [(ago(24 * 100), end - 10 * HOUR), (end, NOW)]
        return (
            100.0
            - parts(
                declared=[(ago(24 * 100), NOW)], connected=kept, jobs=[Event(NOW, 1.0)] * 10, runs=[Event(NOW, 1.0)] * 3
            ).score
        )

    assert lost(1) > 0.5
    assert lost(15) == pytest.approx(lost(1) / 2, rel=1e-6)
    assert lost(91) == pytest.approx(0.0, abs=1e-9)


def test_one_failure_in_two_is_not_half() -> None:
    found = parts(jobs=[Event(NOW, 1.0), Event(NOW, 0.0)])
    assert found.completion == pytest.approx(0.86)


def test_what_lies_in_the_future_or_before_the_window_is_left_out() -> None:
    assert parts(jobs=[Event(NOW + HOUR, 0.0), Event(ago(24 * 91), 0.0)]).jobs == 0


hours = st.integers(0, 24 * 100)
pairs = st.lists(
    st.tuples(hours, hours).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: (ago(max(pair)), ago(min(pair)))),
    max_size=8,
)
events = st.lists(st.builds(lambda age, value: Event(ago(age), value), hours, st.floats(0, 1)), max_size=12)


@settings(max_examples=40, deadline=None)
@given(declared=pairs, connected=pairs, excused=pairs, jobs=events, runs=events)
def test_the_formula_equals_the_slow_way_hour_by_hour(
    declared: Any, connected: Any, excused: Any, jobs: Any, runs: Any
) -> None:
    """Every span begins and ends on the hour, so an hour is in or out as a whole."""

    def within(spans: Any, start: datetime) -> bool:
        return any(begin <= start < end for begin, end in spans)

    owed = kept = 0.0
    for hour in range(24 * 90):
        start = ago(hour + 1)
        if not within(declared, start) or within(excused, start):
            continue
        rate = math.log(2) / (14 * 24)
        share = (math.exp(-rate * hour) - math.exp(-rate * (hour + 1))) / rate
        owed += share
        kept += share if within(connected, start) else 0.0
    expected_uptime = (kept + max(0.0, 72 - owed) * 0.95) / max(72.0, owed)

    def mean(some: list[Event], full: float, prior: float) -> float:
        weighed = [
            (2 ** (-(NOW - one.at).total_seconds() / 86400 / 14), one.value)
            for one in some
            if (NOW - one.at).days <= 90
        ]
        weighed = [
            w
            for w, one in zip(weighed, [e for e in some if (NOW - e.at).days <= 90], strict=True)
            if one.at >= ago(24 * 90)
        ]
        total = sum(share for share, _ in weighed)
        return (sum(share * value for share, value in weighed) + max(0.0, full - total) * prior) / max(full, total)

    found = parts(declared=declared, connected=connected, excused=excused, jobs=jobs, runs=runs)
    assert found.uptime == pytest.approx(expected_uptime, abs=1e-9)
    assert found.completion == pytest.approx(mean(jobs, 10, 0.95), abs=1e-9)
    assert found.consistency == pytest.approx(mean(runs, 3, 1.0), abs=1e-9)
    assert 0 <= found.score <= 100


def test_it_takes_the_machine_as_a_whole_from_what_later_versions_know() -> None:
    hour = current.HOUR
    at = current.micros(NOW)
    card = current.Card("a", owed=[], kept=[], runs=[current.Run(at - hour, 100.0), current.Run(at, 90.0)])
    past = current.Past(
        at=at,
        cards=[card],
        jobs=[current.Job(at, good=True, ran=False), current.Job(at, good=False)],
        owed=[(at - 100 * hour, at)],
        connected=[(at - 100 * hour, at - 10 * hour)],
    )
    found = score.of_machine(past)
    told = parts(
        declared=[(ago(100), NOW)],
        connected=[(ago(100), ago(10))],
        jobs=[Event(NOW, 1.0), Event(NOW, 0.0)],
        runs=[Event(ago(1), 1.0), Event(NOW, 0.9)],
    )
    assert (found.score, found.uptime, found.completion, found.consistency) == (
        told.score,
        told.uptime,
        told.completion,
        told.consistency,
    )
    assert found.margin == 0

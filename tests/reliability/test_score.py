"""The formula of the score: its worked examples, and a slow reference."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marketplace.models import Rental
from reliability import score
from reliability.score import HOUR, Card, Job, Past, Run, Stretch, Terms, micros

NOW = micros(datetime(2026, 6, 1, tzinfo=UTC))


def ago(hours: float) -> int:
    return NOW - int(hours * HOUR)


def parts(
    owed: list[Stretch] | None = None,
    kept: list[Stretch] | None = None,
    jobs: list[Job] | None = None,
    runs: list[Run] | None = None,
) -> score.Parts:
    return score.of_machine(Past(NOW, [Card("a", owed or [], kept or [], runs or [])], jobs or []))


@pytest.mark.spec("I1", "K")
def test_a_machine_that_has_shown_nothing_stands_on_the_prior_and_is_new_with_a_margin() -> None:
    found = score.of_machine(Past(NOW))
    assert (found.uptime, found.completion, found.consistency) == pytest.approx((0.95, 0.95, 1.0))
    assert found.new is True
    assert found.score == pytest.approx(96.0)
    assert found.margin == pytest.approx(9.5, abs=0.1)


@pytest.mark.spec("I1")
def test_a_machine_without_fault_reaches_a_hundred_and_is_sure_of_it() -> None:
    whole = [(ago(90 * 24), NOW)]
    found = parts(
        owed=whole,
        kept=whole,
        jobs=[Job(ago(n), good=True) for n in range(0, 600, 20)],
        runs=[Run(ago(24 * n), 99.0) for n in range(10, 0, -1)],
    )
    assert found.score == pytest.approx(100.0)
    assert found.new is False
    assert found.margin < 2


@pytest.mark.spec("I3")
def test_a_fault_weighs_half_after_two_weeks_and_nothing_after_ninety_days() -> None:
    def lost(days: float) -> float:
        """Points that an outage of ten hours costs when it is so long ago."""
        whole, end = (ago(24 * 90), NOW), ago(24 * days)
        kept = [(whole[0], end - 10 * HOUR), (end, NOW)] if end > whole[0] else [whole]
        return 100.0 - parts([whole], kept, [Job(NOW, good=True)] * 10, [Run(NOW, 100.0)] * 3).score

    assert lost(1) > 0.5
    assert lost(15) == pytest.approx(lost(1) / 2, rel=1e-6)
    assert lost(91) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.spec("I1")
def test_one_failure_in_two_is_not_half() -> None:
    assert parts(jobs=[Job(NOW, good=True), Job(NOW, good=False)]).completion == pytest.approx(0.86)


@pytest.mark.spec("I1")
def test_jobs_that_never_ran_say_nothing() -> None:
    many = [Job(NOW, good=True, ran=False)] * 1000
    assert parts(jobs=[*many, Job(NOW, good=False)]) == parts(jobs=[Job(NOW, good=False)])


def test_what_lies_in_the_future_or_before_the_window_is_left_out() -> None:
    found = parts(jobs=[Job(NOW + 1, good=False), Job(ago(24 * 90) - 1, good=False)], runs=[Run(NOW + 1, 1.0)])
    assert (found.jobs, found.runs, found.score) == (0, 0, pytest.approx(96.0))


@pytest.mark.spec("I1")
def test_one_lucky_first_run_is_no_measure_and_neither_is_a_low_beginning() -> None:
    def level(*performances: float) -> float:
        return score.values_of([Run(n, each) for n, each in enumerate(performances)])[-1][1]

    assert level(112.0, 100.0, 100.0, 100.0) == 1.0
    assert level(60.0, 100.0, 100.0, 80.0) == pytest.approx(0.8)
    assert level(70.0, 70.0, 70.0, 70.0) == pytest.approx(70 / 90)


@pytest.mark.spec("I1")
def test_one_of_eight_cards_down_costs_an_eighth() -> None:
    whole = [(ago(1000), NOW)]
    up = [Card(str(n), whole, whole) for n in range(7)]
    found = score.of_machine(Past(NOW, [*up, Card("7", whole, [])]))
    assert found.uptime == pytest.approx(7 / 8)
    assert score.of_card(Past(NOW, [*up, Card("7", whole, [])]), up[0]).uptime == 1.0


def test_a_card_that_came_yesterday_makes_the_evidence_of_the_others_no_smaller() -> None:
    old, fresh = [(ago(1000), NOW)], [(ago(2), NOW)]
    found = score.of_machine(Past(NOW, [Card("a", old, old), Card("b", fresh, fresh)]))
    assert (found.new, found.declared_hours, found.uptime) == (False, 1000.0, 1.0)


def test_a_jobs_fault_counts_for_the_cards_it_was_on() -> None:
    past = Past(NOW, [Card("a"), Card("b")], [Job(NOW, good=False, cards=frozenset({"a"}))])
    first, second = (score.of_card(past, card) for card in past.cards)
    assert first.completion < second.completion == pytest.approx(0.95)


def test_a_providers_score_weighs_machines_by_their_cards() -> None:
    good, bad = parts(), parts(jobs=[Job(NOW, good=False)] * 30)
    found = score.of_provider([(good, 3), (bad, 1)])
    assert found is not None
    assert found.score == pytest.approx((3 * good.score + bad.score) / 4)
    assert found.margin < good.margin
    assert score.of_provider([]) is None


@pytest.mark.spec("I1")
def test_the_table_of_causes_is_the_marketplaces() -> None:
    assert score.HOST_CAUSES == Rental.PROVIDER_CAUSES
    assert set(Rental.Cause.values) >= score.NEVER_RAN
    assert not score.NEVER_RAN & score.HOST_CAUSES


hours = st.integers(0, 24 * 90)


def stretches(inside: Any = None) -> Any:
    """Stretches that begin and end on the hour, apart from each other; within others if these are given."""
    return st.lists(hours, max_size=12, unique=True).map(
        lambda edges: [
            (ago(older), ago(newer)) for newer, older in zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False)
        ]
    )


jobs_ = st.lists(st.builds(lambda age, good: Job(ago(age), good=good), hours, st.booleans()), max_size=12)
runs_ = st.lists(
    st.builds(
        lambda age, share, held: Run(ago(age), share, held), hours, st.floats(40, 125), st.none() | st.floats(0.5, 1)
    ),
    max_size=8,
).map(lambda some: sorted(some, key=lambda run: run.at))


@settings(max_examples=30, deadline=None)
@given(cards=st.lists(st.tuples(stretches(), stretches(), runs_), min_size=1, max_size=3), jobs=jobs_)
def test_the_formula_equals_the_slow_way_hour_by_hour(cards: Any, jobs: Any) -> None:
    """Every stretch begins and ends on the hour, so an hour is in or out as a whole."""
    rate = math.log(2) / (14 * 24)

    def has(some: list[Stretch], hour: int) -> bool:
        return any(begin <= ago(hour + 1) < end for begin, end in some)

    def hours_of(*sets: list[Stretch]) -> float:
        return sum(
            (math.exp(-rate * hour) - math.exp(-rate * (hour + 1))) / rate
            for hour in range(24 * 90)
            if all(has(some, hour) for some in sets)
        )

    def mean(some: list[tuple[int, float]], full: float, prior: float) -> float:
        weighed = [(math.exp(-rate * (NOW - at) / HOUR), value) for at, value in some]
        total = sum(share for share, _ in weighed)
        return (sum(share * value for share, value in weighed) + max(0.0, full - total) * prior) / max(full, total)

    made, kept_hours, owed_hours, values = [], [], [], []
    for number, (owed, up, runs) in enumerate(cards):
        kept = [(max(a, c), min(b, d)) for a, b in owed for c, d in up if max(a, c) < min(b, d)]
        made.append(Card(str(number), owed, kept, runs))
        owed_hours.append(hours_of(owed))
        kept_hours.append(hours_of(owed, up))
        first = sorted(run.performance for run in runs[:3])
        middle = 0.0 if not first else (first[(len(first) - 1) // 2] + first[len(first) // 2]) / 2
        values += [
            (run.at, min(1.0, run.performance / max(90.0, middle)) * min(1.0, (run.sustained or 1.0) / 0.95))
            for run in runs
        ]
    found = score.of_machine(Past(NOW, made, jobs))
    evidence, total = max(owed_hours), sum(owed_hours)
    share = sum(kept_hours) / total if total else 1.0
    uptime = (evidence * share + max(0.0, 72 - evidence) * 0.95) / max(72.0, evidence)
    completion = mean([(job.at, float(job.good)) for job in jobs], 10, 0.95)
    consistency = mean(values, 3, 1.0)
    assert found.uptime == pytest.approx(uptime, rel=1e-9)
    assert found.completion == pytest.approx(completion, rel=1e-9)
    assert found.consistency == pytest.approx(consistency, rel=1e-9)
    assert found.score == pytest.approx(50 * uptime + 30 * completion + 20 * consistency, rel=1e-9)
    assert 0 <= found.score <= 100


def test_other_terms_count_by_other_terms() -> None:
    fault = Job(ago(24 * 20), good=False)
    short = score.of_machine(Past(NOW, [], [fault], Terms(half_life_days=7)))
    assert short.completion > score.of_machine(Past(NOW, [], [fault])).completion
    assert score.of_machine(Past(NOW, [], [fault], Terms(window_days=10))).jobs == 0

"""What would raise a score most, and when today's loss has halved: the formula, applied to what may come.

``halved_by`` is when today's events together cost half of what they cost now, if from now on the machine is available in
all its declared hours, and jobs and runs go on as often as before, all well. Steps are counterfactuals: the score with it,
less the score as it is.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from providers.schedules import declared_spans
from reliability import score as formula
from reliability.events import Events
from reliability.losses import Loss
from reliability.score import DAY, HOUR, Parts, Past, Stretch, micros, moment, weight, weighted_hours

STEPS = 3
SMALLEST = 0.01  # points; below it a step, or a loss, is not worth a line
AHEAD = 7 * DAY


@dataclass(frozen=True, slots=True)
class Step:
    """What would raise the score, and by how much. ``code``: stay, back (with ``state``: what is the matter now), jobs, level, cooling."""

    code: str
    points: float
    state: str = ""
    count: int = 0
    days: int = 0


def _uptime_at(found: Events, past: Past, later: int, *, away: Sequence[int] = ()) -> float:
    """The uptime at ``later`` if all cards are available in their declared hours from now on, except those of ``away``."""
    coming = declared_spans(found.schedules, moment(past.at), moment(later)) if found.schedules else []
    ahead = [(micros(start), micros(end)) for start, end in coming]
    start = later - past.terms.window_days * DAY
    cards = []
    for card in past.cards:
        index = _index(found, card.key)
        mine = list(ahead) if card.owed else []
        cards.append(
            replace(
                card,
                owed=_from(start, [*card.owed, *mine]),
                kept=_from(start, [*card.kept, *([] if index in away else mine)]),
            )
        )
    return formula.of_machine(replace(past, at=later, cards=cards, jobs=())).uptime


def _index(found: Events, key: str) -> int:
    return next((card.index for card in found.cards if card.id == key), -1)


def _from(start: int, stretches: Iterable[Stretch]) -> list[Stretch]:
    return [(max(begin, start), end) for begin, end in stretches if end > start]


def steps(found: Events, past: Past, evidence: Parts, losses: Sequence[Loss]) -> list[Step]:
    """What would raise the score most, the best first."""
    later, days = past.at + AHEAD, AHEAD // DAY
    uptime = formula.of_machine(past).uptime
    best = _uptime_at(found, past, later)
    found_steps = []
    now = [loss for loss in losses if loss.component == "uptime" and loss.ongoing]
    for loss in now:
        away = loss.cards or tuple(_index(found, card.key) for card in past.cards)
        gain = best - _uptime_at(found, past, later, away=away)
        found_steps.append(Step("back", 100 * formula.UPTIME * gain, state=loss.code, count=len(away), days=days))
    if not now:
        found_steps.append(Step("stay", 100 * formula.UPTIME * (best - uptime), days=days))
    good = evidence.completion * max(evidence.jobs_weight, formula.PRIOR_JOBS)
    full = max(evidence.jobs_weight, formula.PRIOR_JOBS)
    real = good - max(0.0, formula.PRIOR_JOBS - evidence.jobs_weight) * formula.PRIOR_COMPLETION
    more = 10
    all_jobs = evidence.jobs_weight + more
    better = (real + more + max(0.0, formula.PRIOR_JOBS - all_jobs) * formula.PRIOR_COMPLETION) / max(
        all_jobs, formula.PRIOR_JOBS
    )
    found_steps.append(Step("jobs", 100 * formula.COMPLETION * (better - good / full), count=more))
    weak = [loss for loss in losses if loss.component == "consistency"]
    if weak:
        runs = max(evidence.runs_weight, formula.PRIOR_RUNS)
        lost = (1 - evidence.consistency) * runs
        again = 3 * max(1, len(past.cards))
        gain = lost / runs - lost / max(evidence.runs_weight + again, formula.PRIOR_RUNS)
        code = "cooling" if any(loss.code == "throttled" for loss in weak) else "level"
        found_steps.append(Step(code, 100 * formula.CONSISTENCY * gain, count=3))
    worth = [step for step in found_steps if step.points >= SMALLEST]
    return sorted(worth, key=lambda step: -step.points)[:STEPS]


def halved_by(found: Events, past: Past, losses: Sequence[Loss]) -> datetime | None:
    """When today's events cost half of what they cost now; None where they cost nothing that shows."""
    today = math.fsum(loss.points for loss in losses)
    if today < SMALLEST:
        return None
    half_life, window = past.terms.half_life_days * DAY, past.terms.window_days * DAY

    def cost(later: int) -> float:
        points = 100 * formula.UPTIME * _missing_share(found, past, later)
        fade = weight(later - past.at, half_life)
        for loss in losses:
            if loss.component != "uptime" and micros(loss.ended_at) >= later - window:
                points += loss.points * fade
        return points

    low, high = past.at, past.at + window
    if cost(high) > today / 2:
        return moment(high)
    while high - low > HOUR:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) > today / 2 else (low, middle)
    return moment(high)


def _missing_share(found: Events, past: Past, later: int) -> float:
    """The share of the uptime part that today's missing time takes at ``later``."""
    half_life = past.terms.half_life_days * DAY
    start = later - past.terms.window_days * DAY
    coming = declared_spans(found.schedules, moment(past.at), moment(later)) if found.schedules else []
    ahead = [(micros(begin), micros(end)) for begin, end in coming]
    owed = [
        weighted_hours(_from(start, [*card.owed, *(ahead if card.owed else [])]), at=later, half_life=half_life)
        for card in past.cards
    ]
    kept = [
        weighted_hours(_from(start, [*card.kept, *(ahead if card.owed else [])]), at=later, half_life=half_life)
        for card in past.cards
    ]
    evidence = max(owed, default=0.0)
    total = math.fsum(owed)
    return (1 - math.fsum(kept) / total) * evidence / max(evidence, formula.PRIOR_HOURS) if total else 0.0

"""A score, explained: what each event costs now, until when it matters, and what would raise the score most.

An event weighs half after a half-life and nothing once it has left the window: ``Loss.halved_at`` and ``Loss.until``. All is
computed from the events of ``reliability.events``, which are public, and from nothing else: prices by ``reliability.losses``,
what may come by ``reliability.ahead``, days by ``reliability.days``.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from reliability import ahead, days, events, formulas, losses
from reliability import score as formula
from reliability.ahead import Step
from reliability.days import Day
from reliability.events import Events
from reliability.losses import Loss
from reliability.score import Card, Parts, Past, micros


@dataclass(frozen=True)
class Explanation:
    """All of it, for one machine at one time."""

    at: datetime
    version: int
    parts: Parts
    losses: list[Loss]
    prior: dict[str, float]
    steps: list[Step]
    halved_by: datetime | None
    days: list[Day]
    cards: dict[str, Parts] = field(default_factory=dict)

    @property
    def lost(self) -> float:
        return 100 - self.parts.score


def explain(found: Events, *, at: datetime, version: int) -> Explanation:
    """The score of the machine of these events at ``at`` by a version of the formula: ``formulas.counting``, mostly."""
    whole = version in formulas.WHOLE
    past = events.past(found, at=micros(at))
    parts = formulas.FORMULAS[version](past)
    if whole:
        past = _as_whole(past)
    # How much evidence there is, is the same in every version.
    evidence = replace(formula.of_machine(past), consistency=parts.consistency, completion=parts.completion)
    sifted = losses.sift(found, past, at, whole=whole)
    priced = [
        *losses.uptime_losses(sifted, past, evidence),
        *losses.job_losses(found, past, evidence),
        *losses.run_losses(found, past, evidence, whole=whole),
    ]
    half_life, window = timedelta(days=past.terms.half_life_days), timedelta(days=past.terms.window_days)
    priced = [
        loss if loss.ongoing else replace(loss, halved_at=at + half_life, until=loss.ended_at + window)
        for loss in priced
    ]
    priced.sort(key=lambda loss: (-loss.points, loss.started_at))
    return Explanation(
        at=at,
        version=version,
        parts=parts,
        losses=priced,
        prior=losses.prior(evidence),
        steps=ahead.steps(found, past, evidence, priced),
        halved_by=ahead.halved_by(found, past, priced),
        days=days.of(sifted, at),
        cards={} if whole else {card.key: formula.of_card(past, card) for card in past.cards},
    )


def _as_whole(past: Past) -> Past:
    """The machine as one card, as version 1 takes it; it counted jobs that never ran, too."""
    runs = [run for card in past.cards for run in card.runs]
    card = Card("", past.owed, past.connected, runs)
    return replace(past, cards=[card] if past.owed else [], jobs=[job._replace(ran=True) for job in past.jobs])


def days_of(found: Events, *, at: datetime, version: int) -> list[Day]:
    """The days alone, for who needs nothing else."""
    whole = version in formulas.WHOLE
    past = events.past(found, at=micros(at))
    return days.of(losses.sift(found, _as_whole(past) if whole else past, at, whole=whole), at)

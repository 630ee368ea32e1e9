"""How a machine kept its declared hours, day by day in UTC, as renters see it beside an offer."""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from gpunex.kit.spans import common, seconds, without
from providers.models import Machine
from reliability import scores

DAYS = 90
FULL = 0.999  # a heartbeat's width short of a day is still a day in full


@dataclass(frozen=True)
class Uptime:
    """``states``: one a day, oldest first: ok, part, down, excused (only planned time is missing), none (not declared)."""

    states: list[str]
    first: date
    last: date

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.states)


def days_of(machine: Machine, *, at: datetime, days: int = DAYS) -> Uptime:
    """The last ``days`` days up to today, which is judged by what has passed of it."""
    today = datetime.combine(at.astimezone(UTC).date(), datetime.min.time(), UTC)
    start = today - timedelta(days=days - 1)
    spans = scores.uptime_spans(machine, start=start, end=at)
    states = []
    for number in range(days):
        day = [(start + timedelta(days=number), min(at, start + timedelta(days=number + 1)))]
        declared = common(spans["declared"], day)
        owed = without(declared, spans["excused"])
        if not declared:
            states.append("none")
        elif not owed:
            states.append("excused")
        else:
            share = seconds(common(owed, spans["connected"])) / seconds(owed)
            excused = seconds(owed) < seconds(declared)
            states.append(("excused" if excused else "ok") if share >= FULL else "part" if share > 0 else "down")
    return Uptime(states, start.date(), today.date())

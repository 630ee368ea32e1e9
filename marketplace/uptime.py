"""How a machine kept its declared hours, day by day in UTC, as renters see it beside an offer."""

from collections import Counter
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from providers.models import Machine
from reliability import explain, formulas, recorded, score_words
from reliability.days import DAYS, Day


@dataclass(frozen=True)
class Uptime:
    """The last days up to today, oldest first. ``states``: ok, part, down, excused (only excused time is missing), none."""

    days: list[Day]

    @property
    def states(self) -> list[str]:
        return [day.state for day in self.days]

    @property
    def titles(self) -> list[str]:
        """What each day was, in words."""
        return [score_words.day_in_words(day) for day in self.days]

    @property
    def first(self) -> date:
        return self.days[0].day

    @property
    def last(self) -> date:
        return self.days[-1].day

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.states)

    @property
    def rows(self) -> list[tuple[Day, str]]:
        """The days that were not kept in full, the newest first, each with its words."""
        return [
            (day, said)
            for day, said in reversed(list(zip(self.days, self.titles, strict=True)))
            if day.state not in ("ok", "none")
        ]


def days_of(machine: Machine, *, at: datetime) -> Uptime:
    """The last 90 days of ``machine`` up to today, which is judged by what has passed of it."""
    found = recorded.read(machine, since=at - timedelta(days=DAYS))
    return Uptime(explain.days_of(found, at=at, version=formulas.counting(at)))

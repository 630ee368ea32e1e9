"""The uptime that the floor looks at: the same that the score counts, unweighted, over 30 and over 7 days.

A card that is off the market only for its machine's uptime counts as available (``reliability.availability``), or such a
machine could never come back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from reliability import scores

MONTH, WEEK = timedelta(days=30), timedelta(days=7)
HOURS_LEAST = 72  # declared hours, before which there is only a warning


@dataclass(frozen=True)
class Figures:
    """Shares 0 to 1, None where nothing was declared; ``hours``: declared and not excused in the month."""

    month: float | None = None
    week: float | None = None
    hours: float = 0.0


def figures(machines: Sequence[int], *, at: datetime) -> dict[int, Figures]:
    """Of machines by their keys: a fixed number of statements, however many."""
    month = scores.share_available(machines, since=at - MONTH, at=at)
    week = scores.share_available(machines, since=at - WEEK, at=at)
    return {
        key: Figures(
            month=month[key][1] if key in month else None,
            week=week[key][1] if key in week else None,
            hours=month[key][0] if key in month else 0.0,
        )
        for key in machines
    }

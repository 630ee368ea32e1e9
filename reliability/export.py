"""The export of a machine: its events with the scores that were stored, and replaying these from that document alone.

Anyone can check a score: take the document (Performance tab, API, ``manage.py export_score_events``), and compute each of
its scores again (``manage.py replay_score --events``). Equal means equal to the last digit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from providers.models import Machine
from reliability import events, formulas, recorded, scores, uptime
from reliability.events import Events, NotEvents
from reliability.models import Score
from reliability.score import Parts, micros

PARTS = ("score", "uptime", "completion", "consistency", "margin")


def document(machine: Machine, *, at: datetime, since: datetime | None = None) -> dict[str, Any]:
    """The events of ``machine`` and its stored scores (those after ``since``), ready for ``json.dumps``."""
    stored = Score.objects.filter(machine=machine).order_by("at", "version")
    needed = None
    if since is not None:
        stored = stored.filter(at__gte=since)
        needed = since - timedelta(days=uptime.terms_at(at).window_days)
    return events.as_json(recorded.read(machine, since=needed)) | {
        "exported_at": _iso(at),
        "scores": [
            {
                "at": _iso(score.at),
                "version": score.version,
                **{name: getattr(score, name) for name in PARTS},
                "digest": score.inputs.get("digest", ""),
            }
            for score in stored
        ],
    }


@dataclass(frozen=True, slots=True)
class Replayed:
    """A stored score beside what the events make of it."""

    at: datetime
    version: int
    stored: dict[str, Any]
    parts: Parts
    digest: str

    @property
    def same(self) -> bool:
        """To the last digit; version 1 knew no margin and no digest."""
        exact = all(self.stored[name] is None or self.stored[name] == getattr(self.parts, name) for name in PARTS)
        return exact and self.stored.get("digest", "") in ("", self.digest)


def replay(found: Events, *, at: datetime, version: int) -> tuple[Parts, str]:
    """The score of these events at ``at`` by ``version``, and the digest of what it rests on."""
    past = events.past(found, at=micros(at))
    return formulas.FORMULAS[version](past), scores.digest(past)


def replay_stored(text: Any) -> Iterator[Replayed]:
    """Each score that the document holds, computed again from its events. Raises NotEvents."""
    found = events.from_json(text)
    try:
        rows = [(datetime.fromisoformat(row["at"]), int(row["version"]), row) for row in text["scores"]]
        if any(name not in row for _at, _version, row in rows for name in PARTS):
            raise NotEvents("A score of the document lacks a part.")
    except (KeyError, TypeError, ValueError) as error:
        raise NotEvents(f"The document's scores can't be read: {error!r}") from error
    for at, version, row in rows:
        if version not in formulas.FORMULAS:
            raise NotEvents(f"There is no version {version} of the formula.")
        parts, digest = replay(found, at=at, version=version)
        yield Replayed(at, version, row, parts, digest)


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")

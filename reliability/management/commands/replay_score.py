"""``manage.py replay_score MACHINE``: compute scores again from the events that they rest on.

Without ``--at`` each stored score is computed again and compared, to the last digit; exit status 1 if one differs. With
``--at`` the score of that moment is printed, stored or not. ``--events FILE`` takes the document that
``export_score_events``, the API or the Performance tab gives, and needs no database.
"""

import json
import sys
from argparse import ArgumentParser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from reliability import events, export, formulas, score
from reliability.events import NotEvents
from reliability.management.machines import machine_called


class Command(BaseCommand):
    help = "Compute a machine's reliability scores again from the recorded events."
    requires_system_checks: list[str] = []  # none of them may ask the database

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("machine", metavar="MACHINE", help="its public id, or its name where that is one machine's")
        parser.add_argument("--at", metavar="TIME", help="the score of this moment (ISO 8601), as it was known then")
        parser.add_argument("--events", metavar="FILE", help="an exported document instead of the database; - is stdin")
        parser.add_argument(
            "--formula", type=int, default=score.VERSION, choices=sorted(formulas.FORMULAS), help="with --at"
        )

    def handle(self, *args: Any, machine: str, at: str | None, formula: int, **options: Any) -> None:
        document = self._document(machine, options["events"])
        try:
            if at is None:
                self._compare(document)
            else:
                self._compute(document, at=_moment(at), version=formula)
        except NotEvents as error:
            raise CommandError(str(error)) from error

    def _document(self, machine: str, path: str | None) -> Any:
        if path is None:
            return export.document(machine_called(machine), at=timezone.now())
        try:
            text = sys.stdin.read() if path == "-" else Path(path).read_text()
            document = json.loads(text)
        except (OSError, ValueError) as error:
            raise CommandError(f"{path} can't be read: {error}") from error
        if not isinstance(document, dict) or document.get("machine") != machine:
            raise CommandError(f"{path} is not of the machine {machine}.")
        return document

    def _compare(self, document: Any) -> None:
        count = differ = 0
        for found in export.replay_stored(document):
            count, differ = count + 1, differ + (not found.same)
            said = "same" if found.same else f"DIFFERS, stored {found.stored['score']!r}"
            self.stdout.write(f"{found.at.isoformat()} version {found.version}: {found.parts.score!r} {said}")
        self.stdout.write(f"{count} scores, {differ} of them differ.")
        if differ:
            raise CommandError("Not all scores are what the events make of them.")

    def _compute(self, document: Any, *, at: datetime, version: int) -> None:
        parts, digest = export.replay(events.from_json(document), at=at, version=version)
        self.stdout.write(f"score {parts.score!r}")
        for name in (
            "margin",
            "uptime",
            "completion",
            "consistency",
            "new",
            "declared_hours",
            "available_hours",
            "jobs",
            "runs",
        ):
            self.stdout.write(f"{name} {getattr(parts, name)!r}")
        self.stdout.write(f"digest {digest}")


def _moment(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandError(f"{text!r} is no time. Write it as 2026-10-14T09:30:00Z.") from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)

"""``manage.py export_score_events MACHINE``: everything its scores rest on, and the scores, as JSON on stdout."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from reliability import export
from reliability.management.machines import machine_called


class Command(BaseCommand):
    help = "Print all events that a machine's scores rest on, and its scores, as one JSON document."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("machine", metavar="MACHINE", help="its public id, or its name where that is one machine's")

    def handle(self, *args: Any, machine: str, **options: Any) -> None:
        self.stdout.write(json.dumps(export.document(machine_called(machine), at=timezone.now()), indent=1))

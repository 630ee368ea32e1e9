"""``manage.py sweep NAME``: run one sweep by hand, so that the work goes on while Redis or the workers are away."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gpunex.celery import SWEEPS
from gpunex.sweeps import run_now


class Command(BaseCommand):
    help = "Run a sweep now. Without a name: list them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", nargs="?", choices=sorted(SWEEPS))

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["name"]
        if name is None:
            for known, sweep in SWEEPS.items():
                self.stdout.write(f"{known:<16} every {sweep.every:>6g} s  {sweep.task}")
            return
        result = run_now(name)
        if result is None:
            raise CommandError(f"{name} found nothing to say, or is running elsewhere now.")
        self.stdout.write(f"{name}: {result}")

"""``manage.py demo``: run the whole product here. ``--check``: let it prove itself, step by step."""

import os
import signal
import sys
from argparse import ArgumentParser
from typing import Any, NoReturn

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from gpunex.demo import check, people, seed
from gpunex.demo.launcher import ROOT, WEB_PORT, Demo
from gpunex.embedded.cluster import Cluster, ClusterBusy
from gpunex.embedded.processes import EmbeddedError


class Command(BaseCommand):
    help = "Run the whole product embedded, with a seeded market; --check proves the story from form to payout."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="run the story through the public doors and exit")
        parser.add_argument("--port", type=int, default=WEB_PORT, help="the pages' port, if it is free")
        parser.add_argument("--bare", action="store_true", help="no seeded market and no fleet")

    def handle(self, *args: Any, **options: Any) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):  # a shell starts background jobs with SIGINT ignored
            signal.signal(number, _interrupt)
        cluster = Cluster(os.environ["GPUNEX_CLUSTER"], ROOT)
        demo = Demo(cluster, say=self._say, preferred_port=options["port"])
        try:
            if options["check"]:
                self._check(demo)
            else:
                self._run(demo, bare=options["bare"])
        except ClusterBusy as error:
            raise CommandError(str(error)) from error
        except EmbeddedError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            self._say("\nStopping …")
        finally:
            # Stopping takes seconds: an impatient second Ctrl-C waits too.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            connections.close_all()
            cluster.stop()

    def _run(self, demo: Demo, *, bare: bool) -> None:
        demo.start(prepare=self._prepare)
        if not bare:
            self._say("Starting the simulated hosts …")
            plan = seed.before_fleet(demo.cluster.folder)
            demo.start_fleet(plan)
            seed.await_fleet(demo.cluster.folder, say=self._say)
        self._say(self._welcome(demo.url))
        if not bare:
            seed.write_past(demo.cluster.folder, say=self._say)
        demo.wait()

    def _check(self, demo: Demo) -> None:
        try:
            demo.start(prepare=self._prepare)
            url = demo.url
        except ClusterBusy:
            # The demonstration runs already, in another terminal: the story is told to that one.
            url = f"http://localhost:{demo.cluster.port('web', preferred=WEB_PORT)}"
            self._say(f"It runs already: the story is told to {url}.")
        if not check.Story(url=url, say=self._say, root=ROOT).run():
            connections.close_all()
            demo.cluster.stop()
            sys.exit(1)

    def _prepare(self) -> None:
        self._say("Preparing the database …")
        call_command("migrate", verbosity=0, interactive=False)
        people.ensure_admin()

    def _welcome(self, url: str) -> str:
        return "\n".join(
            [
                "",
                f"  GPUnex is at            {url}",
                f"  Administration          {url}/admin/",
                f"  The mail it sends       {url}/dev/mail",
                "",
                "  Sign in as              email                      password",
                *(f"    {person.role:<21} {person.email:<26} {people.PASSWORD}" for person in people.SHOWN),
                "",
                "  Hosts and money here are simulated, and say so. Ctrl-C stops everything; your data stays in .gpunex/.",
                "  To prove the whole way through: .venv/bin/python manage.py demo --check",
                "",
            ]
        )

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt

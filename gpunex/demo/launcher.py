"""The demonstration: the embedded services, the web server, a worker with its clock, and a fleet of simulated hosts.

Everything is the product itself: the same SQL, the same sweeps, the same signed transactions, the real agent. Only the
hosts' drivers and container engines are simulated, and say so.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import httpx

from gpunex.embedded.cluster import Cluster
from gpunex.embedded.processes import Child, EmbeddedError
from gpunex.kit.translations import compile_catalogues

ROOT = Path(__file__).resolve().parent.parent.parent
WEB_PORT = 8000


class Demo:
    """A running demonstration. ``start`` comes back when the pages answer."""

    def __init__(self, cluster: Cluster, *, say: Callable[[str], None], preferred_port: int = WEB_PORT) -> None:
        self.cluster = cluster
        self.say = say
        self.preferred_port = preferred_port
        self.url = ""

    def start(self, *, prepare: Callable[[], None]) -> Self:
        """Services, database, ``prepare()`` (what must be there before the first page), then web and worker."""
        compile_catalogues()
        self.say("Starting PostgreSQL, Redis and the development chain …")
        self.cluster.start()
        try:
            port = self.cluster.choose_port("web", preferred=self.preferred_port)
            if port != self.preferred_port:
                self.say(f"Port {self.preferred_port} is taken: the pages are on {port}.")
            self.url = f"http://localhost:{port}"
            os.environ.update(self.cluster.environment(), PUBLIC_URL=self.url)
            prepare()
            self._serve(port)
            self._work()
            self._wait_until_it_answers()
        except BaseException:
            self.cluster.stop()
            raise
        return self

    def start_fleet(self, plan: Path) -> None:
        """The simulated hosts of ``plan`` (a JSON file), each a real agent, in one process."""
        self.cluster.spawn("fleet", [sys.executable, "-m", "agent.simulation.fleet", str(plan), "--url", self.url])

    def wait(self) -> None:
        """Come back when a part has stopped by itself; Ctrl-C raises KeyboardInterrupt out of here."""
        while True:
            for child in self.cluster.children:
                if not child.running:
                    raise EmbeddedError(f"{child.name} has stopped. The end of {child.log}:\n{child.last_words()}")
            time.sleep(1)

    def _serve(self, port: int) -> None:
        self.web = self._spawn(
            "web",
            [
                *(sys.executable, "-m", "uvicorn", "gpunex.asgi:application"),
                *("--host", "127.0.0.1", "--port", str(port), "--no-access-log", "--timeout-graceful-shutdown", "2"),
            ],
        )

    def _work(self) -> None:
        """The worker and its clock, each a child of ours: a clock that a worker starts lives on when that worker is killed."""
        celery = (sys.executable, "-m", "celery", "-A", "gpunex")
        quiet = ("--loglevel", "WARNING")
        threads = ("--pool", "threads", "--concurrency", "4", "--without-gossip", "--without-mingle")
        schedule, pid_file = (self.cluster.folder / "run" / name for name in ("beat", "beat.pid"))
        pid_file.unlink(missing_ok=True)  # of a clock that was killed; the cluster's lock says that none runs
        self._spawn("worker", [*celery, "worker", *threads, *quiet])
        self._spawn("beat", [*celery, "beat", "--schedule", str(schedule), "--pidfile", str(pid_file), *quiet])

    def _spawn(self, name: str, command: list[str]) -> Child:
        return self.cluster.spawn(name, command, env={"PUBLIC_URL": self.url})

    def _wait_until_it_answers(self, *, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self.web.running:
                raise EmbeddedError(
                    f"The web server did not start. The end of {self.web.log}:\n{self.web.last_words()}"
                )
            try:
                if httpx.get(f"{self.url}/health/ready", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise EmbeddedError(f"The web server does not answer after {seconds:.0f} s. See {self.web.log}.")

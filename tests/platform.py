"""The whole platform as a newcomer runs it, in a cluster of its own: for tests that only go through its doors.

``manage.py demo --bare``: PostgreSQL, Redis, the chain, the web server, and the worker with its clock. It keeps its data through
SIGKILL, as a demonstration does. One platform serves the whole session; a test makes the people it needs and counts on no others.
"""

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpunex.demo.browser import Browser
from gpunex.demo.check import Story
from gpunex.demo.people import ADMIN, PASSWORD
from gpunex.embedded.cluster import Cluster, free_port
from gpunex.embedded.processes import Child, spawn

ROOT = Path(__file__).resolve().parents[1]
FIRST_PORT = 18200
# Shorter silences than the product's, set where an administrator sets them.
POLICY = {"heartbeat_seconds": "2", "offline_seconds": "10"}


class Platform:
    """A running platform. ``kill`` and ``start`` again keep its address and its data."""

    def __init__(self, name: str, folder: Path) -> None:
        self.cluster = Cluster(name, ROOT)
        self.folder = folder
        self.port = free_port(FIRST_PORT + os.getpid() % 1000)
        self.url = ""
        self._launcher: Child | None = None

    def start(self, *, reset: bool = False, seconds: float = 150) -> None:
        log = self.folder / "platform.log"
        log.write_bytes(b"")
        # The variables of the tests' own cluster would win over those of this one.
        own = {name: value for name, value in os.environ.items() if name not in Cluster("test", ROOT).environment()}
        command = [
            sys.executable,
            "manage.py",
            "demo",
            "--bare",
            "--port",
            str(self.port),
            *(["--reset"] if reset else []),
        ]
        self._launcher = spawn(
            "platform",
            command,
            log=log,
            pid_file=self.folder / "platform.json",
            marker=" ".join(command),
            cwd=ROOT,
            env={**own, "GPUNEX_CLUSTER": self.cluster.name, "LOG_LEVEL": "WARNING", "PYTHONUNBUFFERED": "1"},
        )
        deadline = time.monotonic() + seconds
        while not (found := re.search(r"GPUnex is at +(http\S+)", log.read_text())):
            assert self._launcher.running, f"the platform did not start:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"the platform did not start in {seconds} s:\n{log.read_text()}"
            time.sleep(0.05)
        assert self.url in ("", found[1]), "a restart keeps the address"
        self.url = found[1]

    def stop(self) -> None:
        if self._launcher is not None:
            self._launcher.stop(seconds=40)

    def kill(self) -> None:
        """SIGKILL for everything at once, as a power cut would: nobody gets to tidy up."""
        assert self._launcher is not None
        # Else it would stop the others in order when the first one dies.
        os.kill(self._launcher.process.pid, signal.SIGSTOP)
        for pid_file in self.cluster.run_dir.glob("*.json"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(json.loads(pid_file.read_text())["pid"]), signal.SIGKILL)
        self._launcher.process.kill()
        self._launcher.process.wait()
        deadline = time.monotonic() + 10
        while left := self._left_over():
            assert time.monotonic() < deadline, f"these outlived their launcher: {left}"
            time.sleep(0.05)

    def _left_over(self) -> list[str]:
        """The command lines of this cluster's processes, the hosts' agents and those of other checkouts aside."""
        mark = f"GPUNEX_CLUSTER={self.cluster.name}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                here = (process / "cwd").readlink() == self.cluster.root
                if here and mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        return [line for line in found if line and " -m agent " not in line]

    def environment(self) -> dict[str, str]:
        return {**self.cluster.environment(), "PUBLIC_URL": self.url}

    def set_policy(self, **values: str) -> None:
        """As an administrator does, on the administration's page."""
        with Browser(self.url) as admin:
            page = admin.get("/account/login/")
            admin.submit(page, page.form(having="password"), login=ADMIN.email, password=PASSWORD)
            page = admin.get("/admin/policy/policy/")
            admin.submit(page, page.form(having="heartbeat_seconds"), **values)

    def story(self, said: list[str]) -> Story:
        """The demonstration's own story, told to this platform; its lines are appended to ``said``."""
        return Story(url=self.url, say=said.append, root=ROOT)


def running_platform(beside: Cluster, folder: Path) -> Iterator[Platform]:
    """Made anew at the start of the session, so that a test meets only what this session did."""
    made = Platform(f"stories_{beside.name}", folder)
    made.start(reset=True)
    try:
        made.set_policy(**POLICY)
        yield made
    finally:
        made.stop()


@contextlib.contextmanager
def told(story: Story, said: list[str], *, until: str) -> Iterator[Story]:
    """The story up to and without the step whose title begins with ``until``; its people and its agent stay."""
    titles = [title for title, _ in story.steps]
    place = next(number for number, title in enumerate(titles) if title.startswith(until))
    with story:
        if not story.tell(story.steps[:place]):
            pytest.fail("\n".join(said), pytrace=False)
        yield story

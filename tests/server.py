"""The real server process for tests: uvicorn on a free port, on the tests' database, Redis and chain.

Tests that use it commit what they write (``transactional_db``), since another process has to see it.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from django.db import connection, connections

from gpunex.embedded.cluster import free_port
from gpunex.sweeps import run_now

ROOT = Path(__file__).resolve().parents[1]
FIRST_PORT = 18000


def database_url() -> str:
    """The tests' database, which is not the one that the environment names."""
    name = connection.settings_dict["NAME"]
    parts = urlsplit(os.environ["DATABASE_URL"])
    return parts._replace(path=f"/{name}").geturl()


class Server:
    """A running server process. ``kill`` and ``start`` again keep the address, as a restart of the platform does."""

    def __init__(self, log: Path, *, environment: dict[str, str] | None = None) -> None:
        self.port = free_port(FIRST_PORT + os.getpid() % 1000)
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, seconds: float = 60) -> None:
        environment = {
            **os.environ,
            "DATABASE_URL": database_url(),
            "PUBLIC_URL": self.url,
            "DJANGO_SETTINGS_MODULE": "gpunex.settings",
            "LOG_LEVEL": "WARNING",
            **self._environment,
        }
        command = [
            *(
                sys.executable,
                "-m",
                "uvicorn",
                "gpunex.asgi:application",
                "--host",
                "127.0.0.1",
                "--port",
                str(self.port),
            ),
            *("--no-access-log", "--log-level", "warning", "--timeout-graceful-shutdown", "2"),
        ]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        wait_for(self._answers, seconds=seconds, what=f"the server (its log: {self.log})")

    def kill(self) -> None:
        """As the kernel or a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the server ended at once:\n{self.log.read_text()[-4000:]}")
        try:
            return httpx.get(f"{self.url}/health/live", timeout=2, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False


@contextmanager
def live_server_process(log_folder: Path, *, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """Precondition: the test commits (``transactional_db``). The server is stopped at the end."""
    server = Server(log_folder / "server.log", environment=environment)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def clock(*names: str, every: float = 0.3) -> Iterator[None]:
    """Runs these sweeps again and again in a thread, in place of the worker. What one raises fails the test."""
    stop, failures = threading.Event(), []

    def run(sweeps: Sequence[str]) -> None:
        try:
            while not stop.is_set():
                for name in sweeps:
                    run_now(name)
                stop.wait(every)
        except Exception as error:
            failures.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, args=(names,), name="clock")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
    if failures:
        raise failures[0]


def wait_for[T](what_is: Callable[[], T], *, seconds: float = 30, what: str = "it") -> T:
    """The first true answer of ``what_is``. AssertionError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (found := what_is()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for {what}"
        time.sleep(0.05)
    return found

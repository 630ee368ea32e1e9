"""The driver at arm's length: NVML lives in a child process, and a child that does not answer in time is given up.

A process that hangs in the kernel cannot even be killed; so nobody waits for it, and a new one is tried later.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path

from agent.driver import DriverAbsent, DriverHung, Reading

ANSWER_S = 10.0
RETRY_S = 30.0


class WatchedDriver:
    simulated = False

    def __init__(self, *, answer_s: float = ANSWER_S, retry_s: float = RETRY_S) -> None:
        self._answer_s, self._retry_s = answer_s, retry_s
        self._child: subprocess.Popen[bytes] | None = None
        self._given_up: list[subprocess.Popen[bytes]] = []
        self._not_before = 0.0

    def read(self) -> Reading:
        if time.monotonic() < self._not_before:
            raise DriverHung("the driver does not answer; it will be tried again")
        child = self._running()
        assert child.stdin is not None
        try:
            child.stdin.write(b"read\n")
            child.stdin.flush()
        except OSError as error:
            self._give_up()
            raise DriverAbsent("the process that reads the driver ended") from error
        line = self._line(child)
        answer = json.loads(line)
        if "absent" in answer:
            self._give_up()  # a library that failed to load is only found again by a new process
            raise DriverAbsent(answer["absent"])
        return Reading.from_json(answer["reading"])

    def close(self) -> None:
        self._give_up()

    def _running(self) -> subprocess.Popen[bytes]:
        self._given_up = [child for child in self._given_up if child.poll() is None]
        if self._child is None or self._child.poll() is not None:
            root = str(Path(__file__).resolve().parent.parent)
            self._child = subprocess.Popen(
                [sys.executable, "-m", "agent.nvml"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={key: value for key, value in os.environ.items() if key != "GPUNEX_API_KEY"} | {"PYTHONPATH": root},
                cwd="/",
                bufsize=0,
            )
        return self._child

    def _line(self, child: subprocess.Popen[bytes]) -> bytes:
        """One whole line within the time, read without ever blocking on the child."""
        assert child.stdout is not None
        deadline, data = time.monotonic() + self._answer_s, b""
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while not data.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self._not_before = time.monotonic() + self._retry_s
                    self._give_up()
                    raise DriverHung(f"the driver did not answer within {self._answer_s:.0f} s")
                chunk = os.read(child.stdout.fileno(), 65536)
                if not chunk:
                    self._give_up()
                    raise DriverAbsent("the process that reads the driver ended")
                data += chunk
        return data

    def _give_up(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        try:
            child.wait(0.5)
        except subprocess.TimeoutExpired:
            self._given_up.append(child)  # stuck in the kernel; looked at again later

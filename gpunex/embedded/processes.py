"""Child processes that never outlive their launcher, and the hunt for those that did.

On Linux the kernel signals each child when its launcher dies, even by SIGKILL. Elsewhere, and in the moment between, the
pid file of each child lets the next launcher find and end it; the process's command line must name what the pid file
says, so a pid that was given to somebody else's process is left alone.
"""

import contextlib
import ctypes
import json
import os
import pwd
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
# Loaded here and not in the forked child, where only async-signal-safe work is safe.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

POLL_SECONDS = 0.02


class EmbeddedError(Exception):
    """An embedded service cannot run; the message is one sentence for the person at the terminal."""


@dataclass(frozen=True)
class Identity:
    """The system user that a service runs as when the launcher is root (PostgreSQL refuses to run as root)."""

    uid: int
    gid: int

    def own(self, path: Path) -> None:
        os.chown(path, self.uid, self.gid)

    @property
    def popen_options(self) -> dict[str, Any]:
        """Keywords of ``subprocess`` that run a program as this user, without root's groups."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def succeeds(self, command: Sequence[str]) -> bool:
        """Whether ``command`` exits 0 when this user runs it, which also tells what the user can reach."""
        try:
            done = subprocess.run(
                command,
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=20,
                check=False,
                **self.popen_options,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0


SYSTEM_USER = "gpunex-pg"


def identity_for(home: Path) -> Identity | None:
    """Who runs the services that keep their data in ``home``: None for "as myself", which is every launcher but root.

    As root: the owner of data that is already there, else the system user ``gpunex-pg``, made on first use.
    """
    if os.geteuid() != 0:
        return None
    with contextlib.suppress(FileNotFoundError):
        found = home.stat()
        if found.st_uid != 0:
            return Identity(uid=found.st_uid, gid=found.st_gid)
    try:
        entry = pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
        try:
            made = subprocess.run(
                [*command, "--shell", "/usr/sbin/nologin", SYSTEM_USER], capture_output=True, text=True, check=False
            )
        except FileNotFoundError as error:
            raise EmbeddedError(
                "Root cannot run PostgreSQL, and useradd is missing: run this as another user."
            ) from error
        try:
            entry = pwd.getpwnam(SYSTEM_USER)
        except KeyError as error:
            raise EmbeddedError(
                f"Root cannot run PostgreSQL, and its system user {SYSTEM_USER} could not be made: {made.stderr.strip()}"
            ) from error
    return Identity(uid=entry.pw_uid, gid=entry.pw_gid)


@dataclass(frozen=True)
class Child:
    """A running child process, its log, and the signal that asks it to stop."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    pid_file: Path
    stop_signal: signal.Signals

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def stop(self, *, seconds: float = 20) -> None:
        """Ask it to stop, wait, then make it. Harmless when it has stopped already."""
        if self.running:
            self.process.send_signal(self.stop_signal)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.pid_file.unlink(missing_ok=True)

    def last_words(self, *, lines: int = 12) -> str:
        """The end of its log, for the message that says why it did not start."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""


def spawn(
    name: str,
    command: Sequence[str],
    *,
    log: Path,
    pid_file: Path,
    marker: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    identity: Identity | None = None,
    stop_signal: signal.Signals = signal.SIGTERM,
) -> Child:
    """Start ``command`` as a child that dies with this process; its output is appended to ``log``.

    ``marker`` is a text of its command line by which a later launcher knows it. The child gets a session of its own, so
    Ctrl-C at the terminal reaches only the launcher, which stops its children in order.

    Main thread only: Linux ties the death signal to the thread that forked, not to the process.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("children are started from the main thread, whose end is the end of the launcher")
    launcher = os.getpid()

    def die_with_launcher() -> None:
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, int(stop_signal), 0, 0, 0)
            if os.getppid() != launcher:  # it died before the line above
                os._exit(1)

    log.parent.mkdir(parents=True, exist_ok=True)
    pid_file.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=env,
                start_new_session=True,
                preexec_fn=die_with_launcher,  # noqa: PLW1509  no other thread of the launcher holds a lock yet
                **(identity.popen_options if identity else {}),
            )
        except OSError as error:
            raise EmbeddedError(f"{name} cannot be started: {error}.") from error
    pid_file.write_text(json.dumps({"pid": process.pid, "marker": marker, "signal": int(stop_signal)}))
    return Child(name=name, process=process, log=log, pid_file=pid_file, stop_signal=stop_signal)


def wait_until(ready: Callable[[], bool], *, child: Child, seconds: float) -> bool:
    """Poll ``ready`` while the child lives. False when the child ended or the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not child.running:
            return False
        if ready():
            return True
        time.sleep(POLL_SECONDS)
    return False


def end_orphans(pid_files: Path, *, seconds: float = 20) -> list[int]:
    """End what an earlier launcher left behind and answer the pids. The caller holds the cluster's lock."""
    ended = []
    for pid_file in sorted(pid_files.glob("*.json")):
        try:
            left = json.loads(pid_file.read_text())
            pid, marker, stop_signal = int(left["pid"]), str(left["marker"]), int(left["signal"])
        except (ValueError, KeyError, TypeError):  # cut off in the middle of a write: nothing to find by it
            pid_file.unlink(missing_ok=True)
            continue
        if marker in command_line(pid):
            ended.append(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, stop_signal)
            deadline = time.monotonic() + seconds
            while marker in command_line(pid):
                if time.monotonic() > deadline:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(POLL_SECONDS)
        pid_file.unlink(missing_ok=True)
    return ended


def command_line(pid: int) -> str:
    """The command line of a living process, arguments apart by spaces; "" for a pid that has none (gone, or a zombie)."""
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    shown = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout

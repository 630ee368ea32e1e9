"""A named set of embedded services under ``.gpunex/<name>/``: one launcher at a time, the same addresses each time.

    log/                  the output of each child
    run/                  pid files, by which a later launcher finds what a killed one left
    postgres, chain, mail data
    secrets.json  (0600)  SECRET_KEY and FIELD_KEYS, made once
    runtime.json          the loopback ports chosen at the last start
    lock                  held by the launcher as long as it lives

Sockets have a folder of their own under /tmp, since their paths may not be longer than 107 bytes.
"""

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from gpunex.embedded.chain import Chain, chain_facts, chain_url, chain_variables
from gpunex.embedded.postgres import Postgres, database_url, private_folder, remove_data
from gpunex.embedded.processes import Child, EmbeddedError, end_orphans, identity_for, spawn
from gpunex.embedded.redis import Redis, redis_url

# Where the children find our code; `root` only says where the data are.
CODE = Path(__file__).resolve().parents[2]
SERVICES = ("postgres", "redis", "chain")
_CHAIN_PORTS = {"demo": 8899, "test": 8999}
_WEB_PORTS = {"demo": 8000, "test": 8100}
_OTHER_CHAINS, _OTHER_WEBS, _OTHERS = 9100, 8200, 600
_PORTS_TRIED = 50


class ClusterBusy(EmbeddedError):
    """Another launcher runs this cluster now."""


class Cluster:
    """The embedded services of one name below the checkout ``root``.

    The addresses are known without starting anything, so a shell beside a running demo finds its services.

    >>> cluster = Cluster("demo", Path("/srv/gpunex"))
    >>> str(cluster.folder)
    '/srv/gpunex/.gpunex/demo'
    """

    def __init__(self, name: str, root: Path) -> None:
        if not name.isidentifier():
            raise EmbeddedError(f"A cluster's name is letters, digits and underscores, and not {name!r}.")
        self.name = name
        self.root = root.resolve()
        self.folder = self.root / ".gpunex" / name
        # What tests and checks make may go with the machine; a demo keeps what people did in it.
        self.durable = not name.startswith(("test", "check"))
        self._children: list[Child] = []
        self._lock: IO[str] | None = None

    # Addresses

    @property
    def sockets(self) -> Path:
        return Path("/tmp") / f"gpunex-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:12]}"

    @property
    def database_url(self) -> str:
        return database_url(self.sockets)

    @property
    def redis_url(self) -> str:
        return redis_url(self.sockets)

    @property
    def chain_port(self) -> int:
        return self.port("chain", preferred=self._usual(_CHAIN_PORTS, _OTHER_CHAINS))

    @property
    def chain_url(self) -> str:
        return chain_url(self.chain_port)

    @property
    def web_port(self) -> int:
        return self.port("web", preferred=self._usual(_WEB_PORTS, _OTHER_WEBS))

    @property
    def public_url(self) -> str:
        return f"http://localhost:{self.web_port}"

    @property
    def postgres_home(self) -> Path:
        return self.folder / "postgres"

    @property
    def chain_dir(self) -> Path:
        return self.folder / "chain"

    @property
    def mail_dir(self) -> Path:
        return self.folder / "mail"

    @property
    def log_dir(self) -> Path:
        return self.folder / "log"

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    @property
    def runtime_file(self) -> Path:
        return self.folder / "runtime.json"

    def port(self, service: str, *, preferred: int) -> int:
        """The port of ``service`` chosen at the last start, else the preferred one. Chooses nothing."""
        return self._ports().get(service, preferred)

    def choose_web_port(self) -> int:
        """To be called after ``start()`` by who serves the pages; ``public_url`` has it from then on."""
        return self.choose_port("web", preferred=self._usual(_WEB_PORTS, _OTHER_WEBS))

    def choose_port(self, service: str, *, preferred: int) -> int:
        """Choose a free loopback port now and remember it: the preferred one if it is free, else the one of last time."""
        port = preferred if is_free(preferred) else free_port(self.port(service, preferred=preferred))
        _write(self.runtime_file, json.dumps({"ports": {**self._ports(), service: port}}, indent=2), mode=0o644)
        return port

    def _usual(self, known: Mapping[str, int], others: int) -> int:
        """Clusters of other names prefer ports of their own, so that one that starts does not race with another for the same."""
        return known.get(self.name) or others + zlib.crc32(str(self.folder).encode()) % _OTHERS

    def _ports(self) -> dict[str, int]:
        try:
            return {str(name): int(port) for name, port in json.loads(self.runtime_file.read_text())["ports"].items()}
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return {}

    # Life

    def start(self, *, services: Sequence[str] = SERVICES) -> Self:
        """Start the services and come back when all of them answer. Raises ClusterBusy, EmbeddedError."""
        self._take_lock()
        try:
            self._start(services)
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self, services: Sequence[str]) -> None:
        end_orphans(self.run_dir)
        self.mail_dir.mkdir(mode=0o700, exist_ok=True)
        self.secrets()
        identity = identity_for(self.postgres_home)
        private_folder(self.sockets, identity)
        # All are launched before any is waited for: they start side by side.
        postgres = redis = chain = None
        if "postgres" in services:
            postgres = Postgres(
                home=self.postgres_home, sockets=self.sockets, durable=self.durable, **self._files("postgres")
            )
            self._children.append(postgres.launch())
        if "redis" in services:
            redis = Redis(sockets=self.sockets, **self._files("redis"))
            self._children.append(redis.launch(identity))
        if "chain" in services:
            port = self.choose_port("chain", preferred=self._usual(_CHAIN_PORTS, _OTHER_CHAINS))
            chain = Chain(data=self.chain_dir, port=port, **self._files("chain"))
            self._children.append(chain.launch())
        if redis:
            redis.wait()
        if postgres:
            try:
                child = postgres.wait()
            except EmbeddedError:
                if self.durable:
                    raise
                remove_data(self.postgres_home)
                postgres.launch()
                child = postgres.wait()
            self._children = [child if known.name == "postgres" else known for known in self._children]
        if chain:
            chain.wait()

    def prepare(self) -> None:
        """Make what the settings cannot be read without: the mint and the keys that the chain's first start makes."""
        if not chain_facts(self.chain_dir):
            self.start(services=["chain"])
            self.stop()

    def choose_ports(self) -> None:
        """Choose the ports of a start to come, so that settings read before it hold after it. A running cluster keeps its own."""
        with contextlib.suppress(ClusterBusy):
            self._take_lock()
            try:
                end_orphans(self.run_dir)  # they may still hold the ports of last time
                self.choose_port("chain", preferred=self._usual(_CHAIN_PORTS, _OTHER_CHAINS))
                self.choose_web_port()
            finally:
                self.stop()

    def spawn(self, name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> Child:
        """Start a further child (a server, a worker) that ``stop()`` ends before the services. SIGTERM asks it to stop.

        ``env`` is added to this process's environment and the cluster's.
        """
        files = self._files(name)
        child = spawn(
            name,
            command,
            marker=" ".join(command),
            cwd=CODE,
            env={**os.environ, **self.environment(), **(env or {})},
            log=files["log"],
            pid_file=files["pid_file"],
        )
        self._children.append(child)
        return child

    def stop(self) -> None:
        """Stop what was started, last first, and let the next launcher in. Harmless when nothing runs."""
        # A second Ctrl-C must not leave the rest running, nor PostgreSQL without its last checkpoint.
        with _deaf_to_interrupts():
            while self._children:
                self._children.pop().stop()
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def reset(self) -> None:
        """Delete everything the cluster keeps. Raises ClusterBusy while it runs."""
        held = self._lock is not None
        if held and self._children:
            raise ClusterBusy(f"Stop the {self.name} cluster before resetting it.")
        self._take_lock()
        try:
            end_orphans(self.run_dir)
            remove_data(self.postgres_home)
            shutil.rmtree(self.sockets, ignore_errors=True)
            for path in self.folder.iterdir():
                if path.name != "lock":
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        finally:
            if not held:
                self.stop()

    @property
    def children(self) -> tuple[Child, ...]:
        return tuple(self._children)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("a+")
        except PermissionError as error:
            raise EmbeddedError(
                f"{self.folder} belongs to another user: run this as that user, or delete it as that user."
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            holder = lock.read().strip() or "?"
            lock.close()
            raise ClusterBusy(
                f"The {self.name} cluster of this checkout is running already (process {holder}): stop that one first."
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock

    def _files(self, name: str) -> dict[str, Path]:
        return {"log": self.log_dir / f"{name}.log", "pid_file": self.run_dir / f"{name}.json"}

    # What children are told

    def secrets(self) -> dict[str, str]:
        """SECRET_KEY and FIELD_KEYS of this cluster, made once and kept from other users."""
        path = self.folder / "secrets.json"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            made = {
                "SECRET_KEY": secrets.token_urlsafe(48),
                "FIELD_KEYS": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),  # a Fernet key
            }
            _write(path, json.dumps(made, indent=2), mode=0o600)
        try:
            return {str(name): str(value) for name, value in json.loads(path.read_text()).items()}
        except PermissionError as error:
            raise EmbeddedError(f"{path} belongs to another user: run this as that user.") from error

    def environment(self) -> dict[str, str]:
        """The variables that ``gpunex.settings`` reads, as they are for this cluster. Starts nothing.

        Those of the chain are missing until ``prepare()`` or ``start()`` has made it.
        """
        return {
            "GPUNEX_EMBEDDED": "1",
            "GPUNEX_CLUSTER": self.name,
            "PUBLIC_URL": self.public_url,
            "DATABASE_URL": self.database_url,
            "REDIS_URL": self.redis_url,
            # Two addresses of one chain: a payout is re-signed only when two nodes agree, here as in production.
            "SOLANA_RPC_URL": f"{self.chain_url}/a,{self.chain_url}/b",
            "MAIL_DIR": str(self.mail_dir),
            "EMAIL_URL": self.mail_dir.as_uri(),  # no mail leaves the machine: it is written into this folder
            **self.secrets(),
            **chain_variables(self.chain_dir),
        }


def environment(cluster: Cluster) -> dict[str, str]:
    return cluster.environment()


def is_free(port: int) -> bool:
    """Whether a server can listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no obstacle
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port(preferred: int) -> int:
    """The preferred loopback port if it is free, else the next free one above it, else any."""
    for port in range(preferred, min(preferred + _PORTS_TRIED, 65536)):
        if is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return int(port)


def _write(path: Path, text: str, *, mode: int) -> None:
    """Whole or not at all, and never readable by more than ``mode`` says."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        unfinished.unlink()
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    unfinished.replace(path)


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread, which is the one that gets Ctrl-C
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def main(arguments: list[str]) -> int:
    """``python -m gpunex.embedded.cluster NAME``: run the services until Ctrl-C, for looking at them by hand.

    With ``COMMAND ...`` after the name: run a command in the cluster's environment; with ``--fresh COMMAND ...``: on newly
    made services that run meanwhile. The command's exit status is this one's.
    """
    name, *rest = arguments or ["demo"]
    cluster = Cluster(name, CODE)
    fresh = rest[:1] == ["--fresh"]
    command = rest[1:] if fresh else rest
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if fresh:
            cluster.reset()
        if fresh or not command:
            cluster.start()
        else:
            cluster.prepare()
        if command:
            return subprocess.run(command, env={**os.environ, **cluster.environment()}, check=False).returncode
        print(cluster.database_url, cluster.redis_url, cluster.chain_url, sep="\n", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        return 0 if not command else 130
    except EmbeddedError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

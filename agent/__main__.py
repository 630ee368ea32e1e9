"""``python -m agent``: the GPUnex agent on a GPU host."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from agent import __version__
from agent.clock import parse_time
from agent.enrol import EXIT_NO_ENGINE, EXIT_NO_KEY, EXIT_STATE_BUSY, EXIT_USAGE, EnrolmentRefused
from agent.machine import NoEngine, Options, open_machine
from agent.platform import InsecureAddress, check_address
from agent.simulation.faults import UnknownFault, parse_faults
from agent.simulation.profiles import UnknownProfile, parse_profile
from agent.state import StateDir, StateDirBusy

log = logging.getLogger("gpunex.agent")

FRESH_S = 60


def parser() -> argparse.ArgumentParser:
    """Every option can come from the environment; the key never comes from the command line, where others could read it."""
    env = os.environ
    options = argparse.ArgumentParser(
        prog="python -m agent", description="Connects this machine's NVIDIA GPUs to GPUnex."
    )
    options.add_argument("--url", default=env.get("GPUNEX_URL"), help="address of the platform (GPUNEX_URL)")
    options.add_argument(
        "--state", default=env.get("GPUNEX_STATE", "/var/lib/gpunex"), help="state directory (GPUNEX_STATE)"
    )
    options.add_argument("--key-file", default=env.get("GPUNEX_KEY_FILE"), help="file with the key; or GPUNEX_API_KEY")
    options.add_argument(
        "--gpus", default=env.get("GPUNEX_GPUS", "all"), help="all, or UUIDs separated by commas (GPUNEX_GPUS)"
    )
    options.add_argument("--name", default=env.get("GPUNEX_HOSTNAME"), help="this host's name (GPUNEX_HOSTNAME)")
    options.add_argument(
        "--simulate", metavar="PROFILE", default=env.get("GPUNEX_SIMULATE"), help="simulated cards, as in rtx4090x2"
    )
    options.add_argument(
        "--allow-http", action="store_true", help="let the secret travel unencrypted; for closed test networks"
    )
    options.add_argument("--enrol-only", action="store_true", help="enrol, say who this machine is, and end")
    options.add_argument("--status", action="store_true", help="say whether the running agent is connected, and end")
    options.add_argument(
        "--uninstall", action="store_true", help="stop this machine's jobs, retire it on the platform, and end"
    )
    options.add_argument("--verbose", action="store_true", default=bool(env.get("GPUNEX_VERBOSE")))
    options.add_argument("--version", action="version", version=__version__)
    return options


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    _log_to_stderr(verbose=given.verbose)
    if given.status:
        return status(Path(given.state))
    if not given.url:
        print("The platform's address is missing: --url or GPUNEX_URL.", file=sys.stderr)
        return EXIT_USAGE
    try:
        options = read_options(given)
    except (InsecureAddress, UnknownProfile, UnknownFault, OSError) as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    try:
        state = StateDir(Path(given.state))
    except StateDirBusy as error:
        print(error, file=sys.stderr)
        return EXIT_STATE_BUSY
    return run(options, state, uninstall=given.uninstall, enrol_only=given.enrol_only)


def read_options(given: argparse.Namespace) -> Options:
    return Options(
        url=check_address(given.url, allow_http=given.allow_http),
        key=read_key(given.key_file),
        hostname=given.name or socket.gethostname(),
        given=None
        if given.gpus.strip().lower() == "all"
        else frozenset(filter(None, given.gpus.replace(" ", "").split(","))),
        simulate=parse_profile(given.simulate) if given.simulate else None,
        seed=os.environ.get("GPUNEX_SIM_SEED"),
        faults=parse_faults(os.environ.get("GPUNEX_SIM_FAULT", "")),
        agent_image=os.environ.get("GPUNEX_AGENT_IMAGE"),
        unsafe_development=os.environ.get("GPUNEX_UNSAFE_DEVELOPMENT") == "1",
    )


def read_key(key_file: str | None) -> str | None:
    """From the file, or from the environment, or None. A key file that is named but empty or gone counts as none."""
    if key_file:
        try:
            return Path(key_file).read_text().strip() or None
        except FileNotFoundError:
            return None
    return os.environ.get("GPUNEX_API_KEY", "").strip() or None


def run(options: Options, state: StateDir, *, uninstall: bool, enrol_only: bool) -> int:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        machine = open_machine(options, state)
    except NoEngine as error:
        print(error, file=sys.stderr)
        return EXIT_NO_ENGINE
    try:
        if uninstall:
            return machine.uninstall()
        identity = machine.identify(stop)
        if identity is None:
            if stop.is_set():
                return 0
            print("No key: put it into a file and name it with --key-file, or set GPUNEX_API_KEY.", file=sys.stderr)
            return EXIT_NO_KEY
        if enrol_only:
            print(json.dumps({"machine_id": identity.machine_id, "name": identity.name}))
            return 0
        daemon = machine.daemon(identity, stop)
        log.info(
            "agent %s for %s, machine %s%s",
            __version__,
            options.url,
            identity.name,
            " (simulated)" if options.simulate else "",
        )
        daemon.run()
        return 0
    except EnrolmentRefused as refused:
        print(refused, file=sys.stderr)
        return refused.exit_code
    finally:
        machine.close()
        state.close()


def status(folder: Path) -> int:
    """0 when the platform accepted a heartbeat within the last minute; prints what is known."""
    try:
        known = json.loads((folder / "status.json").read_text())
    except (OSError, ValueError):
        print("not connected yet: the platform has accepted no heartbeat")
        return 1
    last = parse_time(known.get("last_heartbeat_at"))
    age_s = (datetime.now(UTC) - last).total_seconds() if last else None
    connected = age_s is not None and -FRESH_S < age_s < FRESH_S
    print(f"{'connected' if connected else 'not connected'}: machine {known.get('name')} ({known.get('machine_id')}), "
          f"last heartbeat accepted {known.get('last_heartbeat_at')}")  # fmt: skip
    return 0 if connected else 1


def _log_to_stderr(*, verbose: bool) -> None:
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)sZ %(levelname)s %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
        stream=sys.stderr,
    )
    for noisy in ("httpx", "httpcore", "urllib3", "docker"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())

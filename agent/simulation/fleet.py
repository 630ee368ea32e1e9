"""Many simulated machines in one process: ``python -m agent.simulation.fleet PLAN.json --url URL``.

Each is the whole agent with a state directory of its own; only the process is shared, since forty interpreters would
not fit a laptop. PLAN is a list of ``{"name", "profile", "key", "state", "seed"}``. SIGTERM ends all; jobs go on.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from agent.enrol import EnrolmentRefused
from agent.machine import Options, open_machine
from agent.platform import check_address
from agent.simulation.profiles import parse_profile
from agent.state import StateDir, StateDirBusy

log = logging.getLogger("gpunex.fleet")


@dataclass(frozen=True)
class Member:
    """One simulated machine of the plan."""

    name: str
    profile: str
    key: str
    state: Path
    seed: str


def read_plan(path: Path) -> list[Member]:
    """Raises ValueError or KeyError for a plan that is none."""
    return [
        Member(name=row["name"], profile=row["profile"], key=row["key"], state=Path(row["state"]), seed=row["seed"])
        for row in json.loads(path.read_text())
    ]


def run_member(member: Member, *, url: str, stop: threading.Event) -> None:
    """One machine's life in this thread. A refusal ends this machine and leaves the others alone."""
    try:
        state = StateDir(member.state)
    except StateDirBusy as error:
        log.error("%s: %s", member.name, error)
        return
    options = Options(
        url=url, key=member.key, hostname=member.name, simulate=parse_profile(member.profile), seed=member.seed
    )
    machine = open_machine(options, state)
    try:
        identity = machine.identify(stop)
        if identity is None:
            return
        machine.daemon(identity, stop).run()
    except EnrolmentRefused as refused:
        log.error("%s: %s", member.name, refused)
    finally:
        machine.close()
        state.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m agent.simulation.fleet", description="Runs many simulated machines."
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--url", required=True)
    given = parser.parse_args()
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    url = check_address(given.url, allow_http=False)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    threads = []
    for member in read_plan(given.plan):
        thread = threading.Thread(
            target=run_member, args=(member,), kwargs={"url": url, "stop": stop}, name=member.name
        )
        thread.start()
        threads.append(thread)
        stop.wait(0.1)  # not all at the same instant
    for thread in threads:
        thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())

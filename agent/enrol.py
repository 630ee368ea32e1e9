"""Becoming known to the platform: once, with a key; after that by the machine's own secret.

Each refusal has its sentence for the person at the host and its exit status, so that the installer can tell them apart.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from typing import Any

from agent import __version__
from agent.platform import Backoff, Platform, Refused, Unreachable
from agent.state import Identity, StateDir

log = logging.getLogger("gpunex.enrol")

EXIT_USAGE = 2
EXIT_NO_KEY = 3
EXIT_STATE_BUSY = 4
EXIT_NO_ENGINE = 5
REFUSALS: dict[str, tuple[int, str]] = {
    "key_unknown": (
        10,
        "The key is wrong: the platform does not know it. Copy it again from the mail or the dashboard, whole.",
    ),
    "key_used": (
        11,
        "The key has been used already: an enrolment token works once. Make a new one in the dashboard under Machines.",
    ),
    "key_expired": (12, "The key has expired. Make a new one in the dashboard under Machines."),
    "key_revoked": (13, "The key was revoked. Use another one, or make a new one in the dashboard under Machines."),
    "uuid_taken": (
        14,
        "The GPUs of this machine are connected as another machine. Uninstall it there, or wait until it counts as gone.",
    ),
    "invalid": (
        15,
        "The platform did not understand this machine's description. Update the agent: run the installer again.",
    ),
    "upgrade_required": (16, "This agent is too old for the platform. Run the installer again to update it."),
    "skew": (17, "This machine's clock is wrong. Set it (timedatectl set-ntp true), then run the installer again."),
}
EXIT_REFUSED = 19


class EnrolmentRefused(Exception):
    """The platform will not take this machine; `exit_code` says why to programs, the message to people."""

    def __init__(self, refusal: Refused) -> None:
        self.code = refusal.code
        self.exit_code, sentence = REFUSALS.get(refusal.code, (EXIT_REFUSED, "The platform refused this machine."))
        super().__init__(f"{sentence} ({refusal.code}{': ' + refusal.detail if refusal.detail else ''})")


def key_mark(key: str) -> str:
    """Tells a new key from the one this machine enrolled with, without keeping it."""
    return hashlib.sha256(key.encode()).hexdigest()


def enrol(
    *,
    state: StateDir,
    platform: Platform,
    url: str,
    key: str,
    fingerprint: str,
    boot_id: str,
    simulated: bool,
    hostname: str,
    inventory: Callable[[], dict[str, Any]],
    machine_id: str | None,
    stop: threading.Event,
) -> Identity | None:
    """Ask until answered; keep the identity before anything else is done. None when `stop` came first.

    Raises EnrolmentRefused. Losing the answer is harmless: the same key and fingerprint are given the same machine again.
    """
    backoff = Backoff()
    while not stop.is_set():
        body = {
            "fingerprint": fingerprint,
            "hostname": hostname,
            "agent_version": __version__,
            "boot_id": boot_id,
            "simulated": simulated,
            "inventory": inventory(),
        }
        if machine_id:
            body["machine_id"] = machine_id
        try:
            answer = platform.enrol(key, body)
            identity = Identity(
                machine_id=str(answer["machine_id"]),
                name=str(answer.get("name") or hostname),
                secret=str(answer["secret"]),
                url=url,
                fingerprint=fingerprint,
                key_sha256=key_mark(key),
                heartbeat_s=float(answer.get("heartbeat_s") or 10),
                telemetry_s=float(answer.get("telemetry_s") or 30),
            )
        except Refused as refusal:
            if refusal.code == "retry_after" or refusal.status == 429:
                stop.wait(refusal.retry_after_s or backoff.failure())
                continue
            raise EnrolmentRefused(refusal) from refusal
        except (Unreachable, KeyError, ValueError) as error:
            wait_s = max(1.0, backoff.failure())
            log.warning("not enrolled yet (%s); trying again in %.0f s", error, wait_s)
            stop.wait(wait_s)
            continue
        state.keep_identity(identity)
        log.info("enrolled as %s (%s)", identity.name, identity.machine_id)
        return identity
    return None

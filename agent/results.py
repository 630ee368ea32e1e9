"""The shape of a benchmark's result, and the checksum that binds it to the platform's nonce and to these cards."""

from __future__ import annotations

import hashlib
from typing import Any

from agent import KERNEL_VERSION

ROUNDS = 1000


def checksum(nonce: str, uuids: list[str], kernel_version: str = KERNEL_VERSION) -> str:
    """SHA-256 of the nonce, folded 1000 times with each card's UUID and the kernel version, cards in order of UUID.

    >>> checksum("abc", ["GPU-1"]) == checksum("abc", ["GPU-2"])
    False
    """
    state = hashlib.sha256(nonce.encode()).digest()
    for uuid in sorted(uuids):
        tail = (uuid + kernel_version).encode()
        for _ in range(ROUNDS):
            state = hashlib.sha256(state + tail).digest()
    return state.hex()


def result_body(
    *,
    attempt: int,
    nonce: str,
    uuids: list[str],
    simulated: bool,
    gpus: list[dict[str, Any]],
    network: dict[str, float | None],
    disk: dict[str, float | None],
) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "nonce": nonce,
        "checksum": checksum(nonce, uuids),
        "kernel_version": KERNEL_VERSION,
        "simulated": simulated,
        "gpus": gpus,
        "network": network,
        "disk": disk,
    }

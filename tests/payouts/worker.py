"""A worker process of its own that pays what is due, and dies by SIGKILL at a place of the payout path: ``worker.py ISO-TIME [NAME]``."""

import os
import signal
import sys
from datetime import datetime, timedelta

import django

PASSES = 6


def main(begun: str, place: str = "") -> None:
    django.setup()
    from payouts import failpoints, runs, usdc

    if place:
        failpoints.arm(lambda passed: os.kill(os.getpid(), signal.SIGKILL) if passed == place else None)
    at = datetime.fromisoformat(begun)
    for step in range(PASSES):
        runs.make_due(at=at + timedelta(seconds=5 * step))
        usdc.advance(at=at + timedelta(seconds=5 * step))


if __name__ == "__main__":
    main(*sys.argv[1:])

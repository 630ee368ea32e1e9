"""Running a sweep: under a PostgreSQL advisory lock of its name, so that two at once is one and a wait of nothing."""

import hashlib
import time
from importlib import import_module

from celery import shared_task
from django.core.cache import cache
from django.db import connection

from gpunex.celery import SWEEPS


def run_now(name: str) -> object:
    """Run the sweep ``name`` unless it is running elsewhere (then None). Returns what the sweep returns."""
    module, _, function = SWEEPS[name].task.rpartition(".")
    sweep = getattr(import_module(module), function)
    key = int.from_bytes(hashlib.sha256(f"sweep:{name}".encode()).digest()[:8], signed=True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [key])
        if not cursor.fetchone()[0]:
            return None
        started = time.monotonic()
        try:
            result = sweep()
        finally:
            # The lock is the connection's: released by hand, since the connection may be used again.
            cursor.execute("SELECT pg_advisory_unlock(%s)", [key])
    cache.set(
        f"sweep:{name}",
        {"at": time.time(), "seconds": round(time.monotonic() - started, 3), "result": result},
        timeout=None,
    )
    return result


@shared_task(name="gpunex.sweeps.run")
def run(name: str) -> None:
    run_now(name)

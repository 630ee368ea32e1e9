"""Latency and throughput between this machine and the platform, through the contract's speed endpoints."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable

from agent.platform import Platform, PlatformError

STREAMS = 4
BUDGET_S = 8.0
BUDGET_BYTES = 100_000_000
CHUNK_BYTES = 8_000_000
PINGS = 20


def measure(platform: Platform, *, cancelled: Callable[[], bool]) -> dict[str, float | None]:
    """`latency_ms` (median of 20 round trips), `download_mbps`, `upload_mbps` (megabit/s); None where it failed."""
    return {
        "latency_ms": latency_ms(platform),
        "download_mbps": _throughput(platform.download, cancelled),
        "upload_mbps": _throughput(lambda size: platform.upload(os.urandom(size)), cancelled),
    }


def latency_ms(platform: Platform, *, pings: int = PINGS) -> float | None:
    """Median of round trips on a connection that is already up."""
    times = []
    try:
        platform.download(1)
        for _ in range(pings):
            begun = time.monotonic()
            platform.download(1)
            times.append((time.monotonic() - begun) * 1000)
    except PlatformError:
        return None
    return round(statistics.median(times), 2)


def _throughput(transfer: Callable[[int], int], cancelled: Callable[[], bool]) -> float | None:
    """Four streams until eight seconds or 100 MB are over; megabit/s of what both ends counted."""
    lock, moved, failed = threading.Lock(), 0, False
    begun = time.monotonic()

    def stream() -> None:
        nonlocal moved, failed
        while time.monotonic() - begun < BUDGET_S and not cancelled():
            with lock:
                if moved + CHUNK_BYTES > BUDGET_BYTES or failed:
                    return
            try:
                count = transfer(CHUNK_BYTES)
            except PlatformError:
                failed = True
                return
            with lock:
                moved += count

    threads = [threading.Thread(target=stream, daemon=True) for _ in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - begun
    return round(moved * 8 / took / 1e6, 1) if moved else None

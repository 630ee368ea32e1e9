"""Speed of the disk under a folder, past the page cache (O_DIRECT). The file is random data and is removed again."""

from __future__ import annotations

import mmap
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

BLOCK = 1 << 20
PAGE = 4096
SIZE_MAX = 1 << 30
SIZE_MIN = 64 << 20
FREE_SHARE = 0.05
RANDOM_S = 2.0


def measure(folder: Path, *, cancelled: Callable[[], bool], size: int | None = None) -> dict[str, float | None]:
    """`read_mb_s`, `write_mb_s` (10^6 bytes) and `random_read_iops` of 4 KiB one at a time; None where it could not be done."""
    nothing: dict[str, float | None] = {"read_mb_s": None, "write_mb_s": None, "random_read_iops": None}
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    size = size or min(SIZE_MAX, int(free * FREE_SHARE))
    size -= size % BLOCK
    if size < min(SIZE_MIN, size or SIZE_MIN):
        return nothing
    handle, name = tempfile.mkstemp(dir=folder, prefix="benchmark-")
    os.close(handle)
    try:
        return _measure(name, size, cancelled)
    except OSError:
        return nothing
    finally:
        Path(name).unlink(missing_ok=True)


def _measure(name: str, size: int, cancelled: Callable[[], bool]) -> dict[str, float | None]:
    block = mmap.mmap(-1, BLOCK)  # page aligned, as O_DIRECT wants
    block.write(os.urandom(BLOCK))
    descriptor = os.open(name, os.O_RDWR | os.O_DIRECT)
    try:
        begun = time.monotonic()
        for _ in range(size // BLOCK):
            if cancelled():
                break
            os.write(descriptor, block)
        os.fsync(descriptor)
        wrote_s = time.monotonic() - begun
        os.lseek(descriptor, 0, os.SEEK_SET)
        begun = time.monotonic()
        while not cancelled() and os.readv(descriptor, [block]) == BLOCK:
            pass
        read_s = time.monotonic() - begun
        iops = _random_reads(descriptor, size, cancelled)
    finally:
        os.close(descriptor)
        block.close()
    return {
        "read_mb_s": round(size / max(read_s, 1e-6) / 1e6, 1),
        "write_mb_s": round(size / max(wrote_s, 1e-6) / 1e6, 1),
        "random_read_iops": iops,
    }


def _random_reads(descriptor: int, size: int, cancelled: Callable[[], bool]) -> float:
    page = mmap.mmap(-1, PAGE)
    rng, count, begun = random.Random(0), 0, time.monotonic()
    while time.monotonic() - begun < RANDOM_S and not cancelled():
        os.preadv(descriptor, [page], rng.randrange(size // PAGE) * PAGE)
        count += 1
    took = time.monotonic() - begun
    page.close()
    return round(count / max(took, 1e-6))

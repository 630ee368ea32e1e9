"""The chain's journal: one JSON record a line behind its CRC-32, on disk before anybody hears of it.

A crash can tear only the last line, which nobody was answered for: it is dropped at the next start. Damage anywhere else means lost
money, so the chain then refuses to start.
"""

import fcntl
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CRC_DIGITS = 8


class JournalDamaged(Exception):
    """A record before the last one does not read back as written."""


class JournalInUse(Exception):
    """Another process has this journal open."""


class Journal:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            raise JournalInUse(f"{path} is in use by another process") from error
        _sync_folder(path.parent)
        self._end = os.fstat(self._file).st_size

    @property
    def is_empty(self) -> bool:
        return self._end == 0

    def replay(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """All records in order, each with its offset and length; cuts a torn last line off."""
        with open(self.path, "rb") as lines:
            offset = 0
            for line in lines:
                record = _decoded(line)
                if record is None:
                    if offset + len(line) < self._end:
                        raise JournalDamaged(f"{self.path}: the record at byte {offset} is damaged")
                    os.ftruncate(self._file, offset)
                    os.fsync(self._file)
                    self._end = offset
                    return
                yield offset, len(line), record
                offset += len(line)

    def append(self, record: dict[str, Any]) -> tuple[int, int]:
        """Write one record through to the disk; returns its offset and length."""
        body = json.dumps(record, separators=(",", ":")).encode()
        line = b"%08x %s\n" % (zlib.crc32(body), body)
        offset = self._end
        if os.pwrite(self._file, line, offset) != len(line):
            raise OSError(f"{self.path}: a record was written only in part")
        os.fdatasync(self._file)
        self._end = offset + len(line)
        return offset, len(line)

    def read(self, offset: int, length: int) -> dict[str, Any]:
        record = _decoded(os.pread(self._file, length, offset))
        if record is None:
            raise JournalDamaged(f"{self.path}: the record at byte {offset} is damaged")
        return record


def _decoded(line: bytes) -> dict[str, Any] | None:
    crc, separator, body = line[:_CRC_DIGITS], line[_CRC_DIGITS : _CRC_DIGITS + 1], line[_CRC_DIGITS + 1 : -1]
    if separator != b" " or not line.endswith(b"\n") or crc != b"%08x" % zlib.crc32(body):
        return None
    record: dict[str, Any] = json.loads(body)
    return record


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

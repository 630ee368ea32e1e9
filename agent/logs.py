"""Ships what containers print. The platform counts the bytes it kept; we remember the engine's time of the last line.

If the two disagree (an answer was lost, the platform was restored), the log is read from its start again and cut at the
number of bytes the platform has: the same lines always make the same bytes.
"""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import dataclass

from agent.engine import Engine, EngineDown, EngineError
from agent.lifecycle import Workload, Workloads
from agent.platform import Backoff, Platform, Refused, Unreachable

log = logging.getLogger("gpunex.logs")

CHUNK_BYTES = 64 * 1024
CHUNKS_A_ROUND = 4
TOTAL_BYTES = 5 * 1024 * 1024
LINE_BYTES = 16 * 1024
CUT = f"[gpunex] The log is cut here: {TOTAL_BYTES // (1024 * 1024)} MiB of a job are kept.\n"
_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL", re.IGNORECASE)
SECRET_MIN = 8  # shorter values would black out ordinary words


@dataclass
class Chunk:
    """Text to send, and where the log stands once it is kept."""

    text: str
    cursor: str
    seen: int


def secrets_of(workload: Workload) -> list[str]:
    """Values of the renter's variables that no log should show, longest first."""
    env = workload.spec.get("env") or {}
    found = [
        value
        for name, value in env.items()
        if isinstance(name, str) and isinstance(value, str) and _SECRET_NAME.search(name) and len(value) >= SECRET_MIN
    ]
    return sorted(found, key=len, reverse=True)


def clean_line(text: str, secrets: list[str]) -> str:
    """A line as it is sent: no NUL, bounded, known secrets blacked out."""
    for secret in secrets:
        text = text.replace(secret, "********")
    text = text.replace("\x00", "\ufffd")
    encoded = text.encode("utf-8", "replace")
    if len(encoded) > LINE_BYTES:
        text = encoded[:LINE_BYTES].decode("utf-8", "ignore") + " [gpunex: line cut]"
    else:
        text = encoded.decode("utf-8")
    return text + "\n"


class LogShipper:
    def __init__(self, *, workloads: Workloads, engine: Engine, platform: Platform) -> None:
        self._workloads, self._engine, self._platform = workloads, engine, platform
        self._backoff = Backoff()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            wait_s = 1.0
            try:
                if not self.ship_all():
                    wait_s = 2.0
                self._backoff.success()
            except (Unreachable, Refused) as error:
                wait_s = max(self._backoff.failure(), getattr(error, "retry_after_s", None) or 0)
            except Exception:
                log.exception("logs could not be sent")
                wait_s = self._backoff.failure()
            stop.wait(wait_s)

    def ship_all(self) -> bool:
        """One round over all jobs; True when there are jobs whose log is not complete."""
        rows = [row for row in self._workloads.all() if not row.log_done and row.kind == "job"]
        for row in rows:
            if row.container_id is None:
                if not row.live:
                    self._workloads.note(row, log_done=1)
                continue
            try:
                self.ship(row)
            except EngineDown:
                return True
            except EngineError as error:
                log.warning("the log of workload %s cannot be read: %s", row.id, error)
                if not row.live:
                    self._workloads.note(row, log_done=1)
        return bool(rows)

    def ship(self, row: Workload) -> None:
        """Send what is new of one job. A job that had ended before the log was read is then done with."""
        assert row.container_id is not None
        for _ in range(CHUNKS_A_ROUND):
            if row.log_offset >= TOTAL_BYTES:
                self._send(row, Chunk(text=CUT, cursor=row.log_cursor, seen=row.log_seen))
                self._workloads.note(row, log_done=1)
                return
            chunk = self._read(row)
            if not chunk.text:
                if not row.live:
                    self._workloads.note(row, log_done=1)
                return
            if not self._send(row, chunk):
                return
            row = self._workloads.get(*row.key) or row

    def _read(self, row: Workload) -> Chunk:
        """The lines after those that were sent. After a realignment: the whole log without the bytes the platform has."""
        assert row.container_id is not None
        start, skip_lines, skip_bytes = row.log_cursor, row.log_seen, row.log_skip
        secrets = secrets_of(row)
        chunk = Chunk(text="", cursor=start, seen=skip_lines)
        parts: list[bytes] = []
        size, at_start = 0, 0
        for line in self._engine.logs(row.container_id, since=start):
            if line.at < start:
                continue
            if line.at == start:
                at_start += 1
                if at_start <= skip_lines:
                    continue
            encoded = clean_line(line.text, secrets).encode()
            if skip_bytes >= len(encoded):
                skip_bytes -= len(encoded)
                encoded = b""
            elif skip_bytes:
                encoded, skip_bytes = encoded[skip_bytes:], 0
            if parts and size + len(encoded) > CHUNK_BYTES:
                break
            chunk.seen = chunk.seen + 1 if line.at == chunk.cursor else 1
            chunk.cursor = line.at
            if encoded:
                parts.append(encoded)
                size += len(encoded)
        chunk.text = b"".join(parts).decode("utf-8", "replace")
        return chunk

    def _send(self, row: Workload, chunk: Chunk) -> bool:
        """True when the platform kept it."""
        body = {"attempt": row.attempt, "offset": row.log_offset, "text": chunk.text}
        try:
            answer = self._platform.logs(row.id, body)
        except Refused as refusal:
            if refusal.code == "offset":
                self._realign(row, refusal.body.get("wanted"))
                return False
            if refusal.code in ("stale_attempt", "not_found", "invalid"):
                log.warning("the platform does not take the log of workload %s (%s)", row.id, refusal.code)
                self._workloads.note(row, log_done=1)
                return False
            raise
        kept = answer.get("next_offset")
        expected = row.log_offset + len(chunk.text.encode())
        self._workloads.note(row, log_offset=expected, log_cursor=chunk.cursor, log_seen=chunk.seen, log_skip=0)
        if isinstance(kept, int) and kept != expected:
            self._realign(row, kept)
        return True

    def _realign(self, row: Workload, wanted: object) -> None:
        """The platform has another number of bytes than we thought: the next read begins at the log's start and skips them."""
        if not isinstance(wanted, int) or wanted < 0:
            self._workloads.note(row, log_done=1)
            return
        self._workloads.note(row, log_offset=wanted, log_cursor="", log_seen=0, log_skip=wanted)

"""What still has to be said to the platform. Written in the transaction of what happened, sent in order, never lost.

Reports and events are kept until the platform has them; a refused one is parked so that it never blocks those behind it.
Samples are a ring: thinned to one a minute once old, capped in number, dropped after a day.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

from agent.clock import iso
from agent.platform import Backoff, Platform, Refused, Unreachable
from agent.state import Database

log = logging.getLogger("gpunex.outbox")

SAMPLES_KEPT = 60_000  # about 25 MB, well below the 50 MB given to them
SAMPLES_KEPT_S = 24 * 3600
FULL_RATE_S = 15 * 60  # unsent samples older than this are thinned to one a minute
SAMPLE_BATCH = 500  # the contract's limit
EVENT_BATCH = 100
HOLD = frozenset(
    {"revoked", "secret_unknown", "skew", "upgrade_required", "retry_after"}
)  # not the item's fault: keep it


class Outbox:
    """The queues. Anybody may add; one sender drains. Samples have a database of their own, which need not wait for the disk."""

    def __init__(self, database: Database, samples: Database) -> None:
        self._database, self._samples = database, samples
        self.wake = threading.Event()

    def add(self, *, stream: str, path: str, body: dict[str, Any]) -> None:
        """Queue a POST. Items of one stream go out in order. Call inside the transaction of what happened."""
        with self._database.change() as connection:
            connection.execute(
                "INSERT INTO outbox (stream, path, body, queued_at) VALUES (?, ?, ?, ?)",
                (stream, path, json.dumps(body), time.time()),
            )
        self.wake.set()

    def event(
        self, kind: str, *, at: datetime, gpu_uuid: str | None = None, data: dict[str, Any] | None = None
    ) -> None:
        body = {"id": str(uuid.uuid4()), "at": iso(at), "kind": kind, "gpu_uuid": gpu_uuid, "data": data or {}}
        with self._database.change() as connection:
            connection.execute("INSERT INTO events (id, body) VALUES (?, ?)", (body["id"], json.dumps(body)))
        self.wake.set()

    def samples(self, samples: list[dict[str, Any]], *, taken_at: float) -> None:
        with self._samples.change() as connection:
            connection.executemany(
                "INSERT INTO samples (taken_at, body) VALUES (?, ?)",
                [(taken_at, json.dumps(sample)) for sample in samples],
            )

    def trim_samples(self, now: float) -> None:
        """Keep the ring within its bounds: old ones thinned to one a minute and GPU, then the oldest dropped."""
        with self._samples.change() as connection:
            connection.execute("DELETE FROM samples WHERE taken_at < ?", (now - SAMPLES_KEPT_S,))
            connection.execute(
                "DELETE FROM samples WHERE taken_at < ? AND number NOT IN (SELECT min(number) FROM samples "
                "GROUP BY cast(taken_at / 60 AS INTEGER), json_extract(body, '$.gpu_uuid'))",
                (now - FULL_RATE_S,),
            )
            connection.execute(
                "DELETE FROM samples WHERE number <= (SELECT max(number) FROM samples) - ? AND number IN "
                "(SELECT number FROM samples ORDER BY number DESC LIMIT -1 OFFSET ?)",
                (SAMPLES_KEPT, SAMPLES_KEPT),
            )

    def take_samples(self) -> list[tuple[int, dict[str, Any]]]:
        rows = self._samples.rows("SELECT number, body FROM samples ORDER BY number LIMIT ?", SAMPLE_BATCH)
        return [(row["number"], json.loads(row["body"])) for row in rows]

    def forget_samples(self, numbers: list[int]) -> None:
        with self._samples.change() as connection:
            connection.executemany("DELETE FROM samples WHERE number = ?", [(number,) for number in numbers])

    def take_events(self) -> list[dict[str, Any]]:
        rows = self._database.rows(
            "SELECT sequence, body FROM events WHERE parked IS NULL ORDER BY sequence LIMIT ?", EVENT_BATCH
        )
        return [{**json.loads(row["body"]), "sequence": row["sequence"]} for row in rows]

    def forget_events(self, sequences: list[int]) -> None:
        with self._database.change() as connection:
            connection.executemany("DELETE FROM events WHERE sequence = ?", [(sequence,) for sequence in sequences])

    def park_event(self, sequence: int, reason: str) -> None:
        with self._database.change() as connection:
            connection.execute("UPDATE events SET parked = ? WHERE sequence = ?", (reason, sequence))

    def heads(self) -> list[tuple[int, str, str, dict[str, Any]]]:
        """The next item of each stream: (number, stream, path, body)."""
        rows = self._database.rows(
            "SELECT number, stream, path, body FROM outbox WHERE number IN "
            "(SELECT min(number) FROM outbox WHERE parked IS NULL GROUP BY stream) ORDER BY number"
        )
        return [(row["number"], row["stream"], row["path"], json.loads(row["body"])) for row in rows]

    def waiting(self, stream: str) -> bool:
        """Is something of this stream still to be sent?"""
        return bool(self._database.rows("SELECT 1 FROM outbox WHERE stream = ? AND parked IS NULL LIMIT 1", stream))

    def done(self, number: int) -> None:
        with self._database.change() as connection:
            connection.execute("DELETE FROM outbox WHERE number = ?", (number,))

    def park(self, number: int, reason: str) -> None:
        with self._database.change() as connection:
            connection.execute("UPDATE outbox SET parked = ? WHERE number = ?", (reason, number))
            connection.execute(
                "DELETE FROM outbox WHERE parked IS NOT NULL AND queued_at < ?", (time.time() - 7 * 86400,)
            )


Answered = Callable[[str, dict[str, Any], dict[str, Any]], None]  # path, what was sent, the answer
Disowned = Callable[[str, dict[str, Any], Refused], None]  # path, what was sent, the refusal


class Sender:
    """Drains the outbox. `answered` hears each report's answer; `disowned` hears that a workload is no longer this attempt's."""

    def __init__(self, *, outbox: Outbox, platform: Platform, answered: Answered, disowned: Disowned) -> None:
        self._outbox, self._platform = outbox, platform
        self._answered, self._disowned = answered, disowned
        self._backoff = Backoff()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._outbox.wake.clear()
            try:
                wait_s = self._pass()
            except Exception:  # one odd answer must not end the thread that carries all reports
                log.exception("the outbox could not be sent")
                wait_s = self._backoff.failure()
            if wait_s:
                stop.wait(wait_s)
            else:
                self._outbox.wake.wait(5)

    def _pass(self) -> float:
        """Send what waits; returns seconds to pause, 0 when all is sent."""
        try:
            while self.send_once():
                pass
        except Unreachable as error:
            if self._backoff.failures == 0:
                log.warning("reports are kept until the platform can be reached: %s", error)
            return self._backoff.failure()
        except Refused as refusal:  # one of HOLD
            return refusal.retry_after_s or max(5.0, self._backoff.failure())
        self._backoff.success()
        return 0

    def send_once(self) -> bool:
        """One item of every stream and one batch of events; False when nothing was waiting."""
        heads = self._outbox.heads()
        for number, _stream, path, body in heads:
            self._send(number, path, body)
        return self._send_events() or bool(heads)

    def _send(self, number: int, path: str, body: dict[str, Any]) -> None:
        try:
            answer = self._platform.post(path, body)
        except Refused as refusal:
            if refusal.code in HOLD or refusal.status in (401, 429):
                raise
            if refusal.code in ("stale_attempt", "not_found"):
                self._outbox.done(number)
                self._disowned(path, body, refusal)
                return
            log.error("the platform refused %s (%s: %s); set aside", path, refusal.code, refusal.detail)
            self._outbox.park(
                number, f"{refusal.code}: {refusal.detail} {json.dumps(refusal.body.get('errors'))}"[:500]
            )
            return
        self._outbox.done(number)
        self._answered(path, body, answer)

    def _send_events(self) -> bool:
        events = self._outbox.take_events()
        if not events:
            return False
        try:
            self._acknowledge(events, self._platform.events(events))
        except Refused as refusal:
            if refusal.code in HOLD or refusal.status in (401, 429):
                raise
            self._send_each(events)
        return True

    def _send_each(self, events: list[dict[str, Any]]) -> None:
        """A batch was refused: find the bad one by sending one at a time."""
        for event in events:
            try:
                self._acknowledge([event], self._platform.events([event]))
            except Refused as refusal:
                if refusal.code in HOLD or refusal.status in (401, 429):
                    raise
                log.error("the platform refused an event (%s: %s); set aside", refusal.code, refusal.detail)
                self._outbox.park_event(event["sequence"], f"{refusal.code}: {refusal.detail}"[:500])

    def _acknowledge(self, events: list[dict[str, Any]], answer: dict[str, Any]) -> None:
        kept = answer.get("acknowledged")
        if not isinstance(kept, int):
            raise Unreachable("the platform did not say which events it kept")
        done = [event["sequence"] for event in events if event["sequence"] <= kept]
        if not done:
            raise Unreachable("the platform kept no event")
        self._outbox.forget_events(done)

"""Whether the agent ran while the platform heard nothing: it notes each attempt to be heard, and tells of a gap when it is back.

Written next to the samples, by the boot clock, which no one can set. "Ran" means: in the same boot, with no longer pause
between two attempts than a hung request takes. A machine that slept or an agent that was stopped leaves a hole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent.clock import Clock, boot_seconds, iso
from agent.state import Database

HOLE_S = 45.0  # a request may hang for 13 s, and the next begins within the heartbeat's time after it


class Journal:
    def __init__(
        self, *, database: Database, boot_id: str, clock: Clock, now: Callable[[], float] = boot_seconds
    ) -> None:
        self._database, self._boot_id, self._clock, self._now = database, boot_id, clock, now

    def begin(self) -> None:
        """The agent starts. One that has never been heard was answered when it enrolled, a moment ago."""
        if not self._database.rows("SELECT 1 FROM heard"):
            self.heard()

    def tick(self) -> None:
        """The agent runs, and is about to say so."""
        now = self._now()
        with self._database.change() as connection:
            extended = connection.execute(
                "UPDATE journal SET last = ? WHERE boot_id = ? AND last BETWEEN ? AND ? AND number = "
                "(SELECT max(number) FROM journal)",
                (now, self._boot_id, now - HOLE_S, now),
            )
            if extended.rowcount == 0:
                connection.execute(
                    "INSERT INTO journal (boot_id, begun, last) VALUES (?, ?, ?)", (self._boot_id, now, now)
                )

    def heard(self) -> None:
        """The platform has answered: what was before matters no more."""
        now = self._now()
        with self._database.change() as connection:
            connection.execute("DELETE FROM journal")
            connection.execute("INSERT INTO journal (boot_id, begun, last) VALUES (?, ?, ?)", (self._boot_id, now, now))
            connection.execute(
                "INSERT INTO heard (id, boot_id, boot_s, at) VALUES (1, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
                "SET boot_id = excluded.boot_id, boot_s = excluded.boot_s, at = excluded.at",
                (self._boot_id, now, iso(self._clock.now())),
            )

    def gap(self, *, longer_than_s: float) -> dict[str, Any] | None:
        """The contract's ``gap`` since the platform last answered; None if that is not long ago, or it never did."""
        rows = self._database.rows("SELECT boot_id, boot_s, at FROM heard")
        if not rows:
            return None
        last, now = rows[0], self._now()
        same_boot = last["boot_id"] == self._boot_id
        if same_boot and now - last["boot_s"] <= longer_than_s:
            return None
        return {
            "from": last["at"],
            "to": max(last["at"], iso(self._clock.now()) or ""),
            "boot_id": self._boot_id,
            "ran": same_boot and self._covers(last["boot_s"], now),
        }

    def _covers(self, since: float, until: float) -> bool:
        at = since
        for row in self._database.rows(
            "SELECT begun, last FROM journal WHERE boot_id = ? ORDER BY begun", self._boot_id
        ):
            if row["begun"] - at > HOLE_S:
                return False
            at = max(at, row["last"])
        return until - at <= HOLE_S

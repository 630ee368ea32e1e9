"""Is the wall up between jobs and the owner's network? Without it no job is started.

The table is set up by a root unit of the host (see install.sh), never by the agent, which has not the rights. Where the
agent may ask nft itself it does; else it reads the note that the unit's timer leaves each minute.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

from agent.clock import parse_time
from agent.host import boot_id

TABLE = ("inet", "gpunex")
CHAINS = ("jobs_forward", "jobs_input")
NOTE_FRESH_S = 180


def egress_problem(host_note: Path) -> str | None:
    """Why jobs would not be walled in, or None."""
    asked = _ask_nft()
    if asked is not None:
        return asked or None
    note = read_note(host_note)
    if note is None:
        return "the egress table cannot be seen: the unit gpunex-egress has left no note on this host"
    checked = parse_time(note.get("checked_at"))
    age_s = (datetime.now(UTC) - checked).total_seconds() if checked else None
    if note.get("boot_id") != boot_id() or age_s is None or not -NOTE_FRESH_S < age_s < NOTE_FRESH_S:
        return "the egress table was not checked lately: is the timer gpunex-egress running?"
    return None if note.get("egress") == "present" else "the egress table is missing on this host"


def read_note(host_note: Path) -> dict[str, str] | None:
    """What the root unit wrote: checked_at, boot_id, egress, toolkit_version."""
    try:
        note = json.loads(host_note.read_text())
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None


def _ask_nft() -> str | None:
    """None when nft cannot be asked from here; an empty text when the table stands; else what is wrong."""
    nft = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin")
    if nft is None:
        return None
    try:
        answer = subprocess.run([nft, "list", "table", *TABLE], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode == 0:
        missing = [chain for chain in CHAINS if f"chain {chain} " not in answer.stdout]
        return f"the egress table lacks {', '.join(missing)}" if missing else ""
    if "Operation not permitted" in answer.stderr:
        return None
    return "the egress table inet gpunex is missing"


class EgressCheck:
    """Remembers an answer for half a minute."""

    def __init__(self, host_note: Path, *, every_s: float = 30.0) -> None:
        self._host_note, self._every_s = host_note, every_s
        self._last: tuple[float, str | None] | None = None

    def problem(self) -> str | None:
        now = time.monotonic()
        if self._last is None or now - self._last[0] > self._every_s or self._last[1] is not None:
            self._last = (now, egress_problem(self._host_note))
        return self._last[1]

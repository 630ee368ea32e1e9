"""Tables in pieces by time: telemetry is dropped a day at a time, not deleted row by row.

Rules:

- Bounds are UTC days or months, half-open: midnight belongs to the day that begins. Daylight saving does not exist here.
- A sweep makes the pieces of the coming days and drops those that are over. Should it not have run for days, whoever
  inserts makes the missing piece (``make_for``): there is no DEFAULT piece, since rows in one would have to be moved, under a
  lock of all telemetry, before the day that they belong to could be made.
- A piece is made beside the table and attached: that waits for nobody who reads or inserts. Dropping one needs the table
  for a moment; it gives up at once if somebody holds it, and the next run tries again.
- The tables have no foreign keys, or each piece would lock the tables that it refers to.

>>> SAMPLES.bounds(datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC))
('reliability_sample_20261231', datetime.date(2026, 12, 31), datetime.date(2027, 1, 1))
>>> HOURS.bounds(datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC))
('reliability_samplehour_202612', datetime.date(2026, 12, 1), datetime.date(2027, 1, 1))
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal

import structlog
from django.db import OperationalError, connection, transaction

log = structlog.get_logger(__name__)

PATIENCE = "500ms"  # how long dropping waits for the table, and others behind it


@dataclass(frozen=True)
class Partitioned:
    """A table, its column of time, how long a piece is, how long rows are kept, and how far ahead pieces are made."""

    table: str
    column: str
    piece: Literal["day", "month"]
    keep: timedelta
    ahead: timedelta

    def bounds(self, at: datetime) -> tuple[str, date, date]:
        """The piece that ``at`` belongs to: its name, its first day, and the first day after it."""
        day = at.astimezone(UTC).date()
        if self.piece == "day":
            return f"{self.table}_{day:%Y%m%d}", day, day + timedelta(days=1)
        first = day.replace(day=1)
        return f"{self.table}_{day:%Y%m}", first, (first + timedelta(days=32)).replace(day=1)


SAMPLES = Partitioned("reliability_sample", "at", "day", keep=timedelta(days=7), ahead=timedelta(days=3))
HOURS = Partitioned("reliability_samplehour", "hour", "month", keep=timedelta(days=396), ahead=timedelta(days=7))


def make_for(of: Partitioned, moments: Iterable[datetime]) -> list[str]:
    """Make the pieces that these moments need and that are not there yet; their names. At once by two is once."""
    wanted = {of.bounds(moment) for moment in moments}
    return [name for name, first, after in sorted(wanted) if _make(of, name, first, after)]


@transaction.atomic
def _make(of: Partitioned, name: str, first: date, after: date) -> bool:
    with connection.cursor() as cursor:
        if _exists(cursor, name):
            return False
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"partitions:{of.table}"])
        if _exists(cursor, name):
            return False
        cursor.execute(f"CREATE TABLE {name} (LIKE {of.table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
        cursor.execute(
            f"ALTER TABLE {of.table} ATTACH PARTITION {name} FOR VALUES FROM (%s) TO (%s)",
            [f"{first} 00:00:00+00", f"{after} 00:00:00+00"],
        )
    return True


def _exists(cursor: object, name: str) -> bool:
    cursor.execute("SELECT to_regclass(%s)", [name])  # type: ignore[attr-defined]
    return cursor.fetchone()[0] is not None  # type: ignore[attr-defined]


def keep_up(of: Partitioned, *, at: datetime) -> dict[str, int]:
    """Make what is needed from ``at`` on for ``ahead``, and drop what is over. Returns how many of each."""
    moments, last = [], at + of.ahead
    moment = at
    while moment < last:
        moments.append(moment)
        moment += timedelta(days=1)
    return {"made": len(make_for(of, [*moments, last])), "dropped": _drop_old(of, at=at)}


def _drop_old(of: Partitioned, *, at: datetime) -> int:
    # A piece goes once its last row is older than what is kept.
    oldest, *_ = of.bounds(at - of.keep)
    dropped = 0
    for name in pieces(of):
        if name >= oldest:
            break
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = '{PATIENCE}'")
                cursor.execute(f"DROP TABLE {name}")
                cursor.execute("SET LOCAL lock_timeout = DEFAULT")
        except OperationalError:
            log.warning("partition_in_use", name=name)
            break
        dropped += 1
    return dropped


def pieces(of: Partitioned) -> list[str]:
    """The names of the table's pieces, oldest first."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = %s::regclass ORDER BY 1",
            [of.table],
        )
        return [name for (name,) in cursor.fetchall()]

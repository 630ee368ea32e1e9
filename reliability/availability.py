"""What stands between a card and its next renter: a log of changes, from which uptime is counted.

``observe`` derives each card's state from the truth and appends a row where it is another one than before. It runs wherever
listings are refreshed: in the request that changes something, and in the sweep. Rows are never edited, so that nobody
undoes yesterday; a card is what its last row says, so that there is no gap.

The first state that applies, and what its declared time counts as:

    paused       an admin keeps the machine off the market                       nothing: excused
    failed       the card failed                                                 not available
    available    it runs a customer's work, whatever follows below               available
    gone         the host reports it no longer                                   not available for 24 hours, then nothing
    kept         its provider keeps it                                           not available for 24 hours, then nothing
    unadmitted   not in the catalogue, or not admitted                           nothing
    hidden       hidden by its provider ("hide now" stays declared time)         not available
    draining     takes no new work                                               not available
    hung         its driver hangs                                                not available
    delisted     below a floor other than that of uptime                         not available
    unmeasured   has to show again what it can do                                not available
    available    anything else                                                   available

The 24 hours are the notice that narrower hours have: nobody stops the clock by taking a card away. A degraded card that is
still on the market is available, and so is one while it is measured, or without a price. Time before a card was available
for the first time counts for nothing.

>>> hour = 3_600_000_000
>>> log = [(0, "unmeasured"), (hour, "available"), (5 * hour, "hidden"), (6 * hour, "available"), (8 * hour, "kept")]
>>> found = judged(log, first_run=None, until=40 * hour)
>>> found.since // hour, [(start // hour, end // hour) for start, end in found.blocked]
(1, [(0, 1), (5, 6), (8, 32)])
>>> [(start // hour, end // hour) for start, end in found.excused]
[(32, 40)]
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from providers.models import Machine
from reliability.models import Availability
from reliability.score import DAY, Stretch

State = Availability.State

NOTICE = DAY  # a card that was taken away stays declared for so long
WITHDRAWN = frozenset({State.KEPT, State.GONE})
EXCUSED = frozenset({State.UNADMITTED, State.PAUSED})

_OBSERVE = """
INSERT INTO reliability_availability (gpu_id, at, state)
SELECT gpu.id, %(at)s, seen.state
FROM providers_gpu gpu
JOIN providers_machine machine ON machine.id = gpu.machine_id
CROSS JOIN LATERAL (SELECT CASE
    WHEN machine.paused_at IS NOT NULL THEN 'paused'
    WHEN gpu.removed_at IS NULL AND gpu.health = 'fatal' THEN 'failed'
    WHEN EXISTS (
        SELECT FROM providers_gpuclaim claim
        WHERE claim.gpu_id = gpu.id AND claim.lane = 0 AND claim.kind = 'rental' AND claim.period @> %(at)s::timestamptz
    ) THEN 'available'
    WHEN gpu.removed_at IS NOT NULL THEN 'gone'
    WHEN NOT gpu.given THEN 'kept'
    WHEN NOT gpu.admitted OR gpu.variant_id IS NULL THEN 'unadmitted'
    WHEN machine.hidden_at IS NOT NULL THEN 'hidden'
    WHEN machine.draining THEN 'draining'
    WHEN machine.nvml = 'hung' THEN 'hung'
    WHEN gpu.delisted_at IS NOT NULL AND gpu.delisted_reason ->> 'code' IS DISTINCT FROM 'uptime' THEN 'delisted'
    WHEN gpu.benchmarked_at IS NULL THEN 'unmeasured'
    ELSE 'available' END AS state) seen
LEFT JOIN LATERAL (
    SELECT before.state, before.at FROM reliability_availability before
    WHERE before.gpu_id = gpu.id ORDER BY before.at DESC, before.id DESC LIMIT 1
) last ON true
WHERE machine.retired_at IS NULL
    AND (%(all)s OR machine.id = ANY(%(machines)s::bigint[]))
    AND last.state IS DISTINCT FROM seen.state
    AND (last.at IS NULL OR last.at <= %(at)s)
    AND NOT (last.state IS NULL AND seen.state = 'gone')
"""


def observe(*, at: datetime, machines: Iterable[Machine | int] | None = None) -> int:
    """Note what has changed on the cards of ``machines`` (or their keys; of all, if none are named). Returns how many rows."""
    keys = None if machines is None else [key if isinstance(key, int) else key.pk for key in machines]
    with connection.cursor() as cursor:
        cursor.execute(_OBSERVE, {"at": at, "all": keys is None, "machines": keys or []})
        return int(cursor.rowcount)


@dataclass(frozen=True, slots=True)
class Judged:
    """One card's log: since when it counts (None: not yet), and which stretches are not available, or excused."""

    since: int | None
    blocked: list[Stretch]
    excused: list[Stretch]


def judged(log: Sequence[tuple[int, str]], *, first_run: int | None, until: int) -> Judged:
    """What a card's ``log``, in order, says up to ``until``. ``first_run``: when its first benchmark was accepted.

    A card whose first run is older than its log was there before there was a log, and is taken as available until it begins.
    """
    known = [(at, state) for at, state in log if at < until]
    since = first_run if first_run is not None and (not known or first_run < known[0][0]) else None
    if since is None:
        since = next((at for at, state in known if state == State.AVAILABLE), None)
    blocked: list[Stretch] = []
    excused: list[Stretch] = []
    for (at, state), end in zip(known, [*(at for at, _state in known[1:]), until], strict=False):
        if state == State.AVAILABLE:
            continue
        if state in EXCUSED:
            excused.append((at, end))
        elif state in WITHDRAWN:
            blocked.append((at, min(end, at + NOTICE)))
            excused.append((min(end, at + NOTICE), end))
        else:
            blocked.append((at, end))
    return Judged(
        since, [span for span in blocked if span[0] < span[1]], [span for span in excused if span[0] < span[1]]
    )

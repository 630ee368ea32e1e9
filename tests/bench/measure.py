"""What a measurement is, and how it is taken: next to a peer, in the same call, on the same database."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from django.db import connection
from django.test.utils import CaptureQueriesContext


@dataclass(frozen=True)
class Measured:
    """A figure beside its peer's. ``ratio`` is value over peer's value; the target bounds it, the value, or both, and says so.

    ``ok`` is None where the peer could not be had: then there is nothing to hold the figure against.
    """

    name: str
    value: float
    unit: str
    peer: str
    peer_value: float | None
    ratio: float | None
    target: str
    ok: bool | None

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


type Bench = Callable[..., Iterator[Measured]]
# group -> its measurements; the keyword arguments of each are its sizes.
GROUPS: dict[str, list[Bench]] = {}


def bench(group: str) -> Callable[[Bench], Bench]:
    def register(function: Bench) -> Bench:
        GROUPS.setdefault(group, []).append(function)
        return function

    return register


def lasts(
    name: str, seconds: float, *, peer: str, peer_seconds: float, at_most: float, within: float | None = None
) -> Measured:
    """A duration: good if it is at most so many times the peer's, and ``within`` so many seconds if that is given."""
    ratio = seconds / peer_seconds
    return Measured(
        name,
        _short(seconds * 1000),
        "ms",
        peer,
        _short(peer_seconds * 1000),
        _short(ratio),
        f"ratio <= {at_most:g}" + (f" and within {within:g} s" if within else ""),
        ratio <= at_most and (within is None or seconds <= within),
    )


def passes(
    name: str,
    a_second: float,
    unit: str,
    *,
    peer: str,
    peer_a_second: float | None,
    at_least: float,
    floor: float | None = None,
) -> Measured:
    """A throughput: good if it is at least such a share of the peer's, and not below ``floor`` if that is given."""
    target = f"ratio >= {at_least:g}" + (f" and >= {floor:g} {unit}" if floor else "")
    if peer_a_second is None:
        return Measured(name, _short(a_second), unit, peer, None, None, target, None)
    ratio = a_second / peer_a_second
    return Measured(
        name,
        _short(a_second),
        unit,
        peer,
        _short(peer_a_second),
        _short(ratio),
        target,
        ratio >= at_least and (floor is None or a_second >= floor),
    )


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def seconds_of(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def median_seconds(act: Callable[[], object], *, times: int = 9) -> float:
    """Of several runs, after one that warms up."""
    act()
    return statistics.median(seconds_of(act) for _ in range(times))


def queries_alone(act: Callable[[], object]) -> Callable[[], None]:
    """The SQL that ``act`` sends, to be sent again by itself and its rows fetched: what the database alone takes for it."""
    with CaptureQueriesContext(connection) as seen:
        act()
    statements = [query["sql"] for query in seen if query["sql"].lstrip().startswith(("SELECT", "WITH"))]

    def send() -> None:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.cursor.execute(statement)
                cursor.fetchall()

    return send


@contextmanager
def undone() -> Iterator[None]:
    """What happens inside is rolled back, so that the next run finds the same rows."""
    from django.db import transaction

    with transaction.atomic():
        yield
        transaction.set_rollback(True)

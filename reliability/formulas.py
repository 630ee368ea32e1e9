"""Versions of the formula: one counts, newer ones run in its shadow until an admin lets them count.

A new version is a module of its own with ``of_machine``; the old one stays, so that what was stored by it can be computed
again. From its deployment on it is computed and stored beside the one that counts, and nobody's listing, page or rank
reads it (``Score.objects.counting``). ``differences`` shows an admin what it would change; ``switch`` lets it count, from
that moment on, with a reason; switching back works the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db import connection, transaction
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import User
from gpunex.kit.refusals import Refusal
from reliability import score, score_1
from reliability.models import FIRST_COUNTING, FormulaSwitch
from reliability.score import Parts, Past

FORMULAS: Mapping[int, Callable[[Past], Parts]] = {1: score_1.of_machine, 2: score.of_machine}
WEIGHTS = {
    "uptime": score.UPTIME,
    "completion": score.COMPLETION,
    "consistency": score.CONSISTENCY,
}  # of all versions so far
WHOLE = frozenset({1})  # versions that take the machine as a whole


class NoSuchVersion(Refusal):
    code = "no_such_version"
    message = _("There is no such version of the formula. There are: %(versions)s.")


class CountsAlready(Refusal):
    code = "counts_already"
    message = _("This version counts already.")


class ReasonMissing(Refusal):
    code = "reason_missing"
    message = _("Say why this version is to count: it is kept with the change.")


def counting(at: datetime) -> int:
    """The version that counts at ``at``."""
    last = FormulaSwitch.objects.filter(at__lte=at).order_by("-at", "-pk").first()
    return last.version if last else FIRST_COUNTING


def running(at: datetime) -> list[int]:
    """The versions that are computed at ``at``: the one that counts, first, and the newer ones in its shadow."""
    now = counting(at)
    return [now, *sorted(version for version in FORMULAS if version > now)]


@transaction.atomic
def switch(*, version: int, by: User | None, reason: str, at: datetime) -> FormulaSwitch:
    """Let ``version`` count from ``at`` on. Raises NoSuchVersion, CountsAlready, ReasonMissing."""
    with connection.cursor() as cursor:  # two admins at once: the second one sees what the first did
        cursor.execute("LOCK TABLE reliability_formulaswitch IN SHARE ROW EXCLUSIVE MODE")
    check(version=version, reason=reason, at=at)
    return FormulaSwitch.objects.create(version=version, by=by, reason=" ".join(reason.split())[:300], at=at)


def check(*, version: int, reason: str, at: datetime) -> None:
    """Raises what ``switch`` would."""
    if version not in FORMULAS:
        raise NoSuchVersion(versions=", ".join(map(str, sorted(FORMULAS))))
    if not reason.split():
        raise ReasonMissing
    if counting(at) == version:
        raise CountsAlready


@dataclass(frozen=True, slots=True)
class Difference:
    """One machine's score by two versions, both of the same moment."""

    machine: int
    name: str
    counting: float
    shadow: float

    @property
    def change(self) -> float:
        return self.shadow - self.counting


@dataclass(frozen=True, slots=True)
class Differences:
    """Two versions side by side: how many machines have both, the mean change, and the machines that change most."""

    machines: int
    mean: float
    up: int
    down: int
    most: list[Difference]


def differences(*, counting: int, shadow: int, most: int = 20) -> Differences:
    """What would change for each machine if ``shadow`` counted, by the newest scores that both have. Alike: within 0.005."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH pairs AS (
                SELECT machine.id, machine.name, one.score AS counting, other.score AS shadow
                FROM providers_machine machine
                CROSS JOIN LATERAL (
                    SELECT at, score FROM reliability_score
                    WHERE machine_id = machine.id AND version = %(shadow)s ORDER BY at DESC LIMIT 1
                ) other
                JOIN reliability_score one ON one.machine_id = machine.id AND one.version = %(counting)s AND one.at = other.at
                WHERE machine.retired_at IS NULL
            ), total AS (
                SELECT count(*), coalesce(avg(shadow - counting), 0),
                    count(*) FILTER (WHERE shadow - counting >= 0.005), count(*) FILTER (WHERE counting - shadow >= 0.005)
                FROM pairs
            )
            SELECT total.*, pairs.* FROM total LEFT JOIN LATERAL (
                SELECT * FROM pairs ORDER BY abs(shadow - counting) DESC, id LIMIT %(most)s
            ) pairs ON true
            """,
            {"counting": counting, "shadow": shadow, "most": most},
        )
        rows = cursor.fetchall()
    machines, mean, up, down = rows[0][:4]
    return Differences(machines, float(mean), up, down, [Difference(*row[4:]) for row in rows if row[4] is not None])

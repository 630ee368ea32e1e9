"""Places where a worker may die between two lines of the payout path, by name, so that a test can kill one at each.

Nothing happens at them unless a test arms one. ``NAMES`` lists all of them, about in the order in which a payout passes: the first
ones by whoever makes a run, then by whoever pays it, the last ones where it does not go through.
"""

from collections.abc import Callable

MAKING = (
    "a run was opened",
    "debts were recovered",
    "the statement was issued",
    "before reserving is committed",
    "reserved and committed",
    "before clearing is committed",
    "the run was cleared",
)
PAYING = (
    "before signing is committed",
    "signed and committed",
    "sent",
    "the sending was recorded",
    "seen as final",
    "before paid is committed",
    "paid and committed",
)
# The money of a return is set aside by "before reserving is committed" as well.
NOT_PAYING = (
    "proven dead",
    "before dead is committed",
    "before giving back is committed",
    "before holding is committed",
)
NAMES = (*MAKING, *PAYING, *NOT_PAYING)

_armed: Callable[[str], None] | None = None


def arm(hook: Callable[[str], None] | None) -> None:
    """``hook`` gets each name as it is passed, and may raise."""
    global _armed  # noqa: PLW0603
    _armed = hook


def passing(name: str) -> None:
    if _armed is not None:
        _armed(name)

"""Places where a worker may die between two lines of the payout path, by name, so that a test can kill one at each.

Nothing happens at them unless a test arms one. ``NAMES`` lists all of them in the order in which a payout passes.
"""

from collections.abc import Callable

NAMES = (
    "before reserving is committed",
    "before signing is committed",
    "signed and committed",
    "sent",
    "before paid is committed",
    "paid and committed",
)

_armed: Callable[[str], None] | None = None


def arm(hook: Callable[[str], None] | None) -> None:
    """``hook`` gets each name as it is passed, and may raise."""
    global _armed  # noqa: PLW0603
    _armed = hook


def passing(name: str) -> None:
    if _armed is not None:
        _armed(name)

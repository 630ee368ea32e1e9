"""The numbers that tests refer to: requirements of the specification, and failures of real systems.

``pytest --ids`` lists each with its tests, and the requirements that no test names.
"""

import re
from collections import defaultdict
from collections.abc import Iterable

import pytest

_LAST = {
    "A": (0, 9),
    "B": (1, 6),
    "C": (1, 4),
    "D": (1, 4),
    "E": (1, 3),
    "F": (1, 3),
    "G": (1, 3),
    "H": (1, 3),
    "I": (1, 4),
    "J": (1, 1),
}
SPEC_IDS = (*(f"{part}{number}" for part, (first, last) in _LAST.items() for number in range(first, last + 1)), "K")
# What failed elsewhere is numbered per subject, as in "money-F8", "agent-12", "marketplace-3".
CASE_ID = re.compile(r"money-F\d+|agent-\d+|marketplace-\d+")


def ids_of(item: pytest.Item, marker: str) -> list[str]:
    return [str(name) for mark in item.iter_markers(marker) for name in mark.args]


def refuse_unknown(items: Iterable[pytest.Item]) -> None:
    """A misspelt number would count for nothing. Raises UsageError with each of them."""
    unknown = [
        f"{item.nodeid}: {name}"
        for item in items
        for marker, known in (("spec", SPEC_IDS.__contains__), ("case", CASE_ID.fullmatch))
        for name in ids_of(item, marker)
        if not known(name)
    ]
    if unknown:
        raise pytest.UsageError("unknown spec or case ids:\n  " + "\n  ".join(unknown))


def listing(items: Iterable[pytest.Item]) -> list[str]:
    """Lines of the report."""
    tests: dict[str, list[str]] = defaultdict(list)
    for item in items:
        for marker in ("spec", "case"):
            for name in ids_of(item, marker):
                tests[name].append(item.nodeid)
    lines = []
    for name in (*SPEC_IDS, *sorted(set(tests) - set(SPEC_IDS), key=_natural)):
        if tests.get(name):
            lines += [name, *(f"    {test}" for test in tests[name])]
    missing = [name for name in SPEC_IDS if not tests.get(name)]
    lines.append(f"{len(SPEC_IDS) - len(missing)} of {len(SPEC_IDS)} requirements have a test")
    if missing:
        lines.append("none names: " + ", ".join(missing))
    return lines


def _natural(name: str) -> list[str | int]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]

"""The floor of software versions: driver (by its CUDA version), Docker, NVIDIA Container Toolkit and runc.

Versions are compared number by number; what follows the numbers (a distribution's suffix) does not count. runc has one least
version for each release line: a line that is newer than all of them passes, one that is older passes nothing. A
distribution that carried the fixes back into an older runc is on the policy's list of accepted versions. A version that
the host does not report, or that cannot be read, misses nothing.

>>> version("28.5.1-0ubuntu1~24.04"), version("v1.17.8"), version("unknown")
((28, 5, 1), (1, 17, 8), None)
>>> [runc_passes(text, "1.2.8 1.3.3") for text in ("1.2.8", "1.2.7", "1.3.2", "1.3.3", "1.4.0-rc.1", "1.1.15")]
[True, False, False, True, True, False]
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from gpunex.policy.models import Policy
from providers.models import Machine

TEXTS: dict[str, str | Promise] = {
    "cuda": _("The driver is of CUDA %(have)s; %(needed)s or newer is needed."),
    "docker": _("Docker is %(have)s; %(needed)s or newer is needed."),
    "toolkit": _("The NVIDIA Container Toolkit is %(have)s; %(needed)s or newer is needed."),
    "runc": _("runc is %(have)s; %(needed)s or newer is needed."),
}


@dataclass(frozen=True)
class Outdated:
    """One version that is too old, as the host names it."""

    code: str
    have: str
    needed: str

    def __str__(self) -> str:
        return str(TEXTS[self.code]) % {"have": self.have, "needed": self.needed}


def outdated(machine: Machine, policy: Policy) -> list[Outdated]:
    """The versions of ``machine`` that are below the floor."""
    host: Mapping[str, object] = machine.host or {}
    docker, toolkit, runc = (str(host.get(f"{name}_version") or "") for name in ("docker", "toolkit", "runc"))
    found = []
    for code, have, needed in (
        ("cuda", machine.cuda_version, policy.cuda_least),
        ("docker", docker, policy.docker_least),
        ("toolkit", toolkit, policy.toolkit_least),
    ):
        if older(have, needed):
            found.append(Outdated(code, have, needed))
    if runc and runc not in policy.runc_accepted and not runc_passes(runc, policy.runc_least):
        found.append(Outdated("runc", runc, " / ".join(policy.runc_least.split())))
    return found


def version(text: str) -> tuple[int, ...] | None:
    """The numbers that a version begins with; None where it begins with none."""
    match = re.match(r"\s*v?(\d{1,6}(?:\.\d{1,6}){0,5})", text or "")
    return tuple(int(part) for part in match.group(1).split(".")) if match else None


def older(have: str, needed: str) -> bool:
    """Whether ``have`` is older than ``needed``; an unknown version is not.

    >>> older("25.0.3", "25"), older("24.0.9", "25"), older("13.0", "12.4"), older("", "25")
    (False, True, False, False)
    """
    one, other = version(have), version(needed)
    if one is None or other is None:
        return False
    return one < other


def runc_passes(have: str, least: str) -> bool:
    """Whether a runc is at least the least version of its release line, or of a newer line."""
    found = version(have)
    lines: Sequence[tuple[int, ...]] = [line for line in map(version, least.split()) if line is not None]
    if found is None or not lines:
        return True
    own = next((line for line in lines if line[:2] == found[:2]), None)
    return found >= own if own is not None else found > max(lines)

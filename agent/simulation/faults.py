"""Failures on order: ``GPUNEX_SIM_FAULT=gpu_lost@30,oom@5``. Each is a word and the second of a job's life at which it strikes.

``gpu_lost``: the first card of the job falls off the bus. ``oom``: the job runs out of memory. ``start``: the engine cannot
start containers. ``docker``: the engine does not answer. ``nvml``: the driver hangs. The last three need no second.
"""

from __future__ import annotations

KNOWN = frozenset({"gpu_lost", "oom", "start", "docker", "nvml"})


class UnknownFault(ValueError):
    """No such failure can be simulated."""


def parse_faults(text: str) -> dict[str, float]:
    """
    >>> parse_faults("gpu_lost@30, oom@2.5, docker")
    {'gpu_lost': 30.0, 'oom': 2.5, 'docker': 0.0}
    """
    faults: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        word, _, second = part.partition("@")
        try:
            after_s = float(second or 0)
        except ValueError:
            raise UnknownFault(f"{second!r} is not a number of seconds") from None
        if word not in KNOWN:
            raise UnknownFault(f"{word!r} cannot be simulated; known are {', '.join(sorted(KNOWN))}")
        faults[word] = after_s
    return faults

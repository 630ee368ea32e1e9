"""The machine around simulated cards: sized as such machines are, the same for the same seed, and named as simulated."""

from __future__ import annotations

import random
from dataclasses import replace

from agent.host import HostFacts
from agent.simulation.profiles import Card


def simulated_facts(facts: HostFacts, *, card: Card, count: int, seed: str) -> HostFacts:
    """The real host's facts with the size of a machine that carries such cards."""
    rng = random.Random(f"host:{seed}")
    small = not card.ecc or card.power_limit_w < 100
    cores = count * (12 if small else 24)
    disk_gib = float(rng.choice((953, 1907, 3814)) if small else rng.choice((3576, 7153, 14306)))
    return replace(
        facts,
        os="Ubuntu 24.04.3 LTS (simulated)",
        kernel="6.8.0-85-generic",
        arch="x86_64",
        cpu_model="AMD Ryzen 9 7950X" if small else "AMD EPYC 9554",
        cpu_cores=cores,
        memory_mib=1024 * max(64 if small else 256, count * (48 if small else 128)),
        disk_total_gib=disk_gib,
        disk_free_gib=round(disk_gib * rng.uniform(0.7, 0.9), 1),
    )

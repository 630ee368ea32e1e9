"""Real cards, as NVML describes them, with the vendor's figures. Dense rates; tensor is FP16 with FP32 accumulation."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """A model of card. Rates in TFLOPS, bandwidth in GB/s, clocks in MHz, power in watts, memory in MiB as NVML has it."""

    name: str
    vram_mib: int
    compute_capability: str
    cores: int
    memory_bus_bits: int
    max_sm_clock_mhz: int
    max_memory_clock_mhz: int
    power_limit_w: int
    pcie_generation: int
    fp32_tflops: float
    fp16_tflops: float
    tensor_tflops: float
    vram_gbps: float
    idle_power_w: float
    fan: bool = False
    ecc: bool = True


CARDS = {
    "h100-sxm": Card(
        "NVIDIA H100 80GB HBM3", 81559, "9.0", 16896, 5120, 1980, 2619, 700, 5, 67.0, 133.8, 989.4, 3350, 68
    ),
    "h100-pcie": Card("NVIDIA H100 PCIe", 81559, "9.0", 14592, 5120, 1755, 1593, 350, 5, 51.0, 102.0, 756.0, 2000, 48),
    "a100-40": Card("NVIDIA A100-SXM4-40GB", 40960, "8.0", 6912, 5120, 1410, 1215, 400, 4, 19.5, 78.0, 312.0, 1555, 52),
    "a100-80": Card("NVIDIA A100-SXM4-80GB", 81920, "8.0", 6912, 5120, 1410, 1593, 400, 4, 19.5, 78.0, 312.0, 2039, 60),
    "l40s": Card("NVIDIA L40S", 46068, "8.9", 18176, 384, 2520, 9001, 350, 4, 91.6, 91.6, 362.05, 864, 36),
    "l4": Card("NVIDIA L4", 23034, "8.9", 7424, 192, 2040, 6251, 72, 4, 30.3, 30.3, 121.0, 300, 13),
    "rtx4090": Card(
        "NVIDIA GeForce RTX 4090",
        24564,
        "8.9",
        16384,
        384,
        3120,
        10501,
        450,
        4,
        82.6,
        82.6,
        165.2,
        1008,
        22,
        fan=True,
        ecc=False,
    ),
    "a6000": Card(
        "NVIDIA RTX A6000",
        49140,
        "8.6",
        10752,
        384,
        2100,
        8001,
        300,
        4,
        38.7,
        38.7,
        154.8,
        768,
        24,
        fan=True,
        ecc=False,
    ),
}
HOPPER_MMA_SHARE = 0.62  # of the tensor peak: `mma.sync` cannot feed Hopper's tensor cores, only `wgmma` can


class UnknownProfile(ValueError):
    """No card of that name can be simulated."""


def parse_profile(text: str) -> tuple[Card, int]:
    """``rtx4090x2``, ``h100-sxm x8``, ``l4``: the card and how many.

    >>> card, count = parse_profile("h100-sxm x8")
    >>> card.name, count
    ('NVIDIA H100 80GB HBM3', 8)
    """
    match = re.fullmatch(r"\s*([a-z0-9-]+?)\s*(?:[x*]\s*(\d{1,2}))?\s*", text.lower())
    card = CARDS.get(match.group(1)) if match else None
    if match is None or card is None:
        raise UnknownProfile(
            f"{text!r} cannot be simulated; the cards are {', '.join(CARDS)}, each with a count, as in rtx4090x2"
        )
    count = int(match.group(2) or 1)
    if not 1 <= count <= 16:
        raise UnknownProfile(f"{count} cards cannot be simulated; 1 to 16 can")
    return card, count
